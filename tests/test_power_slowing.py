"""A device that slows down in mid-probe without telling, against noise that does no such thing."""

from __future__ import annotations

import numpy as np
import pytest

from specedge.power import throttled_by_times
from specedge.power.slowing import _ranks, _thinned

SERIES = 1000


def times(rng, count: int, noise: float, steps: np.ndarray) -> list[tuple[float, float]]:
    """20 ms, times noise, 5 % of the readings tripled; and `steps`."""
    ms = 20 * np.exp(rng.normal(0, noise, count)) * steps
    ms[rng.random(count) < 0.05] *= 3
    return [(float(second), float(each)) for second, each in enumerate(ms)]


def share_found(count: int, noise: float, steps: np.ndarray) -> float:
    rng = np.random.default_rng(11)
    found = [throttled_by_times(times(rng, count, noise, steps)) for _ in range(SERIES)]
    return sum(each is not None for each in found) / SERIES


def step(count: int, factor: float = 1.25) -> np.ndarray:
    return np.where(np.arange(count) < count // 2, 1.0, factor)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("count", [10, 20, 60])
def test_noise_alone_raises_an_alarm_in_less_than_one_of_a_hundred(count, noise):
    assert share_found(count, noise, np.ones(count)) < 0.01


@pytest.mark.parametrize(
    ("count", "noise", "power"),
    [(10, 0.03, 0.95), (10, 0.05, 0.92), (20, 0.05, 0.96), (20, 0.1, 0.82), (40, 0.1, 0.98)],
)
def test_a_quarter_slower_in_the_second_half_is_found(count, noise, power):
    assert share_found(count, noise, step(count)) >= power


def test_a_ramp_is_found_as_a_step_is():
    assert share_found(20, 0.05, np.linspace(1, 1.4, 20)) >= 0.95


@pytest.mark.parametrize(
    "steps",
    [
        step(40, 0.7),  # faster
        step(40, 1.04),  # hardly slower
        np.r_[3.0, 2.0, 1.5, np.ones(37)],  # a start that had to warm up
    ],
)
def test_what_is_no_slowing_is_not_called_so(steps):
    assert share_found(40, 0.02, steps) == 0


def test_the_line_says_how_much_slower_and_when():
    series = [(5.0 + n, 20.0 if n < 12 else 30.0) for n in range(24)]
    said = throttled_by_times(series)
    assert said == "the same step went from 20 to 30 ms (1.50x) 17 s into the probe"
    assert throttled_by_times(series[::-1]) == said


@pytest.mark.parametrize(
    "series",
    [
        [],
        [(0.0, 1.0)] * 50,
        [(float(n), 20.0 if n < 5 else 40.0) for n in range(9)],  # one reading too few
        [(float(n), 5.0) for n in range(500)],
        [(float(n), value) for n in range(9) for value in (float("nan"), float("inf"), 0.0, -1.0)],
    ],
)
def test_too_little_or_nothing_sensible_is_no_slowing(series):
    assert throttled_by_times(series) is None


def test_readings_that_make_no_sense_are_left_out():
    series = [(float(n), 20.0 if n < 10 else 30.0) for n in range(20)]
    nonsense = [(3.0, float("nan")), (4.0, -1.0), (float("inf"), 5.0), (float("nan"), 5.0)]
    assert throttled_by_times(series + nonsense) == throttled_by_times(series)


def test_equal_readings_share_the_mean_of_their_ranks():
    assert _ranks(np.array([3.0, 1.0, 3.0, 2.0, 3.0])).tolist() == [3, 0, 3, 1, 3]


def test_thousands_of_readings_are_looked_at_as_some_hundred():
    rng = np.random.default_rng(2)
    series = times(rng, 5000, 0.1, step(5000))
    assert len(_thinned(series)) == 100
    assert throttled_by_times(series) is not None
    assert throttled_by_times(times(rng, 5000, 0.1, np.ones(5000))) is None

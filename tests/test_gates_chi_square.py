"""Pearson's test and its stated power, against tables and simulation."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from specedge.gates.chi_square import FEWEST, Fit, caught, limit, pearson, tail
from specedge.sampling.law import Floats

ALARM, POWER = 3e-5, 0.99

# from printed tables of chi-square: freedom, quantile, probability above it
TABLE = [
    (1, 3.841459, 0.05),
    (2, 5.991465, 0.05),
    (3, 11.344867, 0.01),
    (5, 20.515006, 0.001),
    (10, 18.307038, 0.05),
    (20, 45.314747, 0.001),
    (50, 76.153891, 0.01),
]

LAWS = {
    "two tokens": np.array([0.7, 0.3]),
    "falling": np.array([0.5, 0.25, 0.12, 0.07, 0.04, 0.02]),
    "flat": np.full(30, 1 / 30),
    "a long tail": np.append(np.full(8, 0.1), np.full(2000, 0.2 / 2000)),
}


def drawn(law: Floats, n: int, rng: np.random.Generator) -> Counter[int]:
    return Counter(rng.choice(len(law), n, p=law).tolist())


def leaning_both_ways(law: Floats, bias: float) -> Floats:
    """Total variation `bias`, the hardest to see: up by one share in half of the mass, down by
    another in the rest."""
    up = np.zeros(len(law), bool)
    mass = 0.0
    for place, chance in enumerate(law):
        if mass + chance <= 0.5:
            up[place] = True
            mass += chance
    return law * np.where(up, 1 + bias / mass, 1 - bias / (1 - mass))


@pytest.mark.parametrize(("freedom", "x", "above"), TABLE)
def test_tails_are_those_of_the_tables(freedom, x, above):
    assert tail(freedom, x) == pytest.approx(above, rel=1e-5)
    assert limit(freedom, above) == pytest.approx(x, rel=1e-5)


@pytest.mark.parametrize("freedom", [1, 2, 7, 40])
def test_far_tails_are_the_integral_of_the_density(freedom):
    x = limit(freedom, 1e-6)
    grid = np.linspace(x, x + 120, 200_001)
    half = freedom / 2
    density = np.exp((half - 1) * np.log(grid) - grid / 2 - half * math.log(2) - math.lgamma(half))
    assert np.trapezoid(density, grid) == pytest.approx(1e-6, rel=1e-4)


@pytest.mark.parametrize(("freedom", "noncentrality", "x"), [(1, 9.0, 4.0), (12, 30.0, 40.0)])
def test_noncentral_tails_are_those_of_a_simulation(freedom, noncentrality, x):
    draws = np.random.default_rng(1).noncentral_chisquare(freedom, noncentrality, 200_000)
    assert caught(freedom, noncentrality, x) == pytest.approx((draws > x).mean(), abs=0.004)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_p_values_of_draws_from_the_law_are_uniform(law):
    rng = np.random.default_rng(2)
    p_values = sorted(pearson(drawn(law, 2000, rng), law)[0].p_value for _ in range(200))
    gaps = [abs(p - (place + 0.5) / 200) for place, p in enumerate(p_values)]
    assert max(gaps) < 0.12  # Kolmogorov's limit for 200 values at 0.5 %


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_a_bias_of_the_stated_size_is_caught_with_the_stated_power(law):
    rng = np.random.default_rng(3)
    bias = pearson(drawn(law, 4000, rng), law)[0].smallest_bias(ALARM, POWER)
    wrong = leaning_both_ways(law, bias)
    assert abs(wrong - law).sum() / 2 == pytest.approx(bias)
    found = sum(pearson(drawn(wrong, 4000, rng), law)[0].p_value <= ALARM for _ in range(200))
    assert found >= 194


def test_half_the_stated_bias_is_often_missed():
    rng = np.random.default_rng(4)
    law = LAWS["flat"]
    bias = pearson(drawn(law, 4000, rng), law)[0].smallest_bias(ALARM, POWER)
    wrong = leaning_both_ways(law, bias / 2)
    found = sum(pearson(drawn(wrong, 4000, rng), law)[0].p_value <= ALARM for _ in range(100))
    assert found < 50


def test_a_shift_of_the_stated_size_is_caught_with_the_stated_power():
    rng = np.random.default_rng(5)
    law = LAWS["falling"]
    fit = pearson(drawn(law, 4000, rng), law)[0]
    shift = fit.smallest_shift(ALARM, POWER)
    assert shift < fit.smallest_bias(ALARM, POWER)
    wrong = law + np.array([-shift, shift, 0, 0, 0, 0])
    found = sum(pearson(drawn(wrong, 4000, rng), law)[0].p_value <= ALARM for _ in range(200))
    assert found >= 194


def test_fits_of_several_contexts_keep_their_power_together():
    rng = np.random.default_rng(6)
    laws = [np.array([0.6, 0.3, 0.1]), np.array([0.5, 0.5]), LAWS["falling"]]

    def both(bias: float) -> Fit:
        fits = [pearson(drawn(leaning_both_ways(law, bias), 1000, rng), law)[0] for law in laws]
        return fits[0] + fits[1] + fits[2]

    bias = both(0.0).smallest_bias(ALARM, POWER)
    assert both(0.0).freedom == 2 + 1 + 4
    assert both(0.0).draws == 3000
    assert sum(both(bias).p_value <= ALARM for _ in range(100)) >= 97


def test_every_cell_is_expected_often_enough():
    law = LAWS["a long tail"]
    counts = drawn(law, 500, np.random.default_rng(7))
    fit, oddity = pearson(counts, law)
    assert oddity is not None
    assert oddity.expected >= FEWEST
    assert fit.freedom == 8 + 4 - 1  # the rare ones hold 100 draws: four cells


def test_a_token_that_cannot_be_is_enough():
    fit, oddity = pearson(Counter({0: 1000, 2: 1}), np.array([0.5, 0.5, 0.0]))
    assert fit.p_value == 0.0
    assert oddity is not None
    assert oddity.token == 2


def test_one_certain_token_says_nothing():
    fit, oddity = pearson(Counter({1: 1000}), np.array([0.0, 1.0]))
    assert (fit, oddity, fit.p_value) == (Fit(), None, 1.0)
    assert fit.smallest_bias(ALARM, POWER) == fit.smallest_shift(ALARM, POWER) == 1.0


def test_the_oddest_token_is_named():
    fit, oddity = pearson(Counter({0: 500, 1: 200, 2: 300}), np.array([0.5, 0.3, 0.2]))
    assert oddity is not None
    assert (oddity.token, oddity.observed, oddity.expected) == (2, 300, pytest.approx(200))
    assert fit.p_value < 1e-12

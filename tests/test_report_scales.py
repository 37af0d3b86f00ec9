"""Where things stand in a chart: ticks that can be read, labels that do not overlap."""

from __future__ import annotations

from itertools import pairwise
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.report.scales import Scale, apart, ratio_ticks, round_ticks, thinned

PIXELS = st.floats(0, 200)


@given(st.lists(PIXELS, max_size=6))
def test_labels_keep_their_order_and_distance_and_stay_inside(wanted):
    placed = apart(wanted, 15, 0, 200)
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    heights = [placed[index] for index in order]
    assert all(under - over >= 15 - 1e-9 for over, under in pairwise(heights))
    assert all(-1e-9 <= height <= 200 + 1e-9 for height in heights)


def test_labels_with_room_stand_where_they_are_wanted():
    assert apart([100, 20, 60], 15, 0, 200) == [100, 20, 60]


@given(st.floats(1e-3, 1e6))
def test_rounded_ticks_start_at_zero_and_just_cover_the_highest(high):
    ticks = round_ticks(high)
    step = ticks[1]
    assert ticks[0] == 0
    assert high <= ticks[-1] * (1 + 1e-6)
    assert ticks[-1] - step < high
    assert 2 <= len(ticks) <= 7
    digits = f"{step:.6e}"
    assert digits.startswith(("1.000000", "2.000000", "5.000000"))


@given(st.floats(0.001, 1), st.floats(1.1, 900))
def test_ratio_ticks_are_inside_few_and_hold_one(low, high):
    ticks = ratio_ticks(low, high)
    assert 1 in ticks
    assert len(ticks) <= 7
    assert all(low <= tick <= high for tick in ticks)
    gaps = [log(above / below) for below, above in pairwise(ticks)]
    assert all(gap >= log(high / low) / 12 for gap in gaps)


@given(st.lists(st.integers(0, 300), unique=True, max_size=40))
def test_thinned_ticks_are_apart_and_keep_both_ends(places):
    ticks = [(place, float(place)) for place in sorted(places)]
    kept = thinned(ticks, 20)
    assert set(kept) <= set(ticks)
    assert kept[:1] == ticks[:1]
    assert kept[-1:] == ticks[-1:]
    inner = [right[1] - left[1] for left, right in pairwise(kept)]
    assert len(kept) <= 2 or all(gap >= 20 for gap in inner)


@pytest.mark.parametrize(
    ("value", "linear", "logarithmic"),
    [(1, 100, 100), (10, 90, 50), (91, 0, 2.05), (181, -100, -12.88)],
)
def test_a_scale_goes_from_start_to_end_and_beyond(value, linear, logarithmic):
    assert Scale(1, 91, 100, 0)(value) == pytest.approx(linear)
    assert Scale(1, 100, 100, 0, logarithmic=True)(value) == pytest.approx(logarithmic, abs=0.01)

"""Looking costs up, and measuring them with an engine and a clock that are known."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from pydantic import ValidationError

from specedge.engines.fake import FakeEngine, fake_spec
from specedge.errors import EngineError, OptionError, ProbeError, ShapeError
from specedge.probe.curves import CostCurves, Curve, Point
from specedge.probe.measuring import (
    MOST_PASSES,
    backlog_widths,
    buckets,
    measure,
    target_widths,
)


class FakeClock:
    """Seconds that pass only when an engine works."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class TimedEngine(FakeEngine):
    """A call takes `cost(width, past, number of the call)` milliseconds of a fake clock."""

    def __init__(
        self,
        clock: FakeClock,
        cost: Callable[[int, int, int], float],
        *,
        role: str = "target",
        context: int = 64,
        max_verify: int = 16,
        width_step: int = 1,
        prefill_chunk: int = 64,
        **given: object,
    ) -> None:
        spec = fake_spec(8, context, role=role, max_verify=max_verify)  # type: ignore[arg-type]
        super().__init__(spec, lambda seen: 0, prefill_chunk=prefill_chunk, **given)  # type: ignore[arg-type]
        self.width_step = width_step
        self._clock = clock
        self._cost = cost

    def forward(self, slot, tokens, n_cached, rows):
        scored = super().forward(slot, tokens, n_cached, rows)
        padded = -(-len(tokens) // self.width_step) * self.width_step
        self._clock.seconds += self._cost(padded, n_cached, len(self.calls)) / 1e3
        return scored


def staircase(width: int, past: int, call: int) -> float:
    """Steps of four tokens, and a little for every row."""
    return 8.0 + 3.0 * -(-width // 4) + past / 16


def point(width: int, past: int, ms: float) -> Point:
    return Point(width=width, past=past, count=1, ms=ms, low_ms=ms, high_ms=ms)


def curve(costs: dict[tuple[int, int], float], role: str = "target") -> Curve:
    points = tuple(point(width, past, ms) for (width, past), ms in costs.items())
    return Curve(role=role, width_step=1, points=points)  # type: ignore[arg-type]


STEPS = {(1, 8): 10.0, (4, 8): 12.0, (8, 8): 30.0, (1, 40): 20.0, (4, 40): 28.0, (8, 40): 50.0}


def test_a_width_that_was_not_measured_costs_what_the_next_wider_one_costs():
    steps = curve(STEPS)
    got = [steps.cost_ms(n, 8) for n in range(1, 9)]
    assert got == [10.0, 12.0, 12.0, 12.0, 30.0, 30.0, 30.0, 30.0]


@pytest.mark.parametrize(
    ("past", "ms"), [(0, 12.0), (8, 12.0), (24, 20.0), (36, 26.0), (40, 28.0), (999, 28.0)]
)
def test_between_pasts_it_is_a_straight_line_and_beyond_them_level(past, ms):
    assert curve(STEPS).cost_ms(3, past) == pytest.approx(ms)


@pytest.mark.parametrize(("n", "past"), [(0, 8), (-1, 8), (9, 8), (1, -1)])
def test_a_width_or_past_outside_the_curve_is_refused(n, past):
    with pytest.raises(ShapeError, match="expected"):
        curve(STEPS).cost_ms(n, past)


def test_a_backlog_wider_than_every_width_is_charged_in_chunks():
    steps = curve(STEPS)
    assert steps.feed_ms(0, 8) == 0.0
    assert steps.feed_ms(8, 8) == 30.0
    chunks = [(8, 8), (8, 16), (3, 24)]
    assert steps.feed_ms(19, 8) == pytest.approx(sum(steps.cost_ms(*each) for each in chunks))


@pytest.mark.parametrize(
    "costs",
    [
        {(2, 8): 1.0},
        {(1, 8): 1.0, (2, 8): 1.0, (1, 9): 1.0},
        {(1, 8): float("nan")},
        {(1, 8): float("inf")},
        {(1, 8): 0.0},
        {},
    ],
)
def test_a_curve_with_holes_or_without_plain_steps_is_refused(costs):
    with pytest.raises(ValidationError):
        curve(costs)


def test_a_point_given_twice_is_refused():
    with pytest.raises(ValidationError, match="once"):
        Curve(role="target", width_step=1, points=(point(1, 0, 1.0), point(1, 0, 2.0)))


def test_the_best_gain_is_that_of_a_draft_that_is_always_right():
    target = curve({(1, 0): 10.0, (2, 0): 12.0, (5, 0): 20.0})
    draft = curve({(1, 0): 4.0}, "draft")
    whole = {"plan": "startup", "passes": 1, "seconds": 0.0, "converged": True}
    curves = CostCurves(target=target, draft=draft, **whole)
    assert curves.draft_share(0) == pytest.approx(0.4)
    assert curves.best_gain(0, 0, drafted=True) == 1.0
    assert curves.best_gain(4, 0, drafted=False) == pytest.approx(5 * 10 / 20)
    assert curves.best_gain(4, 0, drafted=True) == pytest.approx(5 * 10 / (20 + 4 * 4))
    alone = CostCurves(target=target, draft=None, **whole)
    assert alone.draft_share(0) is None
    with pytest.raises(ShapeError, match="no draft"):
        alone.best_gain(1, 0, drafted=True)


@pytest.mark.parametrize(
    ("plan", "max_verify", "step", "widths"),
    [
        ("startup", 16, 1, (1, 2, 3, 5, 9, 16)),
        ("startup", 16, 2, (1, 2, 4, 6, 10, 16)),
        ("startup", 16, 8, (1, 8, 16)),
        ("startup", 4, 1, (1, 2, 3, 4)),
        ("startup", 7, 4, (1, 4, 7)),
        ("full", 5, 1, (1, 2, 3, 4, 5)),
        ("full", 9, 4, (1, 4, 8, 9)),
        ("full", 1, 8, (1,)),
    ],
)
def test_widths_are_those_that_padding_leaves_different(plan, max_verify, step, widths):
    assert target_widths(plan, max_verify, step) == widths


@pytest.mark.parametrize("plan", ["startup", "full"])
@pytest.mark.parametrize("max_verify", [1, 2, 3, 7, 8, 9, 15, 16])
@pytest.mark.parametrize("step", [1, 2, 4, 8])
def test_every_width_up_to_max_verify_has_a_point_at_or_above_it(plan, max_verify, step):
    widths = target_widths(plan, max_verify, step)
    assert widths[0] == 1
    assert widths[-1] == max_verify
    if plan == "full":
        padded = {-(-n // step) for n in range(1, max_verify + 1)}
        assert {-(-n // step) for n in widths} == padded


def test_a_draft_is_measured_for_one_token_and_for_its_backlog():
    assert backlog_widths("startup", 64) == (1, 2, 5, 16)
    assert backlog_widths("full", 48) == (1, 2, 3, 4, 6, 8, 12, 16, 32, 48)
    assert backlog_widths("full", 1) == (1,)


@pytest.mark.parametrize(
    ("context", "pasts"),
    [
        (4096, (128, 512, 2048, 4080)),
        (2048, (128, 512, 2032)),
        (64, (8, 32, 48)),
        (17, (1,)),
        (16, (0,)),
    ],
)
def test_pasts_reach_from_a_short_text_to_the_end_of_the_context(context, pasts):
    assert buckets(context, 16) == pasts


def test_what_is_measured_is_what_the_engine_takes():
    clock = FakeClock()
    target = TimedEngine(clock, staircase)
    draft = TimedEngine(clock, lambda width, past, call: 2.0 + width, role="draft")
    curves = measure(target, draft, clock=clock)
    assert curves.converged
    assert curves.passes == 5
    assert curves.target.widths == tuple(range(1, 17))
    for n, past in itertools.product(range(1, 17), curves.target.pasts):
        assert curves.target.cost_ms(n, past) == pytest.approx(staircase(n, past, 0))
    assert curves.draft is not None
    assert curves.draft.widths == (1, 2, 3, 4, 6, 8, 12, 16, 32)
    assert curves.draft.cost_ms(7, 0) == pytest.approx(2.0 + 8)
    assert curves.seconds == pytest.approx(clock.seconds - 1000.0)


def test_a_padded_width_is_measured_once_and_stands_for_its_whole_step():
    clock = FakeClock()
    curves = measure(TimedEngine(clock, staircase, width_step=4), clock=clock)
    assert curves.target.widths == (1, 4, 8, 12, 16)
    for n in range(1, 17):
        padded = -(-n // 4) * 4
        assert curves.target.cost_ms(n, 8) == pytest.approx(staircase(padded, 8, 0))


def test_the_target_scores_every_row_and_the_draft_the_last_one():
    clock = FakeClock()
    target, draft = TimedEngine(clock, staircase), TimedEngine(clock, staircase, role="draft")
    measure(target, draft, clock=clock)
    assert {call.rows - call.width for call in target.calls} == {0}
    assert {call.rows for call in draft.calls} == {1}


def test_no_prefill_is_paid():
    clock = FakeClock()
    target = TimedEngine(clock, staircase, context=4096)
    measure(target, clock=clock)
    assert max(call.width for call in target.calls) == 16
    assert max(call.n_cached for call in target.calls) == 4080


def test_every_pass_times_every_point_once_after_a_plain_step_and_in_another_order():
    clock = FakeClock()
    target = TimedEngine(clock, staircase)
    curves = measure(target, clock=clock)
    count = len(curves.target.points)
    after_warming_up = target.calls[len(curves.target.widths) :]
    timed = [(call.width, call.n_cached) for call in after_warming_up[1::2]]
    leads = [(call.width, call.n_cached) for call in after_warming_up[::2]]
    assert leads == [(1, past) for _, past in timed]
    passes = [timed[start : start + count] for start in range(0, len(timed), count)]
    assert len(passes) == curves.passes
    assert all(len(set(each)) == count for each in passes)
    assert len({tuple(each) for each in passes}) == len(passes)


def test_a_median_is_not_moved_by_calls_that_were_interrupted():
    clock = FakeClock()

    def cost(width: int, past: int, call: int) -> float:
        return staircase(width, past, call) * (20 if call % 7 == 0 else 1)

    curves = measure(TimedEngine(clock, cost), clock=clock, budget_s=600)
    for n in (1, 4, 16):
        assert curves.target.cost_ms(n, 8) == pytest.approx(staircase(n, 8, 0))
    assert any(each.spread > 0.1 for each in curves.target.points)


def test_a_machine_that_slows_down_half_way_keeps_the_ratios_between_points():
    clock = FakeClock()
    target = TimedEngine(clock, staircase)
    target._cost = lambda *call: staircase(*call) * (2 if clock.seconds > 1002.0 else 1)
    curves = measure(target, clock=clock, budget_s=7.0)
    assert not curves.converged
    ratio = curves.target.cost_ms(16, 8) / curves.target.cost_ms(1, 8)
    assert ratio == pytest.approx(staircase(16, 8, 0) / staircase(1, 8, 0), rel=0.02)


def noisy(width: int, past: int, call: int) -> float:
    return staircase(width, past, call) * (1 + (call * 7919 % 101) / 101)


@pytest.mark.parametrize("budget_s", [3.0, 5.0])
def test_the_budget_is_kept(budget_s):
    clock = FakeClock()
    curves = measure(TimedEngine(clock, noisy), clock=clock, budget_s=budget_s)
    assert not curves.converged
    assert budget_s - 0.1 < curves.seconds <= budget_s
    counts = {each.count for each in curves.target.points}
    assert counts <= {curves.passes, curves.passes + 1}


def test_a_budget_too_small_for_one_pass_still_gives_every_point():
    clock = FakeClock()
    curves = measure(TimedEngine(clock, noisy), clock=clock, budget_s=0.001)
    assert (curves.passes, curves.converged) == (1, False)
    assert {each.count for each in curves.target.points} == {1}


def test_a_budget_for_few_passes_is_spent_on_few_points():
    def slow(width: int, past: int, call: int) -> float:
        return 100.0 + width + call % 7

    clock = FakeClock()
    whole = measure(TimedEngine(clock, slow), clock=clock, budget_s=300)
    few = measure(TimedEngine(clock, slow), clock=clock, budget_s=60)
    assert len(few.target.points) < len(whole.target.points) / 2
    assert (few.target.widths, len(few.target.pasts)) == ((1, 2, 3, 5, 9, 16), 2)
    assert few.target.pasts == (whole.target.pasts[0], whole.target.pasts[-1])
    assert few.passes >= 3


def test_measuring_ends_however_noisy_and_fast_the_calls_are():
    clock = FakeClock()
    wild = TimedEngine(clock, lambda width, past, call: 1e-3 * (1 + call % 3), max_verify=2)
    curves = measure(wild, clock=clock, budget_s=3600)
    assert (curves.passes, curves.converged) == (MOST_PASSES, False)


def test_progress_rises_to_the_whole_budget_at_most():
    clock, told = FakeClock(), []
    measure(TimedEngine(clock, noisy), clock=clock, budget_s=3.0, report=told.append)
    assert told == sorted(told)
    assert 0.9 < told[-1] <= 1.0


@pytest.mark.parametrize("context", [1, 2, 5, 17, 33])
def test_a_context_that_holds_next_to_nothing_can_be_measured(context):
    clock = FakeClock()
    target = TimedEngine(clock, staircase, context=context)
    draft = TimedEngine(clock, staircase, context=context, role="draft")
    curves = measure(target, draft, clock=clock)
    assert curves.target.widths[-1] == min(16, context)
    assert all(call.width + call.n_cached <= context for call in target.calls + draft.calls)


@pytest.mark.parametrize("budget_s", [0, -1, float("nan"), float("inf"), 1e9])
def test_a_budget_that_is_no_time_is_refused(budget_s):
    with pytest.raises(OptionError, match="budget: expected more than 0 and at most 3600"):
        measure(FakeEngine(fake_spec()), budget_s=budget_s)


@pytest.mark.parametrize(
    ("readings", "said"),
    [
        ([0.0, 1.0, 2.0, 1.5], "went back by 0.500000 s"),
        ([0.0, 1.0, float("nan")], "expected seconds, found nan"),
        ([0.0, 1.0, 2.0, float("inf")], "expected seconds, found inf"),
        ([5.0] * 9, "took 0.0 ms by the clock"),
    ],
)
def test_a_clock_that_cannot_be_trusted_is_one_clear_error(readings, said):
    target = FakeEngine(fake_spec())
    rest = iter(readings)
    with pytest.raises(ProbeError, match=said) as caught:
        measure(target, clock=lambda: next(rest))
    assert "\n" not in str(caught.value)
    assert target._slots == []


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), EngineError("no more memory"), "nan"])
def test_what_stops_a_measurement_leaves_no_slot_behind(fault):
    target = FakeEngine(fake_spec(), faults={30: fault})
    expected = type(fault) if isinstance(fault, BaseException) else EngineError
    with pytest.raises(expected):
        measure(target)
    assert target._slots == []


def test_memory_is_touched_before_it_is_timed(monkeypatch):
    target = FakeEngine(fake_spec())
    touched = []
    made = target.new_slot()
    monkeypatch.setattr(type(made), "touch", lambda slot: touched.append(len(target.calls)))
    measure(target, budget_s=0.001)
    assert touched == [0]


def test_a_touched_slot_holds_nothing_that_was_written():
    target = FakeEngine(fake_spec())
    slot = target.new_slot()
    target.forward(slot, np.arange(4), 0, 1)
    slot.touch()
    assert set(slot.rows.tolist()) == {-1}


def test_delays_of_a_real_clock_are_seen():
    target = FakeEngine(fake_spec(max_verify=2), delay_ms=2.0)
    curves = measure(target, budget_s=0.05)
    assert 2.0 <= curves.target.cost_ms(1, 0) < 50

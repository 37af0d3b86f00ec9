"""Measure cost curves: all points once, then again in another order, while time and doubt last.

Interleaved, because a machine that slows down in the middle must not make one width look dear and
another cheap. Medians, because a call that was interrupted by something else says nothing.

No prefill is paid: a call after P rows costs the same whatever the rows hold. But they must be
there. Memory that was never written is one shared page, read out of the cache, and calls after
4,000 rows would seem a third cheaper than they are; hence `Slot.touch`.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite, sqrt
from typing import Literal

import numpy as np

from specedge.contract import Ids
from specedge.engines.base import Engine, Slot
from specedge.errors import OptionError, ProbeError
from specedge.probe.curves import CostCurves, Curve, PlanName, Point, percentile

Clock = Callable[[], float]
"""Seconds from any fixed moment; never goes back."""

Report = Callable[[float], None]
"""Told now and then which share of the budget is used, 0..1."""

LONGEST_BUDGET_S = 3600.0
MOST_PASSES = 100
FEWEST_PASSES = 5  # before percentiles mean anything
THIN_AT = 6  # a budget for fewer passes than this is spent on fewer points
CONVERGED = 0.01  # standard error of a median, as a share of it

STARTUP_WIDTHS = (1, 2, 3, 5, 9, 16)
STARTUP_BACKLOG = (1, 2, 5, 16)
BACKLOG = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
SHALLOW = 128  # rows of the first bucket, not 0: a first prompt may have kernels of its own
BUCKET_RATIO = 4

_SIGMA = 2.5631  # p90 - p10 of a normal law, in standard deviations
_MEDIAN_ERROR = 1.2533  # standard error of a median over that of a mean


def target_widths(plan: PlanName, max_verify: int, width_step: int) -> tuple[int, ...]:
    """N to measure: 1, and the widest of each group that is padded alike, up to max_verify."""
    asked = STARTUP_WIDTHS if plan == "startup" else range(1, max_verify + 1)
    wanted = {-(-min(n, max_verify) // width_step) * width_step for n in asked}
    return tuple(sorted({1, *(min(n, max_verify) for n in wanted)}))


def backlog_widths(plan: PlanName, widest: int) -> tuple[int, ...]:
    """N to measure of a draft: its one token a step, and what it has to catch up with."""
    if plan == "startup":
        return tuple(n for n in STARTUP_BACKLOG if n <= widest)
    return tuple(sorted({*(n for n in BACKLOG if n <= widest), widest}))


def buckets(context: int, widest: int) -> tuple[int, ...]:
    """P to measure: a short past, the longest that `widest` new tokens fit after, and between."""
    deepest = context - widest
    past = min(SHALLOW, max(1, context // 8))
    if past >= deepest:
        return (deepest,)
    chosen = [past]
    # the last but one is not close before the last
    while past * BUCKET_RATIO * 3 <= deepest * 2:
        past *= BUCKET_RATIO
        chosen.append(past)
    return (*chosen, deepest)


def check_budget(budget_s: float) -> None:
    """Raise OptionError unless it is a positive number of at most LONGEST_BUDGET_S."""
    if not 0 < budget_s <= LONGEST_BUDGET_S:
        raise OptionError(
            f"budget: expected more than 0 and at most {LONGEST_BUDGET_S:g} seconds, "
            f"found {budget_s:g}"
        )


def measure(
    target: Engine,
    draft: Engine | None = None,
    *,
    budget_s: float = 60.0,
    clock: Clock = time.perf_counter,
    seed: int = 0,
    report: Report | None = None,
) -> CostCurves:
    """Time calls of `target`, and of `draft`, in a fresh slot of each.

    Every point is measured at least once, so a slow model may take longer than a small budget.

    Args:
        target: calls score all rows, as a verification does.
        draft: calls score the last row.
        budget_s: seconds; measuring ends earlier once every median is known to CONVERGED. One that
            does not hold THIN_AT passes is spent on the few points of a start.
        clock: of the durations and of the budget.
        seed: of the order of points.
        report: called after every point.

    Raises:
        OptionError: see `check_budget`.
        ProbeError: the clock went back, stood still or is not finite.
        EngineError: a call failed.
    """
    check_budget(budget_s)
    watch = Watch(clock)
    began = watch.now()
    with _lane(target, "target") as first, _lane(draft, "draft") as second:
        lanes = [lane for lane in (first, second) if lane is not None]
        for lane in lanes:
            lane.warm_up()
        calls = [(lane, *key) for lane in lanes for key in lane.samples]
        order = random.Random(seed)
        passes, converged, in_time = 0, False, True
        while in_time and not converged and passes < MOST_PASSES:
            order.shuffle(calls)
            for lane, width, past in calls:
                spent = watch.now() - began
                if passes and spent + lane.expected_s(width, past) > budget_s:
                    in_time = False
                    break
                lane.sample(watch, width, past)
                if report is not None:
                    report(min(1.0, spent / budget_s))
            else:
                passes += 1
                if passes == 1 and (watch.now() - began) * THIN_AT > budget_s:
                    for lane in lanes:
                        lane.thin()
                    calls = [(lane, *key) for lane in lanes for key in lane.samples]
                converged = passes >= FEWEST_PASSES and all(lane.converged for lane in lanes)
        assert first is not None, "the target has a lane"
        return CostCurves(
            plan="full",
            target=first.curve(),
            draft=None if second is None else second.curve(),
            passes=passes,
            seconds=watch.now() - began,
            converged=converged,
        )


class Watch:
    """A clock that is not believed blindly."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = -float("inf")

    def now(self) -> float:
        now = self._clock()
        if not isfinite(now):
            raise ProbeError(
                f"clock: expected seconds, found {now}; nothing was measured: try again"
            )
        if now < self._last:
            raise ProbeError(
                f"clock: went back by {self._last - now:.6f} s during the measurement; "
                "nothing was kept: try again when the system's time is steady"
            )
        self._last = now
        return now


@dataclass
class _Lane:
    """One engine's points. `samples`: milliseconds by (width, past)."""

    engine: Engine
    role: Literal["target", "draft"]
    slot: Slot
    tokens: Ids
    samples: dict[tuple[int, int], list[float]] = field(default_factory=dict)

    def warm_up(self) -> None:
        """The first call of a width makes bindings and buffers."""
        warm = set()
        for width, past in self.samples:
            if width not in warm:
                self._call(width, past)
                warm.add(width)

    def sample(self, watch: Watch, width: int, past: int) -> None:
        """Time one call, after an untimed one of one token at the same place.

        Otherwise it follows whatever the shuffle put before it, and finds the caches full of that:
        a plain step, which follows plain steps in a run, would seem some per cent too dear.
        """
        self._call(1, past)
        began = watch.now()
        self._call(width, past)
        ms = (watch.now() - began) * 1e3
        if not 0 < ms < float("inf"):
            raise ProbeError(
                f"{self.role}: a call of {width} tokens after {past} rows took {ms} ms by the "
                "clock, expected more than 0; the clock is too coarse to measure with"
            )
        self.samples[width, past].append(ms)

    def thin(self) -> None:
        """Keep the points of a start: few widths, and the first and last past.

        Few points that are known are worth more than many that one call each guesses at.
        """
        widths = {width for width, _ in self.samples}
        pasts = {past for _, past in self.samples}
        if self.role == "target":
            kept = set(target_widths("startup", max(widths), self.engine.width_step))
        else:
            kept = {*backlog_widths("startup", max(widths)), max(widths)}
        ends = {min(pasts), max(pasts)}
        self.samples = {
            (width, past): samples
            for (width, past), samples in self.samples.items()
            if width in kept and past in ends
        }

    def _call(self, width: int, past: int) -> None:
        rows = width if self.role == "target" else 1
        self.engine.forward(self.slot, self.tokens[:width], past, rows)

    def expected_s(self, width: int, past: int) -> float:
        """Seconds of the next `sample`, by those before it."""
        both = (self.samples[1, past], self.samples[width, past])
        return sum(map(statistics.median, both)) / 1e3

    @property
    def converged(self) -> bool:
        return all(_error(sorted(samples)) <= CONVERGED for samples in self.samples.values())

    def curve(self) -> Curve:
        points = [Point.of(*key, samples) for key, samples in self.samples.items()]
        return Curve(role=self.role, width_step=self.engine.width_step, points=tuple(points))


@contextmanager
def _lane(engine: Engine | None, role: Literal["target", "draft"]) -> Iterator[_Lane | None]:
    """A slot with its points, for as long as it is measured in."""
    if engine is None:
        yield None
        return
    slot = engine.new_slot()
    try:
        slot.touch()
        context = slot.context
        if role == "target":
            widest = min(engine.spec.max_verify, context)
            widths = target_widths("full", widest, engine.width_step)
        else:
            widest = max(1, min(engine.prefill_chunk, context // 2))
            widths = backlog_widths("full", widest)
        pasts = buckets(context, widths[-1])
        # any ids will do: a call costs the same whatever it reads
        tokens = (np.arange(widths[-1], dtype=np.int64) * 7919) % engine.spec.vocab
        lane = _Lane(engine, role, slot, tokens)
        lane.samples = {(width, past): [] for width in widths for past in pasts}
        yield lane
    finally:
        engine.release(slot)


def _error(rising: Sequence[float]) -> float:
    """Standard error of the median as a share of it, from the middle 80 % of the sorted values."""
    sigma = (percentile(rising, 0.9) - percentile(rising, 0.1)) / _SIGMA
    return _MEDIAN_ERROR * sigma / sqrt(len(rising)) / statistics.median(rising)

"""The cost curves as a policy asks for them, every round: looked up once for many rows of past."""

from __future__ import annotations

from dataclasses import dataclass

from specedge.probe.curves import CostCurves

BUCKET = 64  # rows by which costs are looked up anew
FED = 16  # from this many tokens on, a backlog's cost is that of the next multiple


@dataclass(frozen=True, slots=True)
class DraftCost:
    """What drafting costs in a round, in milliseconds.

    Args:
        first_ms: the call that gives the first token, backlog left out.
        step_ms: each further token.
        feed_ms: feeding the backlog.
        again_ms: of `feed_ms` what will be needed again after rounds of other proposers; the rest
            is needed once a request.
        curve_ms: the first three as the curve has them, uncorrected.
    """

    first_ms: float
    step_ms: float
    feed_ms: float
    again_ms: float
    curve_ms: tuple[float, float, float]


FREE = DraftCost(0.0, 0.0, 0.0, 0.0, (0.0, 0.0, 0.0))


class Costing:
    """Costs at a past, by the curve alone: how fast the machine is now is the pace's business."""

    __slots__ = (
        "_bucket",
        "_curves",
        "_fed",
        "_one_ms",
        "_two_ms",
        "longest",
        "steps_ms",
    )

    def __init__(self, curves: CostCurves, longest: int) -> None:
        """K goes up to `longest`, or to what was measured if that is less."""
        self.longest = min(longest, curves.target.widths[-1] - 1)
        self.steps_ms: list[float] = []  # by K; of the past that `at` was last given
        self._curves = curves
        self._bucket = -1
        self._one_ms = self._two_ms = 0.0  # the draft's calls of 1 and 2 tokens
        self._fed: dict[tuple[int, int], tuple[float, float]] = {}  # (backlog, gap) → cost

    def at(self, past: int) -> list[float]:
        """The target's call by K, [longest + 1]; read only, until the next `at`."""
        bucket = past // BUCKET
        if bucket != self._bucket:
            self._bucket = bucket
            self._fed.clear()
            middle = bucket * BUCKET + BUCKET // 2
            cost_ms = self._curves.target.cost_ms
            self.steps_ms = [cost_ms(k + 1, middle) for k in range(self.longest + 1)]
            if self._curves.draft is not None:
                feed_ms = self._curves.draft.feed_ms
                self._one_ms, self._two_ms = feed_ms(1, middle), feed_ms(2, middle)
        return self.steps_ms

    def draft(self, backlog: int, gap: int, pace: float) -> DraftCost:
        """At the same past.

        Args:
            backlog: tokens to feed before the first one is drafted, 1 or more.
            gap: of them, what rounds of other proposers usually leave behind.
            pace: the draft's own, over the target's.

        Up to two tokens are fed in every round (the last committed one, and the last drafted one
        if all stood); what goes beyond is backlog.
        """
        one, two = self._one_ms, self._two_ms
        if backlog <= 2:
            first = one if backlog < 2 else two
            return DraftCost(first * pace, one * pace, 0.0, 0.0, (first, one, 0.0))
        key = (backlog if backlog < FED else -(-backlog // FED) * FED, gap)  # never too cheap
        found = self._fed.get(key)
        if found is None:
            feed = max(0.0, self._feed_ms(key[0]) - two)
            again = min(feed, self._feed_ms(gap) - two) if gap > 2 else 0.0
            found = self._fed[key] = (feed, max(0.0, again))
        feed, again = found
        return DraftCost(two * pace, one * pace, feed * pace, again * pace, (two, one, feed))

    def _feed_ms(self, backlog: int) -> float:
        assert self._curves.draft is not None
        past = max(0, self._bucket * BUCKET + BUCKET // 2 - backlog)
        return self._curves.draft.feed_ms(backlog, past)

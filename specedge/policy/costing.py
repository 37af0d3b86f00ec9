"""The cost curves as a policy asks for them, every round: plain numbers, looked up for many rows.

What depends on the past is worked out anew every BUCKET rows, out of lists that are made once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from specedge.probe.curves import CostCurves, Curve

BUCKET = 64  # rows by which costs are looked up anew
FED = 16  # from this many tokens on, a backlog's cost is that of the next multiple
MOST_GAP = 64  # tokens of backlog that other proposers' rounds may have left; more is a prompt


@dataclass(frozen=True, slots=True)
class DraftCost:
    """What drafting costs in a round, in milliseconds.

    Args:
        first_ms: the call that gives the first token, backlog left out.
        step_ms: each further token.
        feed_ms: feeding the backlog.
        curve_ms: the first three as the curve has them, uncorrected.
    """

    first_ms: float
    step_ms: float
    feed_ms: float
    curve_ms: tuple[float, float, float]


FREE = DraftCost(0.0, 0.0, 0.0, (0.0, 0.0, 0.0))


class Grid:
    """One curve in lists: `Curve.cost_ms` without its checks."""

    __slots__ = ("_pasts", "_rows", "widest", "widths")

    def __init__(self, curve: Curve) -> None:
        self.widths = list(curve.widths)
        self.widest = self.widths[-1]
        self._pasts = list(curve.pasts)
        self._rows = [
            [curve.point(width, past).ms for past in curve.pasts] for width in curve.widths
        ]

    def column(self, past: int) -> list[float]:
        """Milliseconds by measured width, after `past` rows."""
        pasts = self._pasts
        right = bisect_right(pasts, past)
        if right == 0:
            return [row[0] for row in self._rows]
        if right == len(pasts):
            return [row[-1] for row in self._rows]
        share = (past - pasts[right - 1]) / (pasts[right] - pasts[right - 1])
        return [row[right - 1] + share * (row[right] - row[right - 1]) for row in self._rows]

    def feed_ms(self, n_tokens: int, column: Sequence[float]) -> float:
        """Of `n_tokens`, 0 included, all at the past of `column`; wide ones go in chunks."""
        chunks, rest = divmod(n_tokens, self.widest)
        spent = chunks * column[-1]
        return spent + column[bisect_left(self.widths, rest)] if rest else spent


class Costing:
    """Costs at a past, by the curve alone: how fast the machine is now is the pace's business."""

    __slots__ = (
        "_bucket",
        "_column",
        "_draft",
        "_fed",
        "_index",
        "_one_ms",
        "_target",
        "_two_ms",
        "longest",
        "steps_ms",
    )

    def __init__(self, curves: CostCurves, longest: int) -> None:
        """K goes up to `longest`, or to what was measured if that is less."""
        self._target = Grid(curves.target)
        self._draft = None if curves.draft is None else Grid(curves.draft)
        self.longest = min(longest, self._target.widest - 1)
        widths = self._target.widths
        self._index = [bisect_left(widths, k + 1) for k in range(self.longest + 1)]
        self.steps_ms: list[float] = []  # by K; of the past that `at` was last given
        self._bucket = -1
        self._column: list[float] = []  # of the draft
        self._one_ms = self._two_ms = 0.0  # the draft's calls of 1 and 2 tokens
        self._fed: dict[int, float] = {}  # backlog → cost beyond two tokens

    def at(self, past: int) -> list[float]:
        """The target's call by K, [longest + 1]; read only, until the next `at`."""
        bucket = past // BUCKET
        if bucket != self._bucket:
            self._bucket = bucket
            self._fed.clear()
            middle = bucket * BUCKET + BUCKET // 2
            column = self._target.column(middle)
            self.steps_ms = [column[i] for i in self._index]
            if self._draft is not None:
                self._column = self._draft.column(middle)
                self._one_ms = self._draft.feed_ms(1, self._column)
                self._two_ms = self._draft.feed_ms(2, self._column)
        return self.steps_ms

    def draft(self, backlog: int, pace: float) -> DraftCost:
        """At the same past.

        Args:
            backlog: tokens to feed before the first one is drafted, 1 or more.
            pace: the draft's own, over the target's.

        Up to two tokens are fed in every round (the last committed one, and the last drafted one
        if all stood); what goes beyond is backlog.
        """
        one, two = self._one_ms, self._two_ms
        if backlog <= 2:
            first = one if backlog < 2 else two
            return DraftCost(first * pace, one * pace, 0.0, (first, one, 0.0))
        feed = self.backlog_ms(backlog)
        return DraftCost(two * pace, one * pace, feed * pace, (two, one, feed))

    def backlog_ms(self, backlog: int) -> float:
        """By the curve: feeding it, over the two tokens that are fed in every round."""
        if backlog <= 2:
            return 0.0
        key = backlog if backlog < FED else -(-backlog // FED) * FED  # never too cheap
        found = self._fed.get(key)
        if found is None:
            assert self._draft is not None
            # A long one begins where there is no past: half of it is as good as its middle.
            column = self._column
            if key > BUCKET:
                middle = self._bucket * BUCKET + BUCKET // 2
                column = self._draft.column(max(0, middle - key // 2))
            found = self._fed[key] = max(0.0, self._draft.feed_ms(key, column) - self._two_ms)
        return found

"""Cost curves: milliseconds of a call of N new tokens after P cached rows.

T(N) is a step function on most kernels, so nothing is fitted: a width that was not measured costs
what the next wider one costs, which is what an engine that pads its calls really charges. Over P a
call costs a constant and the reading of P rows, so between two measured P a straight line is right.

N = 1 is plain decoding, the measure of everything else, and is always among the widths: an engine
that pads a call of 1 to 2 tokens may still run the head for one row only.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from specedge.errors import ShapeError

PlanName = Literal["startup", "full"]
Ms = Annotated[float, Field(ge=1e-9, le=1e9)]  # what has a ratio that can be shown
Count = Annotated[int, Field(ge=1, lt=1 << 31)]


def percentile(rising: Sequence[float], share: float) -> float:
    """Linear between the two nearest of the sorted values."""
    place = share * (len(rising) - 1)
    below = int(place)
    above = min(below + 1, len(rising) - 1)
    return rising[below] + (place - below) * (rising[above] - rising[below])


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Point(_Frozen):
    """One width after one past: the median of `count` calls, and their 10th to 90th percentile."""

    width: Count  # N, new tokens
    past: Annotated[int, Field(ge=0, lt=1 << 31)]  # P, cached rows
    count: Count
    ms: Ms
    low_ms: Ms
    high_ms: Ms

    @classmethod
    def of(cls, width: int, past: int, samples: Sequence[float]) -> Point:
        """Of milliseconds of one call or more."""
        rising = sorted(samples)
        return cls(
            width=width,
            past=past,
            count=len(rising),
            ms=statistics.median(rising),
            low_ms=percentile(rising, 0.1),
            high_ms=percentile(rising, 0.9),
        )

    @property
    def spread(self) -> float:
        """Half the distance from the 10th to the 90th percentile, as a share of the median."""
        return (self.high_ms - self.low_ms) / (2 * self.ms)


class Curve(_Frozen):
    """Points on a full grid of widths and pasts, N = 1 among the widths.

    Args:
        role: whose calls. The target's score every row, the draft's the last one only.
        width_step: the engine pads calls to multiples of it.
        points: in any order.
    """

    role: Literal["target", "draft"]
    width_step: Count
    points: Annotated[tuple[Point, ...], Field(min_length=1)]

    _widths: tuple[int, ...] = PrivateAttr()
    _pasts: tuple[int, ...] = PrivateAttr()
    _rows: tuple[tuple[Point, ...], ...] = PrivateAttr()  # [width][past]

    def model_post_init(self, context: Any) -> None:
        self._widths = tuple(sorted({point.width for point in self.points}))
        self._pasts = tuple(sorted({point.past for point in self.points}))
        at = {(point.width, point.past): point for point in self.points}
        self._rows = tuple(
            tuple(at[width, past] for past in self._pasts if (width, past) in at)
            for width in self._widths
        )

    @model_validator(mode="after")
    def _grid(self) -> Curve:
        full = all(len(row) == len(self._pasts) for row in self._rows)
        once = len(self.points) == len(self._widths) * len(self._pasts)
        if not full or not once or self._widths[0] != 1:
            raise ValueError("expected every width at every past once, 1 among the widths")
        return self

    @property
    def widths(self) -> tuple[int, ...]:
        """N that were measured, rising."""
        return self._widths

    @property
    def pasts(self) -> tuple[int, ...]:
        """P that were measured, rising."""
        return self._pasts

    def point(self, n_tokens: int, past: int) -> Point:
        """What stands for N at a measured P: N itself, or the next width that was measured.

        Raises:
            ShapeError: N is below 1 or above every measured width, or P was not measured.
        """
        if past not in self._pasts:
            raise ShapeError(f"past: expected one of {self._pasts}, found {past}")
        return self._row(n_tokens)[self._pasts.index(past)]

    def cost_ms(self, n_tokens: int, past: int) -> float:
        """Milliseconds of one call of `n_tokens` (N) after `past` (P) rows.

        Before the first and after the last measured P it is what it is there.

        Raises:
            ShapeError: N is below 1 or above every measured width, or P is negative.
        """
        if past < 0:
            raise ShapeError(f"past: expected 0 or more, found {past}")
        row, pasts = self._row(n_tokens), self._pasts
        right = bisect_right(pasts, past)
        if right == 0:
            return row[0].ms
        left = row[right - 1]
        if right == len(pasts):
            return left.ms
        share = (past - left.past) / (pasts[right] - left.past)
        return left.ms + share * (row[right].ms - left.ms)

    def feed_ms(self, n_tokens: int, past: int) -> float:
        """As `cost_ms` for any N, 0 included: what is wider than every width goes in chunks."""
        spent, widest = 0.0, self._widths[-1]
        while n_tokens > widest:
            spent += self.cost_ms(widest, past)
            n_tokens, past = n_tokens - widest, past + widest
        return spent + self.cost_ms(n_tokens, past) if n_tokens else spent

    def _row(self, n_tokens: int) -> tuple[Point, ...]:
        if not 1 <= n_tokens <= self._widths[-1]:
            raise ShapeError(f"n_tokens: expected 1..{self._widths[-1]}, found {n_tokens}")
        return self._rows[bisect_left(self._widths, n_tokens)]


class CostCurves(_Frozen):
    """What one measurement found.

    Args:
        plan: the short set of a start, or every width that makes a difference.
        target: calls that score every row.
        draft: calls that score the last row; None without a draft model.
        passes: complete repetitions of all points.
        seconds: the whole measurement.
        converged: every median was known well enough before the budget was used.
    """

    plan: PlanName
    target: Curve
    draft: Curve | None
    passes: Count
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    converged: bool

    def draft_share(self, past: int) -> float | None:
        """One token of the draft as a share of a plain step of the target; None: no draft."""
        if self.draft is None:
            return None
        return self.draft.cost_ms(1, past) / self.target.cost_ms(1, past)

    def best_gain(self, k: int, past: int, *, drafted: bool) -> float:
        """Speed over plain decoding if all K proposed tokens were accepted in every round.

            (K + 1) T(1) / (T(K + 1) + K T_draft(1))

        Nothing that a proposer guesses can gain more with this K, and little of it will.

        Args:
            k: K >= 0; K + 1 is at most the widest measured.
            past: P.
            drafted: by the draft model; False: by a lookup, taken as free.

        Raises:
            ShapeError: K or P is outside the ranges above, or there is no draft to ask.
        """
        spent = self.target.cost_ms(k + 1, past)
        if drafted:
            if self.draft is None:
                raise ShapeError("drafted: there is no draft among these curves")
            spent += k * self.draft.cost_ms(1, past)
        return (k + 1) * self.target.cost_ms(1, past) / spent

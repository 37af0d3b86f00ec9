"""Quantiles as one of the values that were measured, never between two of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Self

ENOUGH_FOR_P99 = 100  # of fewer values the nearest rank is the last


@dataclass(frozen=True, slots=True)
class Quantiles:
    """How times are spread, ms.

    Args:
        count: values, 1 or more.
        mean, p50, p90, p99, largest: of them; quantiles by nearest rank, so p99 of fewer than
            `ENOUGH_FOR_P99` values is the largest.
    """

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    largest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """None: there is no value."""
        rising = sorted(values)
        if not rising:
            return None
        return cls(
            count=len(rising),
            mean=sum(rising) / len(rising),
            p50=nearest(rising, 50),
            p90=nearest(rising, 90),
            p99=nearest(rising, 99),
            largest=rising[-1],
        )


def nearest(rising: list[float], percent: int) -> float:
    """The least value that `percent` in a hundred of all values do not exceed.

    Args:
        rising: sorted, at least one.
        percent: 1..100, a whole number: a float share of 0.07 * 100 would be beyond 7.
    """
    return rising[nearest_rank(len(rising), percent) - 1]


def nearest_rank(count: int, percent: int) -> int:
    """Of that value among `count` rising ones, from 1."""
    return ceil(percent * count / 100)

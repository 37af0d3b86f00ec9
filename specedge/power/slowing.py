"""Did a device become slower in the middle, and say nothing?

Times of the same piece of work, in order. A reading far above both of its neighbours was
interrupted, means nothing and counts as their mean; then only the ranks count. The statistic is
Pettitt's (1979), for a rise only:

    K = max over k of  sum of (mean rank - rank of reading i) over i <= k

large when the readings after some k lie above those before it, be it by a step or by a ramp. How
large it becomes by chance depends on the number of readings alone, and is found by shuffling. So
the share of false alarms is the same for any noise whose readings do not hang together, but for
the few that count as the mean of their neighbours.

How often a step to 1.25x in the middle is found, and how often a change is seen where there is
none, by the noise (standard deviation of a reading; 5 % of the readings are tripled besides) and
the number of readings, over 2,000 series each:

              found of 10     20     40        false of 10     20     40
     3 %             98 %   99 %  100 %             0.0 %  0.0 %  0.0 %
     5 %             95 %   99 %  100 %             0.0 %  0.1 %  0.0 %
    10 %             46 %   88 %  100 %             0.3 %  0.5 %  0.5 %
    30 %              4 %    8 %   21 %             0.4 %  0.3 %  0.5 %
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from math import isfinite

import numpy as np
from numpy.typing import NDArray

FALSE_ALARMS = 0.005
SLOWER = 1.1  # what is less than that is no throttling, however certain
FEWEST = 10  # readings; with fewer, chance alone separates any two halves too often
INTERRUPTED = 1.8  # times both neighbours, or 5 standard deviations where that is more
SIDE = 3  # readings before, and after, a change at the least

_MOST = 100  # readings looked at; of more, neighbours are taken together
_SHUFFLES = 10_000
_SIGMA = 1.4826 / 2**0.5  # of a median difference, to the standard deviation of one reading


def throttled_by_times(ms_series: Sequence[tuple[float, float]]) -> str | None:
    """One line when the times rose and stayed up; None when they did not, or none can tell.

    Args:
        ms_series: (seconds into the probe, milliseconds): when, and how long it took. What is not
            a finite number, or took no time, is left out.
    """
    usable = sorted((s, ms) for s, ms in ms_series if isfinite(s) and isfinite(ms) and ms > 0)
    if len(usable) < FEWEST:
        return None
    readings = _thinned(usable)
    ms = _calm(np.array([each for _, each in readings]))
    heights = _heights(_ranks(ms))
    if heights.max() <= _critical(len(ms)):
        return None
    first = int(heights.argmax()) + SIDE  # number of readings before the change
    before, after = float(np.median(ms[:first])), float(np.median(ms[first:]))
    if after < SLOWER * before:
        return None
    return (
        f"the same step went from {before:.3g} to {after:.3g} ms ({after / before:.2f}x) "
        f"{readings[first][0]:.0f} s into the probe"
    )


def _thinned(readings: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most _MOST: the median of each so many neighbours, at the time of the first."""
    size = -(-len(readings) // _MOST) or 1
    blocks = [readings[start : start + size] for start in range(0, len(readings), size)]
    return [(block[0][0], statistics.median(ms for _, ms in block)) for block in blocks]


def _calm(ms: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64 [n]: interrupted readings replaced; what is far is judged by how they scatter."""
    scatter = _SIGMA * float(np.median(np.abs(np.diff(np.log(ms)))))
    far = max(INTERRUPTED, float(np.exp(5 * scatter)))
    before, after = np.r_[ms[1], ms[:-1]], np.r_[ms[1:], ms[-2]]  # an end has one neighbour
    return np.where(ms > far * np.maximum(before, after), (before + after) / 2, ms)


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64 [n], from 0; equal values share the mean of their ranks."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts + 1) / 2)[which], dtype=np.float64)


def _heights(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64 [..., n] → [..., n - 2 SIDE + 1]: the sum of the module's formula by k."""
    n = ranks.shape[-1]
    sums = np.cumsum((n - 1) / 2 - ranks, axis=-1)
    return np.asarray(sums[..., SIDE - 1 : n - SIDE], dtype=np.float64)


@functools.lru_cache(maxsize=32)
def _critical(n: int) -> float:
    """What K exceeds with probability FALSE_ALARMS at most, over n readings without a change."""
    rng = np.random.default_rng(n)
    shuffled = rng.permuted(np.tile(np.arange(n, dtype=np.float64), (_SHUFFLES, 1)), axis=1)
    highest = np.sort(_heights(shuffled).max(axis=-1))
    return float(highest[-int(_SHUFFLES * FALSE_ALARMS) - 1])

"""Whether a process grows: resident memory sampled while it works, and the trend in the samples.

The trend is the median of the slopes of all pairs of samples (Theil 1950, Sen 1968): a single step,
as an allocator makes one when it takes another arena, hardly moves it, a leak does. An allocator
settles; a leak that is too slow for the bound is as fast in the later half as over all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

BOUND = 2_000_000
"""Bytes that 1,000 requests may add; a leak of 4 KB a request adds twice as much."""

SLOW = 800_000
"""Bytes for 1,000 requests from which growth that does not settle is a leak."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Resident memory over many requests.

    Args:
        samples: (requests done, bytes), rising.
        per_1000: bytes that 1,000 requests add, by the median slope.
        later_per_1000: the same over the later half of the samples.
    """

    samples: tuple[tuple[int, int], ...]
    per_1000: float
    later_per_1000: float

    @property
    def grows(self) -> bool:
        """Beyond the bound, or more slowly and without settling."""
        return self.per_1000 > BOUND or min(self.per_1000, self.later_per_1000) > SLOW

    @property
    def start(self) -> int:
        return self.samples[0][1]

    @property
    def end(self) -> int:
        return self.samples[-1][1]

    @property
    def peak(self) -> int:
        """Of the samples; what loading took before them is not in it."""
        return max(size for _, size in self.samples)


def growth(samples: Sequence[tuple[int, int]]) -> Growth:
    """What samples say, four at least; (requests done, bytes), requests rising."""
    later = samples[len(samples) // 2 :]
    return Growth(tuple(samples), 1000 * _slope(samples), 1000 * _slope(later))


def _slope(samples: Sequence[tuple[int, int]]) -> float:
    """Bytes a request."""
    pairs = combinations(samples, 2)
    return median((more - less) / (later - sooner) for (sooner, less), (later, more) in pairs)


def resident_bytes(statm: Path = Path("/proc/self/statm")) -> int | None:
    """Resident memory of this process now; None where the system does not tell."""
    try:
        pages = int(statm.read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")

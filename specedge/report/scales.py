"""From values to pixels, and which values to name on an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log, log10

_RATIOS = (
    (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.6),
    (0.3, 0.5, 0.7, 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 7, 10),
    (0.1, 0.3, 0.5, 1, 1.5, 2, 3, 5, 10, 20),
    (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100),
    (1e-6, 1e-4, 0.01, 0.1, 1, 10, 100, 1e4, 1e6),
)


@dataclass(frozen=True, slots=True)
class Scale:
    """Values low..high become pixels start..end, and what lies outside goes on beyond them."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        if self.logarithmic:
            part = log(value / self.low) / log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)


def round_ticks(high: float, most: int = 6) -> list[float]:
    """0 and multiples of 1, 2 or 5 times a power of ten, up to the first that covers `high`."""
    power = 10.0 ** floor(log10(high / most))
    step = next(n * power for n in (1, 2, 5, 10) if n * power * most >= high)
    return [n * step for n in range(ceil(high / step - 1e-9) + 1)]


def ratio_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Ratios inside low..high that a logarithmic scale has room for; 1 is one if it is inside."""
    room = log(high / low) / (most + 4)
    for ratios in _RATIOS:
        inside = [ratio for ratio in ratios if low <= ratio <= high]
        close = any(log(above / below) < room for below, above in pairwise(inside))
        if len(inside) <= most and not close and max(ratios) >= high:
            return inside
    return [ratio for ratio in (1.0,) if low <= ratio <= high]


def thinned(places: Sequence[tuple[int, float]], gap: float) -> list[tuple[int, float]]:
    """Of (value, pixel), rising, those at least `gap` apart; first and last are kept."""
    kept = list(places[:1])
    for place in places[1:-1]:
        if place[1] - kept[-1][1] >= gap and places[-1][1] - place[1] >= gap:
            kept.append(place)
    return kept + list(places[-1:]) if len(places) > 1 else kept


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Pixels for labels near `wanted`, at least `gap` apart, inside low..high if they fit."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    placed = [0.0] * len(wanted)
    edge = low - gap
    for index in order:
        placed[index] = edge = max(wanted[index], edge + gap)
    edge = high + gap
    for index in reversed(order):
        placed[index] = edge = min(placed[index], edge - gap)
    return placed

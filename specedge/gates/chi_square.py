"""Pearson's test of drawn tokens against their exact law, and how small a bias it would catch.

Tails of chi-square are exact: with Q(k, x) the chance of more than x with k degrees of freedom,
Q(1, x) = erfc(sqrt(x / 2)), Q(2, x) = exp(-x / 2), and
Q(k + 2, x) = Q(k, x) + (x / 2)^(k / 2) exp(-x / 2) / Gamma(k / 2 + 1).

A wrong law moves the statistic to a noncentral chi-square, a Poisson mixture of central ones. With
n draws and a bias of total variation b between the cells, its noncentrality n sum (p' - p)^2 / p is
at least 4 n b^2 (Cauchy and Schwarz), whichever tokens the bias is in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from specedge.sampling.law import Floats

FEWEST = 25.0
"""Draws expected in each cell: Pearson's statistic is then close to chi-square far out, too."""

MOST_CELLS = 40
"""A token rarer than 1 / MOST_CELLS shares a cell; more cells would hide a bias in noise."""


@dataclass(frozen=True, slots=True)
class Oddity:
    """The cell that is furthest from its law.

    Args:
        token: the likeliest id of the cell.
        cell: ids in the cell.
        observed, expected: draws.
        share: of the statistic.
    """

    token: int
    cell: int
    observed: float
    expected: float
    share: float


@dataclass(frozen=True, slots=True)
class Fit:
    """How far draws lie from their law; the fits of independent draws can be added up.

    Args:
        draws: that were counted.
        statistic: Pearson's; infinite where a token was drawn that cannot be.
        freedom: cells that are free to differ; 0: nothing could be seen.
        leaning: noncentrality, per squared share of the mass, of mass moved from the likeliest
            token to the next.
    """

    draws: int = 0
    statistic: float = 0.0
    freedom: int = 0
    leaning: float = 0.0

    def __add__(self, other: Fit) -> Fit:
        return Fit(
            self.draws + other.draws,
            self.statistic + other.statistic,
            self.freedom + other.freedom,
            self.leaning + other.leaning,
        )

    @property
    def p_value(self) -> float:
        """Chance of draws at least as far off if they follow the law."""
        return tail(self.freedom, self.statistic) if self.freedom else 1.0

    def smallest_bias(self, alarm: float, power: float) -> float:
        """Total variation that a bias must have to be caught with this probability.

        Wherever the bias lies, as long as it is as large in each context that was counted; 1.0
        where no bias would surely be caught.
        """
        if not self.freedom:
            return 1.0
        return min(1.0, math.sqrt(_needed(self.freedom, alarm, power) / (4 * self.draws)))

    def smallest_shift(self, alarm: float, power: float) -> float:
        """The same for mass that went from the likeliest token to the next."""
        if not self.freedom:
            return 1.0
        return min(1.0, math.sqrt(_needed(self.freedom, alarm, power) / self.leaning))


def pearson(counts: Mapping[int, int], law: Floats) -> tuple[Fit, Oddity | None]:
    """Test draws of one law.

    Args:
        counts: how often each id was drawn.
        law: float64 [V], its probabilities.

    Returns:
        The fit, and what is oddest about it; no fit and none where all share one cell.
    """
    draws = sum(counts.values())
    for token in counts:
        if law[token] == 0.0:
            return Fit(draws, math.inf, 1, 1.0), Oddity(token, 1, counts[token], 0.0, math.inf)
    order = np.argsort(-law, kind="stable")
    drawn = np.zeros(len(law))
    drawn[list(counts)] = list(counts.values())
    starts = _cells(law[order] * draws, max(FEWEST, draws / MOST_CELLS))
    if len(starts) < 2:
        return Fit(), None
    observed = np.add.reduceat(drawn[order], starts)
    expected = np.add.reduceat(law[order], starts) * draws
    shares = (observed - expected) ** 2 / expected
    worst = int(shares.argmax())
    ends = [*starts[1:], len(law)]
    oddity = Oddity(
        int(order[starts[worst]]),
        ends[worst] - starts[worst],
        observed.item(worst),
        expected.item(worst),
        shares.item(worst),
    )
    leaning = draws**2 * float((1 / expected[:2]).sum())
    return Fit(draws, float(shares.sum()), len(starts) - 1, leaning), oddity


def _cells(expected: Floats, least: float) -> list[int]:
    """Where cells begin that hold `least` each; of falling expectations. The last takes what is
    left."""
    starts, inside = [0], 0.0
    left = float(expected.sum())
    for place, mass in enumerate(expected.tolist()):
        if left < least:
            break
        if inside >= least:
            starts.append(place)
            inside = 0.0
        inside += mass
        left -= mass
    return starts


def tails(odd: bool, x: float) -> Iterator[float]:
    """Q(1, x), Q(3, x), … or Q(2, x), Q(4, x), … for x > 0."""
    half = x / 2
    chance = math.erfc(math.sqrt(half)) if odd else math.exp(-half)
    power = 0.5 if odd else 1.0  # k / 2 of the next term
    while True:
        yield min(1.0, chance)
        chance += math.exp(power * math.log(half) - half - math.lgamma(power + 1))
        power += 1


def tail(freedom: int, x: float) -> float:
    """Q(freedom, x); freedom >= 1."""
    if x <= 0:
        return 1.0
    if math.isinf(x):
        return 0.0
    chances = tails(freedom % 2 == 1, x)
    for _ in range((freedom - 1) // 2):
        next(chances)
    return next(chances)


def limit(freedom: int, alarm: float) -> float:
    """What chi-square exceeds with probability `alarm`, 0 < alarm < 1."""
    return _falling(lambda x: tail(freedom, x), alarm)


def caught(freedom: int, noncentrality: float, x: float) -> float:
    """Chance that noncentral chi-square exceeds x > 0."""
    half = noncentrality / 2
    if half == 0.0:
        return tail(freedom, x)
    chances = tails(freedom % 2 == 1, x)
    for _ in range((freedom - 1) // 2):
        next(chances)
    total = 0.0
    last = half + 10 * math.sqrt(half) + 20
    for j, chance in enumerate(chances):
        if j > last:
            return min(1.0, total)
        total += chance * math.exp(j * math.log(half) - half - math.lgamma(j + 1))
    raise AssertionError("the tails have no end")


def _needed(freedom: int, alarm: float, power: float) -> float:
    """Noncentrality that is caught with probability `power`."""
    bound = limit(freedom, alarm)
    return _falling(lambda size: 1 - caught(freedom, size, bound), 1 - power)


def _falling(chance: Callable[[float], float], wanted: float) -> float:
    """Where a function that falls from about 1 at 0 meets `wanted`, to six digits."""
    high = 1.0
    while chance(high) > wanted:
        high *= 2
    low = 0.0
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) > wanted else (low, middle)
    return high

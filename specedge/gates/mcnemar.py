"""McNemar's exact test on pairs of yes and no (McNemar 1947, Psychometrika 12, 153-157)."""

from __future__ import annotations


def p_value(lost: int, gained: int) -> float:
    """Two-sided, of the null hypothesis that a changed pair is as often lost as gained.

    Pairs that have not changed say nothing about it. The exact binomial distribution, since the
    counts are small: twice the smaller tail, at most 1.

    Args:
        lost: pairs that were right and are wrong, >= 0.
        gained: pairs that were wrong and are right, >= 0.

    Returns:
        0..1; 1 where nothing has changed.
    """
    changed = lost + gained
    ways = tail = 1  # to choose `count` of the changed pairs; whole numbers, so nothing is rounded
    for count in range(min(lost, gained)):
        ways = ways * (changed - count) // (count + 1)
        tail += ways
    return min(1.0, 2 * tail / (1 << changed))


def fewest_lost(level: float) -> int:
    """How many pairs must be lost, none gained, for a p-value under `level` (0 < level < 1)."""
    lost = 1
    while p_value(lost, 0) >= level:
        lost += 1
    return lost

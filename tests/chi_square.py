"""Pearson's test of counts against a law, with the rare ids pooled; without scipy."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

FEWEST = 50.0  # expected in each cell


def cells(
    tokens: Iterable[int], probabilities: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Observed and expected counts: one cell for each id that is expected often enough, the others
    pooled by falling probability into cells that are. Ids of probability 0 stand in the last."""
    drawn = np.fromiter(tokens, np.int64)
    counts = np.bincount(drawn, minlength=len(probabilities)).astype(float)
    order = np.argsort(-probabilities, kind="stable")
    expected, observed = probabilities[order] * len(drawn), counts[order]
    # the cell of an id: how many whole cells the mass before it fills
    ends: list[int] = []
    inside = 0.0
    for place, mass in enumerate(expected.tolist()):
        inside += mass
        if inside >= FEWEST:
            ends.append(place + 1)
            inside = 0.0
    starts = [0, *ends[:-1]]
    return np.add.reduceat(observed, starts), np.add.reduceat(expected, starts)


def p_value(tokens: Iterable[int], probabilities: npt.NDArray[np.float64]) -> float:
    """Probability of counts at least as far off, if `probabilities` [V] is the law; by Wilson and
    Hilferty's normal approximation, good to a few percent of itself for p above 1e-6."""
    observed, expected = cells(tokens, probabilities)
    freedom = len(observed) - 1
    if freedom == 0:
        return 1.0
    # a token that cannot be: no number of others makes up for it
    chosen = np.fromiter(tokens, np.int64) if not isinstance(tokens, np.ndarray) else tokens
    if (probabilities[chosen] == 0).any():
        return 0.0
    statistic = float(((observed - expected) ** 2 / expected).sum())
    spread = 2 / (9 * freedom)
    normal = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(normal / math.sqrt(2))

"""Sampling and acceptance the straightforward way, for `acceptance.py` to compare with.

Every row is normalised in float64, top-k and top-p sort the vocabulary, and the coupled rule makes
Gumbel noise for all of it. Nothing is kept between calls.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specedge.acceptance import RoundDraws, Verdict
from specedge.contract import Ids, Logits

Floats = npt.NDArray[np.float64]


def probabilities(rows: Logits, temperature: float, top_k: int, top_p: float) -> Floats:
    """float64 [n, V], normalised."""
    scaled = rows.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    p: Floats = weights / weights.sum(axis=1, keepdims=True)
    if not top_k and top_p == 1:
        return p
    out: Floats = np.zeros_like(p)
    for row, kept_row in zip(p, out, strict=True):
        order = np.argsort(-row, kind="stable")
        if top_k:
            order = order[:top_k]
        kept = row[order] / row[order].sum()
        if top_p < 1:
            order = order[np.cumsum(kept) - kept < top_p]
        kept_row[order] = row[order] / row[order].sum()
    return out


def draw(p: Floats, uniform: float) -> int:
    """The id at `uniform` of the cumulative distribution of float64 [V], >= 0."""
    sums = np.cumsum(p)
    return int(np.searchsorted(sums, uniform * sums[-1], side="right"))


def gumbel_max(p: Floats, key: tuple[int, int]) -> int:
    """With noise that is a function of `key`: seed and position."""
    noise = np.random.Generator(np.random.Philox(key=key)).gumbel(size=len(p))
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(p) + noise))


def greedy(draft: Ids, rows: Logits) -> Verdict:
    """Draft [K], rows [K + 1, V]."""
    return _agreeing(draft, list(np.argmax(rows, axis=1)))


def coupled(draft: Ids, p: Floats, seed: int, position: int) -> Verdict:
    """Draft [K], p [K + 1, V]."""
    return _agreeing(draft, [gumbel_max(row, (seed, position + i)) for i, row in enumerate(p)])


def rejection(draft: Ids, p: Floats, q: Floats, draws: RoundDraws) -> Verdict:
    """Draft [K], p [K + 1, V], q [K, V]."""
    for i, token in enumerate(draft):
        if draws.accept(i) >= min(1.0, p[i, token] / q[i, token]):
            return Verdict(i, draw(np.maximum(p[i] - q[i], 0), draws.residual(i)))
    return Verdict(len(draft), draw(p[-1], draws.bonus(len(draft))))


def block(draft: Ids, p: Floats, q: Floats, draws: RoundDraws) -> Verdict:
    """Draft [K], p [K + 1, V], q [K, V]."""
    k, weights, n_accepted = len(draft), [1.0], 0
    for i, token in enumerate(draft):
        weights.append(min(1.0, weights[-1] * p[i, token] / q[i, token]))
    for i in range(1, k + 1):
        threshold = weights[i]
        if i < k:
            left = np.maximum(weights[i] * p[i] - q[i], 0).sum()
            out_of = left + 1 - weights[i]
            threshold = left / out_of if out_of > 0 else 1.0
        if draws.accept(i - 1) < threshold:
            n_accepted = i
    if n_accepted == k:
        return Verdict(k, draw(p[-1], draws.bonus(k)))
    left = np.maximum(weights[n_accepted] * p[n_accepted] - q[n_accepted], 0)
    return Verdict(n_accepted, draw(left, draws.residual(n_accepted)))


def _agreeing(draft: Ids, chosen: list[int]) -> Verdict:
    n_accepted = 0
    while n_accepted < len(draft) and draft[n_accepted] == chosen[n_accepted]:
        n_accepted += 1
    return Verdict(n_accepted, int(chosen[n_accepted]))

"""What is left of the target's law where the draft's was larger: max(0, scale p - q)."""

from __future__ import annotations

import numpy as np

from specedge.sampling.law import Law, Weights


def residual(p: Law, q: Law, scale: float = 1.0) -> Law:
    """The law max(0, scale p(x) - q(x)), both normalised; 0 <= scale <= 1.

    Its ids are those of p: nothing else can be left. Its weights are in units of 1 / q.total, which
    saves a pass over the vocabulary; all of them may be 0.
    """
    wide = p.weights.dtype == q.weights.dtype == np.float32
    weights: Weights = p.buffers.singles(p.size) if wide else p.buffers.floats(p.size)
    np.multiply(p.weights, scale * q.total / p.total, out=weights)
    if q.ids is None:
        weights -= q.weights if p.ids is None else q.weights[p.ids]
    elif p.ids is None:
        weights[q.ids] -= q.weights
    else:
        places = p.ids.searchsorted(q.ids)
        places[places == len(p.ids)] = 0
        shared = p.ids[places] == q.ids
        weights[places[shared]] -= q.weights[shared]
    np.maximum(weights, 0.0, out=weights)
    return Law(p.ids, None, weights=weights)


def residual_mass(p: Law, q: Law, scale: float = 1.0) -> float:
    """Sum over x of max(0, scale p(x) - q(x))."""
    if q.size == 1 and q.ids is not None:  # a lookup's: no pass over the vocabulary
        return scale * (1.0 - p.probability(q.ids.item(0)))  # at the id itself nothing is left
    return residual(p, q, scale).total / q.total

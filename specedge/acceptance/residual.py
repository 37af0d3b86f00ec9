"""What is left of the target's law where the draft's was larger: max(0, scale p - q)."""

from __future__ import annotations

import numpy as np

from specedge.sampling.law import Allocate, Floats, Law


def _new(n: int) -> Floats:
    return np.empty(n)


def residual(p: Law, q: Law, scale: float = 1.0, allocate: Allocate = _new) -> Law:
    """The law with weights max(0, scale p(x) - q(x)), both normalised; its total is their sum.

    Its ids are those of p: nothing else can be left. All weights may be 0.
    """
    weights = allocate(p.size)
    np.multiply(p.weights, scale / p.total, out=weights)
    if q.ids is None:
        others = q.weights if p.ids is None else q.weights[p.ids]
        taken = allocate(p.size)
        np.multiply(others, 1.0 / q.total, out=taken)
        weights -= taken
    elif p.ids is None:
        weights[q.ids] -= q.weights / q.total
    else:
        places = p.ids.searchsorted(q.ids)
        places[places == len(p.ids)] = 0
        shared = p.ids[places] == q.ids
        weights[places[shared]] -= q.weights[shared] / q.total
    np.maximum(weights, 0.0, out=weights)
    return Law(p.ids, None, weights=weights)


def residual_mass(p: Law, q: Law, scale: float = 1.0, allocate: Allocate = _new) -> float:
    """Sum over x of max(0, scale p(x) - q(x))."""
    if q.size == 1 and q.ids is not None:  # a lookup's: no pass over the vocabulary
        at = scale * p.probability(q.ids.item(0))
        return (scale - at) + max(0.0, at - 1.0)
    return residual(p, q, scale, allocate).total

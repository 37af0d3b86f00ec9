"""Pieces of top-k and top-p: thresholds, weights, and the order of tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specedge.contract import Ids, Logits
from specedge.sampling.law import Floats
from specedge.sampling.scratch import Scratch

Values = npt.NDArray[np.float32]
"""Logits of some ids."""

LOWEST = float(np.finfo(np.float32).min)


def at_least(row: Logits, threshold: float, scratch: Scratch) -> Ids:
    """Rising ids of logits >= threshold, or a hair below it; never one of -inf."""
    flags = scratch.work(np.bool_, len(row))
    np.greater_equal(row, below(threshold), out=flags)
    return flags.nonzero()[0]


def below(threshold: float) -> np.float32:
    """The largest finite float32 that is not above; the least of all if there is none."""
    limit = np.float32(max(threshold, LOWEST))
    if limit > threshold and limit > LOWEST:
        limit = np.nextafter(limit, np.float32(LOWEST))
    return limit


def weights_of(values: Values, top: float, scale: float) -> Floats:
    """float64 [n]: exp(scale * (logit - top))."""
    weights = values.astype(np.float64)
    weights -= top
    weights *= scale
    return np.exp(weights, out=weights)


def first_in_order(ids: Ids, values: Values, edge: np.float32, n: int) -> Ids:
    """The first n in order, where `edge` is the logit of the n-th."""
    keep = values >= edge
    excess = int(np.count_nonzero(keep)) - n
    if excess:
        keep[(values == edge).nonzero()[0][-excess:]] = False
    return ids[keep]

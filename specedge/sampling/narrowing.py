"""Top-k, top-p and min-p."""

from __future__ import annotations

import numpy as np

from specedge.contract import Ids, Logits
from specedge.sampling.scratch import Scratch


def narrow(
    row: Logits, top: float, scale: float, top_k: int, top_p: float, min_p: float, scratch: Scratch
) -> Ids:
    """Rising ids that are kept: int64 [n], n >= 1."""
    order = np.argsort(-row, kind="stable")
    order = order[row[order] > -np.inf]
    if top_k:
        order = order[:top_k]
    weights = np.exp((row[order].astype(np.float64) - top) * scale)
    if top_p < 1:
        sums = weights.cumsum()
        keep = int((sums / sums[-1] >= top_p).argmax()) + 1
        order, weights = order[:keep], weights[:keep]
    if min_p > 0:
        order = order[weights >= min_p]
    return np.sort(order)

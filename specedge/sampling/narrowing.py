"""Top-k, top-p and min-p: which tokens are kept, without sorting the vocabulary.

With weights w(id) = exp((logit - largest) / temperature), and ids in order of falling logit, then
rising id:

top-k   the first k (Fan et al., 2018, "Hierarchical neural story generation")
top-p   the first ones, as few as have top_p of the weight that top-k left (Holtzman et al., 2020,
        "The curious case of neural text degeneration")
min-p   of these, the ones with w >= min_p (Nguyen et al., 2024, "Turning up the heat")

A token at -inf is never kept. What is kept is exact: every short cut brackets what it did not look
at, and a longer way is taken where the bracket does not decide.
"""

from __future__ import annotations

import math

import numpy as np

from specedge.contract import Ids, Logits
from specedge.sampling.cuts import LOWEST, at_least, first_in_order, weights_of
from specedge.sampling.nucleus import SURE, exact_top_p, top_p_ids
from specedge.sampling.scratch import Scratch


def narrow(
    row: Logits, top: float, scale: float, top_k: int, top_p: float, min_p: float, scratch: Scratch
) -> Ids:
    """The ids that are kept.

    Args:
        row: float32 [V], none NaN or +inf.
        top: the largest of them, finite.
        scale: 1 / temperature, up to 1e200.
        top_k, top_p, min_p: as in `SamplingParams`; one at least keeps less than everything.
        scratch: for arrays of the vocabulary's size.

    Returns:
        int64 [n], rising, n >= 1.
    """
    if top_k:
        ids = top_k_ids(row, top_k, scratch)
        if top_p < 1:
            ids = exact_top_p(ids, row[ids], top, scale, top_p)
    elif top_p < 1:
        ids = top_p_ids(row, top, scale, top_p, scratch)
    else:
        lowest = top + (math.log(min_p) * (1 + SURE) - SURE) / scale
        ids = at_least(row, lowest, scratch)
    return ids[weights_of(row[ids], top, scale) >= min_p] if min_p > 0 else ids


def top_k_ids(row: Logits, k: int, scratch: Scratch) -> Ids:
    """Rising ids of the k largest logits; int64 [n], n < k only if others are -inf.

    The k-th largest of column maxima bounds the k-th largest of all from below, and few logits
    pass it, so that only these are partitioned.
    """
    n = len(row)
    width = max(1024, 8 * k)
    if n < 4 * width:
        bound = LOWEST
    else:
        height = n // width
        maxima = np.maximum.reduce(row[: height * width].reshape(height, width), axis=0)
        maxima.partition(width - k)
        bound = maxima.item(width - k)
    ids = at_least(row, bound, scratch)
    if len(ids) <= k:
        return ids
    values = row[ids]
    place = len(ids) - k
    return first_in_order(ids, values, np.partition(values, place)[place], k)

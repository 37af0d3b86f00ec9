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
import numpy.typing as npt

from specedge.contract import Ids, Logits
from specedge.sampling.law import BLOCK, Floats, block_starts
from specedge.sampling.scratch import Scratch

SHORT = 4096
"""Up to so many values are sorted."""

LOWEST = float(np.finfo(np.float32).min)
TINIEST = float(np.finfo(np.float32).tiny)

STRIDE = 64
"""One in so many logits is looked at to guess how many are above a threshold."""

SURE = 1e-9
"""Relative distance from top_p at which a sum of weights decides; sums are good to 1e-11."""

ROUGH = 3e-5
"""Relative error of the float32 sum, an upper bound: 1e-5 from rounding an argument of up to 85
twice, 3e-7 from exp, 4e-6 from up to 64 additions in a row."""

STEEP = 1e6
"""Largest 1 / temperature for which float32 products cannot overflow upwards or give 0 * inf."""

Values = npt.NDArray[np.float32]


def narrow(
    row: Logits, top: float, scale: float, top_k: int, top_p: float, min_p: float, scratch: Scratch
) -> Ids:
    """The ids that are kept.

    Args:
        row: float32 [V], none NaN or +inf.
        top: the largest of them, finite.
        scale: 1 / temperature, up to 1e200.
        top_k: 0: all.
        top_p: 0 < top_p <= 1.
        min_p: 0..1.
        scratch: for arrays of the vocabulary's size.

    Returns:
        int64 [n], rising, n >= 1.
    """
    if top_k:
        ids = top_k_ids(row, top_k, scratch)
        if top_p < 1:
            ids = _exact_top_p(ids, row[ids], top, scale, top_p)
    elif top_p < 1:
        ids = top_p_ids(row, top, scale, top_p, scratch)
    elif min_p > 0:
        lowest = top + (math.log(min_p) * (1 + SURE) - SURE) / scale
        ids = _at_least(row, lowest, scratch)
    else:
        ids = _at_least(row, LOWEST, scratch)
    return ids[_weights(row[ids], top, scale) >= min_p] if min_p > 0 else ids


def _at_least(row: Logits, threshold: float, scratch: Scratch) -> Ids:
    """Rising ids of logits >= threshold, or a hair below it; never one of -inf."""
    flags = scratch.work(np.bool_, len(row))
    np.greater_equal(row, _below(threshold), out=flags)
    return flags.nonzero()[0]


def _below(threshold: float) -> np.float32:
    """The largest finite float32 that is not above; the least of all if there is none."""
    limit = np.float32(max(threshold, LOWEST))
    if limit > threshold and limit > LOWEST:
        limit = np.nextafter(limit, np.float32(LOWEST))
    return limit


def _weights(values: Values, top: float, scale: float) -> Floats:
    weights = values.astype(np.float64)
    weights -= top
    weights *= scale
    return np.exp(weights, out=weights)


def _first(ids: Ids, values: Values, edge: np.float32, n: int) -> Ids:
    """The first n in order, where `edge` is the logit of the n-th."""
    keep = values >= edge
    excess = int(np.count_nonzero(keep)) - n
    if excess:
        keep[(values == edge).nonzero()[0][-excess:]] = False
    return ids[keep]


def top_k_ids(row: Logits, k: int, scratch: Scratch) -> Ids:
    """Rising ids of the k largest logits; int64 [n], n < k only if others are -inf.

    The k-th largest of column maxima bounds the k-th largest of all from below, and few logits
    pass it, so that only these are partitioned.
    """
    n = len(row)
    width = max(1024, 8 * k)
    if n < 4 * width:
        ids, values = _finite(row, scratch)
    else:
        height = n // width
        maxima = np.maximum.reduce(row[: height * width].reshape(height, width), axis=0)
        maxima.partition(width - k)
        ids = _at_least(row, maxima.item(width - k), scratch)
        values = row[ids]
    if len(ids) <= k:
        return ids
    place = len(ids) - k
    return _first(ids, values, np.partition(values, place)[place], k)


def _finite(row: Logits, scratch: Scratch) -> tuple[Ids, Values]:
    ids = _at_least(row, LOWEST, scratch)
    return ids, row[ids]


def _exact_top_p(ids: Ids, values: Values, top: float, scale: float, top_p: float) -> Ids:
    """By the definition, of all that have a weight."""
    falling = np.sort(values)[::-1]
    sums = _weights(falling, top, scale).cumsum()
    sums /= sums[-1]
    n = int(sums.searchsorted(top_p)) + 1
    return _first(ids, values, falling[n - 1], n)


def top_p_ids(row: Logits, top: float, scale: float, top_p: float, scratch: Scratch) -> Ids:
    """Rising ids of the fewest likeliest tokens that have `top_p` of the probability.

    Weights below total * (1 - top_p) / V have less than 1 - top_p of the total together, so only
    those above are candidates; the largest weight, 1, is a first bound of the total. Of all others
    the sum of weights is enough, and an interval that contains it often decides.
    """
    n = len(row)
    if n > SHORT:
        log_share = math.log((1 - top_p) / n)
        for ways in (_few, _rough_sum, _fine_sum):
            ids = ways(row, top, scale, top_p, log_share, scratch)
            if ids is not None:
                return ids
    ids, values = _finite(row, scratch)
    return _exact_top_p(ids, values, top, scale, top_p)


def _few(
    row: Logits, top: float, scale: float, top_p: float, log_share: float, scratch: Scratch
) -> Ids | None:
    """Bound all that are e^5 times below the candidates by the largest possible of them."""
    n = len(row)
    threshold = max(top + (log_share - 5) / scale, LOWEST)
    sampled = row[::STRIDE] >= _below(threshold)
    if np.count_nonzero(sampled) * STRIDE > 2 * SHORT:
        return None
    ids = _at_least(row, threshold, scratch)
    values = row[ids]
    known = float(_weights(values, top, scale).sum())
    rest = (n - len(ids)) * math.exp((threshold - top) * scale)
    likely = (values >= _below(top + log_share / scale)).nonzero()[0]
    return _decide(ids[likely], values[likely], top, scale, top_p, known, known + rest)


def _rough_sum(
    row: Logits, top: float, scale: float, top_p: float, log_share: float, scratch: Scratch
) -> Ids | None:
    """Sum the weights in float32."""
    if scale > STEEP:
        return None
    n = len(row)
    weights = scratch.work(np.float32, n)
    unit, lost = 1.0, n * TINIEST  # lost: what underflows
    with np.errstate(over="ignore"):  # far below the largest: -inf, and a weight of 0, is right
        if abs(top * scale) < 60:
            unit = math.exp(-top * scale)
            scaled = row if scale == 1 else np.multiply(row, np.float32(scale), out=weights)
        else:
            scaled = np.subtract(row, np.float32(top), out=weights)
            scaled *= np.float32(scale)
    np.exp(scaled, out=weights)
    total = _column_sum(weights) * unit
    low, high = total * (1 - ROUGH), total * (1 + ROUGH) + lost * unit
    log_weight = max(_guess(weights, (1 - top_p) * total, unit), math.log(low) + log_share)
    ids = _at_least(row, top + (log_weight - SURE) / scale, scratch)
    if len(ids) > 2 * SHORT:  # of so many, each is less than the error
        return None
    return _decide(ids, row[ids], top, scale, top_p, low, high)


def _column_sum(weights: Values) -> float:
    """Of float32 [n], with at most 64 additions in a row in float32."""
    width = max(1, len(weights) // 64)
    whole = len(weights) // width * width
    columns = np.add.reduce(weights[:whole].reshape(-1, width), axis=0, dtype=np.float32)
    return float(columns.sum(dtype=np.float64) + weights[whole:].sum(dtype=np.float64))


def _fine_sum(
    row: Logits, top: float, scale: float, top_p: float, log_share: float, scratch: Scratch
) -> Ids | None:
    """Sum the weights in float64."""
    weights = scratch.work(np.float64, len(row))
    np.copyto(weights, row)
    weights -= top
    weights *= scale
    np.exp(weights, out=weights)
    total = float(weights.sum())
    least = math.log(total) + log_share
    for log_weight in (_guess(weights, (1 - top_p) * total, 1.0), least):
        ids = _at_least(row, top + (max(log_weight, least) - SURE) / scale, scratch)
        chosen = _decide(ids, row[ids], top, scale, top_p, total, total)
        if chosen is not None:
            return chosen
    return None


def _guess(weights: Values | Floats, spare: float, unit: float) -> float:
    """Logarithm of a weight such that the ones below it have less than `spare` together, probably:
    as they would if they were all like a sample of them. It leaves few to sort.

    Args:
        weights: in multiples of 1 / unit.
    """
    step = 4 * STRIDE
    sample = np.sort(weights[::step])
    sums = sample.cumsum(dtype=np.float64)
    place = int(sums.searchsorted(0.8 * spare / unit / step))
    weight = sample.item(min(place, len(sample) - 1)) * unit
    return min(math.log(weight), 0.0) if weight else -math.inf


def _decide(
    ids: Ids, values: Values, top: float, scale: float, top_p: float, low: float, high: float
) -> Ids | None:
    """The first ids in order that reach top_p of a total between low and high; None: it depends
    on where the total is, or rounding might decide."""
    falling = np.sort(values)[::-1]
    weights = _weights(falling, top, scale)
    least, most = top_p * low * (1 - SURE), top_p * high * (1 + SURE)
    start, before = 0, 0.0
    if len(weights) > SHORT:  # a running sum of all costs more than the sums of blocks
        sums = np.add.reduceat(weights, block_starts(len(weights))).cumsum()
        block = int(sums.searchsorted(least))
        if block == len(sums):
            return None
        start = block * BLOCK
        before = sums.item(block - 1) if block else 0.0
    sums = weights[start : start + SHORT].cumsum()
    place = int(sums.searchsorted(least - before))
    if place == len(sums) or sums[place] < most - before:
        return None
    n = start + place + 1
    return _first(ids, values, falling[n - 1], n)

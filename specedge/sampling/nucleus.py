"""Top-p without a sort of the vocabulary.

Weights below total * (1 - top_p) / V have less than 1 - top_p of the total together, so only those
above are candidates; the largest weight, 1, is a first bound of the total. Of all others the sum
is enough, and an interval that contains it often decides. Where it does not, a finer and slower
sum is taken, and at last all are sorted: what is kept is what the definition says.
"""

from __future__ import annotations

import math

import numpy as np

from specedge.contract import Ids, Logits
from specedge.sampling.cuts import LOWEST, Values, at_least, below, first_in_order, weights_of
from specedge.sampling.law import BLOCK, Floats, block_starts
from specedge.sampling.scratch import Scratch

SHORT = 4096
"""Up to so many values are sorted."""

TINIEST = float(np.finfo(np.float32).tiny)

STRIDE = 64
"""One in so many logits is looked at to guess how many are above a threshold."""

SURE = 1e-9
"""Relative distance from top_p at which a sum of weights decides; sums are good to 1e-11."""

ROUGH = 3e-5
"""Relative error of the float32 sum, an upper bound: 1e-5 from rounding an argument of up to 85
twice, 3e-7 from exp, 4e-6 from up to 64 additions in a row."""

STEEP = 1e6
"""Between its inverse and itself, 1 / temperature is neither 0 nor infinite as float32."""


def top_p_ids(row: Logits, top: float, scale: float, top_p: float, scratch: Scratch) -> Ids:
    """Rising ids of the fewest likeliest tokens that have `top_p` of the probability."""
    n = len(row)
    if n > SHORT:
        log_share = math.log((1 - top_p) / n)
        for ways in (_few, _rough_sum, _fine_sum):
            ids = ways(row, top, scale, top_p, log_share, scratch)
            if ids is not None:
                return ids
    ids = at_least(row, LOWEST, scratch)
    return exact_top_p(ids, row[ids], top, scale, top_p)


def exact_top_p(ids: Ids, values: Values, top: float, scale: float, top_p: float) -> Ids:
    """By the definition, of all that have a weight."""
    falling = np.sort(values)[::-1]
    sums = weights_of(falling, top, scale).cumsum()
    sums /= sums[-1]
    n = int(sums.searchsorted(top_p)) + 1
    return first_in_order(ids, values, falling[n - 1], n)


def _few(
    row: Logits, top: float, scale: float, top_p: float, log_share: float, scratch: Scratch
) -> Ids | None:
    """Bound all that are e^5 times below the candidates by the largest possible of them."""
    n = len(row)
    threshold = max(top + (log_share - 5) / scale, LOWEST)
    sampled = row[::STRIDE] >= below(threshold)
    if np.count_nonzero(sampled) * STRIDE > 2 * SHORT:
        return None
    ids = at_least(row, threshold, scratch)
    values = row[ids]
    known = float(weights_of(values, top, scale).sum())
    rest = (n - len(ids)) * math.exp((threshold - top) * scale)
    likely = (values >= below(top + log_share / scale)).nonzero()[0]
    return _decide(ids[likely], values[likely], top, scale, top_p, known, known + rest)


def _rough_sum(
    row: Logits, top: float, scale: float, top_p: float, log_share: float, scratch: Scratch
) -> Ids | None:
    """Sum the weights in float32."""
    if not 1 / STEEP < scale < STEEP:
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
    ids = at_least(row, top + (log_weight - SURE) / scale, scratch)
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
        ids = at_least(row, top + (max(log_weight, least) - SURE) / scale, scratch)
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
    weights = weights_of(falling, top, scale)
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
    return first_in_order(ids, values, falling[n - 1], n)

"""How far a measured gain can be trusted, from a dozen prompts or two.

The gain is a ratio of sums over prompts, so a long text counts as much as it takes. Prompts are
the sample: what differs between them is far more than what a repeated timing differs by.

Bootstrap-t over prompts (Efron, "Nonparametric standard errors and confidence intervals", 1981;
Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 12; Hall, "Theoretical
comparison of bootstrap confidence intervals", 1988): each resample is measured in its own standard
errors, which corrects the shape of the interval as well as its width. At a dozen skewed prompts a
normal or a percentile interval is too short.

The interval is for a later measurement of as many prompts of the same class, not for the mean of
the class alone: a reader who measures again finds what was promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import exp, log, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specedge.errors import ShapeError
from specedge.probe.findings import Estimate

MIN_PROMPTS = 12
RESAMPLES = 2000
# A resample that misses the only prompts that differ has hardly a standard error of its own.
LEAST_ERROR = 0.25  # of the sample's own standard error
_AGREE = 1e-9  # what is closer, on the scale of a mean, differs by rounding

Floats = NDArray[np.float64]


def ratio_interval(
    plain_ms: Sequence[float],
    spec_ms: Sequence[float],
    *,
    level: float = 0.9,
    looks: int = 1,
    planned_looks: int = 1,
    later: int | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Gain of the paired times, sum(plain) / sum(spec), with its interval.

    Where one may stop at several looks, the alarm is split evenly over all that were planned
    (Bonferroni), the first included: whoever stops there could have gone on.

    Args:
        plain_ms, spec_ms: [n] each, n >= 1, more than 0, one entry a prompt.
        level: of the interval, after all looks together.
        looks: at these data and fewer of them, this one included.
        planned_looks: at which one might stop.
        later: prompts of the later measurement that the interval holds; None: n.
        resamples: bootstrap samples.
        seed: the same data and seed give the same interval.

    Returns:
        An estimate without ends under `MIN_PROMPTS` prompts. Where all prompts agree exactly, both
        ends are the gain; they never lie outside what single prompts gained.

    Raises:
        ShapeError: lengths differ, a time is not above 0, or a count or the level is impossible.
    """
    plain, spec = np.asarray(plain_ms, np.float64), np.asarray(spec_ms, np.float64)
    n = len(plain)
    if plain.shape != spec.shape or plain.ndim != 1 or n == 0:
        raise ShapeError(
            f"interval: expected as many plain as speculative times, at least one, found {n} and "
            f"{len(spec)}"
        )
    both = np.concatenate([plain, spec])
    if not (np.isfinite(both).all() and both.min() > 0):
        raise ShapeError("interval: expected times of more than 0 ms")
    m = n if later is None else later
    if not 0 < level < 1 or not 1 <= looks <= planned_looks or m < 1 or resamples < 1:
        raise ShapeError(
            "interval: expected a level in 0..1, looks in 1..planned_looks, later and resamples "
            f"of 1 or more, found {level}, {looks} of {planned_looks}, {m} and {resamples}"
        )
    gain = float(plain.sum() / spec.sum())
    if n < MIN_PROMPTS:
        return Estimate(gain=gain, prompts=n, looks=looks)
    tail = (1 - level) / planned_looks / 2
    below, above = _reach(plain / plain.mean(), spec / spec.mean(), m, tail, resamples, seed)
    each = plain / spec
    # A later ratio of sums is hardly beyond every single prompt's of now.
    low = max(log(gain) - below, min(log(gain), log(each.min())))
    high = min(log(gain) + above, max(log(gain), log(each.max())))
    return Estimate(gain=gain, low=exp(low), high=exp(high), prompts=n, looks=looks)


def _reach(
    a: Floats, b: Floats, m: int, tail: float, resamples: int, seed: int
) -> tuple[float, float]:
    """How far below and above the log ratio a later one of m prompts may lie; both 0 or more.

    Args:
        a, b: float64 [n], of mean 1, so the log ratio is 0.
        tail: probability left out at either end.
    """
    n = len(a)
    rest_a, rest_b = np.maximum(n - a, _AGREE), np.maximum(n - b, _AGREE)
    without = np.log(rest_a / rest_b)  # the log ratio with each prompt left out
    spread = sqrt(n - 1) * float(np.sqrt(((without - without.mean()) ** 2).sum()))
    if spread < _AGREE:
        return 0.0, 0.0
    now = _means(_counts(resamples, n, n, seed), a, b, a * a, a * b, b * b)
    mean_a, mean_b = now[0], now[1]
    # Each prompt's pull on the log ratio is a / mean a - b / mean b (delta method). Its variance is
    # left without n / (n - 1): a dozen prompts are better judged a little too wide.
    pull = now[2] / mean_a**2 - 2 * now[3] / (mean_a * mean_b) + now[4] / mean_b**2
    own = np.maximum(np.sqrt(np.maximum(pull, 0)), LEAST_ERROR * spread)
    then = _means(_counts(resamples, n, m, seed + 1), a, b)
    apart = np.log(then[0] / then[1]) - np.log(mean_a / mean_b)
    low, high = np.quantile(apart / own, [tail, 1 - tail])
    return max(0.0, -float(low) * spread), max(0.0, float(high) * spread)


def _means(counts: Floats, *values: Floats) -> Floats:
    """[v, resamples]: each of v arrays [n], averaged over every resample.

    By einsum, not by `@`: a library's threads would spin on between the calls that a probe times,
    and wait for one another where cores are few.
    """
    draws = counts[0].sum()
    means: Floats = np.einsum("rn,vn->vr", counts, np.stack(values)) / draws
    return means


@lru_cache(maxsize=8)
def _counts(resamples: int, n: int, draws: int, seed: int) -> Floats:
    """How often each of n prompts is drawn: [resamples, n], rows sum to `draws`."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(draws, np.full(n, 1 / n), size=resamples).astype(np.float64)


def decided(estimate: Estimate, margin: float) -> Literal["pays", "does not pay", "open"]:
    """What an interval says against the gain from which speculation is worth it."""
    if estimate.low is None or estimate.high is None:
        return "open"
    if estimate.low >= margin:
        return "pays"
    return "does not pay" if estimate.high < margin else "open"

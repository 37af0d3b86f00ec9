"""Whether a ratio of times is more than noise."""

from __future__ import annotations

from math import ceil
from typing import Literal

from specedge.loadtest.paired import Times
from specedge.probe.findings import Estimate
from specedge.probe.intervals import RESAMPLES, ratio_interval

Verdict = Literal["faster", "slower", "no difference beyond noise", "too few to tell"]
LEVEL = 0.9  # of the intervals of one benchmark, all together
ALARM = 0.05  # chance that a comparison of two results calls any difference that is none
_IN_TAIL = 20  # resamples beyond each end, so that the end is not one draw's
_MOST_RESAMPLES = 20_000
_MOST_COUNTS = 4_000_000  # resamples times prompts; each is a number of 8 bytes
_FOR_THE_MEAN = 1_000_000  # prompts of a later measurement that has no noise of its own


def gain(times: Times, comparisons: int) -> Estimate | None:
    """Speed of the second side over the first, for a later benchmark of as many prompts.

    None: there is no prompt.

    Args:
        times: [n], n may be 0.
        comparisons: whose intervals hold together with chance `LEVEL`, 1 or more.
    """
    return _ratio(times.first, times.second, LEVEL, comparisons, None)


def change(times: Times, comparisons: int) -> Estimate | None:
    """Time of the second side over the first's, for the mean of such prompts.

    None: there is no prompt.

    Args:
        times: [n], n may be 0.
        comparisons: that share `ALARM` evenly (Bonferroni), 1 or more.
    """
    return _ratio(times.second, times.first, 1 - ALARM, comparisons, _FOR_THE_MEAN)


def _ratio(
    over: list[float], under: list[float], level: float, comparisons: int, later: int | None
) -> Estimate | None:
    if not over:
        return None
    tail = (1 - level) / comparisons / 2
    most = min(_MOST_RESAMPLES, _MOST_COUNTS // len(over))
    return ratio_interval(
        over,
        under,
        level=level,
        planned_looks=comparisons,
        later=later,
        resamples=max(RESAMPLES, min(ceil(_IN_TAIL / tail), most)),
    )


def verdict(estimate: Estimate | None) -> Verdict:
    """Of a speed: above 1 is faster."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return "too few to tell"
    if estimate.low > 1:
        return "faster"
    return "slower" if estimate.high < 1 else "no difference beyond noise"


def changed(ratio: Estimate, noise: float) -> Verdict:
    """Of a time over another: above 1 is slower.

    Args:
        ratio: with its interval.
        noise: share by which two measurements of the same differed; 0: not known.
    """
    if ratio.low is None or ratio.high is None:
        return "too few to tell"
    if ratio.low > 1 and ratio.gain > 1 + noise:
        return "slower"
    if ratio.high < 1 and ratio.gain < 1 / (1 + noise):
        return "faster"
    return "no difference beyond noise"

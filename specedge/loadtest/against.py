"""A way against plain decoding, on the requests that both served."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specedge.loadtest.judging import Verdict, gain, verdict
from specedge.loadtest.paired import QUEUED, by_prompt, matched, queued_share, times
from specedge.loadtest.records import RequestRecord
from specedge.probe.findings import Estimate

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Against:
    """A way against plain decoding, on requests that both served.

    Args:
        pairs: of requests, repetitions included.
        prompts: those are of.
        decode, ttft, e2e: speed over plain's, from the first token to the last, to the first, and
            from arrival to the last; above 1 is sooner. None: nobody has such a time. `ttft` and
            `e2e` have no interval where `queued`: waits in one queue depend on each other.
        equal: outputs of the same ids as plain's.
        queued: waiting for the engine is a part of the times.
        verdict: of `e2e`, of `decode` where `queued`.
    """

    pairs: int
    prompts: int
    decode: Estimate | None
    ttft: Estimate | None
    e2e: Estimate | None
    equal: int
    queued: bool
    verdict: Verdict

    @property
    def judged(self) -> Estimate | None:
        """What the verdict is of."""
        return self.decode if self.queued else self.e2e


def against(
    plain: Iterable[RequestRecord], requests: Iterable[RequestRecord], comparisons: int = 1
) -> Against | None:
    """See `Against`. None: no request of one load, repetition and number was served by both.

    Args:
        plain, requests: of either way.
        comparisons: whose intervals hold together.
    """
    pairs = matched(plain, requests)
    if not pairs:
        return None
    sides = by_prompt(pairs)
    queued = queued_share(each for pair in pairs for each in pair) > QUEUED
    decode, ttft, e2e = (
        gain(times(sides, each), comparisons) for each in ("decode", "ttft", "e2e")
    )
    if queued:
        ttft, e2e = _bare(ttft), _bare(e2e)
    return Against(
        pairs=len(pairs),
        prompts=len(sides),
        decode=decode,
        ttft=ttft,
        e2e=e2e,
        equal=sum(first.output == second.output for first, second in pairs),
        queued=queued,
        verdict=verdict(decode if queued else e2e),
    )


def _bare(estimate: Estimate | None) -> Estimate | None:
    """Without an interval."""
    return estimate and estimate.model_copy(update={"low": None, "high": None})

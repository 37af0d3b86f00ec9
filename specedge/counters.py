"""What a loaded model has done so far, in sums: `specedge.prometheus` makes text of them.

    completions  finish_reason       one for each text, so n of a request with n samples; "error"
                                     where a failure ended it
    requests, failures               one for each request; a failure is an exception that is not
                                     the caller's own Ctrl-C
    *_tokens, rounds                 as in `MetricsSummary`; the prompt counts once a request
    draft_rounds, proposed, accepted by proposer; a name past the first MAX_NAMES is "other"
    position_proposed, _accepted     by place in the draft, from 1; MAX_POSITION and beyond together
    phase_seconds                    prefill, propose, verify, accept, other
    canary_comparisons               by outcome, of CANARY; these requests are none of the above
    ttft_seconds, tpot_seconds       histograms: sums, and counts by the bucket a value falls into

A request that was refused before it began (a bad option, a busy model) is none.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import defaultdict, deque
from dataclasses import dataclass, field

from specedge.metrics import MetricsSummary
from specedge.result import Result

MAX_NAMES = 16
MAX_POSITION = 16
OTHER = "other"
BEYOND = f"{MAX_POSITION}+"
PHASES = ("prefill", "propose", "verify", "accept", "other")
CANARY = ("equal", "near-tie", "mismatch", "not compared", "failed", "interrupted")
BUCKETS = {
    "ttft_seconds": (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, math.inf),
    "tpot_seconds": (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, math.inf),
}
"""Upper ends of the buckets of each histogram; a value at an end is in that bucket."""

Key = tuple[str, str]
"""A quantity and the value of its one label; "" where it has none."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment.

    Args:
        bundle, engine: as given to `Counters`.
        sums: counts and seconds; what is not among them is 0.
        histograms: by quantity, how many values fell into each of its BUCKETS.
        speculates: whether drafts were made at the end of the last request; None: there was none.
        proposer_failures: over all requests.
    """

    bundle: str
    engine: str
    sums: dict[Key, float]
    histograms: dict[str, list[int]]
    speculates: bool | None
    proposer_failures: int


@dataclass(slots=True)
class _State:
    sums: defaultdict[Key, float] = field(default_factory=lambda: defaultdict(float))
    histograms: dict[str, list[int]] = field(
        default_factory=lambda: {name: [0] * len(ends) for name, ends in BUCKETS.items()}
    )
    speculates: bool | None = None
    proposer_failures: int = 0


class Counters:
    """Fed with each request that ended; read from any thread.

    Args:
        bundle: name of what is loaded.
        engine: what runs it, as `Engine.description` says.
    """

    def __init__(self, bundle: str = "", engine: str = "") -> None:
        self.bundle = bundle
        self.engine = engine
        self._state = _State()
        # A request that nobody holds any more ends inside the garbage collector, which may run in
        # the middle of counting in the same thread: what comes then waits its turn.
        self._waiting: deque[tuple[Result | None, bool]] = deque()
        self._lock = threading.RLock()
        self._counting = False

    def add(self, result: Result | None, error: BaseException | None = None) -> None:
        """A request ended. To be called once for each, with what `Generation` tells its `on_end`.

        Args:
            result: as far as it came; None: it failed before there was one.
            error: what ended it early. KeyboardInterrupt and the like count as cancelled.
        """
        self._waiting.append((result, isinstance(error, Exception)))
        with self._lock:
            self._settle()

    def compared(self, outcome: str) -> None:
        """A canary decoded a request a second time; `outcome` is one of CANARY."""
        with self._lock:
            self._state.sums["canary_comparisons", outcome] += 1

    def snapshot(self) -> Snapshot:
        """A copy that no later request changes."""
        with self._lock:
            self._settle()
            state = self._state
            return Snapshot(
                self.bundle,
                self.engine,
                dict(state.sums),
                {name: list(counts) for name, counts in state.histograms.items()},
                state.speculates,
                state.proposer_failures,
            )

    def _settle(self) -> None:
        """Count what waits; the caller holds the lock, perhaps for the second time."""
        if self._counting:
            return
        self._counting = True
        try:
            while self._waiting:
                result, failed = self._waiting.popleft()
                _count(self._state, result, failed)
        finally:
            self._counting = False


def _count(state: _State, result: Result | None, failed: bool) -> None:
    sums = state.sums
    sums["requests", ""] += 1
    sums["failures", ""] += failed
    if result is None:
        sums["completions", "error" if failed else "cancelled"] += 1
        return
    samples = result.samples or [result]
    sums["prompt_tokens", ""] += result.prompt_tokens
    for sample in samples:
        broken = failed and sample is samples[-1]  # those before it had ended
        sums["completions", "error" if broken else sample.finish_reason] += 1
        _count_metrics(state, sample.metrics)
    last = samples[-1].speculation
    state.speculates = last.on
    state.proposer_failures = max(state.proposer_failures, last.failures)


def _count_metrics(state: _State, metrics: MetricsSummary) -> None:
    sums = state.sums
    sums["generated_tokens", ""] += metrics.generated
    sums["prefill_tokens", ""] += metrics.prefill_tokens
    sums["rounds", ""] += metrics.rounds
    for name, share in metrics.proposers.items():
        label = name if ("draft_rounds", name) in sums or _names(sums) < MAX_NAMES else OTHER
        sums["draft_rounds", label] += share.rounds
        sums["proposed", label] += share.proposed
        sums["accepted", label] += share.accepted
    for quantity, counts in (
        ("position_proposed", metrics.proposed_by_position),
        ("position_accepted", metrics.accepted_by_position),
    ):
        for place, count in enumerate(counts, 1):
            sums[quantity, str(place) if place < MAX_POSITION else BEYOND] += count
    for phase in PHASES:
        sums["phase_seconds", phase] += getattr(metrics, f"{phase}_ms") / 1e3
    sums["engine_seconds", ""] += metrics.engine_ms / 1e3
    for quantity, ms in (("ttft_seconds", metrics.ttft_ms), ("tpot_seconds", metrics.tpot_ms)):
        if ms is not None:
            sums[quantity, ""] += ms / 1e3
            place = bisect_left(BUCKETS[quantity], ms / 1e3)
            state.histograms[quantity][place] += 1


def _names(sums: dict[Key, float]) -> int:
    return sum(quantity == "draft_rounds" for quantity, _ in sums)

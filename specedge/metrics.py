"""What one request cost and what speculation did in it.

started ── prefill ── first token ── round ── round ── ... ── last token
└────────── ttft ────────────┘└───── propose + verify + accept + other ─────┘

propose  making drafts, proposers' start and catching up included
verify   the target's calls
accept   acceptance, commit, log-probabilities, telling the proposers
other    the rest: what the consumer of the stream does between rounds
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns

from specedge.proposers.base import PADDING

_MS = 1e-6  # of a nanosecond


@dataclass(frozen=True, slots=True)
class ProposerCounts:
    """One proposer's share of a request."""

    rounds: int = 0
    proposed: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class MetricsSummary:
    """A request in numbers; None where there was nothing to measure.

    Args:
        ttft_ms: from the request to its first token.
        tpot_ms: mean time from one token to the next after the first, consumer included.
        tokens_per_second: 1000 / tpot_ms.
        prefill_ms: running the prompt's rows that were not cached.
        prefill_tokens: how many those were.
        generated: tokens committed, the first included.
        rounds: target calls after the prefill.
        proposed, accepted: drafted tokens verified, and kept.
        acceptance_rate: accepted / proposed.
        acceptance_length: tokens committed per round; the first token, which the prefill
            gives, is not counted.
        proposed_by_position, accepted_by_position: element i counts the rounds in which the
            draft had an i-th token, and kept it.
        propose_ms, verify_ms, accept_ms, other_ms: the phases drawn above; their sum is the
            time from the first token to the last.
        engine_ms: part of that sum spent inside the runtimes' own calls, draft's included.
        peak_rss_bytes: largest resident memory of this process so far, 0 if unknown.
        proposers: by name.
    """

    ttft_ms: float | None
    tpot_ms: float | None
    tokens_per_second: float | None
    prefill_ms: float
    prefill_tokens: int
    generated: int
    rounds: int
    proposed: int
    accepted: int
    acceptance_rate: float | None
    acceptance_length: float | None
    proposed_by_position: list[int]
    accepted_by_position: list[int]
    propose_ms: float
    verify_ms: float
    accept_ms: float
    other_ms: float
    engine_ms: float
    peak_rss_bytes: int
    proposers: dict[str, ProposerCounts]


class Metrics:
    """Collects one request; make it when the request arrives. Times are `perf_counter_ns`."""

    def __init__(self) -> None:
        self._started = perf_counter_ns()
        self._first = self._last = 0
        self._prefill_ns = self._prefill_tokens = 0
        self._propose_ns = self._verify_ns = self._accept_ns = 0
        self._engine_ms = 0.0
        self._rounds = self._committed = 0
        self._lengths: dict[tuple[str, int, int], int] = {}

    def first_token(self, prefill_tokens: int, began: int, ended: int) -> None:
        """The prefill ran `prefill_tokens` rows from `began` to `ended` and gave one token."""
        self._prefill_tokens = prefill_tokens
        self._prefill_ns = ended - began
        self._first = self._last = ended
        self._committed = 1

    def proposers_started(self, spent: int) -> None:
        """Nanoseconds in the proposers' `start`."""
        self._propose_ns += spent
        self._last += spent

    def round(
        self,
        proposer: str,
        drafted: int,
        accepted: int,
        committed: int,
        marks: tuple[int, int, int, int],
        engine_ms: float,
    ) -> None:
        """One round.

        Args:
            proposer: who drafted; any name when drafted is 0.
            drafted, accepted, committed: token counts.
            marks: before propose, before verify, before accept, at the end.
            engine_ms: milliseconds inside the runtimes' calls.
        """
        began, proposed, verified, ended = marks
        self._propose_ns += proposed - began
        self._verify_ns += verified - proposed
        self._accept_ns += ended - verified
        self._last = ended
        self._engine_ms += engine_ms
        self._rounds += 1
        self._committed += committed
        key = (proposer, drafted, accepted)
        self._lengths[key] = self._lengths.get(key, 0) + 1

    def summary(self) -> MetricsSummary:
        """As of now; a request that was cancelled has a summary too."""
        longest = max((drafted for _, drafted, _ in self._lengths), default=0)
        offered, kept = [0] * longest, [0] * longest
        proposers: dict[str, ProposerCounts] = {}
        for (name, drafted, accepted), rounds in self._lengths.items():
            if name == PADDING:  # nobody's guess
                continue
            for position in range(drafted):
                offered[position] += rounds
                kept[position] += rounds if position < accepted else 0
            if drafted:
                seen = proposers.get(name, ProposerCounts())
                proposers[name] = ProposerCounts(
                    seen.rounds + rounds,
                    seen.proposed + rounds * drafted,
                    seen.accepted + rounds * accepted,
                )
        proposed, accepted = sum(offered), sum(kept)
        wall = self._last - self._first
        after_first = self._committed - 1
        tpot = wall * _MS / after_first if after_first > 0 else None
        return MetricsSummary(
            ttft_ms=(self._first - self._started) * _MS if self._first else None,
            tpot_ms=tpot,
            tokens_per_second=1e3 / tpot if tpot else None,
            prefill_ms=self._prefill_ns * _MS,
            prefill_tokens=self._prefill_tokens,
            generated=self._committed,
            rounds=self._rounds,
            proposed=proposed,
            accepted=accepted,
            acceptance_rate=accepted / proposed if proposed else None,
            acceptance_length=after_first / self._rounds if self._rounds else None,
            proposed_by_position=offered,
            accepted_by_position=kept,
            propose_ms=self._propose_ns * _MS,
            verify_ms=self._verify_ns * _MS,
            accept_ms=self._accept_ns * _MS,
            other_ms=(wall - self._propose_ns - self._verify_ns - self._accept_ns) * _MS,
            engine_ms=self._engine_ms,
            peak_rss_bytes=peak_rss_bytes(),
            proposers=proposers,
        )


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far; 0 where the system does not tell."""
    # Linux: getrusage would also count the parent's memory at fork, VmHWM does not.
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

"""The round: propose, verify, accept, commit, yield."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter_ns

from specedge.engines.base import Engine, Slot, prefill
from specedge.logprobs import TokenLogprobs, token_logprobs
from specedge.metrics import Metrics
from specedge.policy.choice import Choice
from specedge.proposers.base import NO_DRAFT
from specedge.sampling.sampler import GREEDY, Sampler
from specedge.sequence import Sequence
from specedge.speculator import Speculator

__all__ = ["Round", "TokenLogprobs", "decode"]

_MS = 1e-6  # of a nanosecond


@dataclass(slots=True)
class Round:
    """Tokens that one target call committed.

    Args:
        tokens: 1..K+1 ids; an end id, if any, is the last.
        proposer: who drafted; None when nobody did.
        drafted: K.
        accepted: how many of `tokens` were drafted.
        logprobs: one entry a token, when asked for.
        number: from 1; 0: the prefill.
        choice: why it was drafted like that; None where nobody chose.
        ms: milliseconds of the round, the consumer's time left out.
        draft_ms: of it, asking proposers.
    """

    tokens: list[int]
    proposer: str | None
    drafted: int
    accepted: int
    logprobs: list[TokenLogprobs] | None
    number: int = 0
    choice: Choice | None = None
    ms: float = 0.0
    draft_ms: float = 0.0


def decode(
    seq: Sequence,
    target: Engine,
    slot: Slot,
    speculator: Speculator,
    metrics: Metrics,
    logprobs: int | None = None,
    sampler: Sampler = GREEDY,
) -> Iterator[Round]:
    """Run a sequence to its end; the first round is the prefill's one token.

    No proposer is touched before the consumer has had that token and asks for more. Closing the
    iterator, an interrupt and an error all leave `seq` fit for `resume`. A consumer may
    `seq.truncate` between rounds, which ends the iteration.

    Args:
        seq: rows before `seq.n_cached` are valid in `slot`.
        target: whose text is produced, token for token.
        slot: of `target`, with seq.context rows or more.
        speculator: drafts; its mode and failures decide between speculative and plain rounds.
        metrics: fed as the rounds go.
        logprobs: list this many likeliest ids for each token; None for no log-probabilities.
        sampler: chooses the tokens; made for `seq`.

    Raises:
        EngineError, SamplingError: the target failed; nothing of that round is committed.
        ProposerError: a proposer failed and speculation is forced on.
    """
    began = perf_counter_ns()
    pending = seq.pending()
    scored = prefill(target, slot, pending, seq.n_cached)
    committed = seq.commit(NO_DRAFT.tokens, sampler.accept(NO_DRAFT, scored))
    details = None if logprobs is None else token_logprobs(committed, scored.logits, logprobs)
    metrics.first_token(len(pending), began, perf_counter_ns())
    yield Round(committed.tolist(), None, 0, 0, details)
    if seq.done:
        return

    began = perf_counter_ns()
    speculator.start(seq, target.spec, sampler)
    metrics.proposers_started(perf_counter_ns() - began)
    number = 0
    while not seq.done:
        number += 1
        began = perf_counter_ns()
        draft = speculator.propose(seq)
        k = len(draft.tokens)
        proposed = perf_counter_ns()
        scored = target.forward(slot, seq.pending(draft.tokens), seq.n_cached, 1 + k)
        verified = perf_counter_ns()
        verdict = sampler.accept(draft, scored)
        committed = seq.commit(draft.tokens, verdict)
        accepted = min(verdict.n_accepted, len(committed))
        if logprobs is not None:
            details = token_logprobs(committed, scored.logits, logprobs)
        draft_ms = (proposed - began) * _MS
        speculator.observe(committed, accepted, (perf_counter_ns() - began) * _MS, draft_ms)
        tokens = committed.tolist()
        marks = (began, proposed, verified, perf_counter_ns())
        engine_ms = scored.run_ms + draft.run_ms
        metrics.round(draft.proposer, k, accepted, len(tokens), marks, engine_ms)
        ms = (marks[3] - began) * _MS
        who = draft.proposer if k else None
        yield Round(tokens, who, k, accepted, details, number, speculator.choice, ms, draft_ms)

"""What a request gives: events while it runs, one result at its end."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from specedge.logprobs import TokenLogprobs
from specedge.metrics import MetricsSummary
from specedge.sampling.params import RuleName
from specedge.speculator import SpeculationState
from specedge.stream import FinishReason


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round after the prefill, with `explain`.

    Args:
        number: from 1.
        past: rows cached for the target before it.
        proposer: who drafted; None: nobody; "padding": only the width of the call mattered.
        drafted: K.
        accepted: drafted tokens that stood and were kept.
        committed: tokens that the text grew by.
        ms: the round; the consumer's time left out.
        draft_ms: of it, asking proposers.
        expected_tokens_per_second: what was promised for this choice; None: nobody chose.
        why: the kind of reason in a word or two: `specedge.policy.choice.Why`, "fixed" or "plain".
        reason: the same in one line, with its figures.
    """

    number: int
    past: int
    proposer: str | None
    drafted: int
    accepted: int
    committed: int
    ms: float
    draft_ms: float
    expected_tokens_per_second: float | None
    why: str
    reason: str


@dataclass(frozen=True, slots=True)
class Result:
    """One finished, or cancelled, request.

    Args:
        text: the output; with `echo` the prompt's text before it. A stop string is not in it.
        tokens: output ids, an end id included; with a stop string, up to the token that holds
            the last character of `text`.
        finish_reason: "stop" | "length" | "stop_string" | "cancelled".
        prompt_tokens: ids of the prompt.
        seed: of the randomness, drawn where none was given; None: greedy, there is none.
        acceptance: the rule that decided about drafted tokens.
        reproducible: whether the same prompt, options and seed give the same tokens with any draft
            length and proposer, or none. False for rejection and block, whose tokens repeat for the
            same draft lengths and proposers only.
        speculation: what speculation did, and why.
        metrics: see `MetricsSummary`; counts what was computed, tokens after a stop included.
        logprobs: one entry for each of `tokens`, when asked for.
        samples: with n > 1, the result of each sample; the rest is then that of the first.
        rounds: one entry a round, when `explain` asked for them.
    """

    text: str
    tokens: list[int]
    finish_reason: FinishReason
    prompt_tokens: int
    seed: int | None
    acceptance: RuleName
    reproducible: bool
    speculation: SpeculationState
    metrics: MetricsSummary
    logprobs: list[TokenLogprobs] | None = None
    samples: list[Result] | None = None
    rounds: list[RoundReport] | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, nested; `logprobs`, `samples`, `rounds` are keys only where asked for."""
        said = asdict(self)
        for name in ("logprobs", "rounds"):
            if said[name] is None:
                del said[name]
        if self.samples is None:
            del said["samples"]
        else:
            said["samples"] = [sample.to_dict() for sample in self.samples]
        return said

    def to_json(self) -> str:
        """`to_dict` on one line."""
        return json.dumps(self.to_dict(), ensure_ascii=False)


@dataclass(slots=True)
class Event:
    """What one round let go.

    Args:
        text: may be empty while a character, or what may become a stop string, is unfinished.
        tokens: output ids that `text` is made of, as far as a token is not cut by a stop.
        finish_reason: only on the last event of a sample.
        result: likewise; with n > 1 the very last event carries the result of all.
        logprobs: one entry a token, when asked for.
        sample: which of the n samples, from 0; they come one after the other.
        rounds: those since the last event, when `explain` asked for them.
    """

    text: str
    tokens: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    result: Result | None = None
    logprobs: list[TokenLogprobs] | None = None
    sample: int = 0
    rounds: list[RoundReport] | None = None

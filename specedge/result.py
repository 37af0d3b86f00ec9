"""What a request gives: events while it runs, one result at its end."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from specedge.logprobs import TokenLogprobs
from specedge.metrics import MetricsSummary
from specedge.speculator import SpeculationState
from specedge.stream import FinishReason


@dataclass(frozen=True, slots=True)
class Result:
    """One finished, or cancelled, request.

    Args:
        text: the output; with `echo` the prompt's text before it. A stop string is not in it.
        tokens: output ids, an end id included; with a stop string, up to the token that holds
            the last character of `text`.
        finish_reason: "stop" | "length" | "stop_string" | "cancelled".
        prompt_tokens: ids of the prompt.
        seed: None; greedy decoding has no randomness.
        speculation: what speculation did, and why.
        metrics: see `MetricsSummary`; counts what was computed, tokens after a stop included.
        logprobs: one entry for each of `tokens`, when asked for.
    """

    text: str
    tokens: list[int]
    finish_reason: FinishReason
    prompt_tokens: int
    seed: int | None
    speculation: SpeculationState
    metrics: MetricsSummary
    logprobs: list[TokenLogprobs] | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, nested; `logprobs` is a key only when it was asked for."""
        said = asdict(self)
        if self.logprobs is None:
            del said["logprobs"]
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
        finish_reason: only on the last event.
        result: only on the last event.
        logprobs: one entry a token, when asked for.
    """

    text: str
    tokens: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    result: Result | None = None
    logprobs: list[TokenLogprobs] | None = None

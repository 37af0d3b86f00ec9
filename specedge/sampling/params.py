"""What a request asks of sampling, already checked; `specedge.options` does the checking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Acceptance = Literal["auto", "greedy", "rejection", "block", "coupled"]
RuleName = Literal["greedy", "rejection", "block", "coupled"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The neutral value of each is its default. The order of effect is that of the fields.

    Args:
        repetition_penalty: > 0; logits of tokens in the prompt or the output are divided by it
            where positive and multiplied where negative.
        frequency_penalty: -2..2; taken off a token's logit once for each time it is in the output.
        presence_penalty: -2..2; taken off once if the token is in the output at all.
        logit_bias: (id, amount) by rising id; added to the logit.
        banned_tokens: rising ids that are never chosen.
        min_tokens: ids that end a generation are not chosen before this many output tokens.
        temperature: logits are divided by it; 0: always the likeliest token.
        top_k: keep this many likeliest tokens; 0: all.
        top_p: 0 < top_p <= 1; keep the likeliest tokens, as few as have this probability together.
        min_p: 0..1; keep tokens that have at least this share of the likeliest one's probability.
        acceptance: which rule decides about drafted tokens.
        seed: 0..2^64 - 1; None: one is drawn.
        n: samples, 1 or more.
    """

    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    banned_tokens: tuple[int, ...] = ()
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    acceptance: Acceptance = "auto"
    seed: int | None = None
    n: int = 1

    @property
    def rule(self) -> RuleName:
        """The rule that runs: at temperature 0 all of them are greedy."""
        if self.temperature == 0:
            return "greedy"
        if self.acceptance == "auto":
            return "rejection" if self.seed is None else "coupled"
        return self.acceptance

    @property
    def edits(self) -> bool:
        """Whether logits are changed one by one, before the temperature."""
        return self.uses_history or bool(self.logit_bias or self.banned_tokens or self.min_tokens)

    @property
    def uses_history(self) -> bool:
        """Whether the tokens so far change the logits."""
        return (
            self.repetition_penalty != 1
            or self.frequency_penalty != 0
            or self.presence_penalty != 0
        )

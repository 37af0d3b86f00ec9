"""A small random model behind each of the processors, and behind all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from specedge.sampling.history import History
from specedge.sampling.law import Law
from specedge.sampling.params import SamplingParams
from specedge.sampling.processors import Pipeline
from specedge.sampling.scratch import Scratch

Tokens = tuple[int, ...]

PROMPT = (1, 2, 1)
VOCAB = 4
PROCESSORS: dict[str, dict[str, Any]] = {
    "none": {},
    "temperature": {"temperature": 0.6},
    "hot": {"temperature": 1.8},
    "greedy": {"temperature": 0.0},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.3},
    "repetition": {"repetition_penalty": 1.7},
    "frequency": {"frequency_penalty": 0.9},
    "presence": {"presence_penalty": 1.1},
    "rewarded": {"frequency_penalty": -0.5, "repetition_penalty": 0.8},
    "logit_bias": {"logit_bias": ((0, 2.0), (3, -1.5))},
    "banned": {"banned_tokens": (2,)},
    "min_tokens": {"min_tokens": 2},
    "all": {
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.5,
        "logit_bias": ((1, 0.7),),
        "banned_tokens": (0,),
        "min_tokens": 1,
        "temperature": 0.9,
        "top_k": 3,
        "top_p": 0.95,
        "min_p": 0.05,
    },
}


class Model:
    """Random logits for each context, through the processors."""

    def __init__(self, params: SamplingParams, seed: int) -> None:
        self._params = params
        self._pipeline = Pipeline(params, VOCAB, {3})
        self._seed = seed
        self._history = History(len(PROMPT))

    def row(self, context: Tokens) -> np.ndarray:
        rng = np.random.default_rng([self._seed, len(context), *context])
        return rng.normal(0, 1.5, VOCAB).astype(np.float32)

    def law(self, committed: Tokens, drafted: Tokens) -> Law:
        """As a sampler makes it: drafted tokens are hypothetical, on top of the committed ones."""
        history = self._history
        history.sync(np.array(PROMPT + committed, np.int64), len(PROMPT))
        for token in drafted:
            history.push(token)
        return self._law(committed + drafted, history)

    def alone(self, committed: Tokens, drafted: Tokens) -> Law:
        """One token at a time, with nothing remembered."""
        context = committed + drafted
        history = History()
        history.sync(np.array(PROMPT + context, np.int64), len(PROMPT))
        return self._law(context, history)

    def _law(self, context: Tokens, history: History) -> Law:
        return self._pipeline.law(
            self.row(context),
            history if self._params.uses_history else None,
            len(context),
            scratch=Scratch(),
            where="target",
            position=len(PROMPT) + len(context),
        )

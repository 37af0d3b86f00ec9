"""One output's place in a grammar: `specedge.sampling.constraint.Constraint` over llguidance."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from specedge.contract import Ids
from specedge.errors import SamplingError
from specedge.guidance.spelling import MARK
from specedge.sampling.constraint import Mask

_LONGEST_REASON = 300  # characters
_POINTS = re.compile(r"\s*(\d+ \||[\^~ ]+$)")  # an excerpt, and the mark under its place


class GrammarConstraint:
    """Drafted tokens are consumed and rolled back.

    Ids that end the output are never given to the matcher, whose `rollback` does not count them.

    Args:
        matcher: an `llguidance.LLMatcher` that has consumed nothing; owned.
        vocab: V.
        eos_ids: the first is the likeliest.
        kind: of the grammar, for messages.
    """

    def __init__(self, matcher: Any, vocab: int, eos_ids: tuple[int, ...], kind: str) -> None:
        self._matcher = matcher
        self._vocab = vocab
        self._eos_ids = eos_ids
        self._kind = kind
        self._n_output = 0  # tokens of the output that were taken or lie beyond
        self._n_taken = 0  # tokens that the matcher holds
        self._n_drafted = 0  # of those, and of `_beyond`, how many may be refused
        self._beyond = 0  # tokens behind an end, or behind one that is not allowed
        self._bits = np.zeros((vocab + 31) // 32, np.uint32)
        self._fresh = False  # `_bits` are of the present state
        self._mask: Mask | None = None

    def sync(self, output: Ids) -> None:
        if len(output) < self._n_output:
            self._back(self._n_taken)
            self._beyond = self._n_drafted = self._n_output = 0
        elif self._n_drafted:
            self._refuse(self._n_drafted)
        for token in output[self._n_output :].tolist():
            self._take(token)
        self._n_output = len(output)

    def push(self, token: int) -> None:
        self._n_drafted += 1
        self._take(token)

    def _take(self, token: int) -> None:
        if self._beyond or token in self._eos_ids or not self.allows(token):
            self._beyond += 1
            return
        self._changed()
        if not self._matcher.consume_token(token):
            self._failed()
        self._n_taken += 1

    def _refuse(self, n: int) -> None:
        """Take back the last `n` tokens that were pushed."""
        beyond = min(self._beyond, n)
        self._beyond -= beyond
        self._back(n - beyond)
        self._n_drafted -= n

    def _back(self, n: int) -> None:
        if n:
            self._changed()
            self._n_taken -= n
            if not self._matcher.rollback(n):
                self._failed()

    def _changed(self) -> None:
        self._fresh, self._mask = False, None

    def allows(self, token: int) -> bool:
        if self._beyond:
            return True
        self._look()
        return bool(self._bits.item(token >> 5) >> (token & 31) & 1)

    def mask(self) -> Mask | None:
        if self._beyond:
            return None
        if self._mask is None:
            self._look()
            packed = self._bits.view(np.uint8)
            ones = np.unpackbits(packed, count=self._vocab, bitorder="little")
            self._mask = ones.view(np.bool_)
        return self._mask

    def _look(self) -> None:
        if self._fresh:
            return
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        if self._matcher.is_error():
            self._failed()
        self._fresh = True

    def forced(self, limit: int) -> list[int]:
        if self._beyond:
            return []
        tokens: list[int] = self._matcher.compute_ff_tokens()[:limit]
        if tokens and len(tokens) < limit:
            for token in tokens:
                self.push(token)
            ends = not self._beyond and self._matcher.is_stopped()
            self._refuse(len(tokens))
            if ends:
                tokens.append(self._eos_ids[0])
        return tokens

    def fits(self, tokens: list[int]) -> int:
        if self._beyond:
            return 0
        n = next((i for i, token in enumerate(tokens) if token in self._eos_ids), len(tokens))
        fitting: int = self._matcher.validate_tokens(tokens[:n])
        # an end that comes too early is refused like any other token
        return n + 1 if fitting == n < len(tokens) else fitting

    def _failed(self) -> None:
        """The matcher stays broken once it is: a grammar too complex to go on with."""
        raise SamplingError(
            f"{self._kind}: it cannot be followed any further: {trouble(self._matcher)}; use a "
            "simpler one"
        )


def trouble(matcher: Any) -> str:
    """Of an `llguidance.LLMatcher` that is broken: why."""
    said = str(matcher.get_error()).replace("<non-verbose/>", "")
    if "NoExtensionBias" in said:
        return "nothing may come next that this tokenizer can write, and the end may not either"
    return one_line(said) or "no reason given"


def one_line(said: object) -> str:
    """Its beginning; what moves a terminal's cursor or colours it is written out."""
    lines = [line for line in str(said).splitlines() if not _POINTS.match(line)]
    text = " ".join(" ".join(lines).replace(MARK, "").split())
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."

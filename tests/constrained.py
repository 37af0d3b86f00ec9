"""A constraint written down as a table, and the slow way to ask llguidance: from scratch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from specedge.contract import Ids

Allowed = Callable[[tuple[int, ...]], frozenset[int]]
"""Output tokens so far → ids that may follow."""


class Tabled:
    """A `Constraint` that keeps every token and looks the rest up."""

    def __init__(self, allowed: Allowed, vocab: int, ends: frozenset[int] = frozenset()) -> None:
        self._allowed = allowed
        self._vocab = vocab
        self._ends = ends
        self._output: tuple[int, ...] = ()
        self._drafted: tuple[int, ...] = ()

    def sync(self, output: Ids) -> None:
        self._output, self._drafted = tuple(output.tolist()), ()

    def push(self, token: int) -> None:
        self._drafted += (token,)

    def _next(self) -> frozenset[int] | None:
        before = self._output
        for token in self._drafted:
            if token in self._ends or token not in self._allowed(before):
                return None
            before += (token,)
        return self._allowed(before)

    def allows(self, token: int) -> bool:
        allowed = self._next()
        return allowed is None or token in allowed

    def mask(self) -> Any:
        allowed = self._next()
        if allowed is None:
            return None
        return np.array([token in allowed for token in range(self._vocab)])

    def forced(self, limit: int) -> list[int]:
        tokens: list[int] = []
        while len(tokens) < limit:
            allowed = self._allowed((*self._output, *tokens))
            if len(allowed) != 1:
                break
            tokens += allowed
            if self._ends & allowed:
                break
        return tokens

    def fits(self, tokens: list[int]) -> int:
        before = self._output
        for n, token in enumerate(tokens):
            if token not in self._allowed(before):
                return n
            before += (token,)
        return len(tokens)


class Afresh:
    """llguidance asked anew for every place: all tokens from the first, none taken back."""

    def __init__(self, matcher: Any, vocab: int, eos_ids: tuple[int, ...]) -> None:
        self._matcher = matcher
        self._vocab = vocab
        self._eos_ids = eos_ids

    def allowed(self, tokens: tuple[int, ...]) -> frozenset[int] | None:
        """None behind an end, or behind a token that is not allowed."""
        matcher = self._matcher.deep_copy()
        for token in tokens:
            if token in self._eos_ids or token not in self._mask(matcher):
                return None
            assert matcher.consume_token(token)
        return self._mask(matcher)

    def _mask(self, matcher: Any) -> frozenset[int]:
        said = matcher.compute_bitmask()
        bits = np.unpackbits(np.frombuffer(said, np.uint8), bitorder="little")
        return frozenset(np.flatnonzero(bits[: self._vocab]).tolist())

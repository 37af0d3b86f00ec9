"""How often each token has occurred, with drafted tokens on top that may yet be refused."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specedge.contract import Ids


class History:
    """Counts of a sequence's tokens, kept up as it grows.

    Args:
        n_prompt: leading tokens that belong to the prompt; `sync` may change it.
    """

    __slots__ = ("_counts", "_ids", "_n_distinct", "_n_tokens", "_place", "_pushed", "_tokens",
                 "n_prompt")  # fmt: skip

    def __init__(self, n_prompt: int = 0) -> None:
        self.n_prompt = n_prompt
        self._place: dict[int, int] = {}  # id → its place in ids and counts
        self._ids: Ids = np.empty(64, np.int64)
        self._counts = np.zeros(64)
        self._tokens: Ids = np.empty(64, np.int64)
        self._n_distinct = self._n_tokens = 0
        self._pushed: list[tuple[int, bool]] = []  # hypothetical token, and whether it was new

    @property
    def ids(self) -> Ids:
        """int64 [m]: the distinct ids of prompt and output; a view, valid until the next change."""
        return self._ids[: self._n_distinct]

    @property
    def output_counts(self) -> npt.NDArray[np.float64]:
        """float64 [m]: how often each of `ids` is in the output; a view as `ids`."""
        return self._counts[: self._n_distinct]

    def sync(self, tokens: Ids, n_prompt: int) -> None:
        """Hold exactly these tokens and no hypothetical ones.

        Only the new ones are counted where `tokens` begins with those already held.

        Args:
            tokens: int64 [n], prompt and output.
            n_prompt: 0..n, those that belong to the prompt.
        """
        self.drop()
        held, n = self._n_tokens, len(tokens)
        extends = held >= n_prompt and np.array_equal(tokens[:held], self._tokens[:held])
        if n_prompt != self.n_prompt or not extends:
            self._begin(tokens[:n_prompt])
            held = n_prompt
        if n > len(self._tokens):
            self._tokens = np.resize(self._tokens, max(n, 2 * len(self._tokens)))
        self._tokens[held:n] = tokens[held:]
        self._n_tokens = n
        for token in tokens[held:].tolist():
            self._count(token)

    def push(self, token: int) -> None:
        """Count one more output token, until `drop` or the next `sync`."""
        self._pushed.append((token, self._count(token)))

    def drop(self) -> None:
        """Forget every pushed token."""
        while self._pushed:
            token, was_new = self._pushed.pop()
            if was_new:  # the last place: later ones are gone already
                del self._place[token]
                self._n_distinct -= 1
            else:
                self._counts[self._place[token]] -= 1

    def _begin(self, prompt: Ids) -> None:
        distinct = np.unique(prompt)
        n = len(distinct)
        self._ids = np.resize(distinct, max(64, 2 * n)) if n else np.empty(64, np.int64)
        self._counts = np.zeros(len(self._ids))
        self._place = {token: place for place, token in enumerate(distinct.tolist())}
        self._tokens = np.resize(prompt, max(64, 2 * len(prompt))) if n else self._ids.copy()
        self._n_distinct = n
        self._n_tokens = self.n_prompt = len(prompt)

    def _count(self, token: int) -> bool:
        """Count an output token; whether it is the first of its id."""
        place = self._place.get(token)
        if place is not None:
            self._counts[place] += 1
            return False
        place = self._n_distinct
        if place == len(self._ids):
            self._ids = np.resize(self._ids, 2 * place)
            self._counts = np.resize(self._counts, 2 * place)
        self._place[token] = place
        self._ids[place] = token
        self._counts[place] = 1
        self._n_distinct = place + 1
        return True

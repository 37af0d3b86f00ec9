"""Committed tokens of one request, and every length of the target that follows from them.

With T the rows of the target's KV buffer and n the committed tokens:

    n_cached         rows of the target that are valid: n - 1 between rounds, less before the
                     prefill. The last committed token has no row yet; the next call writes it
    capacity         T + 1 tokens: the token scored by the last row needs no row of its own
    draft_limit      widest draft of the next round: T - n rows are free after the last token's,
                     and a round commits up to K + 1 tokens of the output budget

Nothing rolls back. A round that commits less than it wrote only raises `n_cached` less; rows at
or past it are overwritten by the next call and never attended to. A call that raises commits
nothing, so `n_cached` still tells the truth.
"""

from __future__ import annotations

from collections.abc import Sequence as AnySequence
from collections.abc import Set as AbstractSet
from typing import Literal

import numpy as np

from specedge.acceptance import Verdict
from specedge.contract import Ids
from specedge.errors import OptionError, PromptError, ShapeError

FinishReason = Literal["stop", "length"]

NO_TOKENS: Ids = np.empty(0, dtype=np.int64)
NO_TOKENS.flags.writeable = False


def common_prefix(a: Ids, b: Ids) -> int:
    """Number of leading elements that int64 [n] and int64 [m] share; at most min(n, m)."""
    shared = min(len(a), len(b))
    differs = a[:shared] != b[:shared]
    first = int(differs.argmax()) if shared else 0
    return first if shared and differs[first] else shared


class Sequence:
    """Prompt and output of one request; lives on through `resume` for the next turn."""

    __slots__ = (
        "_budget",
        "_buffer",
        "_eos_ids",
        "_finish_reason",
        "_n_cached",
        "_n_prompt",
        "_n_tokens",
        "context",
    )

    def __init__(
        self,
        prompt: Ids | AnySequence[int],
        *,
        context: int,
        max_tokens: int,
        eos_ids: AbstractSet[int] = frozenset(),
    ) -> None:
        """Start a request; nothing is cached yet.

        Args:
            prompt: 1..context token ids.
            context: T, rows of the slot that this sequence runs in.
            max_tokens: output budget, 1 or more.
            eos_ids: ids that end the generation; empty to go on past them.

        Raises:
            PromptError: the prompt is empty or has more than `context` tokens.
            OptionError: max_tokens is less than 1.
        """
        self.context = context
        self._buffer: Ids = np.zeros(context + 1, dtype=np.int64)
        self._n_tokens = self._n_cached = 0
        self._begin(prompt, max_tokens, eos_ids)

    def resume(
        self,
        prompt: Ids | AnySequence[int],
        *,
        max_tokens: int,
        eos_ids: AbstractSet[int] | None = None,
    ) -> None:
        """Begin the next request in the same slot, keeping the rows of the common prefix.

        `n_cached` becomes min(n_cached, common prefix, len(prompt) - 1), so at least one row is
        run and gives the first token. `eos_ids` stay as they were unless given.

        Raises:
            PromptError, OptionError: as the constructor; the sequence is then unchanged.
        """
        self._begin(prompt, max_tokens, self._eos_ids if eos_ids is None else eos_ids)

    def _begin(
        self, prompt: Ids | AnySequence[int], max_tokens: int, eos_ids: AbstractSet[int]
    ) -> None:
        ids = np.asarray(prompt, dtype=np.int64)
        if ids.ndim != 1:
            raise ShapeError(f"prompt: expected [n] token ids, found {list(ids.shape)}")
        if len(ids) == 0:
            raise PromptError("prompt: expected at least 1 token, found none; give it some text")
        if len(ids) > self.context:
            raise PromptError(
                f"prompt: {len(ids)} tokens do not fit the context of {self.context}; shorten it, "
                "or export with a larger export.context"
            )
        if max_tokens < 1:
            raise OptionError(f"max_tokens: expected 1 or more, found {max_tokens}")
        shared = common_prefix(self._buffer[: self._n_tokens], ids)
        # Lowered before the tokens change: an interrupt in between must not leave rows that
        # claim to belong to other tokens.
        self._n_cached = min(self._n_cached, shared, len(ids) - 1)
        self._buffer[: len(ids)] = ids
        self._n_tokens = self._n_prompt = len(ids)
        self._budget = max_tokens
        self._eos_ids = frozenset(eos_ids)
        self._finish_reason: FinishReason | None = None

    @property
    def tokens(self) -> Ids:
        """int64 [n], prompt and output; a view that the next `resume` overwrites."""
        return self._buffer[: self._n_tokens]

    @property
    def generated(self) -> Ids:
        """int64 [n - n_prompt], the output so far; a view as `tokens`."""
        return self._buffer[self._n_prompt : self._n_tokens]

    @property
    def n_tokens(self) -> int:
        """n: committed tokens, prompt included."""
        return self._n_tokens

    @property
    def n_prompt(self) -> int:
        return self._n_prompt

    @property
    def n_generated(self) -> int:
        return self._n_tokens - self._n_prompt

    @property
    def n_cached(self) -> int:
        """Rows of the target's slot that are valid for `tokens`."""
        return self._n_cached

    @property
    def eos_ids(self) -> frozenset[int]:
        return self._eos_ids

    @property
    def done(self) -> bool:
        return self._finish_reason is not None

    @property
    def finish_reason(self) -> FinishReason | None:
        """ "stop" after an end id or `truncate`, "length" when budget or rows ran out."""
        return self._finish_reason

    @property
    def draft_limit(self) -> int:
        """Largest K of the next round; 0 when only a plain step fits."""
        rows = self.context - self._n_tokens
        budget = self._budget - (self._n_tokens - self._n_prompt) - 1
        return max(0, min(rows, budget))

    def pending(self, draft: Ids = NO_TOKENS) -> Ids:
        """Input of the next target call: the tokens without a row, then the drafted ones.

        Args:
            draft: int64 [K], K <= draft_limit.

        Returns:
            int64 [n - n_cached + K]; between rounds [1 + K]. A view, valid until `commit`.

        Raises:
            ShapeError: the draft does not fit.
        """
        n = self._n_tokens
        stop = n + len(draft)
        if stop > self.context:
            raise ShapeError(
                f"draft: at most {max(0, self.context - n)} rows are free, found {len(draft)} "
                "tokens"
            )
        if stop > n:
            self._buffer[n:stop] = draft
        return self._buffer[self._n_cached : stop]

    def commit(self, draft: Ids, verdict: Verdict) -> Ids:
        """Take what a round decided, after the target's call on `pending(draft)` returned.

        Args:
            draft: int64 [K]; empty for a prefill or a plain step.
            verdict: with n_accepted <= K.

        Returns:
            int64 [1..n_accepted + 1], what was kept: cut after the first end id, and at the
            output budget. A view, valid until `resume`.
        """
        kept = [*draft[: verdict.n_accepted].tolist(), verdict.next_token]
        n = self._n_tokens
        room = min(self.context + 1 - n, self._budget - (n - self._n_prompt))
        assert not self.done, "commit after the end"
        assert len(kept) <= room, "a round was wider than draft_limit"
        reason: FinishReason | None = "length" if len(kept) == room else None
        if not self._eos_ids.isdisjoint(kept):
            end = next(i for i, token in enumerate(kept) if token in self._eos_ids)
            del kept[end + 1 :]
            reason = "stop"
        stop = n + len(kept)
        if len(kept) == 1:  # a plain step: a scalar is written without a conversion
            self._buffer[n] = kept[0]
        else:
            self._buffer[n:stop] = kept
        self._n_tokens = stop
        self._n_cached = stop - 1
        self._finish_reason = reason
        return self._buffer[n:stop]

    def truncate(self, n_tokens: int) -> None:
        """Keep the first `n_tokens` committed tokens (prompt included) and end the request.

        For a stop string: the tokens at and after it are not kept for re-use.

        Raises:
            ShapeError: n_tokens is outside n_prompt..n.
        """
        if not self._n_prompt <= n_tokens <= self._n_tokens:
            raise ShapeError(
                f"truncate: expected {self._n_prompt}..{self._n_tokens} tokens, found {n_tokens}"
            )
        self._n_cached = min(self._n_cached, n_tokens - 1)
        self._n_tokens = n_tokens
        self._finish_reason = "stop"

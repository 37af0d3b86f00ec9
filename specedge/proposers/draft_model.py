"""A smaller model drafts one token a step, in its own KV slot."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from specedge.contract import Ids
from specedge.engines.base import Engine, Scored, Slot, prefill
from specedge.errors import DeadEndError
from specedge.proposers.base import NO_DRAFT, Draft
from specedge.sampling.law import Law
from specedge.sampling.sampler import GREEDY, Sampler
from specedge.sequence import NO_TOKENS, Sequence, common_prefix


class DraftModelProposer:
    """Drafts with `engine`, which it owns and closes; the request's sampler chooses the tokens.

    Its rows are valid up to the common prefix of the ids it has cached and the ids that are
    committed, and never past n - 1, so that there is a row to score. It keeps those ids and
    compares, instead of being told: after a refused draft, rounds of other proposers, K = 0
    rounds or a new turn, whatever is missing (the backlog) is fed in chunks by the next
    `propose`. Nothing is fed before that, so the first token is never late because of it.

    With T_d rows, a draft of K tokens after n committed ones needs n + K - 1 of them: K is cut
    to T_d - n + 1, and past its context it drafts nothing.
    """

    name = "draft"
    is_lookup = False

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._slot: Slot | None = None
        self._ids: Ids = NO_TOKENS  # int64 [T_d]; ids of the cached rows
        self._n_cached = 0  # rows that hold `_ids`, drafted ones included
        self._n_agreed = 0  # leading rows known to be committed tokens
        self._drafted: Ids = NO_TOKENS
        self._sampler: Sampler = GREEDY

    @property
    def engine(self) -> Engine:
        return self._engine

    def start(self, seq: Sequence, sampler: Sampler) -> None:
        self._sampler = sampler
        if self._slot is None:
            # Not at construction: a lack of memory here ends speculation, not the load.
            self._slot = self._engine.new_slot()
            self._ids = np.zeros(self._slot.context, dtype=np.int64)
        self._n_agreed = common_prefix(self._ids[: self._n_cached], seq.tokens)

    def backlog(self, seq: Sequence) -> int | None:
        if seq.n_tokens > len(self._ids):
            return None
        return seq.n_tokens - self._agree(seq)

    def _agree(self, seq: Sequence) -> int:
        """Leading rows that hold committed tokens, the last of which is never among them."""
        known = self._n_agreed
        known += common_prefix(self._ids[known : self._n_cached], seq.tokens[known:])
        self._n_agreed = known = min(known, seq.n_tokens - 1)
        return known

    def agreement(self, seq: Sequence, rows: int) -> list[bool]:
        """Read the backlog, and say of its last tokens which ones an argmax would have drafted.

        What a draft model has to read before it can draft shows for almost nothing how well it
        would have drafted: exactly for greedy decoding, an estimate otherwise.

        Args:
            rows: most tokens to judge, 1..the graph's max_verify.

        Returns:
            At most `rows` outcomes, oldest first; empty when the text is past its context.
        """
        n = seq.n_tokens
        known = self._agree(seq)
        pending = seq.tokens[known : n - 1]  # the last one is left for `propose`
        rows = min(rows, len(pending))
        if rows < 1 or n > len(self._ids):
            return []
        scored = self._feed(pending, known, rows)
        judged = seq.tokens[n - rows : n]
        self._n_agreed = n - 1
        return [bool(same) for same in scored.greedy_ids[-rows:] == judged]

    def propose(self, seq: Sequence, limit: int) -> Draft:
        n = seq.n_tokens
        limit = min(limit, len(self._ids) - n + 1)
        if limit < 1:
            return NO_DRAFT
        if len(self._drafted) < limit:
            self._drafted = np.zeros(limit, dtype=np.int64)
        known = self._agree(seq)
        scored = self._feed(seq.tokens[known:], known)
        self._n_agreed = n
        run_ms = scored.run_ms
        choose, drafted = self._sampler.choose, self._drafted
        laws: list[Law | None] = []
        length = 0
        with suppress(DeadEndError):  # the target may go another way, or says what is wrong
            while True:
                token, law = choose(scored, drafted[:length])
                drafted[length] = token
                laws.append(law)
                length += 1
                if length == limit or token in seq.eos_ids:
                    break
                scored = self._feed(drafted[length - 1 : length], n + length - 1)
                run_ms += scored.run_ms
        if not length:
            return NO_DRAFT
        q = tuple(law for law in laws if law is not None)
        return Draft(drafted[:length], self.name, run_ms, q or None)

    def _feed(self, tokens: Ids, n_cached: int, rows: int = 1) -> Scored:
        """Run int64 [S] after `n_cached` rows and score the last `rows`."""
        assert self._slot is not None, "propose before start"
        # A call that fails half way leaves rows of unknown content past n_cached.
        self._n_cached = n_cached
        scored = prefill(self._engine, self._slot, tokens, n_cached, rows)
        stop = n_cached + len(tokens)
        self._ids[n_cached:stop] = tokens
        self._n_cached = stop
        return scored

    def observe(self, committed: Ids, n_accepted: int) -> None:
        """Nothing to do: `propose` compares."""

    def forget(self) -> None:
        self._n_cached = self._n_agreed = 0

    def close(self) -> None:
        if self._slot is not None:
            self._engine.release(self._slot)
            self._slot = None
        self._engine.close()

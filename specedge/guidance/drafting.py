"""What a constraint does for drafts: some tokens have no alternative, others cannot stand."""

from __future__ import annotations

import numpy as np

from specedge.contract import Ids
from specedge.policy.choice import Choice
from specedge.proposers.base import NO_DRAFT, Draft, Proposer
from specedge.sampling.constraint import Constraint
from specedge.sampling.sampler import Sampler
from specedge.sequence import Sequence

GRAMMAR = "grammar"  # who drafts tokens that have no alternative


def forced(constraint: Constraint, seq: Sequence, limit: int) -> tuple[Draft, Choice] | None:
    """A draft that costs nothing and stands, of at most `limit` tokens; None: there is a choice.

    Leaves `constraint` at the end of `seq`.
    """
    constraint.sync(seq.generated)
    tokens = constraint.forced(limit) if limit else []
    if not tokens:
        return None
    draft = Draft(np.array(tokens, dtype=np.int64), GRAMMAR)
    return draft, Choice(GRAMMAR, len(tokens), "forced", 0.0, seq.n_cached)


class Fitted:
    """A lookup whose drafts end where the grammar does not go on with them.

    `constraint` is at the end of the sequence when `propose` is called.
    """

    is_lookup = True

    def __init__(self, lookup: Proposer, constraint: Constraint) -> None:
        self._lookup = lookup
        self._constraint = constraint
        self.name = lookup.name

    def backlog(self, seq: Sequence) -> int | None:
        return self._lookup.backlog(seq)

    def start(self, seq: Sequence, sampler: Sampler) -> None:
        self._lookup.start(seq, sampler)

    def propose(self, seq: Sequence, limit: int) -> Draft:
        draft = self._lookup.propose(seq, limit)
        fitting = self._constraint.fits(draft.tokens.tolist()) if len(draft.tokens) else 0
        return draft.cut(fitting) if fitting else NO_DRAFT

    def observe(self, committed: Ids, n_accepted: int) -> None:
        self._lookup.observe(committed, n_accepted)

    def forget(self) -> None:
        self._lookup.forget()

    def close(self) -> None:
        self._lookup.close()

"""The proposer protocol: four verbs and a name.

Proposers stand in priority order; the first non-empty draft of a round is verified, and every
proposer hears what was committed, whoever drafted it. The speculator calls them; they never see
the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from specedge.contract import Ids
from specedge.sampling.law import Law
from specedge.sampling.sampler import Sampler
from specedge.sequence import NO_TOKENS, Sequence


@dataclass(frozen=True, slots=True)
class Draft:
    """A chain of proposed tokens, the first of which follows the last committed one.

    Args:
        tokens: int64 [K], K >= 0; may be a view that lives until the proposer's next call.
        proposer: name of who drafted it; "" for an empty draft of nobody.
        run_ms: milliseconds of making it that were spent inside an engine's own call.
        q: the K laws that the tokens were really drawn from, after processors; None where nothing
            was drawn (a lookup, an argmax, noise that the target shares).
        match: tokens at the text's end that a lookup found again; 0: this is no lookup's.
    """

    tokens: Ids
    proposer: str
    run_ms: float = 0.0
    q: tuple[Law, ...] | None = None
    match: int = 0

    def cut(self, k: int) -> Draft:
        """Its first k tokens, k >= 1."""
        if k >= len(self.tokens):
            return self
        q = None if self.q is None else self.q[:k]
        return Draft(self.tokens[:k], self.proposer, self.run_ms, q, self.match)


NO_DRAFT = Draft(NO_TOKENS, "")
PADDING = "padding"  # who drafts where only the width of the target's call matters


class Proposer(Protocol):
    """Guesses how a sequence goes on. Whatever it raises costs speculation, not the request."""

    @property
    def name(self) -> str: ...

    @property
    def is_lookup(self) -> bool:
        """Drafting costs nothing: `propose` may be asked in every round, and its draft not used."""
        ...

    def backlog(self, seq: Sequence) -> int | None:
        """Tokens that the next `propose` has to read first, 1 or more; None: it cannot draft now.

        Never asked of a lookup.
        """
        ...

    def start(self, seq: Sequence, sampler: Sampler) -> None:
        """A request begins, or is resumed: `seq` holds its prompt and its first token.

        What was learned from an earlier request may be kept as far as it still holds. Whoever draws
        tokens does so with `sampler`, and never holds one back because of which one it is.
        """
        ...

    def propose(self, seq: Sequence, limit: int) -> Draft:
        """Draft at most `limit` (>= 1) tokens after `seq.tokens`; fewer, or none, is fine."""
        ...

    def observe(self, committed: Ids, n_accepted: int) -> None:
        """A round has ended, also one that another proposer, or nobody, drafted.

        Args:
            committed: int64 [1..], the tokens that `seq` has grown by; a view.
            n_accepted: how many of them were drafted; at most len(committed).
        """
        ...

    def forget(self) -> None:
        """Keep nothing of earlier requests: the next `start` finds what a new process would."""
        ...

    def close(self) -> None:
        """Free what the proposer holds; it is not used again."""
        ...

"""Who drafts the next round, and how many tokens: a fixed order and length.

`specedge.adaptive` decides the same from measured costs.
"""

from __future__ import annotations

from collections.abc import Sequence as AnySequence
from typing import Protocol

from specedge.contract import Ids
from specedge.errors import OptionError
from specedge.policy.choice import Choice
from specedge.proposers.base import NO_DRAFT, Draft, Proposer
from specedge.sequence import Sequence


class Chooser(Protocol):
    """Asks proposers for a draft, round by round. A `Speculator` calls it."""

    @property
    def longest(self) -> int:
        """No round drafts more."""
        ...

    @property
    def asking(self) -> Proposer | None:
        """Whose code runs now, to be blamed for what it raises; None: the chooser's own."""
        ...

    def start(self) -> None:
        """A request begins."""
        ...

    def draft(
        self, seq: Sequence, max_verify: int, proposers: AnySequence[Proposer]
    ) -> tuple[Draft, Choice | None]:
        """The next round's draft, and why it is that; an empty one for a plain step.

        Args:
            max_verify: the widest call, K + 1, that the target's graph is planned for.
            proposers: in priority order.
        """
        ...

    def observe(self, committed: Ids, n_accepted: int, round_ms: float, draft_ms: float) -> None:
        """What came of the last `draft`.

        Args:
            committed: int64 [1..], the tokens that `seq` has grown by.
            n_accepted: how many of them were drafted.
            round_ms: milliseconds of the whole round.
            draft_ms: of it, asking proposers.
        """
        ...

    def passed(self, committed: Ids) -> None:
        """A round went by that was not asked for: int64 [1..] tokens that had no alternative."""
        ...

    def state(self) -> tuple[bool, str] | None:
        """Whether drafts are made, and why; None where nothing but the setting decides."""
        ...


class Controller:
    """A fixed draft length, cut to what the sequence and the target's graph have room for."""

    def __init__(self, draft_length: int) -> None:
        """Raises OptionError when draft_length is negative."""
        if draft_length < 0:
            raise OptionError(f"draft_length: expected 0 or more, found {draft_length}")
        self._fixed = draft_length
        self.asking: Proposer | None = None

    @property
    def longest(self) -> int:
        """No round drafts more."""
        return self._fixed

    def start(self) -> None: ...

    def draft_length(self, seq: Sequence, max_verify: int) -> int:
        """K of the next round; `max_verify` is the widest call, K + 1, planned for."""
        return max(0, min(self._fixed, seq.draft_limit, max_verify - 1))

    def draft(
        self, seq: Sequence, max_verify: int, proposers: AnySequence[Proposer]
    ) -> tuple[Draft, Choice | None]:
        """The first draft that is not empty."""
        limit = self.draft_length(seq, max_verify)
        if limit:
            for proposer in proposers:
                self.asking = proposer
                draft = proposer.propose(seq, limit)
                if len(draft.tokens):
                    return draft, None
        return NO_DRAFT, None

    def observe(self, committed: Ids, n_accepted: int, round_ms: float, draft_ms: float) -> None:
        """Nothing is learned."""

    def passed(self, committed: Ids) -> None: ...

    def state(self) -> tuple[bool, str] | None:
        return None

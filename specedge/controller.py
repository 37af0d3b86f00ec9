"""How many tokens to draft in the next round."""

from __future__ import annotations

from specedge.errors import OptionError
from specedge.sequence import Sequence


class Controller:
    """A fixed draft length, cut to what the sequence and the target's graph have room for."""

    def __init__(self, draft_length: int) -> None:
        """Raises OptionError when draft_length is negative."""
        if draft_length < 0:
            raise OptionError(f"draft_length: expected 0 or more, found {draft_length}")
        self._fixed = draft_length

    @property
    def longest(self) -> int:
        """No round drafts more."""
        return self._fixed

    def draft_length(self, seq: Sequence, max_verify: int) -> int:
        """K of the next round; `max_verify` is the widest call, K + 1, planned for."""
        return max(0, min(self._fixed, seq.draft_limit, max_verify - 1))

"""What a sampler, and whoever drafts, is told about tokens that may come next."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from specedge.contract import Ids

Mask = npt.NDArray[np.bool_]


class Constraint(Protocol):
    """Follows the output of one sample, with drafted tokens on top that may yet be refused.

    A drafted token that is not allowed, and one that ends the output, leave a state in which
    everything is allowed: what is scored there is not kept.
    """

    def sync(self, output: Ids) -> None:
        """Hold exactly these output tokens, int64 [n], and no drafted ones."""
        ...

    def push(self, token: int) -> None:
        """One more, drafted, until the next `sync`."""
        ...

    def allows(self, token: int) -> bool:
        """Whether it may be the next token."""
        ...

    def mask(self) -> Mask | None:
        """[V], True where an id may come next; valid until the next change. None: any may."""
        ...

    def forced(self, limit: int) -> list[int]:
        """At most `limit` (>= 1) next tokens that have no alternative; asked right after `sync`.

        An id that ends the output may follow them: a guess where there are several.
        """
        ...

    def fits(self, tokens: list[int]) -> int:
        """How many leading ones can stand here; a later check may refuse more."""
        ...

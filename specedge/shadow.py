"""What would have come of lookups that were not used: known for nothing once the text goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specedge.proposers.base import Draft

FOLLOWED = 4  # tokens of a draft: a longer one would take as many plain rounds to tell of

Hear = Callable[[str, int, int, int], None]
"""Told (name, match, drafted, accepted); see `Policy.hear`."""


@dataclass(slots=True)
class _Followed:
    match: int
    tokens: list[int]
    stood: int = 0


class Shadows:
    """Follows the start of an unused draft of each lookup until it breaks or ends, then the next.

    So a lookup that never drafts is judged as if it always did: after a token that it got wrong,
    its next draft is the one that it offers behind that token.
    """

    def __init__(self) -> None:
        self._followed: dict[str, _Followed] = {}

    def __bool__(self) -> bool:
        """Something is followed."""
        return bool(self._followed)

    def clear(self) -> None:
        """Another text begins."""
        self._followed.clear()

    def offer(self, name: str, draft: Draft) -> None:
        """A lookup's draft that is not verified in the coming round."""
        if name not in self._followed:
            self._followed[name] = _Followed(draft.match, draft.tokens[:FOLLOWED].tolist())

    def drop(self, name: str) -> None:
        """The lookup drafts for real in the coming round."""
        self._followed.pop(name, None)

    def commit(self, tokens: list[int], hear: Hear) -> None:
        """The text went on with `tokens`; tells what is decided by that."""
        for name, followed in list(self._followed.items()):
            left = followed.tokens[followed.stood :]
            same = 0
            while same < len(left) and same < len(tokens) and left[same] == tokens[same]:
                same += 1
            followed.stood += same
            if same < len(tokens) or same == len(left):
                del self._followed[name]
                hear(name, followed.match, len(followed.tokens), followed.stood)

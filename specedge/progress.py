"""How a long export or build says where it is; the CLI draws it, a library user may ignore it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told about stages in order; a stage ends when the next begins or all is done."""

    def stage(self, title: str, total: int | None = None, unit: str = "") -> None:
        """Begin a stage of `total` units (None: unknown); unit is "B" for bytes."""
        ...

    def advance(self, amount: int) -> None:
        """So many more units are done; of an unknown total only a sign of life."""
        ...

    def note(self, message: str) -> None:
        """Something a person should read: a licence, a choice made, a warning. The one of a build
        that is being stopped comes from another thread."""
        ...


class Silent:
    """A Progress that says nothing."""

    def stage(self, title: str, total: int | None = None, unit: str = "") -> None: ...

    def advance(self, amount: int) -> None: ...

    def note(self, message: str) -> None: ...

"""Files that a command writes beside what it prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from specedge.errors import ProbeError


class Files:
    """What was measured for long must not be lost: files are written first, since stdout may be
    closed or full, and what cannot be written is said last, since stdout may be all there is."""

    def __init__(self) -> None:
        self._refused: list[str] = []

    def write(self, what: str, path: Path | None, make: Callable[[], str]) -> None:
        """`make` is asked for the text; None: no such file was asked for."""
        from specedge.report.writing import write

        if path is None:
            return
        try:
            write(path, make())
        except ProbeError as error:
            self._refused.append(str(error))
        else:
            click.echo(f"{what}: {path}", err=True)

    def check(self) -> None:
        """Raises ProbeError: files could not be written, a line each."""
        if self._refused:
            raise ProbeError("\n".join(self._refused))

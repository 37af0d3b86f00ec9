"""Where an export is: bars on a terminal, plain lines anywhere else; always on stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

if TYPE_CHECKING:
    from specedge.progress import Progress as Reporter


@contextmanager
def reporting(*, still: bool = False) -> Iterator[Reporter]:
    """A progress reporter for this terminal, or for a log.

    Args:
        still: draw only when told something; else a thread draws ten times a second, which would
            disturb what is being timed.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), _Amount(), TimeElapsedColumn())
    with Progress(*columns, console=console, auto_refresh=not still) as drawn:
        bars = Bars(drawn, still=still)
        yield bars
        bars.close()


class _Amount(ProgressColumn):
    """Bytes or per cent by the stage's unit, else a count; nothing where the total is unknown."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes = DownloadColumn(binary_units=True)
        self._count = MofNCompleteColumn()

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("")
        if task.fields["unit"] == "%":
            return Text(f"{task.percentage:.0f}%".rjust(4), style="progress.percentage")
        return (self._bytes if task.fields["unit"] == "B" else self._count).render(task)


class Bars:
    """A `Progress` of specedge.export, drawn by rich."""

    def __init__(self, drawn: Progress, *, still: bool = False) -> None:
        self._drawn = drawn
        self._still = still
        self._total: int | None = None
        self._task: TaskID | None = None

    def stage(self, title: str, total: int | None = None, unit: str = "") -> None:
        self.close()
        self._total = total
        self._task = self._drawn.add_task(escape(title), total=total, unit=unit)
        self._draw()

    def advance(self, amount: int) -> None:
        if self._task is not None:
            self._drawn.advance(self._task, amount)
            self._draw()

    def note(self, message: str) -> None:
        self._drawn.console.print(Text(f"note: {message}"))

    def close(self) -> None:
        """A stage ends when the next begins, whether or not every unit was reported."""
        if self._task is not None:
            self._drawn.update(self._task, total=self._total or 1, completed=self._total or 1)

    def _draw(self) -> None:
        if self._still:
            self._drawn.refresh()


class Lines:
    """A `Progress` of specedge.export for a log: one line as a stage begins."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def stage(self, title: str, total: int | None = None, unit: str = "") -> None:
        click.echo(f"{time.monotonic() - self._began:6.1f} s  {title}", err=True)

    def advance(self, amount: int) -> None: ...

    def note(self, message: str) -> None:
        click.echo(f"note: {message}", err=True)

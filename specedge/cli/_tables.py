"""Tables for a terminal; each function turns one thing into one table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specedge.memory import format_size

if TYPE_CHECKING:
    from specedge.contract import Manifest
    from specedge.doctor import Row

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_PIPED_WIDTH = 160  # a pipe has no width of its own


class _Console(Console):
    """On stdout. That its reader went away is for `specedge.cli.invoke` to answer."""

    def on_broken_pipe(self) -> NoReturn:
        """Called where the error is being handled. Raises BrokenPipeError."""
        raise


def print_tables(tables: Iterable[Table]) -> None:
    """To stdout."""
    console = _Console()
    _print(console if console.is_terminal else _Console(width=_PIPED_WIDTH), tables)


def print_error_table(table: Table) -> None:
    """To stderr, beside progress and notes."""
    console = Console(stderr=True)
    _print(console if console.is_terminal else Console(stderr=True, width=_PIPED_WIDTH), [table])


def print_sentences(sentences: Iterable[str]) -> None:
    """To stdout: wrapped between words on a terminal, one a line anywhere else."""
    console = _Console()
    for sentence in sentences:
        if console.is_terminal:
            console.print(Text(sentence))
        else:
            click.echo(sentence)


def _print(console: Console, tables: Iterable[Table]) -> None:
    for table in tables:
        console.print(table)


def narrow(title: str) -> Table:
    """An empty table for a terminal of 80 columns, its title on one line."""
    return Table(
        title=_line(title), title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0)
    )


def _line(title: str) -> Text:
    """A title on one line; else it is folded at its table's width."""
    return Text(title, no_wrap=True, overflow="ignore")


def pairs(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Names and what they are; `title` may be empty."""
    table = Table(
        title=_line(title) if title else None,
        title_justify="left",
        show_header=False,
        box=None,
        pad_edge=False,
    )
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    return table


def doctor_table(rows: Iterable[Row]) -> Table:
    """Check, status, what was found and the remedy."""
    table = Table("check", "", "found", "remedy", box=None, pad_edge=False)
    table.columns[2].overflow = table.columns[3].overflow = "fold"
    for row in rows:
        status = Text(row.status, style=_STYLES[row.status])
        table.add_row(Text(row.check), status, Text(row.found), Text(row.remedy))
    return table


def memory_table(manifest: Manifest) -> Table:
    """The memory plan, part by part."""
    plan = manifest.memory
    parts = [
        ("target weights", plan.target_weights),
        (f"target KV, {plan.context} rows", plan.target_kv),
        ("draft weights", plan.draft_weights),
        ("draft KV", plan.draft_kv),
        (f"activations, {plan.max_verify} tokens verified", plan.activations),
        ("total", plan.total),
    ]
    rows = [(name, format_size(size)) for name, size in parts if size]
    if plan.budget is not None:
        rows.append(("budget", format_size(plan.budget)))
    return pairs("memory plan", rows)

"""Rows as a table, as one line, and as JSON with every run."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from controller_rows import Row
from rich.console import Console
from rich.table import Table
from speed import commit, machine

import specedge

NOISY = 0.03  # share of the machine that others may use before it is said
HEADS = ("bundle", "what", "compared", "pairs", "early", "median (95 %)", "sum", "same", "goal")


def goal(row: Row) -> str:
    said = []
    if row.least is not None:
        said.append(f"≥ {row.least:g}")
    if row.least_low is not None:
        said.append(f"low ≥ {row.least_low:g}")
    if row.most is not None:
        said.append(f"≤ {row.most:g}")
    if row.passed is None:
        return ""
    return f"{'PASS' if row.passed else 'FAIL'} {', '.join(said)}"


def cells(row: Row) -> tuple[str, ...]:
    early = "" if row.first is None else f"{row.first:.3f}"
    return (
        row.bundle,
        row.name,
        f"{row.over} / {row.under}",
        str(len(row.trials) - row.early),
        early,
        str(row.settled),
        f"{row.total:.3f}",
        f"{row.equal} of {len(row.trials)}",
        goal(row),
    )


def line(row: Row) -> str:
    """While the others still run."""
    bundle, name, compared, *_, said, total, same, result = cells(row)
    return f"{bundle}: {name}: {compared} {said}, sum {total}, {same} the same text {result}"


def show(rows: Sequence[Row]) -> None:
    """Every row, by kind, then what must be known beside the figures."""
    table = Table(*HEADS, box=None, pad_edge=False, header_style="bold")
    for kind in dict.fromkeys(row.kind for row in rows):
        table.add_section()
        table.add_row(f"[bold]{kind}[/]")
        for row in rows:
            if row.kind == kind:
                table.add_row(*cells(row))
    out = Console(width=None if sys.stdout.isatty() else 180, highlight=False)
    out.print(table)
    for row in rows:
        if row.note:
            out.print(f"{row.bundle}, {row.name}: {row.note}")
    busiest = max(row.others for row in rows)
    if busiest > NOISY:
        out.print(f"NOT IDLE: others used up to {busiest:.0%} of the processors during a row")


def save(
    rows: Sequence[Row], file: Path, settings: dict[str, Any], fingerprints: list[dict[str, Any]]
) -> None:
    """All runs, and what they depend on."""
    said = {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": ["python", *sys.argv],
        "commit": commit(),
        "machine": machine(),
        "versions": {"specedge": specedge.__version__, "numpy": np.__version__},
        "fingerprints": fingerprints,
        "settings": settings,
        "rows": [row.to_dict() for row in rows],
    }
    file.write_text(json.dumps(said), encoding="utf-8")

"""A verification as tables and sentences for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from specedge.gates.findings import Gate, Outcome, Verified
from specedge.report.verify_words import cases_of, final, tally
from specedge.words import NOTHING, seconds

_STYLES: dict[Outcome, str] = {"passed": "green", "failed": "bold red", "skipped": "yellow"}
_MOST_FAILED = 12  # cases of one gate
_MOST_SKIPPED = 3


def verify_tables(verified: Verified) -> list[Table]:
    """A row a gate; then the cases that failed, where any did."""
    tables = [_gates(verified)]
    failed = [gate for gate in verified.gates if gate.outcome == "failed"]
    if failed:
        tables.append(_failed(failed))
    return tables


def verdict_lines(verified: Verified) -> list[str]:
    """What was skipped, what to know when reading it, and the verdict last."""
    lines = []
    for gate in verified.gates:
        skipped = cases_of(gate, "skipped")
        said = [f"{case.name} ({case.said})" for case in skipped[:_MOST_SKIPPED]]
        if len(skipped) > _MOST_SKIPPED:
            said.append(f"and {len(skipped) - _MOST_SKIPPED} more")
        if said:
            lines.append(f"skipped: {gate.name}: {', '.join(said)}")
        lines += [f"note: {gate.name}: {note}" for note in gate.notes]
    lines += [f"note: {note}" for note in verified.notes]
    return [_shown(line) for line in [*lines, final(verified)]]


def _gates(verified: Verified) -> Table:
    heads = ("gate", "verdict", "cases", "took", "what was found")
    table = _table(f"gates of {verified.bundle}", heads, folded=1)
    for gate in verified.gates:
        passed = len(cases_of(gate, "passed"))
        table.add_row(
            Text(_shown(gate.name)),
            Text(gate.outcome, style=_STYLES[gate.outcome]),
            Text(f"{passed}/{len(gate.cases)}"),
            Text(seconds(gate.seconds)),
            Text(_shown(gate.said)),
        )
    for names, why in (
        (verified.interrupted, "interrupted"),
        (verified.left_out, "not asked for"),
    ):
        for name in names:
            table.add_row(*map(Text, (_shown(name), NOTHING, NOTHING, NOTHING, why)))
    return table


def _failed(gates: Iterable[Gate]) -> Table:
    table = _table("failed cases", ("gate", "case", "where, expected, found"), folded=2)
    for gate in gates:
        failed = cases_of(gate, "failed")
        for case in failed[:_MOST_FAILED]:
            table.add_row(*(Text(_shown(cell)) for cell in (gate.name, case.name, case.said)))
        if len(failed) > _MOST_FAILED:
            more = f"and {len(failed) - _MOST_FAILED} more; {tally(gate)}"
            table.add_row(Text(_shown(gate.name)), Text("..."), Text(more))
    return table


def _table(title: str, heads: tuple[str, ...], *, folded: int) -> Table:
    """The last `folded` columns share the room that the others leave."""
    line = Text(_shown(title), no_wrap=True, overflow="ellipsis")
    table = Table(title=line, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for place, head in enumerate(heads):
        whole = place < len(heads) - folded
        table.add_column(head, no_wrap=whole, overflow="ellipsis" if whole else "fold")
    if folded > 1:
        table.columns[-2].max_width = 26
    return table


def _shown(said: str) -> str:
    """On one line; what a terminal would obey (control characters) becomes U+FFFD."""
    line = " ".join(said.split())
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in line)

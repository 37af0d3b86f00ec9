"""A verification in words, the same in a terminal and on its page."""

from __future__ import annotations

from specedge.gates.findings import Case, Gate, Outcome, Verified
from specedge.words import counted, listed


def final(verified: Verified) -> str:
    """ "go: 6 gates passed", "no go: greedy failed", "no go: quality was skipped"."""
    if not verified.gates:
        return "no go: no gate was run"
    failed = [gate.name for gate in verified.gates if gate.outcome == "failed"]
    skipped = [gate.name for gate in verified.gates if gate.outcome == "skipped"]
    parts = [f"{listed(failed)} failed"] if failed else []
    if skipped:
        parts.append(f"{listed(skipped)} {'was' if len(skipped) == 1 else 'were'} skipped")
    if verified.interrupted:
        parts.append(f"interrupted before {listed(list(verified.interrupted))} had ended")
    if parts:
        return f"no go: {', '.join(parts)}"
    said = f"go: {counted(len(verified.gates), 'gate')} passed"
    if verified.left_out:
        said += f"; {listed(list(verified.left_out))} not asked for"
    return said


def cases_of(gate: Gate, outcome: Outcome) -> list[Case]:
    """In their order."""
    return [case for case in gate.cases if case.outcome == outcome]


def tally(gate: Gate) -> str:
    """ "38 of 40 passed, 1 failed, 1 skipped"."""
    passed, failed, skipped = (
        len(cases_of(gate, outcome)) for outcome in ("passed", "failed", "skipped")
    )
    parts = [f"{passed} of {len(gate.cases)} passed"]
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{skipped} skipped"] if skipped else []
    return ", ".join(parts)

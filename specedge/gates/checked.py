"""What one check has found, before it becomes a case: of compatibility, of limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specedge.gates.findings import Case, Outcome, first_of


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check has found.

    Args:
        said: one line, where nothing is wrong; of a check that does not apply, why.
        faults: what is wrong, a line each: where, expected, found, remedy.
        figures: behind it, JSON-ready.
        notes: what a reader should know though nothing is wrong.
        applies: False: there is nothing to check.
    """

    said: str
    faults: list[str] = field(default_factory=list)
    figures: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    applies: bool = True

    def case(self, name: str, seconds: float) -> Case:
        """The same as one case; the first fault is what it says."""
        outcome: Outcome = "passed" if self.applies else "skipped"
        said, figures = self.said, dict(self.figures)
        if self.faults:
            outcome, said = "failed", first_of(self.faults)
            figures["faults"] = self.faults
        if self.notes:
            figures["notes"] = self.notes
        return Case(name, outcome, said, seconds, figures)

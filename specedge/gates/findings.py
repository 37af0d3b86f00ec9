"""What `specedge verify` finds: cases, gates of cases, and the verdict. The table, JSON, JUnit and
the HTML page all show this and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from specedge.probe.fingerprint import Part

Outcome = Literal["passed", "failed", "skipped"]
Figures = Mapping[str, Any]
"""JSON-ready numbers and lists by name, units in the names."""

Report = Callable[[str, float], None]
"""Told what is being done and the share of the gate that is done, 0..1."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that was checked.

    Args:
        name: unique within its gate.
        outcome: "skipped": it does not apply here, and `said` says why.
        said: one line. Of a failure: where, what was expected, what was found.
        seconds: that it took.
        figures: behind it.
    """

    name: str
    outcome: Outcome
    said: str
    seconds: float = 0.0
    figures: Figures = field(default_factory=dict)


def first_of(faults: Sequence[str]) -> str:
    """The first of some lines, one at least, and how many more there are."""
    return faults[0] + (f" (and {len(faults) - 1} more)" if len(faults) > 1 else "")


@dataclass(frozen=True, slots=True)
class Gate:
    """One question of go or no-go.

    Args:
        name: as on the command line: "compatibility", "greedy", "distribution", "quality",
            "structured", "limits".
        title: for a person.
        said: the answer in one line, with its figures; a certificate where it passed.
        cases: what it rests on, one at least.
        seconds: that it took.
        figures: over all cases.
        notes: what a reader must know to read it right, a line each.
    """

    name: str
    title: str
    said: str
    cases: Sequence[Case]
    seconds: float = 0.0
    figures: Figures = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def outcome(self) -> Outcome:
        """Failed by any case that failed; skipped only where every case was."""
        outcomes = {case.outcome for case in self.cases}
        if "failed" in outcomes:
            return "failed"
        return "passed" if "passed" in outcomes else "skipped"


@dataclass(frozen=True, slots=True)
class Verified:
    """A whole verification.

    Args:
        bundle: name of what was verified.
        created: UTC, ISO 8601.
        command: that was given.
        versions: of specedge, Python and what computes, by name.
        fingerprint: see `specedge.probe.fingerprint`.
        gates: in the order they ran.
        left_out: gates that the caller did not ask for.
        notes: over all gates.
        interrupted: gates that were asked for and not run to their end, for Ctrl-C.
    """

    bundle: str
    created: str
    command: str
    versions: Mapping[str, str]
    fingerprint: Mapping[str, Part]
    gates: Sequence[Gate]
    left_out: Sequence[str] = ()
    notes: Sequence[str] = ()
    interrupted: Sequence[str] = ()

    @property
    def passed(self) -> bool:
        """Every gate that was asked for has passed, and there was one."""
        ran = bool(self.gates) and not self.interrupted
        return ran and all(gate.outcome == "passed" for gate in self.gates)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, nested; outcomes are written out."""
        said = asdict(self)
        said["passed"] = self.passed
        for gate, written in zip(self.gates, said["gates"], strict=True):
            written["outcome"] = gate.outcome
        return said

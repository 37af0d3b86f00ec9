"""What a reader has to know first: the decision for each proposer, and what casts doubt on it."""

from __future__ import annotations

from dataclasses import dataclass

from specedge.probe.curves import CostCurves
from specedge.probe.findings import Expected, Finding, Findings
from specedge.words import counted, seconds, share, times

FEW_PASSES = 3  # repetitions that tell noise from cost
_STEADY = 0.1  # T(1) may change by this share without being called unsteady


@dataclass(frozen=True, slots=True)
class Standing:
    """One proposer over all workload classes.

    Args:
        proposer: name.
        allowed: may draft.
        findings: by workload.
        workloads: how many were to be tried.
    """

    proposer: str
    allowed: bool
    findings: tuple[Finding, ...]
    workloads: int

    @property
    def state(self) -> str:
        """In two words or three."""
        if not self.allowed:
            return "ruled out"
        return "pays" if any(each.verdict == "pays" for each in self.findings) else "may try"

    @property
    def sentence(self) -> str:
        """On how many workloads it pays, does not and is left open, and where it does best."""
        total = counted(self.workloads, "workload")
        parts: list[str] = []
        for verdict in ("pays", "open", "does not pay"):
            number = sum(each.verdict == verdict for each in self.findings)
            if number:
                parts.append(f"{verdict} for {number}" + ("" if parts else f" of {total}"))
        best = max(self.findings, key=_gain, default=None)
        if best is not None and _gain(best):
            k = f", K={best.best_k}" if best.best_k else ""
            parts.append(f"at best {times(_gain(best))} ({best.workload}{k})")
        return ", ".join(parts) or "not tried"


def standings(findings: Findings) -> tuple[Standing, ...]:
    """Every proposer that was tried or may draft, in the order of the findings."""
    tried = [each.proposer for each in findings.findings]
    names = dict.fromkeys([*tried, *findings.proposers])
    most = len(findings.workloads) or len(workloads(findings))
    return tuple(
        Standing(name, name in findings.proposers, findings.of(name), most) for name in names
    )


def workloads(findings: Findings) -> tuple[str, ...]:
    """Class names, each once, in the order of the findings."""
    return tuple(dict.fromkeys(each.workload for each in findings.findings))


def leading(finding: Finding) -> Expected | None:
    """The K of the largest expected gain, even where none gains; None: nothing was drafted."""
    if finding.best is not None or not finding.expected:
        return finding.best
    return max(finding.expected, key=lambda each: each.estimate.gain)


def doubts(curves: CostCurves, findings: Findings | None) -> tuple[str, ...]:
    """What a reader must hold against the figures, a sentence each; empty: nothing."""
    said = []
    if findings is None:
        said.append("Costs only: how drafts stand on texts was not measured, nothing is decided.")
    else:
        said += reservations(findings)
    if curves.passes < FEW_PASSES:
        said.append(
            f"Costs rest on {counted(curves.passes, 'repetition')}; {FEW_PASSES} tell noise from "
            "cost."
        )
    elif not curves.converged:
        said.append("Costs were still changing when their share of the budget was used up.")
    return tuple(said)


def reservations(findings: Findings) -> tuple[str, ...]:
    """The part of `doubts` that is about the findings."""
    said = []
    if not findings.complete:
        took = seconds(findings.seconds)
        said.append(
            f"Incomplete: the budget ended the calibration after {took}; a larger one tells more."
        )
    unequal = findings.texts_compared - findings.texts_equal
    if unequal > 0:
        said.append(
            f"{unequal} of {counted(findings.texts_compared, 'speculative text')} differed from "
            "the plain one: do not use this bundle before it is known why."
        )
    steadiness = findings.steadiness
    said += [f"Not steady: {line}" for line in steadiness.throttled]
    if abs(steadiness.drift - 1) > _STEADY:
        change = share(abs(steadiness.drift - 1))
        way = "slower" if steadiness.drift > 1 else "faster"
        said.append(
            f"Not steady: at the end a plain step was {change} {way} than at the beginning."
        )
    return tuple(said)


def _gain(finding: Finding) -> float:
    """Measured if it was, else the largest expected; 0: nothing was drafted."""
    if finding.measured is not None:
        return finding.measured.gain
    expected = leading(finding)
    return 0.0 if expected is None else expected.estimate.gain

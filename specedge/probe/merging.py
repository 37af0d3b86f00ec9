"""What is stored against what is asked for: does it answer, and what stays beside the new."""

from __future__ import annotations

from collections.abc import Sequence

from specedge.probe.deciding import conclude
from specedge.probe.findings import Findings
from specedge.probe.record import Record
from specedge.workloads import Workload

LARGER = 1.5  # times what a record that was cut short took: worth another try


def untried(
    record: Record, workloads: Sequence[Workload], any_prompts: bool, budget_s: float
) -> str:
    """Why what is stored does not answer; empty when it does.

    `any_prompts`: nobody asked for these ones, so that findings on others will do.
    """
    findings = record.findings
    if findings is None:
        return "other prompts than before"
    if findings.prompts_from != workloads[0].source:
        return "" if any_prompts else "other prompts than before"
    new = [each.name for each in workloads if each.name not in findings.workloads]
    if new:
        return f"workloads that were not tried before: {', '.join(new)}"
    spent_s = record.curves.seconds + findings.seconds
    if not findings.complete and budget_s > LARGER * spent_s:
        return f"the record was cut short after {spent_s:.0f} s, the budget is larger now"
    return ""


def merged(old: Findings, new: Findings) -> Findings:
    """The new ones, and the old ones on classes of the same prompts that were not reached again."""
    if old.prompts_from != new.prompts_from:
        return new
    reached = {each.workload for each in new.findings}
    kept = [each for each in old.findings if each.workload not in reached]
    names = [name for name in old.workloads if name not in new.workloads]
    return new.model_copy(
        update={
            "findings": (*kept, *new.findings),
            "workloads": (*names, *new.workloads),
            "complete": new.complete and old.complete,
        }
    )


def concluded(findings: Findings, every: Sequence[Workload]) -> Findings:
    """Decided over all classes of the prompts, so that one that was not tried rules nobody out."""
    proposers = dict.fromkeys(each.proposer for each in findings.findings)
    names = list(dict.fromkeys([*findings.workloads, *(each.name for each in every)]))
    decision = conclude(findings.findings, names, list(proposers))
    untried = [name for name in findings.proposers if name not in proposers]
    return findings.model_copy(
        update={
            "proposers": (*decision.proposers, *untried),
            "reason": decision.reason if proposers else findings.reason,
        }
    )

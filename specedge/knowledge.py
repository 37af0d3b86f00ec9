"""What a run knows about this machine before its first token: a stored probe, or nothing yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specedge.adaptive import Adaptive
from specedge.bundle import Bundle
from specedge.engines.base import Engine
from specedge.errors import ProbeError
from specedge.policy.priors import candidates
from specedge.probe.curves import CostCurves
from specedge.probe.findings import Findings
from specedge.probe.fingerprint import Fingerprint
from specedge.probe.record import NO_RECORD, Record, find, store
from specedge.startup import Startup


@dataclass(frozen=True)
class Knowledge:
    """A bundle's record for the fingerprint of a run.

    Args:
        bundle: whose.
        fingerprint: of engines and settings as they are now.
        record: None: nothing that can be used is stored.
        reason: why there is none, in one line.
    """

    bundle: Bundle
    fingerprint: Fingerprint
    record: Record | None
    reason: str

    @classmethod
    def of(cls, bundle: Bundle, fingerprint: Fingerprint) -> Knowledge:
        """Look it up; a record that cannot be used is none, and says why."""
        found = find(bundle, fingerprint, "startup")
        return cls(bundle, fingerprint, found.record, found.reason)

    @property
    def findings(self) -> Findings | None:
        return None if self.record is None else self.record.findings

    def allowed(self, names: Sequence[str]) -> list[str]:
        """Those proposers that no probe has ruled out, in the same order."""
        findings = self.findings
        if findings is None:
            return list(names)
        judged = {finding.proposer for finding in findings.findings}
        return [name for name in names if name in findings.proposers or name not in judged]

    @property
    def notes(self) -> list[str]:
        """What a person should know about it."""
        findings = self.findings
        if findings is not None:
            return [f"the probe says: {_said(findings)}"]
        if self.record is None and self.reason != NO_RECORD:
            return [f"the stored probe does not count here: {self.reason}"]
        return []

    def chooser(
        self,
        names: Sequence[str],
        target: Engine,
        context: int,
        draft: Engine | None,
        *,
        longest: int,
        margin: float,
    ) -> Adaptive:
        """Who chooses drafts in mode "auto".

        Args:
            names: proposers that are there.
            target, draft: open engines.
            context: rows of the target's slot.
            longest: largest K.
            margin: see `Policy`.
        """
        costs = None if self.record is None else self.record.curves
        startup = None
        if costs is None or (draft is not None and costs.draft is None):
            known = None if costs is None else costs.target
            startup = Startup(target, context, longest, draft, known=known)
        whole = costs is not None or longest + 1 >= min(target.spec.max_verify, context)
        return Adaptive(
            candidates(self.findings, names),
            longest,
            margin=margin,
            costs=costs,
            startup=startup,
            # what a probe decided must not be written over
            on_measured=self._keep if whole and self.findings is None else None,
        )

    def _keep(self, costs: CostCurves) -> None:
        """So that the next run need not measure; where it cannot be kept, it measures again.

        The target's calls are worth keeping without the draft's: outputs may all be too short, or
        prompts too long, for those. What somebody else has stored since this run began is only
        written over by more than it holds.
        """
        stored = find(self.bundle, self.fingerprint, "startup").record
        if stored is not None and (stored.findings is not None or costs.draft is None):
            return
        try:
            store(self.bundle, Record.of(self.fingerprint, costs))
        except ProbeError:
            return


def _said(findings: Findings) -> str:
    """On how many workloads each proposer pays; the whole reason where nobody may draft."""
    parts = []
    for name in dict.fromkeys(each.proposer for each in findings.findings):
        pays = sum(each.verdict == "pays" for each in findings.of(name))
        total = max(1, len(findings.workloads))
        state = f"pays on {pays} of {total} workloads" if pays else "may try"
        parts.append(f"{name} {state}" if name in findings.proposers else f"not {name}")
    if not findings.proposers:
        return findings.reason
    return ", ".join(parts) or "no workload was reached"

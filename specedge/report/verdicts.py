"""What was decided, for each proposer and workload class."""

from __future__ import annotations

from specedge.probe.findings import Estimate, Expected, Finding, Findings
from specedge.report.document import signed
from specedge.report.figures import cards, paragraph, section
from specedge.report.markup import Child, Markup, element, joined
from specedge.report.summary import leading
from specedge.words import NOTHING, counted, parted, share

_SIGNS = {
    "pays": ("good", "✓"),
    "does not pay": ("bad", "✗"),
    "open": ("open", "?"),
    "may try": ("open", "?"),
    "ruled out": ("bad", "✗"),
}
_HEADS = (
    "Workload",
    "Proposer",
    "Verdict",
    "Best K",
    "Expected",
    "Measured",
    "Acceptance rate",
    "Acceptance length",
    "Why",
)


def pill(state: str) -> Markup:
    return signed(state, _SIGNS[state])


def decisions(findings: Findings) -> Markup:
    """The table that everything else explains."""
    rows = [_row(each) for each in findings.findings]
    whole = cards(_HEADS, rows, "Decision by workload and proposer")
    return section(
        "decision",
        "Decision by workload",
        paragraph(
            "The acceptance rate is the share of drafted tokens that were accepted, the acceptance "
            "length the tokens that a round adds to the text, both at the best K. Intervals are "
            "of 90%."
        ),
        whole if rows else paragraph("No workload was tried."),
    )


def _row(finding: Finding) -> tuple[Child, ...]:
    best = leading(finding)
    return (
        finding.workload,
        finding.proposer,
        pill(finding.verdict),
        _best_k(finding, best),
        _estimate(best.estimate if best else None),
        _estimate(finding.measured),
        share(best.acceptance_rate) if best else NOTHING,
        f"{best.acceptance_length:.2f}" if best else NOTHING,
        _why(finding),
    )


def _best_k(finding: Finding, best: Expected | None) -> str:
    return str(finding.best_k) if finding.best_k else f"none (K={best.k})" if best else "none"


def _estimate(estimate: Estimate | None) -> Markup:
    gain, ends = parted(estimate)
    return joined(gain, " ", element("span", ends, class_="dim ends")) if ends else joined(gain)


def _why(finding: Finding) -> Markup:
    said = f"{counted(finding.tokens, 'token')} of text"
    return element("span", finding.reason, " ", element("span", f"({said})", class_="dim"))

"""The page, from the decision down to what it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specedge.probe.curves import CostCurves
from specedge.probe.findings import Findings
from specedge.probe.fingerprint import Part
from specedge.report.conditions import fingerprint, meanwhile
from specedge.report.costs import costs
from specedge.report.document import document, origin
from specedge.report.figures import section
from specedge.report.gains import gains
from specedge.report.glossary import TERMS
from specedge.report.headline import headline
from specedge.report.markup import Markup, element
from specedge.report.survival import survival
from specedge.report.verdicts import decisions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specedge.probe.record import Record


@dataclass(frozen=True)
class Page:
    """All that is shown.

    Args:
        curves: what calls cost.
        findings: what was decided; None: costs only.
        fingerprint: what both depend on, by name.
        created: UTC, ISO 8601.
        bundle_name: for the heading.
        command: that made the page; empty: as it would be by default.
    """

    curves: CostCurves
    findings: Findings | None
    fingerprint: Mapping[str, Part]
    created: str
    bundle_name: str
    command: str = ""

    def html(self) -> str:
        """The same page whenever it is asked for."""
        parts = [headline(self)]
        if self.findings is not None:
            parts.append(decisions(self.findings))
        parts.append(costs(self.curves))
        if self.findings is not None and self.findings.findings:
            parts += [survival(self.findings), gains(self.findings)]
        if self.findings is not None:
            parts.append(meanwhile(self.findings))
        parts += [fingerprint(self), _glossary(), _origin(self)]
        title = f"{self.bundle_name}: does speculation pay?"
        return document(title, parts)


def render(record: Record, *, title: str, command: str = "") -> str:
    """A record as one HTML page.

    Args:
        record: with findings, or with costs only.
        title: name of the bundle.
        command: that made it, to be shown; empty: the plain `specedge probe`.
    """
    findings = record.findings
    page = Page(record.curves, findings, record.fingerprint, record.created, title, command)
    return page.html()


def _glossary() -> Markup:
    parts = [piece for term, said in TERMS for piece in (element("dt", term), element("dd", said))]
    return section("reading", "How to read this page", element("dl", *parts, class_="terms"))


def _origin(page: Page) -> Markup:
    command = page.command or "specedge probe BUNDLE --html report.html"
    return origin(page.fingerprint.get("specedge"), page.created, command)

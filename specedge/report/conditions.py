"""Under what conditions it was measured: energy, steadiness, fingerprint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specedge.probe.findings import Energy, Findings
from specedge.report.document import fact
from specedge.report.figures import paragraph, section, table
from specedge.report.markup import Child, Markup, joined
from specedge.words import counted, joules, seconds, times

if TYPE_CHECKING:
    from specedge.report.page import Page


def meanwhile(findings: Findings) -> Markup:
    """Joules, clocks, drift."""
    return section(
        "meanwhile",
        "Energy and steadiness",
        _energy(findings.energy),
        paragraph(*_steadiness(findings)),
    )


def _energy(energy: Energy | None) -> Markup:
    if energy is None:
        return paragraph("Energy: no meter of this device could be read.")
    rows: list[tuple[Child, ...]] = [("plain decoding", joules(energy.plain), "1.00x")]
    if energy.speculative is not None:
        ratio = times(energy.speculative / energy.plain) if energy.plain else "?"
        rows.append(("with speculation", joules(energy.speculative), ratio))
    idle = "idle power not read"
    if energy.idle_watts is not None:
        idle = f"{energy.idle_watts:.1f} W when idle, not subtracted"
    caption = f"Energy of one token of text, by {energy.source}; {idle}"
    shown = table(("", "per token", "of plain"), rows, caption)
    if energy.speculative is None:
        return joined(shown, paragraph("No speculative run was metered."))
    return shown


def _steadiness(findings: Findings) -> list[Child]:
    steady = findings.steadiness
    said: list[Child] = [
        f"Steadiness: a plain step at the end took {times(steady.drift)} of what it took at the "
        "beginning. "
    ]
    if steady.clocks_mhz is None:
        said.append("Clocks could not be read. ")
    else:
        low, high = steady.clocks_mhz
        said.append(f"Clocks between {low:.0f} and {high:.0f} MHz. ")
    if not steady.throttled:
        said.append("No throttling and no change of the power mode was seen.")
    else:
        said.append(f"Seen: {'; '.join(steady.throttled)}.")
    return said


def fingerprint(page: Page) -> Markup:
    """Machine, engine, settings, prompts."""
    rows: list[tuple[Child, ...]] = [
        (name.replace("_", " "), fact(part)) for name, part in page.fingerprint.items()
    ]
    curves = page.curves
    rows.append(("costs", f"{seconds(curves.seconds)}, {counted(curves.passes, 'repetition')}"))
    if page.findings is not None:
        rows.append(("calibration", seconds(page.findings.seconds)))
        rows.append(("prompts", page.findings.prompts_from))
        rows.append(("margin", times(page.findings.margin)))
    return section(
        "fingerprint",
        "What this holds for",
        paragraph("When one of these changes, specedge measures again."),
        table((), rows, "Fingerprint and conditions", "facts"),
    )

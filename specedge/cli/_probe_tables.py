"""Cost curves and decisions as tables for a terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from specedge.cli._tables import narrow
from specedge.probe.curves import CostCurves, Curve, Point
from specedge.probe.findings import Finding, Findings
from specedge.report.summary import FEW_PASSES as FEW_PASSES
from specedge.report.summary import leading, reservations, standings
from specedge.words import NOTHING, joules, narrow_interval, share, three_digits, times

_MOST_GAINS_SHOWN = 3  # pasts, of those measured
_STYLES = {"pays": "green", "does not pay": "red", "open": "yellow"}


def probe_tables(curves: CostCurves) -> list[Table]:
    """Target, draft where there is one, and what an always accepted draft could gain."""
    plain = {past: curves.target.cost_ms(1, past) for past in curves.target.pasts}
    tables = [_costs(curves.target, "over N = 1", plain)]
    if curves.draft is not None:
        steps = {past: curves.target.cost_ms(1, past) for past in curves.draft.pasts}
        tables.append(_costs(curves.draft, "of a target step", steps))
    if len(curves.target.widths) > 1:
        tables.append(_gains(curves))
    return tables


def decision_table(findings: Findings) -> Table:
    """A row for each workload and proposer: best K (0: none gains), gains, acceptance, verdict.

    Built-in workloads, "ngram" and "draft" fit 80 columns; longer names are folded.
    """
    title = f"speed over plain decoding, 90% intervals; worth it from {times(findings.margin)}"
    table = _table(title, "workload")
    table.columns[0].justify, table.columns[0].overflow = "left", "fold"
    for name in ("by", "K", "expected", "measured", "accept\nrate", "accept\nlength", "verdict"):
        left = name in ("by", "verdict")
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    for finding in findings.findings:
        table.add_row(*_decision(finding))
    return table


def verdict_lines(findings: Findings) -> list[str]:
    """The decision, a line for each proposer, energy, then what casts doubt on them."""
    lines = [findings.reason]
    for each in standings(findings):
        said = each.sentence if each.state == "pays" else f"{each.state}; {each.sentence}"
        lines.append(f"{each.proposer}: {said}")
    energy = findings.energy
    if energy is not None:
        said = f"energy: {joules(energy.plain)} a token plainly"
        if energy.speculative is not None:
            said += f", {joules(energy.speculative)} with speculation"
        lines.append(f"{said} ({energy.source})")
    return lines + [f"note: {each}" for each in reservations(findings)]


def _decision(finding: Finding) -> list[Text]:
    best = leading(finding)
    measured = finding.measured
    return [
        Text(finding.workload),
        Text(finding.proposer),
        Text(str(finding.best_k)),
        Text(times(best.estimate.gain) if best else NOTHING),
        Text(narrow_interval(measured)),
        Text(share(best.acceptance_rate) if best else NOTHING),
        Text(f"{best.acceptance_length:.2f}" if best else NOTHING),
        Text(finding.verdict, style=_STYLES[finding.verdict]),
    ]


def _table(title: str, first: str) -> Table:
    table = narrow(title)
    table.add_column(first, justify="right")
    return table


def _costs(curve: Curve, ratio: str, unit: dict[int, float]) -> Table:
    """A row for each N; for each P milliseconds, their ratio to `unit` of that P, the spread."""
    fewest = min(point.count for point in curve.points)
    title = f"{curve.role}: ms of N tokens after P rows, {ratio}, ± of {fewest} calls"
    if curve.width_step > 1:
        title += f"; padded to {curve.width_step}s"
    table = _table(title, "N")
    for past in curve.pasts:
        table.add_column(f"P={past}", justify="right")
        table.add_column("", justify="right")
        table.add_column("", justify="right", style="dim")
    for width in curve.widths:
        cells = [str(width)]
        for past in curve.pasts:
            cells += _cells(curve.point(width, past), unit[past], curve.role)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _cells(point: Point, unit: float, role: str) -> list[str]:
    ratio = f"{point.ms / unit:.2f}x" if role == "target" else f"{point.ms / unit:.0%}"
    # of one or two calls the 10th and 90th percentile say nothing
    spread = f"±{point.spread:.0%}" if point.count >= FEW_PASSES else "±?"
    return [three_digits(point.ms), ratio, spread]


def _gains(curves: CostCurves) -> Table:
    """A row for each K whose verification was measured."""
    pasts = curves.target.pasts
    if len(pasts) > _MOST_GAINS_SHOWN:
        pasts = (pasts[0], pasts[len(pasts) // 2], pasts[-1])
    table = _table("at best, all K drafted tokens accepted: speed over plain decoding", "K")
    kinds = (False,) if curves.draft is None else (False, True)
    for past in pasts:
        for drafted in kinds:
            name = "draft" if drafted else "lookup"
            table.add_column(f"{name}\nP={past}", justify="right")
    for width in curves.target.widths[1:]:
        gains = [
            curves.best_gain(width - 1, past, drafted=drafted)
            for past in pasts
            for drafted in kinds
        ]
        table.add_row(Text(str(width - 1)), *(Text(f"{gain:.2f}x") for gain in gains))
    return table

"""Cost curves as tables for a terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from specedge.probe.curves import CostCurves, Curve, Point

_MOST_GAINS_SHOWN = 3  # pasts, of those measured


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


def _costs(curve: Curve, ratio: str, unit: dict[int, float]) -> Table:
    """A row for each N; for each P milliseconds, their ratio to `unit` of that P, the spread."""
    title = f"{curve.role}: milliseconds of a call of N tokens after P rows"
    if curve.width_step > 1:
        title += f"; N is padded to multiples of {curve.width_step}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("N", justify="right")
    for past in curve.pasts:
        table.add_column(f"P = {past}", justify="right")
        table.add_column(ratio, justify="right")
        table.add_column("spread", style="dim")
    for width in curve.widths:
        cells = [str(width)]
        for past in curve.pasts:
            cells += _cells(curve.point(width, past), unit[past], curve.role)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _cells(point: Point, unit: float, role: str) -> list[str]:
    ratio = f"{point.ms / unit:.2f}x" if role == "target" else f"{point.ms / unit:.0%}"
    return [f"{point.ms:.2f}", ratio, f"±{point.spread:.0%} of {point.count}"]


def _gains(curves: CostCurves) -> Table:
    """A row for each K whose verification was measured."""
    pasts = curves.target.pasts
    if len(pasts) > _MOST_GAINS_SHOWN:
        pasts = (pasts[0], pasts[len(pasts) // 2], pasts[-1])
    title = "at best (all K accepted): speed over plain decoding"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("K", justify="right")
    kinds = (False,) if curves.draft is None else (False, True)
    for past in pasts:
        for drafted in kinds:
            name = "draft" if drafted else "lookup"
            table.add_column(f"{name}, P = {past}", justify="right")
    for width in curves.target.widths[1:]:
        gains = [
            curves.best_gain(width - 1, past, drafted=drafted)
            for past in pasts
            for drafted in kinds
        ]
        table.add_row(Text(str(width - 1)), *(Text(f"{gain:.2f}x") for gain in gains))
    return table

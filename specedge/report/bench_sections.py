"""What the page of a benchmark says below its verdict, section by section."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from specedge.loadtest import sentences
from specedge.loadtest.against import PLAIN
from specedge.loadtest.records import RequestRecord
from specedge.loadtest.summary import Summary
from specedge.report import bench_plots as plots
from specedge.report import bench_tables as tables
from specedge.report.figures import folded, panel, panels, paragraph, section
from specedge.report.markup import Child, Markup, element, joined

if TYPE_CHECKING:
    from specedge.loadtest.keeping import Kept


def _loads(summary: Summary) -> list[tuple[int, str]]:
    """Those with a request."""
    names = [each.name for each in summary.header.loads]
    return [(load, name) for load, name in enumerate(names) if summary.under(load)]


def speeds(summary: Summary) -> Markup:
    shown = [tables.speeds(name, summary.under(load)) for load, name in _loads(summary)]
    return section(
        "speed",
        "What pays",
        paragraph(
            "Plain decoding’s time over each way’s, prompt by prompt, with an interval where there "
            "are enough prompts; more than 1.00x is faster."
        ),
        *shown,
    )


def latency(kept: Kept, summary: Summary) -> Markup:
    drawn: list[Child] = []
    for load, name in _loads(summary):
        ways = [cell.way for cell in summary.under(load)]
        charts = [
            chart
            for group in plots.grouped(ways, PLAIN)
            for chart in _spreads(
                name, group, [each for each in kept.requests if each.load == load]
            )
        ]
        drawn += [element("h3", name), panels("wide", charts)]
    shown = [tables.latencies(name, summary.under(load)) for load, name in _loads(summary)]
    return section(
        "latency",
        "How long requests take",
        paragraph(
            "Share of requests that were done within a time. Marks stand at p50 and p90; a curve "
            "further left is faster."
        ),
        *drawn,
        folded("These numbers as tables", *shown),
    )


def _spreads(load: str, group: list[plots.Way], requests: list[RequestRecord]) -> Iterable[Markup]:
    for what, of in (
        ("To the last token", lambda each: each.e2e_ms),
        ("To the first token", lambda each: each.ttft_ms),
    ):
        found = [
            plots.spread(way, [each for each in requests if each.way == way[0]], of)
            for way in group
        ]
        said = f"{what}, from arrival."
        if plots.cut_off(found):
            said += " The slowest go on beyond the chart."
        yield panel(plots.cumulative(f"{what}: share of requests by time, {load}", found), said)


def load(summary: Summary) -> Markup:
    parts: list[Child] = []
    for kind, title in (("closed", "clients at a time"), ("poisson", "requests/s that arrive")):
        loads = [
            (load, float((each.concurrency if kind == "closed" else each.rate) or 0))
            for load, each in enumerate(summary.header.loads)
            if each.kind == kind and summary.under(load)
        ]
        if len({value for _, value in loads}) < 2:
            continue
        loads.sort(key=lambda each: each[1])
        parts.append(panels("wide", _against_load(summary, loads, title)))
    if not parts:
        parts.append(paragraph("Too few loads of one kind were run to draw anything against."))
    parts += [tables.throughput(name, summary.under(load)) for load, name in _loads(summary)]
    return section("load", "What load does", paragraph(sentences.SERIAL), *parts)


def _against_load(summary: Summary, loads: list[tuple[int, float]], title: str) -> Iterable[Markup]:
    for group in plots.grouped(summary.header.ways, PLAIN):
        rates, slow = [], []
        for way in group:
            found = [(value, cell) for load, value in loads if (cell := summary.of(load, way[0]))]
            rate = [(value, cell.tokens_per_second or 0.0) for value, cell in found]
            late = [(value, cell.e2e.p90 / 1e3) for value, cell in found if cell.e2e]
            rates += [(way, rate)] if rate else []
            slow += [(way, late)] if late else []
        if rates:
            yield panel(plots.against_load("Throughput by load", title, rates), "Tokens/s.")
        if slow:
            said = "p90 from arrival to the last token, seconds."
            yield panel(plots.against_load("p90 latency by load", title, slow), said)


def rounds(summary: Summary) -> Markup:
    loads = _loads(summary)
    drawn, charts = _rounds_drawn(summary, loads)
    said = "A round asks a proposer for a draft, has the target verify it in one call, and keeps "
    said += "what the target would have written itself."
    if len(loads) > 1 and charts:
        said += f" Drawn with {drawn}; the tables hold every load."
    shown = [
        each
        for load, name in loads
        for each in (
            tables.rounds(name, summary.under(load)),
            tables.positions(name, summary.under(load)),
            tables.lengths(name, summary.under(load)),
        )
    ]
    return section(
        "rounds",
        "What rounds do",
        paragraph(said),
        panels("wide", charts),
        folded("These numbers as tables", *shown),
    )


def _rounds_drawn(summary: Summary, loads: list[tuple[int, str]]) -> tuple[str, list[Markup]]:
    """Charts of the first load with a round: how drafts stand hardly depends on the load."""
    for load, name in loads:
        cells = summary.under(load)
        if not any(cell.split is not None for cell in cells):
            continue
        charts = []
        for group in plots.grouped(summary.header.ways, PLAIN):
            lines = [
                (way, cell.acceptance.rate_by_position)
                for way in group
                if (cell := summary.of(load, way[0])) is not None
                and cell.acceptance is not None
                and cell.acceptance.rate_by_position
            ]
            if lines:
                chart = plots.positions(f"Drafted tokens accepted by position, {name}", lines)
                charts.append(panel(chart, "Drafted tokens accepted, by position in the draft."))
        chart = plots.split(f"Where the time of a round goes, {name}", cells)
        return name, [*charts, panel(chart, "Where the time of a round goes.")]
    return "", []


def classes(summary: Summary) -> Markup:
    if len(summary.workloads) < 2:
        return joined()
    loads = [load for load, _ in _loads(summary)]
    return section(
        "classes",
        "By workload class",
        *(
            tables.gain_matrix(summary, load)
            for load in loads
            if any(cell.against is not None for cell in summary.under(load))
        ),
        folded("These numbers as tables", *(tables.classes(summary, load) for load in loads)),
    )

"""The page of a benchmark: the verdict first, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from specedge.loadtest import sentences
from specedge.loadtest.records import HEADER, REQUESTS, ROUNDS, Header, RequestRecord
from specedge.loadtest.summary import PLAIN, Summary
from specedge.report import bench_plots as plots
from specedge.report import bench_tables as tables
from specedge.report.figures import folded, panel, panels, paragraph, section, table
from specedge.report.markup import Child, Markup, element, joined
from specedge.report.style import STYLE
from specedge.report.words import counted, moment, seconds, share, three_digits, times

if TYPE_CHECKING:
    from specedge.loadtest.keeping import Kept

_LONG = 160  # letters of a sentence that is set smaller
TERMS = (
    (
        "Way",
        "How a request is decoded: “plain”, the target alone; “auto”, the controller; or a "
        "proposer with a fixed draft length K.",
    ),
    (
        "Speed over plain",
        "Plain decoding’s time over this way’s, on the same requests: 1.00x is no gain.",
    ),
    ("TTFT", "From the arrival of a request to its first token; waiting for the engine is in it."),
    ("TPOT", "Mean time from one token to the next after the first."),
    ("To the last token", "From arrival to the end of the answer."),
    ("Queued", "From arrival until the engine begins with the request."),
    (
        "p50, p90, p99",
        "The time that so many in a hundred requests do not exceed; one that was measured.",
    ),
    ("Acceptance rate", "Share of the drafted tokens that the target kept."),
    ("Acceptance length", "Tokens that a round adds to the text."),
    (
        "Tokens per target call",
        "Output tokens over calls of the target, the reading of the prompt counted as one.",
    ),
    (
        "Peak memory",
        "The largest of the whole process so far, when a way’s last pass had ended: whatever ran "
        "before is in it.",
    ),
)


def render_benchmark(kept: Kept, summary: Summary) -> str:
    """One HTML page that needs nothing else: no network, no script, no file.

    The same result gives the same page, byte for byte.

    Args:
        kept: the result, for the charts of single requests.
        summary: of it.
    """
    header = summary.header
    parts = [
        _headline(summary),
        _speeds(summary),
        _latency(kept, summary),
        _load(summary),
        _rounds(summary),
        _classes(summary),
        _conditions(header, kept),
        _reading(summary),
        _origin(header),
    ]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{header.bundle}: benchmark"),
        element("style", Markup(STYLE)),
    )
    body = element("body", element("main", *parts))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _headline(summary: Summary) -> Markup:
    header = summary.header
    found = sentences.headline(summary)
    lines = [element("li", each) for each in sentences.load_lines(summary)]
    card = [
        element("p", found.state, class_=f"state {found.kind}"),
        element("p", found.said, class_="reason long" if len(found.said) > _LONG else "reason"),
        element("ul", *lines, class_="standings") if lines else "",
    ]
    parts = [
        element("p", "specedge bench", class_="eyebrow"),
        element("h1", header.bundle),
        element("p", _device(header), class_="dim"),
        element("div", *card, class_=f"card decision {found.kind}"),
    ]
    if said := sentences.doubts(summary):
        care = (
            element("strong", "Read with care"),
            element("ul", *(element("li", each) for each in said)),
        )
        parts.append(element("div", *care, class_="card mind", role="note"))
    parts.append(element("dl", *_tiles(summary), class_="tiles"))
    return element("header", *parts)


def _device(header: Header) -> str:
    known = header.fingerprint
    threads = known.get("threads")
    parts = [
        known.get("processor"),
        known.get("engine"),
        known.get("provider"),
        counted(threads, "thread") if isinstance(threads, int) else None,
        moment(header.created),
        "complete" if header.complete else "interrupted",
    ]
    return " · ".join(str(part) for part in parts if part is not None)


def _tiles(summary: Summary) -> Iterable[Markup]:
    """Four numbers to remember, of the first load that was run."""
    load = next(load for load in range(len(summary.header.loads)) if summary.under(load))
    name = summary.header.loads[load].name
    plain = summary.of(load, PLAIN)
    if plain is not None and plain.tokens_per_second:
        said = f"plain decoding, {name}"
        yield _tile(three_digits(plain.tokens_per_second), "tokens/s without speculation", said)
    judged = [
        (cell, judged)
        for cell in summary.under(load)
        if cell.against is not None and (judged := cell.against.judged) is not None
    ]
    if not judged:
        return
    best, gain = max(judged, key=lambda each: each[1].gain)
    yield _tile(times(gain.gain), "largest speed over plain", f"{best.way}, {name}")
    acceptance = best.acceptance
    if acceptance is not None and acceptance.rate is not None:
        length = f"{acceptance.length:.2f} tokens a round, {best.way}"
        yield _tile(share(acceptance.rate), "of drafted tokens accepted", length)
    found = [cell.against for cell in summary.under(load) if cell.against is not None]
    equal = f"{sum(each.equal for each in found)} of {sum(each.pairs for each in found)}"
    yield _tile(equal, "outputs equal", "requests that gave plain decoding’s tokens")


def _tile(number: str, name: str, detail: str) -> Markup:
    said = element("dd", element("b", number), element("span", detail, class_="dim"))
    return element("div", element("dt", name), said)


def _loads(summary: Summary) -> list[tuple[int, str]]:
    """Those with a request."""
    names = [each.name for each in summary.header.loads]
    return [(load, name) for load, name in enumerate(names) if summary.under(load)]


def _speeds(summary: Summary) -> Markup:
    shown = [tables.speeds(name, summary.under(load)) for load, name in _loads(summary)]
    return section(
        "speed",
        "What pays",
        paragraph(
            "Plain decoding’s time over each way’s, prompt by prompt, with an interval where there "
            "are prompts enough; more than 1.00x is faster."
        ),
        *shown,
    )


def _latency(kept: Kept, summary: Summary) -> Markup:
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


def _load(summary: Summary) -> Markup:
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


def _rounds(summary: Summary) -> Markup:
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
                (way, cell.acceptance.by_position)
                for way in group
                if (cell := summary.of(load, way[0])) is not None
                and cell.acceptance is not None
                and cell.acceptance.by_position
            ]
            if lines:
                chart = plots.positions(f"Drafted tokens kept by position, {name}", lines)
                charts.append(panel(chart, "Drafted tokens kept, by position in the draft."))
        chart = plots.split(f"Where the time of a round goes, {name}", cells)
        return name, [*charts, panel(chart, "Where the time of a round goes.")]
    return "", []


def _classes(summary: Summary) -> Markup:
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


def _conditions(header: Header, kept: Kept) -> Markup:
    rows: list[tuple[Child, ...]] = [
        ("command", element("code", header.command)),
        ("bundle", f"{header.bundle}, {header.bundle_hash}"),
        ("loads", ", ".join(each.name for each in header.loads)),
        ("ways", ", ".join(header.ways)),
        ("prompts", header.prompts),
        ("max tokens", str(header.max_tokens)),
        ("repetitions", f"{header.repeats}, after {counted(header.warmup, 'request')} to warm up"),
        ("took", seconds(sum(each.ended_s - each.began_s for each in kept.requests))),
    ]
    rows += [
        (name.replace("_", " "), _part(value, "not given"))
        for name, value in header.options.items()
    ]
    versions = [(name, said) for name, said in header.versions.items()]
    machine = [
        (name.replace("_", " "), _part(part))
        for name, part in header.fingerprint.items()
        if name != "bundle"
    ]
    files = [
        (HEADER, "what was measured, on what, and how"),
        (REQUESTS, f"{counted(len(kept.requests), 'request')}, a line each"),
        (ROUNDS, f"{counted(len(kept.rounds), 'round')}, a line each"),
    ]
    return section(
        "conditions",
        "What this holds for",
        table((), rows, "What was run", "facts"),
        table((), versions, "Versions", "facts"),
        table((), machine, "Fingerprint", "facts"),
        table((), files, "Raw data, in the folder of the result", "facts"),
    )


def _part(part: object, nothing: str = "unknown") -> str:
    if part is None:
        return nothing
    return ("yes" if part else "no") if isinstance(part, bool) else str(part)


def _reading(summary: Summary) -> Markup:
    terms = [piece for term, said in TERMS for piece in (element("dt", term), element("dd", said))]
    lines = [element("li", each) for each in sentences.remarks(summary)]
    return section(
        "reading",
        "How to read this page",
        element("ul", *lines),
        element("dl", *terms, class_="terms"),
    )


def _origin(header: Header) -> Markup:
    version = header.versions.get("specedge")
    said = f"Made by specedge {version} on " if version else "Made on "
    return element(
        "footer", paragraph(f"{said}{header.created} with ", element("code", header.command))
    )

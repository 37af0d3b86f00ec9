"""The page of a benchmark: the verdict first, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from specedge.loadtest import sentences
from specedge.loadtest.against import PLAIN
from specedge.loadtest.records import HEADER, REQUESTS, ROUNDS, Header
from specedge.loadtest.summary import Summary
from specedge.report import bench_sections as sections
from specedge.report.document import device, document, fact, origin, tile, with_care
from specedge.report.figures import section, table
from specedge.report.markup import Child, Markup, element
from specedge.words import counted, seconds, share, three_digits, times

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
    ("Acceptance rate", "Share of the drafted tokens that the target accepted."),
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
        sections.speeds(summary),
        sections.latency(kept, summary),
        sections.load(summary),
        sections.rounds(summary),
        sections.classes(summary),
        _conditions(header, kept),
        _reading(summary),
        origin(header.versions.get("specedge"), header.created, header.command),
    ]
    return document(f"{header.bundle}: benchmark", parts)


def _headline(summary: Summary) -> Markup:
    header = summary.header
    found = sentences.headline(summary)
    lines = [element("li", each) for each in sentences.load_lines(summary)]
    card = [
        element("p", found.state, class_=f"state {found.kind}"),
        element("p", found.said, class_="reason long" if len(found.said) > _LONG else "reason"),
        element("ul", *lines, class_="standings") if lines else "",
    ]
    complete = "complete" if header.complete else "interrupted"
    parts = [
        element("p", "specedge bench", class_="eyebrow"),
        element("h1", header.bundle),
        element("p", device(header.fingerprint, header.created, complete), class_="dim"),
        element("div", *card, class_=f"card decision {found.kind}"),
    ]
    if said := sentences.doubts(summary):
        parts.append(with_care(said))
    parts.append(element("dl", *_tiles(summary), class_="tiles"))
    return element("header", *parts)


def _tiles(summary: Summary) -> Iterable[Markup]:
    """Four numbers to remember, of the first load that was run."""
    load = next(load for load in range(len(summary.header.loads)) if summary.under(load))
    name = summary.header.loads[load].name
    plain = summary.of(load, PLAIN)
    if plain is not None and plain.tokens_per_second:
        said = f"plain decoding, {name}"
        yield tile(three_digits(plain.tokens_per_second), "tokens/s without speculation", said)
    judged = [
        (cell, judged)
        for cell in summary.under(load)
        if cell.against is not None and (judged := cell.against.judged) is not None
    ]
    if not judged:
        return
    best, gain = max(judged, key=lambda each: each[1].gain)
    yield tile(times(gain.gain), "largest speed over plain", f"{best.way}, {name}")
    acceptance = best.acceptance
    if acceptance is not None and acceptance.rate is not None:
        length = f"{acceptance.length:.2f} tokens a round, {best.way}"
        yield tile(share(acceptance.rate), "of drafted tokens accepted", length)
    found = [cell.against for cell in summary.under(load) if cell.against is not None]
    equal = f"{sum(each.equal for each in found)} of {sum(each.pairs for each in found)}"
    yield tile(equal, "outputs equal", f"gave plain decoding’s tokens, {name}")


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
        (name.replace("_", " "), fact(value, "not given")) for name, value in header.options.items()
    ]
    versions = [(name, said) for name, said in header.versions.items()]
    machine = [
        (name.replace("_", " "), fact(part))
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


def _reading(summary: Summary) -> Markup:
    terms = [piece for term, said in TERMS for piece in (element("dt", term), element("dd", said))]
    lines = [element("li", each) for each in sentences.remarks(summary)]
    return section(
        "reading",
        "How to read this page",
        element("ul", *lines),
        element("dl", *terms, class_="terms"),
    )

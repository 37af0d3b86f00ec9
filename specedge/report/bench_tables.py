"""A benchmark's figures as tables of its page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specedge.loadtest.judging import Verdict
from specedge.loadtest.quantiles import Quantiles
from specedge.loadtest.summary import Cell, Summary
from specedge.report.document import signed
from specedge.report.figures import table
from specedge.report.markup import Child, Markup
from specedge.words import NOTHING, interval, share, three_digits, times

_SIGNS: dict[Verdict, tuple[str, str]] = {
    "faster": ("good", "✓"),
    "slower": ("bad", "✗"),
    "no difference beyond noise": ("open", "?"),
    "too few to tell": ("open", "?"),
}


def pill(verdict: Verdict) -> Markup:
    return signed(verdict, _SIGNS[verdict])


def speeds(load: str, cells: Sequence[Cell]) -> Markup:
    """What pays: a row for each way."""
    heads = ("Way", "Verdict", "To the last token", "Decoding", "To the first token", "Tokens/s")
    rows: list[list[Child]] = []
    for cell in cells:
        against = cell.against
        rows.append(
            [
                cell.way,
                pill(against.verdict) if against else NOTHING,
                interval(against.e2e if against else None),
                interval(against.decode if against else None),
                interval(against.ttft if against else None),
                three_digits(cell.tokens_per_second),
            ]
        )
    return table(heads, rows, f"{load}: speed over plain decoding")


def throughput(load: str, cells: Sequence[Cell]) -> Markup:
    """What was served, what waited, in how much memory."""
    heads = (
        "Way",
        "Tokens/s",
        "Requests/s",
        "Engine busy",
        "Waiting, of all time",
        "Served",
        "Failed",
        "Peak memory",
    )
    rows: list[list[Child]] = [
        [
            cell.way,
            three_digits(cell.tokens_per_second),
            three_digits(cell.requests_per_second),
            NOTHING if cell.busy is None else share(cell.busy),
            share(cell.queued_share),
            str(cell.served),
            str(cell.failures),
            f"{cell.peak_rss_bytes / 1e6:.0f} MB" if cell.peak_rss_bytes else NOTHING,
        ]
        for cell in cells
    ]
    return table(heads, rows, f"{load}: throughput, waiting and memory")


def latencies(load: str, cells: Sequence[Cell]) -> Markup:
    """Quantiles of everything that a request waits for, ms."""
    heads = ("Way", "Time", "Values", "Mean", "p50", "p90", "p99", "Largest")
    rows: list[list[Child]] = []
    for cell in cells:
        for name, found in (
            ("queued", cell.queued),
            ("to the first token", cell.ttft),
            ("a token after it", cell.tpot),
            ("to the last token", cell.e2e),
        ):
            rows.append([cell.way, name, *_quantiles(found)])
    return table(heads, rows, f"{load}: ms; p99 of fewer than 100 values is the largest")


def rounds(load: str, cells: Sequence[Cell]) -> Markup:
    """Acceptance and the time of a round."""
    heads = (
        "Way",
        "Rounds",
        "Drafted",
        "Accepted",
        "Acceptance rate",
        "Acceptance length",
        "Tokens per target call",
        "Proposer",
        "Verifier",
        "Accept",
        "Other",
    )
    rows: list[list[Child]] = []
    for cell in cells:
        acceptance, spent = cell.acceptance, cell.split
        if acceptance is None or spent is None:
            rows.append([cell.way, "0", *[NOTHING] * (len(heads) - 2)])
            continue
        rows.append(
            [
                cell.way,
                str(acceptance.rounds),
                str(acceptance.proposed),
                str(acceptance.accepted),
                NOTHING if acceptance.rate is None else share(acceptance.rate),
                f"{acceptance.length:.2f}",
                f"{acceptance.per_call:.2f}",
                *(
                    three_digits(part)
                    for part in (spent.proposer, spent.verifier, spent.accept, spent.other)
                ),
            ]
        )
    return table(heads, rows, f"{load}: rounds; times in ms a round")


def lengths(load: str, cells: Sequence[Cell]) -> Markup:
    """Rounds by the number of tokens drafted."""
    heads = (
        "Way",
        "Drafted",
        "Rounds",
        "Accepted a round",
        "Committed a round",
        "Proposer",
        "Verifier and acceptance",
    )
    rows: list[list[Child]] = [
        [
            cell.way,
            str(each.drafted),
            str(each.rounds),
            f"{each.accepted:.2f}",
            f"{each.committed:.2f}",
            three_digits(each.proposer_ms),
            three_digits(each.rest_ms),
        ]
        for cell in cells
        for each in cell.lengths
    ]
    return table(heads, rows, f"{load}: rounds by drafted tokens; times in ms a round")


def positions(load: str, cells: Sequence[Cell]) -> Markup:
    """Accepted of proposed, by position."""
    drafted = [
        (cell.way, cell.acceptance)
        for cell in cells
        if cell.acceptance and cell.acceptance.proposed
    ]
    places = max((len(each.proposed_by_position) for _, each in drafted), default=0)
    rows: list[list[Child]] = []
    for way, each in drafted:
        pairs = zip(each.accepted_by_position, each.proposed_by_position, strict=True)
        parts = [f"{accepted}/{proposed}" if proposed else NOTHING for accepted, proposed in pairs]
        rows.append([way, *parts, *[NOTHING] * (places - len(parts))])
    heads = ["Way", *map(str, range(1, places + 1))]
    return table(heads, rows, f"{load}: drafted tokens accepted, of those proposed, by position")


def classes(summary: Summary, load: int) -> Markup:
    """Each workload class by each way."""
    heads = (
        "Class",
        "Way",
        "Requests",
        "Prompts",
        "Tokens",
        "Over plain",
        "Decoding, ms a token",
        "TTFT p50",
        "To the last token p50",
        "Acceptance rate",
        "Acceptance length",
    )
    rows: list[list[Child]] = []
    for workload in summary.workloads:
        for way in summary.header.ways:
            cell = summary.of(load, way, workload)
            if cell is not None:
                rows.append([workload, way, *_of_class(cell)])
    name = summary.header.loads[load].name
    return table(heads, rows, f"{name}: by workload class; times in ms")


def _of_class(cell: Cell) -> list[str]:
    acceptance = cell.acceptance
    rate = acceptance.rate if acceptance else None
    return [
        str(cell.requests),
        str(cell.prompts),
        str(cell.tokens),
        interval(cell.against.judged if cell.against else None),
        three_digits(cell.pace_ms),
        _one(cell.ttft, lambda found: found.p50),
        _one(cell.e2e, lambda found: found.p50),
        NOTHING if rate is None else share(rate),
        f"{acceptance.length:.2f}" if acceptance else NOTHING,
    ]


def gain_matrix(summary: Summary, load: int) -> Markup:
    """The speed over plain of each class, ways side by side."""
    cells = [cell for cell in summary.under(load) if cell.against is not None]
    rows: list[list[Child]] = []
    for workload in summary.workloads:
        found = [summary.of(load, cell.way, workload) for cell in cells]
        gains = [cell.against.judged if cell and cell.against else None for cell in found]
        rows.append([workload, *(times(gain.gain) if gain else NOTHING for gain in gains)])
    name = summary.header.loads[load].name
    heads = ["Class", *(cell.way for cell in cells)]
    return table(heads, rows, f"{name}: speed over plain decoding by workload class")


def _quantiles(found: Quantiles | None) -> list[str]:
    if found is None:
        return ["0", *[NOTHING] * 5]
    values = (found.mean, found.p50, found.p90, found.p99, found.largest)
    return [str(found.count), *map(three_digits, values)]


def _one(found: Quantiles | None, of: Callable[[Quantiles], float]) -> str:
    return NOTHING if found is None else three_digits(of(found))

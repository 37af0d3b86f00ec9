"""A benchmark, and two of them compared, as tables and sentences for a terminal.

Proposers and draft lengths of usual names fit 80 columns; longer ones are folded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.table import Table
from rich.text import Text

from specedge.cli._tables import narrow
from specedge.loadtest import differences, sentences
from specedge.loadtest.comparing import Change, Comparison
from specedge.loadtest.judging import Verdict
from specedge.loadtest.quantiles import Quantiles
from specedge.loadtest.summary import Cell, Summary
from specedge.probe.findings import Estimate
from specedge.words import (
    NOTHING,
    counted,
    narrow_interval,
    seconds,
    share,
    three_digits,
    times,
)

_STYLES = {"faster": "green", "slower": "red"}
_SHORT: dict[Verdict, str] = {
    "faster": "faster",
    "slower": "slower",
    "no difference beyond noise": "noise",
    "too few to tell": "too few",
}
_MEASURES = {"decode": "decode, a token", "ttft": "first token", "e2e": "end to end"}
_WAYS_ABREAST = 7
_POSITIONS = 16


def bench_tables(summary: Summary) -> list[Table]:
    """Speed and latency under each load; rounds, positions and classes under the first."""
    tables = []
    for load, each in enumerate(summary.header.loads):
        cells = summary.under(load)
        if cells:
            tables += [_speed(each.name, cells), _latency(each.name, cells)]
        if any(cell.against is not None for cell in cells):
            tables.append(_gains(each.name, cells))
    shown = [load for load in range(len(summary.header.loads)) if summary.under(load)]
    for load in shown[:1]:
        name = summary.header.loads[load].name
        cells = summary.under(load)
        tables.append(_rounds(name, cells))
        if any(cell.acceptance and cell.acceptance.proposed_by_position for cell in cells):
            tables.append(_positions(name, cells))
        if len(summary.workloads) > 1:
            tables += _classes(summary, load)
    return tables


def bench_lines(summary: Summary) -> list[str]:
    """The verdict, what pays under each load, what casts doubt, what helps to read it."""
    found = sentences.headline(summary)
    lines = [f"{found.state}: {found.said}"]
    lines += sentences.load_lines(summary)
    lines += [f"note: {each}" for each in sentences.doubts(summary)]
    return lines + sentences.remarks(summary)


def compare_tables(comparison: Comparison) -> list[Table]:
    """Every measure of every way under each load; then gains over plain in both."""
    first, second = _names(comparison)
    tables = []
    for load in dict.fromkeys(each.load for each in comparison.changes):
        table = _table(f"{load}: ms, and time in {second} over {first}", "way")
        _columns(table, "", first, second, "ratio", "verdict", left=("", "verdict"))
        seen = ""
        for each in comparison.changes:
            if each.load == load:
                table.add_row(*_change(each, named=each.way != seen))
                seen = each.way
        tables.append(table)
    if comparison.gains:
        table = _table("speed over plain decoding in either", "way")
        _columns(table, "load", first, second, left=("load",))
        for gains in comparison.gains:
            table.add_row(
                Text(gains.way), Text(gains.load), _gain(gains.first), _gain(gains.second)
            )
        tables.append(table)
    return tables


def compare_lines(comparison: Comparison) -> list[str]:
    """The verdict, then what to know about it."""
    found = differences.headline(comparison)
    return [f"{found.state}: {found.said}", *differences.remarks(comparison)]


def _names(comparison: Comparison) -> tuple[str, str]:
    """Of the results, as far as a column has room."""
    first, second = (name if len(name) <= 12 else f"…{name[-11:]}" for name in comparison.names)
    return (first, second) if first != second else ("A", "B")


def _change(change: Change, *, named: bool) -> list[Text]:
    said = "queued" if change.unjudged == "queued" else _SHORT[change.verdict]
    if said == "noise" and change.within is not None:
        said += f" ±{share(change.within)}"
    return [
        Text(change.way if named else ""),
        Text(_MEASURES[change.measure]),
        Text(three_digits(change.first)),
        Text(three_digits(change.second)),
        _gain(change.ratio),
        Text(said, style=_STYLES.get(change.verdict, "")),
    ]


def _speed(load: str, cells: Sequence[Cell]) -> Table:
    """What was served, how fast, and in how much memory."""
    prompts = max(cell.prompts for cell in cells)
    table = _table(f"{load}: throughput, {counted(prompts, 'prompt')}", "way")
    _columns(table, "served", "failed", "tokens\n/s", "requests\n/s", "busy", "peak\nMB")
    for cell in cells:
        table.add_row(
            Text(cell.way),
            Text(str(cell.served)),
            Text(str(cell.failures), style="red" if cell.failures else ""),
            Text(three_digits(cell.tokens_per_second)),
            Text(three_digits(cell.requests_per_second)),
            Text(NOTHING if cell.busy is None else share(cell.busy)),
            Text(f"{cell.peak_rss_bytes / 1e6:.0f}" if cell.peak_rss_bytes else NOTHING),
        )
    return table


def _gains(load: str, cells: Sequence[Cell]) -> Table:
    """Speed over plain; where requests queue, decoding is what the verdict is of."""
    table = _table(f"{load}: speed over plain decoding", "way")
    _columns(table, "to first\ntoken", "to last token", "decoding", "verdict", left=("verdict",))
    for cell in cells:
        if cell.against is not None:
            table.add_row(
                Text(cell.way),
                Text(times(cell.against.ttft.gain) if cell.against.ttft else NOTHING),
                _gain(cell.against.e2e),
                _gain(cell.against.decode),
                Text(_SHORT[cell.against.verdict], style=_STYLES.get(cell.against.verdict, "")),
            )
    return table


def _latency(load: str, cells: Sequence[Cell]) -> Table:
    """p50/p90/p99, first tokens in ms, whole requests in s."""
    table = _table(f"{load}: p50 / p90 / p99", "way")
    _columns(table, "queued, s", "TTFT, ms", "TPOT, ms", "end to end, s")
    for cell in cells:
        table.add_row(
            Text(cell.way),
            Text(_spread(cell.queued, _seconds)),
            Text(_spread(cell.ttft, three_digits)),
            Text(_spread(cell.tpot, three_digits)),
            Text(_spread(cell.e2e, _seconds)),
        )
    return table


def _rounds(load: str, cells: Sequence[Cell]) -> Table:
    """Acceptance rate and length, tokens a call, where the time of a round goes."""
    table = _table(f"{load}: rounds; ms a round", "way")
    _columns(
        table,
        "accept\nrate",
        "accept\nlength",
        "tokens\n/call",
        "proposer",
        "verifier",
        "accept",
        "other",
    )
    for cell in cells:
        acceptance, split = cell.acceptance, cell.split
        parts = [split.proposer, split.verifier, split.accept, split.other] if split else []
        table.add_row(
            Text(cell.way),
            Text(_rate(cell)),
            Text(f"{acceptance.length:.2f}" if acceptance else NOTHING),
            Text(f"{acceptance.per_call:.2f}" if acceptance else NOTHING),
            *(Text(three_digits(part)) for part in parts),
            *([] if split else [Text(NOTHING)] * 4),
        )
    return table


def _positions(load: str, cells: Sequence[Cell]) -> Table:
    """Acceptance rate at each position."""
    drawn = [cell for cell in cells if cell.acceptance and cell.acceptance.rate_by_position]
    most = max(len(cell.acceptance.rate_by_position) for cell in drawn if cell.acceptance)
    places = min(most, _POSITIONS)
    title = f"{load}: drafted tokens accepted, %, by position"
    table = _table(title if most <= places else f"{title} (the first {places})", "way")
    _columns(table, *(str(place) for place in range(1, places + 1)))
    for cell in drawn:
        assert cell.acceptance is not None
        parts = cell.acceptance.rate_by_position[:places]
        cells_ = [Text(share(part).rstrip("%")) for part in parts]
        table.add_row(Text(cell.way), *cells_, *[Text("")] * (places - len(parts)))
    return table


def _classes(summary: Summary, load: int) -> Iterable[Table]:
    """The gain over plain of each class and way; no interval: a class has few prompts."""
    ways = [cell.way for cell in summary.under(load) if cell.against is not None]
    for start in range(0, len(ways), _WAYS_ABREAST):
        some = ways[start : start + _WAYS_ABREAST]
        name = summary.header.loads[load].name
        table = _table(f"{name}: speed over plain by class", "class")
        _columns(table, *(way.replace(" ", "\n") for way in some))
        for workload in summary.workloads:
            found = [summary.of(load, way, workload) for way in some]
            table.add_row(
                Text(workload),
                *(
                    Text(times(judged.gain) if judged else NOTHING)
                    for cell in found
                    for judged in [cell.against.judged if cell and cell.against else None]
                ),
            )
        yield table


def _rate(cell: Cell) -> str:
    rate = cell.acceptance.rate if cell.acceptance else None
    return NOTHING if rate is None else share(rate)


def _spread(found: Quantiles | None, say: Callable[[float], str]) -> str:
    return "/".join(map(say, (found.p50, found.p90, found.p99))) if found else NOTHING


def _seconds(ms: float) -> str:
    return seconds(ms / 1e3).removesuffix(" s") if ms >= 9950 else f"{ms / 1e3:.2f}"


def _gain(estimate: Estimate | None) -> Text:
    return Text(narrow_interval(estimate))


def _table(title: str, first: str) -> Table:
    table = narrow(title)
    table.add_column(first, overflow="fold")
    return table


def _columns(table: Table, *names: str, left: Sequence[str] = ()) -> None:
    for name in names:
        justify = "left" if name in left else "right"
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]

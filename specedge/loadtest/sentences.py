"""What a benchmark says, in words: what pays and what does not, and what to hold against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specedge.loadtest.against import PLAIN, Against
from specedge.loadtest.judging import LEVEL, Verdict
from specedge.loadtest.paired import QUEUED
from specedge.loadtest.quantiles import ENOUGH_FOR_P99
from specedge.loadtest.summary import Cell, Summary
from specedge.probe.intervals import MIN_PROMPTS
from specedge.words import counted, interval, listed, seconds, share

Kind = Literal["good", "bad", "open"]
SERIAL = (
    "The engine serves one request at a time, so load shows as queueing; what batching would "
    "change is not measured."
)
_ORDER: tuple[Verdict, ...] = (
    "faster",
    "no difference beyond noise",
    "too few to tell",
    "slower",
)
_SHOWN = 4  # ways, or failures, that one sentence names


@dataclass(frozen=True, slots=True)
class Headline:
    """The verdict: in two words or three, as what it counts, and in one sentence."""

    state: str
    kind: Kind
    said: str


def headline(summary: Summary) -> Headline:
    """Whether speculation pays: under the first load, by the way that does best there."""
    judged = [
        (cell, cell.against)
        for load in range(len(summary.header.loads))
        for cell in summary.under(load)
        if cell.against is not None and cell.against.judged is not None
    ]
    if not judged:
        return Headline("Nothing to compare", "open", _why_nothing(summary))
    first = [each for each in judged if each[0].load == judged[0][0].load]
    cell, found = max(first, key=lambda each: each[1].judged.gain if each[1].judged else 0.0)
    ways = len({each.way for each, _ in first})
    said = f"{cell.way} is {interval(found.judged)} as fast as plain decoding {_over(found)}"
    said += f" with {summary.header.loads[cell.load].name}"
    if ways > 1:
        said += f", the best of {counted(ways, 'way')}"
    said += f"; {_rests_on(found)}."
    outputs = equality(summary)
    if outputs is not None and outputs[1]:
        return Headline(
            "Outputs differ", "bad", f"{outputs[0]} What it gains does not count: {said}"
        )
    verdicts = {each.verdict for _, each in judged}
    if "faster" in verdicts:
        if found.verdict != "faster":
            others = [each for each, against in judged if against.verdict == "faster"]
            said += f" Faster: {_named(summary, others)}."
        return Headline("Speculation pays", "good", said)
    if verdicts == {"slower"}:
        return Headline("Speculation does not pay", "bad", said)
    if verdicts == {"too few to tell"}:
        return Headline("Too few prompts to tell", "open", said)
    return Headline("No gain beyond noise", "open", said)


def load_lines(summary: Summary) -> list[str]:
    """For each load what pays and what does not, best first, and what waiting makes of it."""
    lines = []
    for load, each in enumerate(summary.header.loads):
        cells = summary.under(load)
        judged = [
            (cell.way, cell.against, cell.against.judged)
            for cell in cells
            if cell.against is not None and cell.against.judged is not None
        ]
        judged.sort(key=lambda found: -found[2].gain)
        groups = []
        for verdict in _ORDER:
            found = [
                f"{way} {interval(gain)}"
                for way, against, gain in judged
                if against.verdict == verdict
            ]
            if found:
                groups.append(f"{verdict}: {_short(found)}")
        if groups:
            queued = any(against.queued for _, against, _ in judged)
            what = "while decoding" if queued else "from arrival to the end"
            lines.append(f"{each.name}, {what}: {'; '.join(groups)}")
        waiting = max(cells, key=lambda cell: cell.queued_share, default=None)
        if waiting is not None and waiting.queued_share > QUEUED and waiting.queued:
            lines.append(
                f"{each.name}: up to {share(waiting.queued_share)} of a request's time is waiting "
                f"for the engine ({waiting.way}: p50 {seconds(waiting.queued.p50 / 1e3)}, p90 "
                f"{seconds(waiting.queued.p90 / 1e3)})"
            )
    return lines


def equality(summary: Summary) -> tuple[str, bool] | None:
    """Whether outputs are plain's, and whether that casts doubt; None: nothing to compare with."""
    cells = [cell for load in range(len(summary.header.loads)) for cell in summary.under(load)]
    found = [(cell, cell.against) for cell in cells if cell.against is not None]
    pairs = sum(against.pairs for _, against in found)
    equal = sum(against.equal for _, against in found)
    if not pairs:
        return None
    said = f"Outputs equal plain's in {equal} of {counted(pairs, 'request')}"
    if not summary.equality_promised:
        return f"{said}; with these options they need not.", False
    if equal == pairs:
        return f"{said}.", False
    unequal = [cell for cell, against in found if against.equal < against.pairs]
    return f"{said}: they differ for {_named(summary, unequal)}; `specedge verify` says why.", True


def doubts(summary: Summary) -> list[str]:
    """What casts doubt on the figures, a sentence each; empty: nothing does."""
    header = summary.header
    said = []
    if not header.complete:
        said.append("Interrupted: what was measured until then is all there is.")
    total = sum(cell.requests for cell in summary.cells if cell.workload is None)
    failures = sum(cell.failures for cell in summary.cells if cell.workload is None)
    if failures:
        shown = "; ".join(
            f"{line} ({counted(count, 'time')}, first: {way})"
            for line, way, count in summary.failed[:_SHOWN]
        )
        said.append(
            f"{failures} of {counted(total, 'request')} failed; times are of the others. {shown}"
        )
    if summary.missing:
        names = [f"{way} with {header.loads[load].name}" for load, way in summary.missing]
        said.append(f"No request was made by {_short(names)}.")
    return said


def remarks(summary: Summary) -> list[str]:
    """What a reader needs to read the figures right."""
    said = [SERIAL]
    found = equality(summary)
    if found is not None and not found[1]:
        said.append(found[0])
    judged = [cell.against.judged for cell in summary.cells if cell.against]
    known = [each for each in judged if each is not None]
    if any(each.low is not None for each in known) and summary.comparisons > 1:
        said.append(
            f"The intervals of all {summary.comparisons} comparisons with plain hold together with "
            f"a chance of {share(LEVEL)}."
        )
    if any(each.prompts < MIN_PROMPTS for each in known):
        said.append(f"Fewer than {MIN_PROMPTS} prompts, as in most classes, have no interval.")
    queued = any(cell.against and cell.against.queued for cell in summary.cells)
    if queued:
        said.append(
            f"Where waiting is more than {share(QUEUED)} of the time, gains are judged by decoding "
            "alone: waits in one queue depend on each other, so prompts say too little about them."
        )
    spread = [cell.e2e.count for cell in summary.cells if cell.e2e and cell.workload is None]
    if spread and min(spread) < ENOUGH_FOR_P99:
        said.append(f"p99 of fewer than {ENOUGH_FOR_P99} values is the largest of them.")
    return said + list(summary.header.notes)


def _why_nothing(summary: Summary) -> str:
    if PLAIN not in summary.header.ways:
        return "Plain decoding was not measured, so no gain can be stated."
    if set(summary.header.ways) == {PLAIN}:
        return "Only plain decoding was measured."
    return "No request was served both plainly and with speculation."


def _over(found: Against) -> str:
    return "while decoding" if found.queued else "from arrival to the last token"


def _rests_on(found: Against) -> str:
    return f"{counted(found.prompts, 'prompt')}, {counted(found.pairs, 'pair')} of requests"


def _named(summary: Summary, cells: list[Cell]) -> str:
    return _short([f"{cell.way} with {summary.header.loads[cell.load].name}" for cell in cells])


def _short(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return listed([*names[:_SHOWN], f"{rest} more"] if rest > 0 else names)

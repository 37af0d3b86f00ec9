"""A benchmark in figures: for each load and way, over all prompts and for each workload class.

Times are of served requests; failed ones are counted, and what they took is in the wall time that
throughput is over. Gains over plain decoding pair the same request of the same repetition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specedge.errors import BenchError
from specedge.loadtest.against import PLAIN, Against, against
from specedge.loadtest.paired import pace_ms, prompt_of, queued_share
from specedge.loadtest.quantiles import Quantiles
from specedge.loadtest.records import Header, Load, RequestRecord, RoundRecord
from specedge.loadtest.rounds import Acceptance, Key, Length, Split, by_length, key
from specedge.loadtest.written import written

if TYPE_CHECKING:
    from specedge.loadtest.keeping import Kept


@dataclass(frozen=True, slots=True)
class Cell:
    """One way under one load.

    Args:
        load: index into `Header.loads`.
        way: name.
        workload: class; None: all of them.
        requests, failures: made, and of them not served.
        prompts: different ones among those served.
        tokens: of served requests.
        wall_s: that the passes took, waiting for arrivals included; None: for one class there is
            no such time.
        tokens_per_second, requests_per_second: served, over `wall_s`.
        busy: share of `wall_s` that the engine worked for requests.
        pace_ms: decoding, ms a token over all tokens after the first.
        ttft, tpot, e2e, queued: ms of single requests; None: no request has it.
        queued_share: part of the time from arrival to the end that requests waited.
        acceptance, split: see there; None: there was no round.
        lengths: rounds by the number of tokens drafted, of served requests.
        peak_rss_bytes: of the process when the way's last pass ended; None: not known.
        against: plain decoding; None: this is plain, or no request has its counterpart.
    """

    load: int
    way: str
    workload: str | None
    requests: int
    failures: int
    prompts: int
    tokens: int
    wall_s: float | None
    tokens_per_second: float | None
    requests_per_second: float | None
    busy: float | None
    pace_ms: float | None
    ttft: Quantiles | None
    tpot: Quantiles | None
    e2e: Quantiles | None
    queued: Quantiles | None
    queued_share: float
    acceptance: Acceptance | None
    split: Split | None
    lengths: list[Length]
    peak_rss_bytes: int | None
    against: Against | None

    @property
    def served(self) -> int:
        return self.requests - self.failures


@dataclass(frozen=True, slots=True)
class Summary:
    """All of it.

    Args:
        header: what was measured, on what.
        cells: by load, then way; over all prompts, then by class.
        missing: (load, way) that the header promises and no request is of.
        failed: failures by their line, most frequent first, with the way that met it first.
        equality_promised: whether options and engine promise plain's tokens in every way.
        comparisons: with plain, whose intervals hold together with a chance of `LEVEL`.
    """

    header: Header
    cells: tuple[Cell, ...]
    missing: tuple[tuple[int, str], ...]
    failed: tuple[tuple[str, str, int], ...]
    equality_promised: bool
    comparisons: int

    def of(self, load: int, way: str, workload: str | None = None) -> Cell | None:
        """None: no request was made there."""
        for cell in self.cells:
            if (cell.load, cell.way, cell.workload) == (load, way, workload):
                return cell
        return None

    def under(self, load: int) -> list[Cell]:
        """Over all prompts, a cell for each way."""
        return [cell for cell in self.cells if cell.load == load and cell.workload is None]

    @property
    def workloads(self) -> list[str]:
        """Classes, each once, in the order of the prompts."""
        return list(dict.fromkeys(each.workload for each in self.cells if each.workload))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, nested."""
        said: dict[str, Any] = written(self)
        for cell in said["cells"]:
            cell["load_name"] = self.header.loads[cell["load"]].name
        return said


def summarise(kept: Kept) -> Summary:
    """Figures of a whole result.

    Raises:
        BenchError: it has no request.
    """
    header = kept.header
    if not kept.requests:
        raise BenchError(
            f"{header.bundle}: the result has no request, so there is nothing to say; run the "
            "benchmark again"
        )
    counting = _Counting(header, kept.requests, kept.rounds)
    cells: list[Cell] = []
    missing = []
    for load in range(len(header.loads)):
        under = [each for each in kept.requests if each.load == load]
        classes: list[str | None] = [None, *dict.fromkeys(each.workload for each in under)]
        for way in header.ways:
            mine = [each for each in under if each.way == way]
            if not mine:
                missing.append((load, way))
            for workload in classes:
                chosen = [each for each in mine if workload in (None, each.workload)]
                if chosen:
                    cells.append(counting.cell(workload, chosen))
    return Summary(
        header=header,
        cells=tuple(cells),
        missing=tuple(missing),
        failed=_failed(kept.requests),
        equality_promised=promises_equality(header),
        comparisons=counting.comparisons,
    )


def promises_equality(header: Header) -> bool:
    """Whether every way must give plain's tokens: greedy, or coupled with a seed, and kernels
    without noise."""
    if header.fingerprint.get("exact") is False:
        return False
    options = header.options
    if not options.get("temperature"):
        return True
    rule = options.get("acceptance") or "auto"  # with a seed auto is coupled
    return rule in ("auto", "coupled") and options.get("seed") is not None


class _Counting:
    """What all cells of a result need.

    Args:
        header: of the result.
        requests: all of them.
        rounds: of all requests.
    """

    def __init__(
        self, header: Header, requests: Sequence[RequestRecord], rounds: Iterable[RoundRecord]
    ) -> None:
        self.header = header
        self.rounds: dict[Key, list[RoundRecord]] = {}
        for each in rounds:
            self.rounds.setdefault(key(each), []).append(each)
        self.plain = [each for each in requests if each.way == PLAIN]
        self.comparisons = len({(each.load, each.way) for each in requests if each.way != PLAIN})

    def cell(self, workload: str | None, requests: Sequence[RequestRecord]) -> Cell:
        """Of requests of one way and load, one at least."""
        load, way = requests[0].load, requests[0].way
        served = [each for each in requests if each.failure is None]
        tokens = sum(each.tokens for each in served)
        wall = _wall(self.header.loads[load], requests) if workload is None else None
        worked = sum(each.ended_s - each.began_s for each in requests)
        return Cell(
            load=load,
            way=way,
            workload=workload,
            requests=len(requests),
            failures=len(requests) - len(served),
            prompts=len({prompt_of(each) for each in served}),
            tokens=tokens,
            wall_s=wall,
            tokens_per_second=tokens / wall if wall else None,
            requests_per_second=len(served) / wall if wall else None,
            busy=min(worked / wall, 1.0) if wall else None,
            pace_ms=pace_ms(served),
            ttft=Quantiles.of(each.ttft_ms for each in served if each.ttft_ms is not None),
            tpot=Quantiles.of(each.tpot_ms for each in served if each.tpot_ms is not None),
            e2e=Quantiles.of(each.e2e_ms for each in served),
            queued=Quantiles.of(each.queued_ms for each in served),
            queued_share=queued_share(served),
            acceptance=Acceptance.of(served, self.rounds),
            split=Split.of(served),
            lengths=by_length(each for one in served for each in self.rounds.get(key(one), ())),
            peak_rss_bytes=self.header.peak_rss_bytes.get(way),
            against=None if way == PLAIN else against(self.plain, served, self.comparisons),
        )


def _wall(load: Load, requests: Sequence[RequestRecord]) -> float:
    """Seconds of all passes, from the first arrival to the last end.

    Ways may take turns request by request within a closed loop; what lies between a way's own
    requests is then the others'.
    """
    total = 0.0
    for repeat in {each.repeat for each in requests}:
        spans = sorted((each.arrived_s, each.ended_s) for each in requests if each.repeat == repeat)
        if load.kind != "closed":
            total += max(end for _, end in spans) - spans[0][0]
            continue
        reached = spans[0][0]
        for begin, end in spans:
            total += max(0.0, end - max(begin, reached))
            reached = max(reached, end)
    return total


def _failed(requests: Iterable[RequestRecord]) -> tuple[tuple[str, str, int], ...]:
    seen: dict[str, tuple[str, int]] = {}
    for each in requests:
        if each.failure is not None:
            way, count = seen.get(each.failure, (each.way, 0))
            seen[each.failure] = way, count + 1
    most = sorted(seen.items(), key=lambda item: -item[1][1])
    return tuple((said, way, count) for said, (way, count) in most)

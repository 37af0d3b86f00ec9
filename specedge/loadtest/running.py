"""Every way over every load, so many times over: who goes when.

    warm-up                       each way serves a few requests that are not recorded
    repetition r of each load     with one client, ways take turns request by request; under any
                                  other load a way serves all of it before the next one does

Who goes first moves on from turn to turn, so that no way always follows the same other one. What
an adaptive way has learned stays with it, as in a process that serves for long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from specedge.desk import Desk, Way
from specedge.loadtest.arrivals import Arrivals, closed
from specedge.loadtest.outputs import Outputs
from specedge.loadtest.recording import recorded
from specedge.loadtest.records import RequestRecord, RoundRecord
from specedge.loadtest.serving import Job, Serial, Served, Stopwatch, serve
from specedge.metrics import peak_rss_bytes

Report = Callable[[str, float, float], None]
"""Told (stage, share of it that is done, share of everything), shares 0..1."""

Keep = Callable[[RequestRecord, Sequence[RoundRecord]], None]

WARMUP = "warming up"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run.

    Args:
        ways: in the order of their first turns.
        loads: one after the other.
        jobs: by number; as many as the largest load has requests, or more.
        repeats: of each load, 1 or more.
        warmup: requests of each way before anything is recorded, 0 or more.
    """

    ways: Sequence[Way]
    loads: Sequence[Arrivals]
    jobs: Sequence[Job]
    repeats: int = 1
    warmup: int = 0

    @property
    def requests(self) -> int:
        """In all, warm-up too."""
        recorded = self.repeats * sum(load.count for load in self.loads)
        return len(self.ways) * (self.warmup + recorded)


@dataclass(slots=True)
class Ran:
    """What a run found besides its records.

    Args:
        peak_rss_bytes: by way, of the process, when the way's last request so far had ended.
        notes: for a reader.
        complete: it was not interrupted.
    """

    peak_rss_bytes: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    complete: bool = True


class Runner:
    """Runs a plan on a desk; nothing else uses the desk meanwhile.

    Args:
        desk: open.
        plan: what to run.
        keep: given every record as its request ends, the run's clock standing still.
        report: told how far it is.
        clock, sleep: see `Stopwatch`.
    """

    def __init__(
        self,
        desk: Desk,
        plan: Plan,
        keep: Keep,
        *,
        report: Report | None = None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._desk = desk
        self._plan = plan
        self._keep = keep
        self._report = report or (lambda stage, share, whole: None)
        self._clock = clock
        self._sleep = sleep
        self._outputs = Outputs(desk.model.target.width_noise)
        self._ran = Ran()
        self._done = 0

    def run(self) -> Ran:
        """To the end, or to Ctrl-C: what was recorded until then counts.

        Raises:
            OptionError: the desk cannot make one of the ways.
        """
        for way in self._plan.ways:
            self._desk.speculator(way)
        try:
            self._warm_up()
            for repeat in range(self._plan.repeats):
                for load, arrivals in enumerate(self._plan.loads):
                    self._repetition(load, arrivals, repeat)
        except KeyboardInterrupt:
            self._ran.complete = False
        self._ran.notes += self._outputs.notes()
        return self._ran

    def _warm_up(self) -> None:
        if not self._plan.warmup:
            return
        every = self._plan.jobs
        jobs = [every[number % len(every)] for number in range(self._plan.warmup)]
        total = self._plan.warmup * len(self._plan.ways)
        self._report(WARMUP, 0.0, 0.0)
        for way in self._plan.ways:
            for _ in self._served(way, closed(1, len(jobs)), jobs):
                self._advance(WARMUP, self._done + 1, total)

    def _repetition(self, load: int, arrivals: Arrivals, repeat: int) -> None:
        ways = self._plan.ways
        runs = {way: self._served(way, arrivals, self._plan.jobs) for way in ways}
        stage = f"{arrivals.load.name}, repetition {repeat + 1} of {self._plan.repeats}"
        total = arrivals.count * len(ways)
        self._report(stage, 0.0, self._done / self._plan.requests)
        taking_turns = arrivals.load.kind == "closed" and arrivals.load.concurrency == 1
        order = by_request if taking_turns else by_run
        for done, way in enumerate(order(ways, arrivals.count, first=repeat), start=1):
            self._record(next(runs[way]), way, load, repeat)
            self._advance(stage, done, total)

    def _served(self, way: Way, arrivals: Arrivals, jobs: Sequence[Job]) -> Iterator[Served]:
        watch = Stopwatch(self._clock, self._sleep)
        return serve(arrivals, jobs, Serial(self._desk, way, watch), watch)

    def _record(self, served: Served, way: Way, load: int, repeat: int) -> None:
        request, rounds = recorded(served, way.name, load, repeat)
        self._keep(request, rounds)
        self._outputs.add(served, request)
        self._ran.peak_rss_bytes[way.name] = peak_rss_bytes()

    def _advance(self, stage: str, done: int, total: int) -> None:
        self._done += 1
        self._report(stage, done / total, self._done / self._plan.requests)


def by_request(ways: Sequence[Way], count: int, first: int = 0) -> Iterator[Way]:
    """Each way once for each of `count` requests; the first one of a turn moves on."""
    for turn in range(first, first + count):
        yield from _from(ways, turn)


def by_run(ways: Sequence[Way], count: int, first: int = 0) -> Iterator[Way]:
    """Each way `count` times, one after the other."""
    for way in _from(ways, first):
        for _ in range(count):
            yield way


def _from(ways: Sequence[Way], first: int) -> list[Way]:
    place = first % len(ways)
    return [*ways[place:], *ways[:place]]

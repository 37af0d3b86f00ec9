"""From arrivals to answers: the queue, and the server that takes requests from it.

    arrivals ──► queue (first come, first served) ──► Server: room, begin, step

A `Server` says how many more requests it has room for, begins them, and advances everything that
runs by one round a step. `Serial` has room for one: requests wait for the one engine, so that load
shows as queueing. A server that batches implements the same four members with more room and one
step for all that run; queue, clock and records stay as they are.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specedge.desk import Desk, Way
from specedge.errors import with_class
from specedge.gates.prompts import Asked
from specedge.generation import Generation
from specedge.loadtest.arrivals import Arrivals
from specedge.result import Result

_LONGEST_SLEEP_S = 3600.0  # the system refuses to sleep for centuries


@dataclass(frozen=True, slots=True)
class Job:
    """What a request asks: the same in every way and every repetition.

    Args:
        asked: the prompt.
        options: of `Model.stream`.
    """

    asked: Asked
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Served:
    """A request that has ended; seconds of the run's clock.

    Args:
        number: place in the load.
        job: what was asked.
        arrived_s, began_s, ended_s: it came, the server took it, its last token was there.
        first_s: its first token was there, even if its text was held back; None: there was none.
        result: as far as it came; None: it never began.
        failure: the error in one line; None: it was served.
    """

    number: int
    job: Job
    arrived_s: float
    began_s: float
    first_s: float | None
    ended_s: float
    result: Result | None
    failure: str | None = None


class Stopwatch:
    """Seconds of one run. It stands still outside of `start` and `stop`: what the benchmark itself
    does between requests, and the turns of other ways, are no part of the run.

    Args:
        clock: seconds that never go back.
        sleep: waits about so many seconds.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._before = 0.0
        self._since: float | None = None

    def start(self) -> None:
        self._since = self._clock()

    def stop(self) -> None:
        self._before, self._since = self.now(), None

    def now(self) -> float:
        return self._before + (0.0 if self._since is None else self._clock() - self._since)

    def wait_until(self, at_s: float) -> None:
        """Return when it runs and shows `at_s`, at once where that is past."""
        while (left := at_s - self.now()) > 0:
            self._sleep(min(left, _LONGEST_SLEEP_S))


class Server(Protocol):
    """Serves requests, one or several at a time, on one run's clock."""

    @property
    def room(self) -> int:
        """How many more requests may begin now, 0 or more."""
        ...

    @property
    def running(self) -> int:
        """Requests that began and have not ended."""
        ...

    def begin(self, number: int, job: Job, arrived_s: float) -> None:
        """Take a request; there is room. One that cannot begin ends with the next step."""
        ...

    def step(self) -> Sequence[Served]:
        """Advance everything that runs by one round; gives back what ended with it."""
        ...

    def close(self) -> None:
        """Give up what runs."""
        ...


class Serial:
    """One request at a time, on a desk's one slot, from an empty KV."""

    def __init__(self, desk: Desk, way: Way, watch: Stopwatch) -> None:
        self._desk = desk
        self._way = way
        self._watch = watch
        self._taken: tuple[int, Job, float, float] | None = None
        self._stream: Generation | None = None
        self._streaming_s = 0.0  # when the stream's own clock began
        self._failure: str | None = None

    @property
    def room(self) -> int:
        return 1 - self.running

    @property
    def running(self) -> int:
        return 0 if self._taken is None else 1

    def begin(self, number: int, job: Job, arrived_s: float) -> None:
        """The KV is emptied first, so that the first token waits for the whole prompt."""
        assert self._taken is None, "a serial server has one request at a time"
        self._taken = number, job, arrived_s, self._watch.now()
        self._stream, self._failure = None, None
        try:
            self._desk.forget()
            self._stream = self._desk.start(self._way, job.asked.prompt, job.options)
        except Exception as error:
            self._failure = with_class(error)
        self._streaming_s = self._watch.now()

    def step(self) -> Sequence[Served]:
        if self._taken is None:
            return ()
        if self._stream is not None:
            try:
                if next(self._stream).result is None:
                    return ()
            # A request that fails is a finding of the benchmark, whatever it failed with; an
            # interrupt is no Exception.
            except Exception as error:
                self._failure = with_class(error)
        number, job, arrived_s, began_s = self._taken
        ended_s = self._watch.now()
        result = None if self._stream is None else self._stream.result
        first_s = self._first(result, ended_s)
        self._taken = self._stream = None
        return [
            Served(number, job, arrived_s, began_s, first_s, ended_s, result, self._failure),
        ]

    def _first(self, result: Result | None, ended_s: float) -> float | None:
        """By the request's own clock: a token that ends inside a character gives no event."""
        ttft_ms = None if result is None else result.metrics.ttft_ms
        return None if ttft_ms is None else min(ended_s, self._streaming_s + ttft_ms / 1e3)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._taken = self._stream = None


def serve(
    arrivals: Arrivals, jobs: Sequence[Job], server: Server, watch: Stopwatch
) -> Iterator[Served]:
    """One run: every request of a load, in the order they end.

    The watch stands still whenever this is not being asked for the next one.

    Args:
        arrivals: of the load.
        jobs: by number; as many as arrivals, or more.
        server: idle.
        watch: the server's too; at rest.
    """
    queue = list(arrivals.first())
    heapq.heapify(queue)
    issued = len(queue)
    watch.start()
    try:
        while queue or server.running:
            while queue and server.room and queue[0].at_s <= watch.now():
                arrival = heapq.heappop(queue)
                server.begin(arrival.number, jobs[arrival.number], arrival.at_s)
            if not server.running:
                watch.wait_until(queue[0].at_s)
                continue
            for ended in server.step():
                follower = arrivals.after(issued, ended.ended_s)
                if follower is not None:
                    heapq.heappush(queue, follower)
                    issued += 1
                watch.stop()
                yield ended
                watch.start()
    finally:
        watch.stop()
        server.close()

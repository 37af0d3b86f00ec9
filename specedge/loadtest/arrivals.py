"""When requests arrive: clients that wait for their answers, a Poisson stream, recorded times.

closed loop   a client sends its next request the moment it has the answer to the last one, so a
              slow engine is asked less
open loop     requests come when they come; a slow engine has a queue

The arrivals of an open loop are fixed before anything runs: they are the same for every way and
every repetition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from specedge.errors import BenchError
from specedge.loadtest.records import Load
from specedge.loadtest.trace import Traced

MAX_REQUESTS = 1_000_000  # more would not fit the memory that reads the result


@dataclass(frozen=True, slots=True, order=True)
class Arrival:
    """One request: seconds from the beginning of the run, and its number from 0."""

    at_s: float
    number: int


class Arrivals(Protocol):
    """Of one load; without state, so that every pass begins anew."""

    @property
    def load(self) -> Load: ...

    @property
    def count(self) -> int:
        """Requests in all, numbered 0..count - 1."""
        ...

    def first(self) -> Sequence[Arrival]:
        """Those that are known before anything was served."""
        ...

    def after(self, issued: int, ended_s: float) -> Arrival | None:
        """The request that the end of another one brings.

        Args:
            issued: arrivals so far.
            ended_s: when that one ended.
        """
        ...


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`clients` with one request at a time each."""

    clients: int
    count: int

    @property
    def load(self) -> Load:
        return Load(kind="closed", concurrency=self.clients)

    def first(self) -> Sequence[Arrival]:
        """One of each client, at once."""
        return [Arrival(0.0, number) for number in range(min(self.clients, self.count))]

    def after(self, issued: int, ended_s: float) -> Arrival | None:
        """Of the client that has its answer."""
        return Arrival(ended_s, issued) if issued < self.count else None


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """At given times, ascending, whatever the engine does."""

    load: Load
    times_s: tuple[float, ...]

    @property
    def count(self) -> int:
        return len(self.times_s)

    def first(self) -> Sequence[Arrival]:
        """All of them."""
        return [Arrival(at_s, number) for number, at_s in enumerate(self.times_s)]

    def after(self, issued: int, ended_s: float) -> Arrival | None:
        """Nobody waits for an answer."""
        return None


def closed(clients: int, count: int) -> ClosedLoop:
    """Raises BenchError: a number is below 1, or too large."""
    if not 1 <= clients <= MAX_REQUESTS:
        raise BenchError(f"concurrency: expected 1..{MAX_REQUESTS:,} clients, found {clients}")
    return ClosedLoop(clients, _counted(count))


def poisson(rate: float, count: int, seed: int = 0) -> OpenLoop:
    """Independent arrivals: gaps are exponential with mean 1 / rate seconds.

    Args:
        rate: requests a second.
        count: requests.
        seed: of the gaps; the same seed gives the same times.

    Raises:
        BenchError: the rate is not a finite number above 0, or so small that arrivals have no time;
            or the count is out of range.
    """
    import numpy as np

    if not (math.isfinite(rate) and rate > 0):
        raise BenchError(f"rate: expected a number of requests a second above 0, found {rate:g}")
    with np.errstate(over="ignore"):
        gaps = np.random.default_rng(seed).exponential(1, _counted(count)) / rate
        times = tuple(np.cumsum(gaps).tolist())
    if not math.isfinite(times[-1]):
        raise BenchError(
            f"rate: at {rate:g} requests a second they would never have come; use a larger one"
        )
    return OpenLoop(Load(kind="poisson", rate=rate), times)


def recorded(trace: Sequence[Traced]) -> OpenLoop:
    """At the times of a trace, counted from its first.

    Raises:
        BenchError: it is empty, or too long, in requests or in seconds.
    """
    _counted(len(trace))
    times = tuple(traced.at_s - trace[0].at_s for traced in trace)
    if not math.isfinite(times[-1]):
        raise BenchError(
            f"trace: from {trace[0].at_s:g} to {trace[-1].at_s:g} s is too long to be counted; "
            "correct the times"
        )
    # n arrivals have n - 1 gaps
    rate = (len(times) - 1) / times[-1] if times[-1] else math.inf
    return OpenLoop(Load(kind="trace", rate=rate if math.isfinite(rate) else None), times)


def _counted(count: int) -> int:
    if not 1 <= count <= MAX_REQUESTS:
        raise BenchError(f"requests: expected 1..{MAX_REQUESTS:,}, found {count}")
    return count

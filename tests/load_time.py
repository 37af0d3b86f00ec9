"""Loads in fake time, and slow plain simulations of what they must look like."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from specedge.desk import Desk
from specedge.engines.fake import FakeEngine
from specedge.gates.prompts import Asked
from specedge.loadtest.serving import Job, Served, Stopwatch
from timed import Clock, install
from tiny import write_bundle

Times = list[tuple[float, float, float]]
"""Of each request by number: arrived, began, ended; seconds."""


class FakeTime:
    """Seconds that only fake engines and fake sleep spend."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.ns = Clock() if clock is None else clock
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.ns() / 1e9

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.ns.ns += max(1, math.ceil(seconds * 1e9))

    def watch(self) -> Stopwatch:
        return Stopwatch(self.clock, self.sleep)


def open_loop(arrivals_s: Sequence[float], services_s: Sequence[float]) -> Times:
    """One engine, first come, first served."""
    found: Times = []
    free = 0.0
    for at, service in zip(arrivals_s, services_s, strict=True):
        began = max(at, free)
        free = began + service
        found.append((at, began, free))
    return found


def closed_loop(clients: int, services_s: Sequence[float]) -> Times:
    """Each client asks again when it has its answer; one engine."""
    found: Times = []
    ready = [0.0] * clients
    free = 0.0
    for service in services_s:
        client = ready.index(min(ready))
        began = max(ready[client], free)
        free = began + service
        found.append((ready[client], began, free))
        ready[client] = free
    return found


@dataclass
class Batch:
    """A server with room for several; each step costs the same and gives each one token.

    Args:
        tokens: of each request, by number.
        seats: most that run at once.
    """

    time: FakeTime
    watch: Stopwatch
    tokens: Mapping[int, int]
    seats: int = 1
    step_ms: float = 10.0

    def __post_init__(self) -> None:
        self.taken: dict[int, tuple[Job, float, float, int]] = {}

    @property
    def room(self) -> int:
        return self.seats - len(self.taken)

    @property
    def running(self) -> int:
        return len(self.taken)

    def begin(self, number: int, job: Job, arrived_s: float) -> None:
        assert self.room > 0
        self.taken[number] = (job, arrived_s, self.watch.now(), self.tokens[number])

    def step(self) -> list[Served]:
        assert self.taken
        self.time.ns.spend(self.step_ms)
        done = []
        for number, (job, arrived, began, left) in list(self.taken.items()):
            self.taken[number] = (job, arrived, began, left - 1)
            if left == 1:
                del self.taken[number]
                now = self.watch.now()
                done.append(Served(number, job, arrived, began, now, now, None))
        return done

    def close(self) -> None:
        self.taken.clear()


def jobs(count: int, **options: object) -> list[Job]:
    """Prompts of different lengths."""
    return [
        Job(Asked(f"user {n + 1}", "user", "hello " * (1 + n % 3)), {"explain": True, **options})
        for n in range(count)
    ]


def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """Every fake engine's call of N tokens takes 10 + N ms from now on."""
    time = FakeTime(install(monkeypatch))
    forward = FakeEngine.forward

    def timed(self, slot, tokens, n_cached, rows):
        time.ns.spend(10 + len(tokens))
        return forward(self, slot, tokens, n_cached, rows)

    monkeypatch.setattr(FakeEngine, "forward", timed)
    return time


def service_s(desk: Desk, job: Job) -> float:
    """Of a plain request that reaches its limit: the prompt, then a call a token."""
    n_prompt = len(desk.model.encode(job.asked.prompt)[0])
    return ((10 + n_prompt) + (job.options["max_tokens"] - 1) * 11) / 1e3


def open_desk(folder: Path, **given: object) -> Desk:
    """Nothing that it says ends before its limit, unless the rule says so."""
    from commands import alphabet

    usual: dict[str, object] = {"draft": True, "max_verify": 4, "rule": alphabet()}
    return Desk(write_bundle(folder, **(usual | given)), engine="fake")  # type: ignore[arg-type]

"""Pairs of runs, what they say with an interval, and a sweep of fixed ways to draft."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from controller_desk import AUTO, PLAIN, Desk, Request, Run
from speed import busy_seconds

EARLY = 3  # pairs that are told apart: the controller has seen nothing yet
K_SWEEP = (1, 2, 3, 4, 6, 8, 11, 15)
RESAMPLES = 4000
Trial = dict[str, Run]  # by way, of one request
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with the ends of its 95 % interval, by bootstrap over the pairs."""

    median: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def interval(ratios: Sequence[float]) -> Interval:
    values = np.asarray(ratios, np.float64)
    rng = np.random.default_rng(0)
    drawn = values[rng.integers(0, len(values), (RESAMPLES, len(values)))]
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return Interval(float(np.median(values)), float(low), float(high), len(values))


@dataclass
class Row:
    """One line of the table.

    Args:
        name: what was asked.
        bundle, proposers: of whom.
        kind: "adversarial", "favourable", "first tokens", or "information".
        over, under: ways whose speeds are compared, `over` being ours.
        trials: in order; raw.
        least, least_low: the median and the lower end must reach them; None: no goal.
        most: the median must not exceed it; None: no such goal.
        others: share of the machine that other processes used meanwhile.
        note: said beside it.
        sweep: of a favourable row, tokens per second of each fixed way in the coarse pass.
        value: of a run, what is compared.
    """

    name: str
    bundle: str
    proposers: tuple[str, ...]
    kind: str
    over: str
    under: str
    trials: list[Trial] = field(default_factory=list)
    least: float | None = None
    least_low: float | None = None
    most: float | None = None
    others: float = 0.0
    note: str = ""
    sweep: dict[str, float] = field(default_factory=dict)
    value: Callable[[Run], float] = lambda run: run.speed

    @property
    def early(self) -> int:
        """Pairs that do not count towards the goal."""
        counted = self.kind in ("adversarial", "favourable") and len(self.trials) > EARLY
        return EARLY if counted else 0

    def ratios(self) -> list[float]:
        return [self.value(each[self.over]) / self.value(each[self.under]) for each in self.trials]

    @property
    def first(self) -> float | None:
        """Median of the early pairs."""
        return statistics.median(self.ratios()[: self.early]) if self.early else None

    @property
    def settled(self) -> Interval:
        return interval(self.ratios()[self.early :])

    @property
    def total(self) -> float:
        """Ratio of summed times, all pairs: what a user waits for."""
        spent = {way: sum(1 / self.value(each[way]) for each in self.trials) for way in self.ways}
        return spent[self.under] / spent[self.over]

    @property
    def ways(self) -> tuple[str, str]:
        return self.over, self.under

    @property
    def equal(self) -> int:
        """Trials in which all ways gave the same tokens."""
        return sum(len({run.text for run in each.values()}) == 1 for each in self.trials)

    @property
    def passed(self) -> bool | None:
        """None: there is no goal."""
        found = self.settled
        goals = []
        if self.least is not None:
            goals.append(found.median >= self.least)
        if self.least_low is not None:
            goals.append(found.low >= self.least_low)
        if self.most is not None:
            goals.append(found.median <= self.most)
        return all(goals) if goals else None

    def to_dict(self) -> dict[str, Any]:
        found = self.settled
        return {
            "name": self.name,
            "bundle": self.bundle,
            "proposers": list(self.proposers),
            "kind": self.kind,
            "over": self.over,
            "under": self.under,
            "least": self.least,
            "least_low": self.least_low,
            "most": self.most,
            "median": found.median,
            "low": found.low,
            "high": found.high,
            "early_pairs": self.early,
            "early_median": self.first,
            "sum_ratio": self.total,
            "passed": self.passed,
            "equal": self.equal,
            "others_share": self.others,
            "note": self.note,
            "sweep": self.sweep,
            "trials": [{way: run.to_dict() for way, run in t.items()} for t in self.trials],
        }


class Watch:
    """What other processes use of the machine while a row runs."""

    def __init__(self) -> None:
        self._began, self._busy = time.perf_counter(), busy_seconds()
        self._own = time.process_time()

    def others(self) -> float:
        wall = time.perf_counter() - self._began
        own = time.process_time() - self._own
        return max(0.0, (busy_seconds() - self._busy - own) / (wall * (os.cpu_count() or 1)))


def trials(
    desk: Desk, requests: Iterable[Request], ways: Sequence[str], count: int, say: Say
) -> list[Trial]:
    """Each request in all ways, one right after the other; who begins changes from one to the next.

    Requests are gone through in a circle.
    """
    made = []
    asked = itertools.islice(itertools.cycle(requests), count)
    for number, request in enumerate(asked):
        turn = number % len(ways)
        order = [*ways[turn:], *ways[:turn]]
        made.append({way: desk.ask(way, request) for way in order})
        say(f"{number + 1} of {count}")
    return made


def sweep(
    desk: Desk, requests: Sequence[Request], proposers: Iterable[str], longest: int, say: Say
) -> dict[str, float]:
    """Tokens per second of plain decoding and of every fixed way, over the same requests.

    Times of all requests are summed.
    """
    ways = [desk.fixed(name, k) for name in proposers for k in K_SWEEP if k <= longest]
    ways.append(PLAIN)
    spent = dict.fromkeys(ways, 0.0)
    tokens = dict.fromkeys(ways, 0)
    for number, request in enumerate(requests):
        for place, way in enumerate(ways if number % 2 == 0 else ways[::-1]):
            run = desk.ask(way, request)
            spent[way] += run.decode_ms
            tokens[way] += run.tokens - 1
            say(f"sweep, {number * len(ways) + place + 1} of {len(requests) * len(ways)}")
    return {way: tokens[way] * 1e3 / spent[way] for way in ways}


def finalists(speeds: dict[str, float], count: int) -> list[str]:
    """The fastest fixed ways."""
    fixed = sorted((way for way in speeds if way != PLAIN), key=speeds.__getitem__, reverse=True)
    return fixed[:count]


def best_fixed(made: list[Trial], early: int) -> str:
    """Of the ways that ran beside "auto", the one that took least time after the early trials."""
    ways = [way for way in made[0] if way not in (AUTO, PLAIN)]
    return min(ways, key=lambda way: sum(each[way].decode_ms for each in made[early:]))

"""Watch a machine while it is measured: changed settings, throttling, clocks that fell.

watcher = Watcher(on_gpu=False)
watcher.start()
...; watcher.check(); ...        now and then, right after some work
seen = watcher.end()
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from specedge.power import settings
from specedge.power.clocks import Clocks, CpuClocks, DevfreqClocks
from specedge.power.counting import Clock
from specedge.power.events import Cooling, OverCurrent, Raspberry, ThrottleCounts
from specedge.power.nvml import Gpu, open_gpu

EVERY_S = 0.25  # more frequent checks do nothing, so that a caller need not count
CLOCK_FALL = 0.85  # of what it was; less than that is how clocks wander
FEWEST_CLOCKS = 9
MOST_CHANGES = 8


@dataclass(frozen=True)
class Seen:
    """What happened to the machine.

    Args:
        throttled: a line each: settings that changed, throttling, a clock that fell.
        clocks_mhz: lowest and highest clock at the checks; None: unreadable.
    """

    throttled: tuple[str, ...] = ()
    clocks_mhz: tuple[float, float] | None = None


class Watcher:
    """From `start` to `end`; a check without a start does nothing. Nothing here raises.

    Args:
        root: of the file tree.
        on_gpu: engines compute on an NVIDIA GPU, so its clock is the one that matters.
        clock: of the time between two checks.
    """

    def __init__(
        self, root: Path = Path("/"), *, on_gpu: bool = False, clock: Clock = time.monotonic
    ) -> None:
        self._root = root
        self._on_gpu = on_gpu
        self._clock = clock
        self._watch: _Watch | None = None
        self._next = 0.0

    def start(self) -> None:
        """Look at everything once; a second start forgets the first."""
        self.end()
        self._watch = _Watch(self._root, self._on_gpu)
        self._next = self._clock()

    def check(self) -> None:
        """Look again, unless that was less than EVERY_S ago. Some milliseconds at most."""
        now = self._clock()
        if self._watch is None or now < self._next:
            return
        self._next = now + EVERY_S
        self._watch.check()

    def end(self) -> Seen:
        """Look a last time, except at clocks, which idle by now; and stop watching."""
        if self._watch is None:
            return Seen()
        watch, self._watch = self._watch, None
        return watch.end()


class _Watch:
    """One start to its end."""

    def __init__(self, root: Path, on_gpu: bool) -> None:
        self._root = root
        gpu = open_gpu() if on_gpu else None
        self._gpu = gpu if isinstance(gpu, Gpu) else None
        self._unit, self._clocks = self._clock_source(root, on_gpu)
        self._mhz: list[float] = []
        self._throttles = ThrottleCounts(root)
        self._cooling = Cooling(root)
        self._over_current = OverCurrent(root)
        self._raspberry = Raspberry(root)
        self._settings = settings.all_of(root)
        self._driver_limit = self._limit()
        self._changes: list[str] = []
        self._reasons: Counter[str] = Counter()
        self._checks = 0

    def _clock_source(self, root: Path, on_gpu: bool) -> tuple[str, Clocks]:
        if not on_gpu:
            return "CPU", CpuClocks(root)
        return "GPU", self._gpu if self._gpu is not None else DevfreqClocks(root)

    def check(self) -> None:
        mhz = self._clocks.mhz()
        if mhz is not None:
            self._mhz.append(mhz)
        if self._gpu is not None and (reasons := self._gpu.throttled()) is not None:
            self._checks += 1
            self._reasons.update(reasons)
        self._cooling.check()
        self._raspberry.check()
        self._compare()

    def end(self) -> Seen:
        self._compare()
        lines = [
            *self._changes,
            *self._throttles.lines(),
            *self._cooling.lines(),
            *self._over_current.lines(),
            *self._raspberry.lines(),
            *(
                f"GPU throttled: {reason} (at {count} of {self._checks} checks)"
                for reason, count in self._reasons.items()
            ),
        ]
        if fell := clock_fell(self._mhz):
            lines.append(f"{self._unit} {fell}")
        if self._gpu is not None:
            self._gpu.close()
        clocks = (min(self._mhz), max(self._mhz)) if self._mhz else None
        return Seen(tuple(lines), clocks)

    def _limit(self) -> str | None:
        watts = None if self._gpu is None else self._gpu.limit_watts()
        return None if watts is None else f"{watts:.0f} W"

    def _compare(self) -> None:
        """With the last known value of each setting: one that cannot be read has not changed."""
        now = settings.all_of(self._root)
        for name, value in now.items():
            before = self._settings[name]
            if value is None:
                continue
            if before is not None and before != value:
                self._note(name, before, value)
            self._settings[name] = value
        limit = self._limit()
        if limit is not None:
            if self._driver_limit is not None and limit != self._driver_limit:
                self._note("GPU power limit", self._driver_limit, limit)
            self._driver_limit = limit

    def _note(self, name: str, before: str, now: str) -> None:
        line = (
            f"went from {before} to {now} during the probe"
            if name == "power"
            else f"{name} changed from {before} to {now} during the probe"
        )
        if line not in self._changes and len(self._changes) < MOST_CHANGES:
            self._changes.append(line)


def clock_fell(mhz: list[float]) -> str | None:
    """Whether the last third of the readings lies clearly below the first, by their medians."""
    if len(mhz) < FEWEST_CLOCKS:
        return None
    third = len(mhz) // 3
    early, late = statistics.median(mhz[:third]), statistics.median(mhz[-third:])
    if late >= CLOCK_FALL * early:
        return None
    return f"clock fell from {early:.0f} to {late:.0f} MHz"

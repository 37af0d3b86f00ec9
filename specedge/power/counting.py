"""Joules since a moment: from a counter that the hardware keeps, or from watts read repeatedly.

Neither invents anything: a meter that lost count says None, and never a sum that lacks a part.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

Clock = Callable[[], float]
"""Seconds from any fixed moment; never goes back."""

Read = Callable[[], float | None]
"""One reading, now; None when there is none. Does not raise."""

STUCK_S = 1.0  # of a counter that does not move: nothing that is switched on draws no power
SAMPLE_S = 0.1
LONGEST_GAP_S = 5.0  # of a straight line between two samples

_JOIN_S = 2.0


class Meter(Protocol):
    """Counts joules from when it was made."""

    @property
    def source(self) -> str:
        """Which meter, for a person: "RAPL package-0"."""
        ...

    def joules(self) -> float | None:
        """Drawn since the meter was made; None when it cannot be told (any more)."""
        ...

    def close(self) -> None:
        """Stop counting; twice does no harm. `joules` says None from then on."""
        ...


class Wrapping:
    """A counter that starts again from 0 when it is full.

    Args:
        read: the counter, in joules.
        range_j: what it holds at most; None: unknown, so that a fall loses count.

    It has to be read twice every time round, which for a processor that draws 200 W and counts to
    2**18 J is every 10 minutes. What looks like more than half a round since the last reading was
    set back (some are, when a machine wakes up), and count is lost.
    """

    def __init__(self, read: Read, range_j: float | None) -> None:
        self._read = read
        self._range_j = range_j
        self._last = read()
        self._lost = self._last is None
        self._joules = 0.0

    def joules(self) -> float | None:
        now = None if self._lost else self._read()
        if now is None or self._last is None:
            return None
        risen = now - self._last
        if risen < 0:
            risen += self._range_j or 0.0
            if self._range_j is None or not 0 <= risen <= self._range_j / 2:
                self._lost = True
                return None
        self._last = now
        self._joules += risen
        return self._joules


class CounterMeter:
    """The sum of counters that have no part in common.

    Args:
        source: see `Meter.source`.
        counters: all of them are needed for a sum.
        clock: of the time after which a counter that stands still is not believed.
    """

    def __init__(
        self, source: str, counters: Sequence[Wrapping], clock: Clock = time.monotonic
    ) -> None:
        self.source = source
        self._counters = tuple(counters)
        self._clock = clock
        self._began = clock()
        self._closed = False

    def joules(self) -> float | None:
        if self._closed:
            return None
        total = 0.0
        for counter in self._counters:
            joules = counter.joules()
            if joules is None:
                return None
            total += joules
        if total == 0 and self._clock() - self._began >= STUCK_S:
            return None
        return total

    def close(self) -> None:
        self._closed = True


class SampledMeter:
    """Watts integrated over time by a thread of its own, and once more with every `joules`.

    Args:
        source: see `Meter.source`.
        watts: the power, now.
        every_s: between two samples; 0: no thread, only `joules` takes samples.
        clock: of the integral.

    A straight line stands for the power between two samples. A sample that could not be read is
    left out; after LONGEST_GAP_S without any, count is lost.
    """

    def __init__(
        self,
        source: str,
        watts: Read,
        *,
        every_s: float = SAMPLE_S,
        clock: Clock = time.monotonic,
    ) -> None:
        self.source = source
        self._watts = watts
        self._clock = clock
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._joules = 0.0
        self._lost = False
        self._last: tuple[float, float] | None = None
        self._sample()
        self._thread: threading.Thread | None = None
        if every_s > 0:
            self._thread = threading.Thread(
                target=self._run, args=(every_s,), name="specedge-power", daemon=True
            )
            self._thread.start()

    def joules(self) -> float | None:
        self._sample()
        with self._lock:
            fresh = self._last is not None and self._clock() - self._last[0] <= LONGEST_GAP_S
            return self._joules if fresh and not self._lost else None

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)  # a sensor that hangs must not hang its user
            self._thread = None
        with self._lock:
            self._lost = True

    def _run(self, every_s: float) -> None:
        while not self._stop.wait(every_s):
            self._sample()

    def _sample(self) -> None:
        watts = None if self._stop.is_set() else self._watts()
        if watts is None or watts < 0:
            return
        with self._lock:
            now = self._clock()
            if self._last is not None:
                then, before = self._last
                self._lost = self._lost or not 0 <= now - then <= LONGEST_GAP_S
                self._joules += max(0.0, now - then) * (watts + before) / 2
            self._last = (now, watts)

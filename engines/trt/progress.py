"""How far a build is: the library's nested phases as per cent."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from specedge.engines.trt.library import Library
from specedge.progress import Progress


@contextmanager
def stoppable(watching: Any) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop a build at its next step, and then do what they always do.

    Their handlers would raise wherever Python runs, inside the library's own calls too, which do
    not survive it. In another thread than the first there is nothing to hold back.

    Args:
        watching: the build's monitor.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []

    def later(number: int, frame: object) -> None:
        caught.append(number)
        watching.stop = True

    old = {number: signal.signal(number, later) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if caught:
            signal.raise_signal(caught[0])


def monitor(library: Library, report: Progress) -> Any:
    """The library's progress monitor.

    Its `stop` ends the build at the next step; `stopped_by` is what a report raised.
    """
    base = library.module.IProgressMonitor

    class Monitor(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            base.__init__(self)
            self.stop = False
            self.stopped_by: BaseException | None = None
            self._phases: list[tuple[str, int, int]] = []  # name, steps, done
            self._shown = 0

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._guarded(lambda: self._phases.append((phase_name, max(1, num_steps), 0)))

        def phase_finish(self, phase_name: str) -> None:
            self._guarded(lambda: self._finish(phase_name))

        def step_complete(self, phase_name: str, step: int) -> bool:
            self._guarded(lambda: self._step(phase_name, step))
            return not self.stop

        def _guarded(self, act: Callable[[], None]) -> None:
            """An exception must not pass through the library's own code."""
            try:
                act()
            except BaseException as error:
                self.stopped_by, self.stop = self.stopped_by or error, True

        def _finish(self, name: str) -> None:
            while self._phases and self._phases.pop()[0] != name:
                pass

        def _step(self, name: str, step: int) -> None:
            for index in range(len(self._phases) - 1, -1, -1):
                found, steps, _ = self._phases[index]
                if found == name:
                    self._phases[index] = (found, steps, min(steps, step + 1))
                    break
            share, part = 0.0, 1.0
            for _, steps, done in self._phases:
                share += part * done / steps
                part /= steps
            whole = min(99, int(100 * share))
            if whole > self._shown:
                report.advance(whole - self._shown)
                self._shown = whole

    return Monitor()

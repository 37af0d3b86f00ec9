"""How a build is followed and ended, while the library keeps the first thread to itself."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from specedge.engines.trt.library import Library
from specedge.progress import Progress

_STOPS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stoppable(watching: Any, report: Progress) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop a build at its next step, and then do what they always do.

    Their handlers would raise wherever Python runs, inside the library's own calls too, which do
    not survive it. Python calls a handler only once the library calls back, which may take
    seconds: that the signal has come is said at once, by a thread that the system wakes. In
    another thread than the first there is nothing to hold back.

    Args:
        watching: the build's monitor.
        report: its `note` is called from that thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []

    def later(number: int, frame: object) -> None:
        caught.append(number)
        watching.stop = True

    with _told_at_once(watching, report):
        old = {number: signal.signal(number, later) for number in _STOPS}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
    if caught:
        signal.raise_signal(caught[0])


@contextmanager
def _told_at_once(watching: Any, report: Progress) -> Iterator[None]:
    """A thread hears of signals as they come, and passes on what is not about stopping."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def listen() -> None:
        while heard := os.read(reader, 1):
            if heard[0] in _STOPS:
                if not watching.stop:
                    watching.stop = True
                    with suppress(Exception):  # a closed stderr stops the build no less
                        report.note("stopping at the library's next step, which may take seconds")
            elif before != -1:
                with suppress(OSError):
                    os.write(before, heard)

    thread = threading.Thread(target=listen, name="specedge-build-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        thread.join()
        os.close(reader)


def monitor(library: Library, report: Progress) -> Any:
    """The library's progress monitor: advances by one for each of its steps.

    How many there are is no measure of time: most are over in the first tenths of a second, and a
    few take all the rest. Its `stop` ends the build at the next step; `stopped_by` is what a report
    raised.
    """
    base = library.module.IProgressMonitor

    class Monitor(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            base.__init__(self)
            self.stop = False
            self.stopped_by: BaseException | None = None

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            pass

        def phase_finish(self, phase_name: str) -> None:
            pass

        def step_complete(self, phase_name: str, step: int) -> bool:
            try:
                report.advance(1)
            except BaseException as error:  # must not pass through the library's own code
                self.stopped_by, self.stop = self.stopped_by or error, True
            return not self.stop

    return Monitor()

"""A stage is a process with a budget: what it measured is kept, however it ends.

A stage gets a JSON request in a file and appends its records to another, a line each.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu.memory import Tree

MB = 1_000_000
POLL_S = 0.1
LEAST_S = 1.0  # that a stage is started for
Json = dict[str, Any]
Emit = Callable[..., None]
"""emit(status, case="", reason="", figures=None) writes one record."""


@dataclass(frozen=True)
class Stage:
    """One process.

    Args:
        kind: a key of KINDS.
        budget_s: after which it is killed.
        request: what it is asked, JSON-ready.
        skip: why it does not run.
        beside: it starts here and goes on beside the stages up to the one that `needs` it.
        needs: name of a stage that must be over first.
    """

    name: str
    kind: str
    budget_s: float
    request: Json = field(default_factory=dict)
    skip: str | None = None
    beside: bool = False
    needs: str | None = None


class Running:
    """A stage's process, started, and a thread that keeps its budget.

    Args:
        stage: that is run.
        budget_s: at most stage.budget_s; what is left of the whole.
        script: started with --child KIND REQUEST RECORDS.
        folder: for what the process is asked, what it answers and what it complains about.
        free: bytes of device memory that nobody has taken; None where that is not known.
    """

    def __init__(
        self,
        stage: Stage,
        budget_s: float,
        script: Path,
        folder: Path,
        free: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._stage, self._budget_s, self._free = stage, budget_s, free
        self._said: Json = {"name": stage.name, "kind": stage.kind, "status": "skipped"}
        self._said |= {"budget_s": stage.budget_s, "seconds": 0.0, "reason": stage.skip or ""}
        name = stage.name.replace(" ", "-")
        self._records, self._errors = folder / f"{name}.jsonl", folder / f"{name}.stderr"
        self._process: subprocess.Popen[bytes] | None = None
        if stage.skip is not None:
            return
        if budget_s < LEAST_S:
            reason = "the time for the whole check is used up"
            self._said |= {"status": "out of time", "reason": reason}
            return
        asked = folder / f"{name}.json"
        asked.write_text(json.dumps(stage.request), encoding="utf-8")
        self._records.unlink(missing_ok=True)
        command = [sys.executable, str(script), "--child", stage.kind]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, str(asked), str(self._records)],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )
        self._thread = threading.Thread(target=self._watch, args=(self._process,), daemon=True)
        self._thread.start()

    def finish(self) -> tuple[Json, list[Json]]:
        """Wait for it; how it went, and its records."""
        if self._process is None:
            return self._said, []
        self._thread.join()
        records: list[Json] = []
        if self._records.exists():
            lines = self._records.read_text(encoding="utf-8").split("\n")
            records = [json.loads(line) for line in lines[:-1]]  # a killed one may break off
        for record in records:
            record |= {"stage": self._stage.name, "kind": self._stage.kind}
            record["engine"] = self._stage.request.get("engine")
        return self._said, records

    def stop(self) -> None:
        """End it, whatever it has done."""
        if self._process is None:
            return
        if self._process.poll() is None:
            kill(self._process)
        self._thread.join()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """To its end, or to that of its budget."""
        began, before, late = time.perf_counter(), self._free(), False
        tree = Tree(process.pid)
        while process.poll() is None and not late:
            time.sleep(POLL_S)
            late = time.perf_counter() - began > self._budget_s
            tree.sample()
            self._note("peak_rss_mb", tree.peak_bytes and tree.peak_bytes / MB)
            free = self._free()
            if free is not None and before is not None:
                self._note("peak_device_mb", (before - free) / MB)
        kill(process)  # those it started as well
        code = process.wait()
        self._said |= {"status": "done", "seconds": time.perf_counter() - began}
        if late:
            self._said |= {"status": "out of time", "reason": f"stopped at {self._budget_s:.0f} s"}
        elif code:
            complaint = self._errors.read_text(errors="replace").strip().splitlines()
            reason = f"exit code {code}: {complaint[-1] if complaint else 'no word'}"
            self._said |= {"status": "crashed", "reason": reason}

    def _note(self, name: str, value: float | None) -> None:
        if value is not None:
            self._said[name] = max(value, self._said.get(name, 0.0))


@contextmanager
def held_back(number: signal.Signals) -> Iterator[None]:
    """A signal that comes in the block takes effect behind it; in the main thread only."""
    came = False

    def note(*_: object) -> None:
        nonlocal came
        came = True

    before = signal.signal(number, note)
    try:
        yield
    finally:
        signal.signal(number, before)
    if came:
        signal.raise_signal(number)


def kill(process: subprocess.Popen[bytes]) -> None:
    """The process and those it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def child(work: Callable[[Json, Emit], None], asked: Path, records: Path) -> None:
    """One stage, in its own process."""
    with records.open("a", encoding="utf-8") as file:

        def emit(
            status: str, case: str = "", reason: str = "", figures: Json | None = None
        ) -> None:
            said = {"case": case, "status": status, "reason": reason, "figures": figures or {}}
            file.write(json.dumps(said) + "\n")
            file.flush()

        work(json.loads(asked.read_text(encoding="utf-8")), emit)


def save(result: Json, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(result, indent=1), encoding="utf-8")
    temporary.replace(path)


def line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__

"""One engine in a process of its own: it loads once and answers requests as JSON lines.

worker says, once it is ready   {"ready": DESCRIPTION}
request                         {"ids": [int], "max_tokens": int}
answer                          {"tokens": [int], "ttft_ms": float, "decode_ms": float, ...}

Greedy, from an empty KV, always max_tokens tokens: an end-of-sequence token ends nothing.
`ttft_ms` is from the ids in hand to the first token, `decode_ms` from there to the last; the worker
measures both. An answer may also have

first_tokens       how many tokens came with the first (a round that already drafted); default 1
engine_ms          of decode_ms, inside the runtime's own call
rounds             target calls of decode_ms
acceptance_length  tokens committed per round
acceptance_rate    accepted / proposed

Between requests a worker must sleep; `cpu_seconds` lets the caller check that.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_REASON_CHARACTERS = 240
_RAISED = re.compile(r"^[\w.]*(Error|Exception|Exit)\b")


class WorkerError(Exception):
    """A worker ended, said nothing in time, or said something that is not an answer: one line."""


@dataclass(frozen=True)
class Plan:
    """An engine to measure.

    Args:
        name: unique in a run.
        argv: starts its worker.
        kind: the runtime; engines of one kind can be loaded together.
        mode: "plain", "lookup" or "draft".
        own: specedge; else a peer.
        exact: its tokens must equal those of every other exact engine.
    """

    name: str
    argv: list[str]
    kind: str = "specedge"
    mode: str = "plain"
    own: bool = False
    exact: bool = False


class Worker:
    """A running plan.

    Args:
        patience_s: an answer may take so long, and the load as well.

    Raises:
        WorkerError: it does not start; also from `ask`, when it ends instead of answering.
    """

    def __init__(self, plan: Plan, *, patience_s: float = 300.0) -> None:
        self.plan = plan
        self._patience_s = patience_s
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the worker
        try:
            self._process = subprocess.Popen(
                plan.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
            )
        except OSError as error:
            self._stderr.close()
            raise WorkerError(f"{plan.name}: cannot start {plan.argv[0]}: {error}") from error
        try:
            self.description: str = self._read()["ready"]
        except WorkerError:
            self.close()
            raise

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None, "opened as a pipe"
        # _read tells what it said before it ended
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._read()

    def cpu_seconds(self) -> float:
        """User and system time of all its threads so far."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) * _TICK

    def peak_mib(self) -> float:
        """Largest resident set since the start, or since `forget_peak`; mapped files count."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
        assert found is not None, "Linux states it"
        return int(found[1]) / 1024

    def forget_peak(self) -> None:
        """Let `peak_mib` start anew; without the right to, it goes on counting from the start."""
        with contextlib.suppress(OSError):
            Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def close(self) -> None:
        """End it: by closing its input, or by force when it does not listen."""
        assert self._process.stdin is not None, "opened as a pipe"
        assert self._process.stdout is not None, "opened as a pipe"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._stderr.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None, "opened as a pipe"
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(self._patience_s, give_up)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            code = self._process.wait()
            if late.is_set():
                raise WorkerError(f"{self.plan.name}: no answer within {self._patience_s:.0f} s")
            self._stderr.seek(0)
            said = reason(self._stderr.read())
            raise WorkerError(f"{self.plan.name}: ended with code {code}: {said}")
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise WorkerError(f"{self.plan.name}: not JSON: {line[:200]!r}") from error
        if not isinstance(answer, dict):
            raise WorkerError(f"{self.plan.name}: not an object: {line[:200]!r}")
        return answer


def reason(stderr: str) -> str:
    """Why a process ended, in one line: the last exception it names, or else its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    starts = [place for place, line in enumerate(lines) if _RAISED.match(line)]
    said = " ".join(lines[starts[-1] :] if starts else lines[-1:]) or "it said nothing"
    return said if len(said) <= _REASON_CHARACTERS else said[:_REASON_CHARACTERS] + "..."

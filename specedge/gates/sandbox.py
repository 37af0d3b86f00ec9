"""Run Python that a model wrote, in a process of its own with limits.

A guard against accidents, not against an attacker: code that loops, fills memory or the disk,
starts processes, asks for input, opens a connection or writes where it should not is stopped; code
that sets out to escape can. It may read what this user may read. Run `specedge verify` on models
that you would let write code for you, or in a container.

How: a Python without site-packages (`-I -S`) and without this environment, an empty folder that is
deleted afterwards, rlimits on CPU time, address space, file size, open files and processes, an
audit hook that refuses network, processes and changes outside the folder, and a wall clock that
kills the process group.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from specedge.errors import ProbeError

_SCRIPT = Path(__file__).with_name("sandboxed.py")
_FLAGS = ("-I", "-S", "-B", "-X", "utf8")
_KEPT_OUTPUT = 2000  # characters


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one run.

    Args:
        cpu_seconds: of processor time, whole.
        seconds: of wall time, the start of the interpreter included.
        memory_bytes: of address space; an interpreter alone takes some 30 MiB.
        file_bytes: of each file, and of everything printed.
    """

    cpu_seconds: int = 5
    seconds: float = 15.0
    memory_bytes: int = 512 << 20
    file_bytes: int = 1 << 20


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that left the code.

    Args:
        error: its class.
        kinds: names of that and of its bases.
        said: its message on one line, cut.
        part: whose line it came through last; "string" for a text that a part gave to `exec`.
        line: in that part, from 1; None: none of them.
        attribute_of: of an AttributeError the type that lacks the attribute.
    """

    error: str
    kinds: Sequence[str]
    said: str
    part: str
    line: int | None
    attribute_of: str

    def __str__(self) -> str:
        return f"{self.error}: {self.said}" if self.said else self.error


@dataclass(frozen=True, slots=True)
class Ran:
    """How a run ended.

    Args:
        ok: every part ran to its end, and none has set the variable `ok` to something false.
        raised: the exception that ended it, if one did.
        stopped: why there was no end that Python knows of: a limit, or the process was left. ""
            where there was one.
        output: the last that was printed.
    """

    ok: bool
    raised: Raised | None
    stopped: str
    output: str


def unavailable() -> str:
    """Why code cannot be run here; "" where it can."""
    if os.name != "posix":
        return "this system has no limits for processes (POSIX); expected Linux or macOS"
    if not sys.executable:
        return "this program does not know where its Python is"
    return ""


def run(
    parts: Sequence[tuple[str, str]],
    given: Mapping[str, str] | None = None,
    limits: Limits = LIMITS,
) -> Ran:
    """Run parts of one program, one after the other, in one namespace.

    Args:
        parts: (name, source); tracebacks know a source by its name.
        given: variables that they find, all of them text.

    Raises:
        ProbeError: no sandbox can be made here.
    """
    if why := unavailable():
        raise ProbeError(f"sandbox: {why}; use tasks with `expect` only")
    job = {"parts": list(parts), "given": dict(given or {}), "limits": _rlimits(limits)}
    try:
        with (
            tempfile.TemporaryDirectory(prefix="specedge-", ignore_cleanup_errors=True) as folder,
            tempfile.TemporaryFile() as ask,
            tempfile.TemporaryFile() as verdict,
            tempfile.TemporaryFile() as output,
        ):
            ask.write(json.dumps(job).encode())
            ask.seek(0)
            process = subprocess.Popen(
                [sys.executable, *_FLAGS, str(_SCRIPT)],
                stdin=ask,
                stdout=verdict,
                stderr=output,
                cwd=folder,
                env={},
                start_new_session=True,
            )
            in_time = _wait(process, limits.seconds)
            return _ran(_tail(verdict), process.returncode, in_time, limits, _tail(output))
    except OSError as error:
        raise ProbeError(
            f"sandbox: cannot be started: {error.strerror or error}; free memory or disk, or use "
            "tasks with `expect` only"
        ) from error


def _rlimits(limits: Limits) -> dict[str, int]:
    return {
        "CPU": limits.cpu_seconds,
        "AS": limits.memory_bytes,
        "FSIZE": limits.file_bytes,
        "NOFILE": 64,
        "NPROC": 0,  # a new one, or a thread, is refused to all but root
        "CORE": 0,
    }


def _wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for it, or kill its group; whether it has ended by itself."""
    try:
        process.wait(seconds)
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        if process.returncode is None:  # not reaped: its group cannot be another's
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _tail(file: IO[bytes]) -> str:
    """The end of a file that another process has written."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 4 * _KEPT_OUTPUT))
    return file.read().decode("utf-8", errors="replace")


def _ran(verdict: str, code: int | None, in_time: bool, limits: Limits, output: str) -> Ran:
    kept = output[-_KEPT_OUTPUT:]
    try:
        said: dict[str, Any] = json.loads(verdict)
    except ValueError:
        return Ran(False, None, _stopped(code, in_time, limits), kept)
    raised = said["raised"]
    return Ran(said["ok"], None if raised is None else Raised(**raised), "", kept)


def _stopped(code: int | None, in_time: bool, limits: Limits) -> str:
    if not in_time:
        return f"not done after {limits.seconds:g} s"
    if code == -signal.SIGXCPU:
        return f"more than {limits.cpu_seconds} s of processor time"
    if code is not None and code < 0:
        return f"killed by signal {-code}"
    return f"left the process with status {code}"

"""One engine in a process of its own: it loads once and answers requests as JSON lines.

worker says, once it is ready   {"ready": DESCRIPTION}
request                         {"ids": [int], "max_tokens": int}
answer                          {"tokens": [int], "ttft_ms": float, "decode_ms": float, ...}

Greedy, from an empty KV, always max_tokens tokens: an end-of-sequence token ends nothing.
`ttft_ms` is from the ids in hand to the first token, `decode_ms` from there to the last; the worker
measures both. Between requests a worker must sleep; `cpu_seconds` lets the caller check that.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_TICK = 1 / os.sysconf("SC_CLK_TCK")
_ERROR_LINES = 15


class WorkerError(Exception):
    """A worker ended, or said something that is not an answer."""


@dataclass(frozen=True)
class Plan:
    """An engine to measure.

    Args:
        name: unique in a run.
        argv: starts its worker.
        own: specedge; else a peer.
        exact: its tokens must equal those of every other exact engine.
    """

    name: str
    argv: list[str]
    own: bool = False
    exact: bool = False


def specedge(python: str, name: str, *, exact: bool, **options: Any) -> Plan:
    """A plan of ours; `options` as specedge_worker.py has them."""
    given = json.dumps({**options, "exact": exact})
    return Plan(name, [python, str(HERE / "specedge_worker.py"), given], own=True, exact=exact)


def peer(described: str, *, threads: int, context: int) -> Plan:
    """The plan of `genai=PYTHON:MODELDIR` or `llamacpp=NODE_DIR:GGUF`. Raises ValueError."""
    kind, _, rest = described.partition("=")
    place, _, model = rest.partition(":")
    given: dict[str, Any] = {"model": model, "threads": threads}
    if kind == "genai" and place and (Path(model) / "genai_config.json").is_file():
        argv = [place, str(HERE / "genai_worker.py"), json.dumps(given)]
        return Plan(f"genai {Path(model).name}", argv)
    if kind == "llamacpp" and (Path(place) / "node_modules").is_dir() and Path(model).is_file():
        given |= {"modules": str(Path(place).resolve()), "context": context}
        argv = ["node", str(HERE / "llamacpp_worker.mjs"), json.dumps(given)]
        return Plan(f"llama.cpp {Path(model).name}", argv)
    raise ValueError(
        f"--peer {described}: expected genai=PYTHON:MODELDIR with a genai_config.json in it, or "
        "llamacpp=NODE_DIR:GGUF with node_modules in NODE_DIR; see bench/peers/README.md"
    )


class Worker:
    """A running plan.

    Raises:
        WorkerError: it does not start; also from `ask`, when it ends instead of answering.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
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
            raise WorkerError(f"{plan.name}: cannot start {plan.argv[0]}: {error}") from error
        self.description: str = self._read()["ready"]

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None, "opened as a pipe"
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # _read tells what it said before it ended
        return self._read()

    def cpu_seconds(self) -> float:
        """User and system time of all its threads so far."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) * _TICK

    def close(self) -> None:
        """End it: by closing its input, or by force when it does not listen."""
        assert self._process.stdin is not None, "opened as a pipe"
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None, "opened as a pipe"
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._stderr.seek(0)
            said = "".join(self._stderr.readlines()[-_ERROR_LINES:]).strip()
            raise WorkerError(f"{self.plan.name}: ended with code {code}\n{said}")
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise WorkerError(f"{self.plan.name}: not JSON: {line[:200]!r}") from error
        if not isinstance(answer, dict):
            raise WorkerError(f"{self.plan.name}: not an object: {line[:200]!r}")
        return answer

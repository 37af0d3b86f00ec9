"""Run optimum in a process of its own and take the graph it makes.

Tracing needs several times the weights' bytes, logs a great deal and changes global settings of the
libraries it uses; in a process of its own all of that ends with it. `child` is what runs there. It
writes one JSON object a line to its standard output:

    {"stage": TITLE}        a stage begins
    {"traced": {...}}       the last line of a good end: fields of `Traced`
    {"error": MESSAGE}      the last line of a bad one
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from specedge.errors import ExportError
from specedge.progress import Progress

DISTRIBUTIONS = ("optimum", "optimum-onnx", "transformers", "torch", "onnx", "onnx-ir")
_EXTRA = 'pip install "specedge[optimum]"'
# What optimum-onnx 0.1.0 takes; the twin of the pins in pyproject.toml.
_TRANSFORMERS = ((4, 36), (4, 58))
_QUIET = {
    "HF_HUB_OFFLINE": "1",  # what is needed lies in a folder
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
}


@dataclass(frozen=True)
class Traced:
    """A graph of contract concat, as it was written.

    Args:
        layers, kv_heads, head_dim: of its KV.
        columns: V', width of its logits.
        weight_bytes: of the file beside it.
        tokens: compared with transformers; 0: not compared.
        error: largest difference of a logit, over the largest logit.
    """

    layers: int
    kv_heads: int
    head_dim: int
    columns: int
    weight_bytes: int
    tokens: int
    error: float


def check_installed() -> dict[str, str]:
    """Versions of the libraries of the front end.

    Raises:
        ExportError: one is missing, or ONNX Runtime, or transformers is not one that
            optimum-onnx takes.
    """
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            raise ExportError(
                f"the optimum front end needs {name}, which is not installed; {_EXTRA}"
            ) from None
    if importlib.util.find_spec("onnxruntime") is None:
        raise ExportError(
            "the optimum front end compares what it wrote by running it, which needs onnxruntime; "
            'pip install "specedge[cpu]"'
        )
    parts = found["transformers"].split(".")[:2]
    release = tuple(int(part) for part in parts if part.isdigit())
    low, high = _TRANSFORMERS
    if not low <= release < high:
        wanted = f"{low[0]}.{low[1]} up to {high[0]}.{high[1] - 1}"
        raise ExportError(
            f"transformers {found['transformers']} is installed, optimum's exporter takes "
            f"{wanted}; {_EXTRA} in an environment of its own"
        )
    return found


def trace(
    role: str,
    source: Path,
    model: Path,
    weights: str,
    scratch: Path,
    *,
    tokens: int,
    progress: Progress,
) -> Traced:
    """Trace a checkpoint folder into `model`, its weights beside it, and compare the two.

    Args:
        role: for progress and errors.
        source: a transformers folder.
        model: the .onnx file to write; its folder exists.
        weights: name of the external data, in the same folder.
        scratch: existing and empty; what optimum writes lies there for a while.
        tokens: of a text that both compute; 0: do not compare.
        progress: told about the stages.

    Raises:
        ExportError: optimum cannot trace this model, its process died, or logits differ.
    """
    request = {
        "source": str(source),
        "model": str(model),
        "weights": weights,
        "scratch": str(scratch),
        "tokens": tokens,
    }
    # -P: a folder named optimum in the working folder must not be run instead of optimum
    command = [sys.executable, "-P", "-m", "specedge.export.optimum.child", json.dumps(request)]
    log = scratch / "log.txt"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=os.environ | _QUIET
        )
        try:
            assert process.stdout is not None, "it is a pipe"
            last = _followed(process.stdout, role, progress)
            status = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
    if "error" in last:
        raise ExportError(f"{role}: {last['error']}")
    if status or "traced" not in last:
        raise ExportError(f"{role}: {_death(status, log)}")
    return Traced(**last["traced"])


def _followed(lines: IO[bytes], role: str, progress: Progress) -> dict[str, Any]:
    """Pass stages on; returns the last message."""
    said: dict[str, Any] = {}
    for line in lines:
        try:
            said = json.loads(line)
        except ValueError:  # a library wrote before its output was led elsewhere
            continue
        if "stage" in said:
            progress.stage(f"{role}: {said['stage']}")
    return said


def _death(status: int, log: Path) -> str:
    if status < 0:
        return (
            f"optimum's process was killed by signal {-status}; most likely memory ran out, of "
            "which tracing needs about six times the float32 weights"
        )
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    reason = lines[-1].strip() if lines else "without a word"
    return f"optimum's process ended with {status}: {reason[:300]}"

"""Recorded arrivals: a file with one request a line, in the order in which they came.

A line is a time in seconds, or an object with

    at           the time; required
    max_tokens   output limit of this request; the benchmark's own when absent
    prompt, messages, text, class   as in a file of prompts (docs/workloads.md), or none of them

Times count from the first one, so they may be of any clock. Blank lines are skipped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specedge.errors import BenchError
from specedge.limits import shown
from specedge.workloads import WorkloadPrompt
from specedge.workloads.reading import entry, parsed_object


@dataclass(frozen=True, slots=True)
class Traced:
    """One request of a trace.

    Args:
        at_s: seconds, of the trace's own clock.
        max_tokens: output limit; None: the trace does not say.
        workload, prompt: class and prompt; None: the trace does not say.
    """

    at_s: float
    max_tokens: int | None = None
    workload: str | None = None
    prompt: WorkloadPrompt | None = None


def parsed_trace(raw: bytes, path: Path) -> tuple[Traced, ...]:
    """The requests of a trace, as they came; `path` names it in errors.

    Raises:
        BenchError: the trace is empty, a time is missing, not a number or before the one above
            it, or an output limit is no whole number of 1 or more; names the line.
        PromptError: a line holds a prompt that is none, or is neither a number nor an object.
    """
    found: list[tuple[int, Traced]] = []
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        traced = _traced(line, f"{path}, line {number}", f"{path.name}, line {number}")
        if found and traced.at_s < found[-1][1].at_s:
            above, before = found[-1]
            raise BenchError(
                f"{path}, line {number}: the time {traced.at_s:g} comes before the {before.at_s:g} "
                f"of line {above}; sort the lines by time"
            )
        found.append((number, traced))
    if not found:
        raise BenchError(
            f'{path}: an empty trace; expected lines such as 0.5 or {{"at": 0.5, "prompt": "Hi"}}'
        )
    return tuple(traced for _, traced in found)


def _traced(line: bytes, at: str, where: str) -> Traced:
    """`at` names the line in errors here, `where` in later ones."""
    if not line.lstrip().startswith((b"{", b"[", b'"')):
        try:
            return Traced(_time(float(line), at))
        except ValueError:
            raise BenchError(
                f"{at}: expected a time in seconds or an object, found "
                f"{shown(line.decode(errors='replace').strip())}"
            ) from None
    item = parsed_object(line, at)
    if "at" not in item:
        raise BenchError(f'{at}: the key "at" is missing; expected the time in seconds')
    at_s = _time(item.pop("at"), at)
    limit = _limit(item.pop("max_tokens", None), at)
    if not item:
        return Traced(at_s, limit)
    workload, prompt = entry(item, at, where)
    return Traced(at_s, limit, workload, prompt)


def _time(value: Any, at: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BenchError(f"{at}: expected a time in seconds, found {shown(value)}")
    try:
        seconds = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        seconds = math.inf
    if not math.isfinite(seconds):
        raise BenchError(f"{at}: expected a time that is finite, found {shown(value)}")
    return seconds


def _limit(value: Any, at: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BenchError(f"{at}: max_tokens: expected 1 or more, found {shown(value)}")
    return value

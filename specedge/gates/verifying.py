"""Runs the gates on one open bundle and says go or no-go."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specedge.desk import Desk
from specedge.errors import OptionError, SpecedgeError, one_line, with_class
from specedge.gates.findings import Case, Gate, Report, Verified
from specedge.gates.prompts import Asked, prompts
from specedge.versions import COMPUTING, versions

Check = Callable[..., Gate]
"""(desk, prompts, report=..., own keywords) → Gate."""

GATES = {
    "compatibility": ("specedge.gates.compatibility", "Compatibility"),
    "greedy": ("specedge.gates.equality", "Greedy equality"),
    "distribution": ("specedge.gates.distribution", "Distribution of sampled tokens"),
    "quality": ("specedge.gates.quality", "Task quality"),
    "structured": ("specedge.gates.structured", "Structured output"),
    "limits": ("specedge.gates.limits", "Limits"),
}
"""By name on the command line: module and title; in the order they run."""

PACKAGES = (*COMPUTING, "llguidance", "jsonschema")


def verify(
    path: str | os.PathLike[str],
    *,
    prompts_file: Path | None = None,
    tasks_file: Path | None = None,
    gates: Sequence[str] = (),
    without: Sequence[str] = (),
    per_class: int | None = None,
    max_tokens: int | None = None,
    command: str = "",
    report: Report = lambda stage, share: None,
    **opening: Any,
) -> Verified:
    """Check everything that speculation must not change.

    Args:
        path: the bundle's folder.
        prompts_file: see docs/workloads.md; None: those built in.
        tasks_file: see docs/tasks.md; None: those built in.
        gates: to run; empty: all.
        without: to leave out.
        per_class: prompts of each class, at most.
        max_tokens: output of each prompt in the greedy gate; None: the gate's own.
        command: to be shown in reports.
        report: told how far it is.
        opening: see `Desk`.

    Returns:
        Verified; after Ctrl-C with the gates that had ended, one at least.

    Raises:
        OptionError: an unknown gate, none left, a number out of range, or an option of a gate that
            is left out.
        PromptError: a file of prompts or tasks is not usable.
        BundleError, EngineError, MemoryBudgetError: the bundle cannot be opened.
        KeyboardInterrupt: Ctrl-C before the first gate had ended.
    """
    chosen = chosen_gates(gates, without)
    checked_count("per-class", per_class)
    checked_count("max-tokens", max_tokens)
    own: dict[str, dict[str, Any]] = {}
    if max_tokens is not None:
        if "greedy" not in chosen:
            raise OptionError("max-tokens: is for the gate greedy, which is left out")
        own["greedy"] = {"max_tokens": max_tokens}
    if tasks_file is not None:
        if "quality" not in chosen:
            raise OptionError("tasks: are for the gate quality, which is left out")
        tasks = importlib.import_module("specedge.gates.tasks")
        own["quality"] = {"tasks": tasks.read(tasks_file)}
    created = datetime.now(UTC).isoformat(timespec="seconds")
    with Desk(path, **opening) as desk:
        asked = prompts(prompts_file, per_class, has_template=desk.model.has_chat_template)
        found: list[Gate] = []
        try:
            for name in chosen:
                found.append(run_gate(name, desk, asked, report=report, own=own.get(name, {})))
        except KeyboardInterrupt:
            if not found:
                raise
        missing = chosen[len(found) :]
        return Verified(
            bundle=desk.bundle.manifest.name,
            created=created,
            command=command,
            versions=versions(desk.model.engine, PACKAGES, draft=desk.model.draft_engine),
            fingerprint=desk.fingerprint,
            gates=found,
            left_out=[name for name in GATES if name not in chosen],
            notes=[f"interrupted: {', '.join(missing)} not run to the end"] if missing else [],
            interrupted=missing,
        )


def run_gate(
    name: str,
    desk: Desk,
    asked: Sequence[Asked],
    *,
    report: Report = lambda stage, share: None,
    own: Mapping[str, Any] | None = None,
) -> Gate:
    """One gate, timed. What goes wrong in it fails it; the others still run."""
    module, title = GATES[name]
    check: Check = importlib.import_module(module).check
    began = time.perf_counter()
    try:
        gate = check(desk, asked, report=lambda stage, share: report(title, share), **(own or {}))
    except Exception as error:  # whatever it is, it is a finding
        said = one_line(error) if isinstance(error, SpecedgeError) else with_class(error)
        gate = Gate(name, title, f"could not be run: {said}", [Case("run", "failed", said)])
    return replace(gate, seconds=time.perf_counter() - began)


def chosen_gates(gates: Sequence[str], without: Sequence[str]) -> list[str]:
    """Names of those to run, in their order. Raises OptionError."""
    for name in (*gates, *without):
        if name not in GATES:
            raise OptionError(f"gate: no gate {name!r}; there are {', '.join(GATES)}")
    chosen = [name for name in GATES if (not gates or name in gates) and name not in without]
    if not chosen:
        raise OptionError("gate: none is left to run; leave out fewer")
    return chosen


def checked_count(name: str, value: int | None) -> None:
    """Raises OptionError when it is given and less than 1."""
    if value is not None and value < 1:
        raise OptionError(f"{name}: expected 1 or more, found {value}")

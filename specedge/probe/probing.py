"""From a bundle's folder to its record: open the engines, look for one, measure where need be."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from specedge.bundle import Bundle
from specedge.engines import registry
from specedge.engines.base import Engine
from specedge.errors import EngineError, ProbeError
from specedge.loading import check_threads, checked_context, draft_rows
from specedge.probe import fingerprint
from specedge.probe.measuring import Clock, Report, check_budget, measure
from specedge.probe.record import Record, find, store


@dataclass(frozen=True)
class Probed:
    """A record, and how it was come by.

    Args:
        record: stored, or measured just now.
        path: where it lies; None when it could not be kept.
        measured: just now.
        reason: why it was measured, in one line; empty when it was not.
        notes: what else a person should know.
    """

    record: Record
    path: Path | None
    measured: bool
    reason: str
    notes: tuple[str, ...]


def probe(
    path: str | os.PathLike[str],
    *,
    engine: str = "auto",
    threads: int | None = None,
    context: int | None = None,
    exact: bool = True,
    budget_s: float = 60.0,
    again: bool = False,
    clock: Clock = time.perf_counter,
    report: Report | None = None,
) -> Probed:
    """The full cost curves of a bundle on this machine.

    Args:
        path: the bundle's folder.
        engine: as in `specedge.load`.
        threads: as in `specedge.load`.
        context: as in `specedge.load`.
        exact: as in `specedge.load`.
        budget_s: seconds for measuring; see `measure`.
        again: measure even where there is a record.
        clock: see `measure`.
        report: see `measure`.

    Raises:
        BundleError: see `Bundle.open`.
        OptionError: an argument is out of range.
        EngineError: an engine is missing, cannot load its graph or allocate its KV, or failed.
        ProbeError: the clock cannot be trusted.
    """
    check_budget(budget_s)
    bundle = Bundle.open(path)
    rows = checked_context(context, bundle.manifest)
    check_threads(threads)
    notes: list[str] = []
    try:
        with _engines(bundle, engine, threads, rows, exact, notes) as (target, draft):
            parts = fingerprint.take(
                bundle,
                target,
                context=rows,
                draft_context=None if draft is None else draft_rows(bundle.manifest, rows),
                threads=threads,
                exact=exact,
            )
            found = find(bundle, parts)
            if found.record is not None and not again:
                return Probed(found.record, found.path, False, "", tuple(notes))
            curves = measure(target, draft, budget_s=budget_s, clock=clock, report=report)
    except MemoryError as error:
        raise EngineError(
            f"{bundle.path}: not enough memory for {bundle.manifest.name} at a context of {rows}; "
            "choose a smaller context"
        ) from error
    record = Record.of(parts, curves)
    try:
        kept: Path | None = store(bundle, record)
    except ProbeError as error:
        kept = None
        notes.append(str(error))
    return Probed(record, kept, True, found.reason or "asked for", tuple(notes))


@contextmanager
def _engines(
    bundle: Bundle, name: str, threads: int | None, rows: int, exact: bool, notes: list[str]
) -> Iterator[tuple[Engine, Engine | None]]:
    """Target and draft as `specedge.load` opens them for a run that uses both."""
    manifest = bundle.manifest
    with ExitStack() as stack:
        draft: Engine | None = None
        if manifest.draft is not None:
            try:
                draft = registry.create(
                    name,
                    bundle.path,
                    manifest.draft,
                    threads=threads,
                    context=min(rows, manifest.draft.context),
                    exact=False,
                    takes_turns=True,
                )
                stack.callback(draft.close)
            except (EngineError, MemoryError) as error:
                why = " ".join(str(error).split()) or type(error).__name__
                notes.append(f"the draft model was left out: {why}")
        target = registry.create(
            name,
            bundle.path,
            manifest.target,
            threads=threads,
            context=rows,
            exact=exact,
            takes_turns=draft is not None,
        )
        stack.callback(target.close)
        yield target, draft

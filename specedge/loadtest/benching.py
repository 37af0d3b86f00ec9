"""From a bundle's folder to a kept result: read, open, plan, run, write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specedge.desk import Desk
from specedge.loadtest.keeping import Kept, Writer, check_place, read
from specedge.loadtest.planning import Asking, Planned, Settings, asking, plan
from specedge.loadtest.records import Header
from specedge.loadtest.running import Report, Runner
from specedge.versions import versions


@dataclass(frozen=True, slots=True)
class Benched:
    """A result, and where it lies; None: it was not asked to be kept."""

    kept: Kept
    folder: Path | None


def bench(
    bundle: Path,
    settings: Settings,
    *,
    output: Path | None = None,
    force: bool = False,
    command: str = "",
    report: Report | None = None,
    note: Callable[[str], None] | None = None,
    **opening: Any,
) -> Benched:
    """Run a load in every way and keep every request and round.

    Args:
        bundle: its folder.
        settings: what to run.
        output: folder for the result; None: it is given back and not kept.
        force: replace a result that is there.
        command: the exact command line, for the header.
        report: told how far it is.
        note: told what a person should know before the first request.
        opening: of `Desk`: engine, threads, context, exact, memory.

    Returns:
        Benched; `kept.header.complete` is False after Ctrl-C.

    Raises:
        BenchError: a load that cannot be run, or a result that cannot be kept.
        PromptError: prompts cannot be read, or none fits.
        BundleError, EngineError, MemoryBudgetError, OptionError: see `Desk`.
        KeyboardInterrupt: Ctrl-C before the first request had ended.
    """
    if output is not None:
        check_place(output, force=force)
    asked = asking(settings)
    with Desk(bundle, proposers=settings.opened, **opening) as desk:
        planned = plan(desk, asked)
        for line in planned.notes:
            (note or (lambda said: None))(line)
        header = _header(desk, asked, planned, command)
        with Writer(output, header, force=force) as writer:
            ran = Runner(desk, planned.plan, writer.add, report=report).run()
            if not ran.complete and not writer.requests:
                raise KeyboardInterrupt
            found = {
                "peak_rss_bytes": ran.peak_rss_bytes,
                "notes": [*header.notes, *ran.notes],
                "complete": ran.complete,
            }
            writer.finish(header.model_copy(update=found))
            return Benched(read(writer.folder), output)


def _header(desk: Desk, asked: Asking, planned: Planned, command: str) -> Header:
    return Header(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        bundle=desk.bundle.manifest.name,
        bundle_hash=desk.bundle.hash,
        command=command,
        versions=versions(desk.model.engine, draft=desk.model.draft_engine),
        fingerprint=desk.fingerprint,
        ways=[way.name for way in planned.plan.ways],
        loads=[arrivals.load for arrivals in planned.plan.loads],
        repeats=planned.plan.repeats,
        warmup=planned.plan.warmup,
        max_tokens=asked.settings.max_tokens,
        options=planned.options,
        prompts=asked.source,
        notes=planned.notes,
    )

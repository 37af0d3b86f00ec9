"""`specedge probe`: what calls cost on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

if TYPE_CHECKING:
    from specedge.probe.probing import Probed


class _Stages(Protocol):
    """The part of `reporting()` that is used here."""

    def stage(self, title: str, total: int | None = None, unit: str = "") -> None: ...

    def advance(self, amount: int) -> None: ...


@click.command(short_help="Measure what calls cost on this machine.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
@click.option("--budget", type=float, default=60.0, metavar="S", help="Seconds for measuring.")
@click.option("--again", is_flag=True, help="Measure even where there is a record.")
@click.option("--threads", type=int, metavar="N", help="[default: every usable core]")
@click.option("--context", type=int, metavar="T", help="Rows of the KV buffer. [default: bundle's]")
@click.option("--engine", default="auto", metavar="NAME", help="What executes the graphs.")
@click.option(
    "--exact/--no-exact",
    default=True,
    help="Kernels whose results do not depend on how many tokens a call has.",
)
def command(
    bundle: Path,
    as_json: bool,
    budget: float,
    again: bool,
    threads: int | None,
    context: int | None,
    engine: str,
    exact: bool,
) -> None:
    """Measure the milliseconds of a call of N new tokens, for target and draft of BUNDLE.

    This version measures costs only: it does not yet decide from them whether to speculate, and
    no run reads them. A gain that it shows is the most that could be had, if every drafted token
    were accepted.

    The record is kept in BUNDLE/probes, or in the user's cache where that cannot be written. It is
    shown again until the bundle, specedge, the engine, its settings or the machine change.
    """
    from specedge.cli._probe_tables import FEW_PASSES, probe_tables
    from specedge.cli._progress import reporting
    from specedge.probe.probing import probe

    with reporting() as progress:
        probed = probe(
            bundle,
            engine=engine,
            threads=threads,
            context=context,
            exact=exact,
            budget_s=budget,
            again=again,
            report=_Percent(progress, f"measuring for at most {budget:g} s"),
        )
    for note in probed.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(_outcome(probed), err=True)
    passes = probed.record.curves.passes
    if passes < FEW_PASSES:
        click.echo(
            f"note: {passes} of the {FEW_PASSES} repetitions that tell noise from cost; measure "
            "--again with a larger --budget, and let nothing else run",
            err=True,
        )
    if as_json:
        click.echo(json.dumps(_said(probed), ensure_ascii=False))
        return
    from specedge.cli._tables import print_tables

    print_tables(probe_tables(probed.record.curves))


class _Percent:
    """Turns shares of the budget into a stage of 100 units, begun when measuring begins."""

    def __init__(self, progress: _Stages, title: str) -> None:
        self._progress = progress
        self._title = title
        self._shown: int | None = None

    def __call__(self, share: float) -> None:
        if self._shown is None:
            self._progress.stage(self._title, 100, "%")
            self._shown = 0
        reached = int(100 * share)
        self._progress.advance(reached - self._shown)
        self._shown = reached


def _outcome(probed: Probed) -> str:
    """Whether, why and for how long it was measured, and where the record lies."""
    from specedge.probe.record import NO_RECORD

    record = probed.record
    where = "not kept" if probed.path is None else str(probed.path)
    if not probed.measured:
        return f"stored on {record.created}: {where}; --again measures again"
    curves = record.curves
    lead = "measured" if probed.reason == NO_RECORD else "measured again"
    took = f"{curves.seconds:.1f} s, passes: {curves.passes}"
    took += "" if curves.converged else ", as far as the budget went"
    return f"{lead}: {probed.reason} ({took}); record: {where}"


def _said(probed: Probed) -> dict[str, Any]:
    curves = probed.record.curves
    return {
        "measured": probed.measured,
        "reason": probed.reason,
        "path": None if probed.path is None else str(probed.path),
        "notes": list(probed.notes),
        "decision": None,  # costs only
        **probed.record.model_dump(mode="json"),
        "best_gains": [
            {
                "draft_length": width - 1,
                "past": past,
                "lookup": curves.best_gain(width - 1, past, drafted=False),
                "draft": None
                if curves.draft is None
                else curves.best_gain(width - 1, past, drafted=True),
            }
            for width in curves.target.widths[1:]
            for past in curves.target.pasts
        ],
    }

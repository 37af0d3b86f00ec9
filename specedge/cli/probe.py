"""`specedge probe`: what calls cost on this machine, how drafts stand, and what follows."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specedge.cli._options import engine_options

if TYPE_CHECKING:
    from specedge.probe.probing import Probed


_MOST_LEFT_OUT = 3


@click.command(short_help="Measure here whether speculation pays.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a report as one page that needs no network.",
)
@click.option(
    "--prometheus",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the figures as Prometheus text; needs the extra [metrics].",
)
@click.option(
    "--prompts",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Workloads of your own, one JSON object a line. [default: those built in]",
)
@click.option(
    "--class",
    "classes",
    multiple=True,
    metavar="NAME",
    help="Try prompts of this workload class only; may be repeated.",
)
@click.option("--budget", type=float, default=60.0, metavar="S", help="Seconds for measuring.")
@click.option("--again", is_flag=True, help="Measure even where there is a record.")
@engine_options(memory="As in run: a draft that does not fit is left out.")
def command(
    bundle: Path,
    as_json: bool,
    html: Path | None,
    prometheus: Path | None,
    budget: float,
    **options: Any,
) -> None:
    """Measure what calls of BUNDLE's target and draft cost, how drafts stand on prompts of several
    classes, and decide from that where speculation pays.

    A run with the same settings uses the record, and keeps watching. The record lies in
    BUNDLE/probes, or in the user's cache where that cannot be written. It is shown again until the
    bundle, specedge, the engine, its settings or the machine change, other prompts are given, or
    the budget is larger than one that was too small.
    """
    from specedge.cli._probe_tables import FEW_PASSES, decision_table, probe_tables, verdict_lines
    from specedge.cli._progress import reporting
    from specedge.cli._stages import Percent
    from specedge.probe.probing import probe
    from specedge.report.writing import check_place

    if html is not None:
        check_place(html)
    if prometheus is not None:
        from specedge import prometheus as exporter

        exporter.check_place(prometheus)  # before anything is measured
    with reporting() as progress:
        progress.stage(f"opening {bundle}")
        stages = Percent(progress, f"measuring for at most {budget:g} s")
        probed = probe(bundle, budget_s=budget, report=stages, **options)
    for note in [*probed.notes, *_left_out(probed.left_out)]:
        click.echo(f"note: {note}", err=True)
    click.echo(_outcome(probed), err=True)
    passes = probed.record.curves.passes
    if passes < FEW_PASSES:
        click.echo(
            f"note: {passes} of the {FEW_PASSES} repetitions that tell noise from cost; measure "
            "--again with a larger --budget, and let nothing else run",
            err=True,
        )
    findings = probed.record.findings
    if as_json:
        click.echo(json.dumps(_said(probed), ensure_ascii=False))
    else:
        from specedge.cli._tables import print_sentences, print_tables

        tables = probe_tables(probed.record.curves)
        if findings is not None:
            tables.append(decision_table(findings))
        print_tables(tables)
        if findings is not None:
            print_sentences(verdict_lines(findings))
    if html is not None:
        from specedge.report import render, write

        write(html, render(probed.record, title=probed.name, command=_command_line()))
        click.echo(f"report: {html}", err=True)
    if prometheus is not None:
        exporter.write(exporter.probe_text(probed.record, probed.name), prometheus)


def _left_out(lines: Sequence[str]) -> list[str]:
    """The first few, and how many more."""
    shown = [f"left out: {line}" for line in lines[:_MOST_LEFT_OUT]]
    more = len(lines) - len(shown)
    if more:
        shown.append(f"{more} more prompts were left out; --json names them all")
    return shown


def _command_line() -> str:
    return shlex.join(["specedge", *sys.argv[1:]])


def _outcome(probed: Probed) -> str:
    """Whether, why and for how long it was measured, and where the record lies."""
    from specedge.probe.record import NO_RECORD

    record = probed.record
    where = "not kept" if probed.path is None else str(probed.path)
    if not probed.measured:
        return f"stored on {record.created}: {where}; --again measures again"
    curves, findings = record.curves, record.findings
    lead = "measured" if probed.reason == NO_RECORD else "measured again"
    took = f"costs {curves.seconds:.1f} s, passes: {curves.passes}"
    if findings is not None:
        took += f"; drafts {findings.seconds:.1f} s"
        took += "" if findings.complete else ", as far as the budget went"
    return f"{lead}: {probed.reason} ({took}); record: {where}"


def _said(probed: Probed) -> dict[str, Any]:
    curves = probed.record.curves
    return {
        "measured": probed.measured,
        "reason": probed.reason,
        "path": None if probed.path is None else str(probed.path),
        "notes": list(probed.notes),
        "left_out": list(probed.left_out),
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

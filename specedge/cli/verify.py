"""`specedge verify`: go or no-go before a rollout."""

from __future__ import annotations

import json
import shlex
import sys
from os.path import realpath
from pathlib import Path
from typing import Any

import click

from specedge.cli._options import engine_options


@click.command(short_help="Check that speculation changes nothing; go or no-go.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--prompts",
    "prompts_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Prompts of your own, one JSON object a line. [default: those built in]",
)
@click.option(
    "--tasks",
    "tasks_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Tasks of your own with checkable answers, one JSON object a line. [default: those built "
    "in]",
)
@click.option(
    "--gate", "gates", multiple=True, metavar="NAME", help="Run this gate only; may be repeated."
)
@click.option("--without", multiple=True, metavar="NAME", help="Leave a gate out; may be repeated.")
@click.option(
    "--per-class",
    type=int,
    metavar="N",
    help="Prompts of each class. [default: all of a file, 4 of those built in]",
)
@click.option(
    "--max-tokens", type=int, metavar="N", help="Output limit of each prompt in the gate greedy."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
@click.option(
    "--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write JUnit XML, for CI."
)
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a report as one page that needs no network.",
)
@engine_options(memory="Limit, as in 1GiB, of what a run may need.")
def command(
    bundle: Path, as_json: bool, junit: Path | None, html: Path | None, **options: Any
) -> None:
    """Check BUNDLE on this machine: that target and draft belong together (compatibility), that
    greedy text is the same with every proposer and draft length (greedy), that sampling keeps the
    target's distribution (distribution), that answers are as good (quality), that constrained
    output parses (structured), and that nothing breaks at the edges (limits).

    Exit status 0 only when every gate that ran has passed. Ctrl-C keeps the gates that have ended.
    """
    from specedge.cli._files import Files
    from specedge.cli._progress import reporting
    from specedge.cli._stages import Percent
    from specedge.cli._tables import print_sentences, print_tables
    from specedge.cli._verify_tables import verdict_lines, verify_tables
    from specedge.errors import OptionError
    from specedge.gates.junit import xml
    from specedge.gates.verifying import verify
    from specedge.report.verification import render_verified
    from specedge.report.writing import check_place

    for file in (junit, html):
        if file is not None:
            check_place(file)  # before anything is run
    if junit is not None and html is not None and realpath(junit) == realpath(html):
        raise OptionError(f"junit, html: both are {junit}; name two files")
    with reporting() as progress:
        progress.stage(f"opening {bundle}")
        verified = verify(
            bundle,
            command=shlex.join(["specedge", *sys.argv[1:]]),
            report=Percent(progress, ""),
            **options,
        )
    files = Files()
    files.write("junit", junit, lambda: xml(verified))
    files.write("report", html, lambda: render_verified(verified))
    if as_json:
        click.echo(json.dumps(verified.to_dict(), ensure_ascii=False))
    else:
        print_tables(verify_tables(verified))
        print_sentences(verdict_lines(verified))
    files.check()
    if verified.interrupted:
        raise click.exceptions.Exit(130)
    if not verified.passed:
        raise click.exceptions.Exit(1)

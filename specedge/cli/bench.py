"""`specedge bench`: a load in every way, with speculation and without; and two results compared."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specedge.cli._options import engine_options
from specedge.cli._stages import Percent, Stages

if TYPE_CHECKING:
    from specedge.loadtest.benching import Benched

_COMPARE = "compare"
_OPENING = (  # of a desk; the rest are settings
    *("engine", "draft_engine", "threads", "context", "memory", "exact"),
)
_FOLDER = click.Path(path_type=Path)


class _Bench(click.Command):
    """`bench compare A B` is another command; a bundle of that name is given as ./compare."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if args[:1] == [_COMPARE]:
            name = f"{info_name} {_COMPARE}"
            return comparing.make_context(name, args[1:], parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)


def _list_of(kind: Callable[[str], Any], what: str) -> Callable[..., list[Any] | None]:
    """A callback for "1,2,4"."""

    def parse(ctx: click.Context, param: click.Parameter, value: str | None) -> list[Any] | None:
        if value is None:
            return None
        items = [item.strip() for item in value.split(",") if item.strip()]
        try:
            found = list(dict.fromkeys(kind(item) for item in items))
        except ValueError:
            found = []
        if not found:
            raise click.BadParameter(f"expected {what}, found {value[:80]!r}")
        return found

    return parse


@click.command(cls=_Bench, short_help="Measure what speculation does to a load.")
@click.argument("bundle", type=_FOLDER)
@click.option(
    "--prompts",
    type=_FOLDER,
    metavar="FILE",
    help="Prompts of your own, one JSON object a line. [default: those built in]",
)
@click.option(
    "--class",
    "classes",
    multiple=True,
    metavar="NAME",
    help="Ask prompts of this workload class only; may be repeated.",
)
@click.option(
    "--per-class",
    type=int,
    metavar="N",
    help="Prompts of each class. [default: all of a file, 4 of those built in]",
)
@click.option(
    "--proposers",
    callback=_list_of(str, "names as in ngram,draft"),
    metavar="A,B",
    help="Who drafts, each by itself; A+B is both in priority order. [default: all of the bundle]",
)
@click.option(
    "--k",
    "ks",
    callback=_list_of(int, "whole numbers as in 1,3,7"),
    metavar="K,K",
    help="Fixed draft lengths beside auto. [default: the bundle's]",
)
@click.option(
    "--concurrency",
    callback=_list_of(int, "whole numbers as in 1,2,4"),
    metavar="C,C",
    help="Clients that wait for their answers; a load for each number. [default: 1]",
)
@click.option(
    "--rate",
    "rates",
    callback=_list_of(float, "numbers as in 0.5,1"),
    metavar="R,R",
    help="Requests a second that come whatever the engine does (Poisson); a load for each number.",
)
@click.option(
    "--trace",
    type=_FOLDER,
    metavar="FILE",
    help="Recorded arrivals: a time in seconds a line, or JSON lines with at, max_tokens, and a "
    "prompt.",
)
@click.option(
    "--requests",
    type=int,
    metavar="N",
    help="Requests of each load. [default: each prompt once, or the whole trace]",
)
@click.option(
    "--repeat",
    "repeats",
    type=int,
    default=3,
    metavar="N",
    help="How often everything is measured.",
)
@click.option(
    "--warmup",
    type=int,
    default=1,
    metavar="N",
    help="Requests of each way beforehand that do not count.",
)
@click.option(
    "--max-tokens", type=int, default=128, metavar="N", help="Output limit of every request."
)
@click.option("--temperature", type=float, metavar="T", help="[default: bundle's]")
@click.option(
    "--seed",
    type=int,
    metavar="S",
    help="Of the draws, S + n for request n, and of Poisson arrivals. [default: new draws, 0 for "
    "arrivals]",
)
@click.option(
    "--acceptance",
    type=click.Choice(["auto", "greedy", "rejection", "block", "coupled"]),
    help="Who decides about drafted tokens. [default: bundle's]",
)
@engine_options(memory="Limit, as in 1GiB, of what a run may need.")
@click.option(
    "--output",
    type=_FOLDER,
    metavar="FOLDER",
    help="Keep the result here: every request and every round, for compare.",
)
@click.option("--force", is_flag=True, help="Replace a result that is there.")
@click.option(
    "--html", type=_FOLDER, metavar="FILE", help="Write a report as one page that needs no network."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def command(
    bundle: Path,
    output: Path | None,
    force: bool,
    html: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run a load on BUNDLE plainly, with auto, and with fixed draft lengths, and say what
    speculation does to latency and throughput.

    Every way gets the same prompts, limits and arrivals. Requests queue for the one engine, so a
    load shows as queueing. The KV is emptied before each request. Ctrl-C keeps what was measured.

    `specedge bench compare A B` compares two kept results; a bundle in a folder named compare is
    given as ./compare.
    """
    from specedge.cli._bench_tables import bench_lines, bench_tables
    from specedge.cli._files import Files
    from specedge.cli._progress import reporting
    from specedge.errors import OptionError
    from specedge.loadtest.benching import bench
    from specedge.loadtest.planning import Settings
    from specedge.loadtest.summary import summarise
    from specedge.report.benchmark import render_benchmark
    from specedge.report.writing import check_place

    if html is not None:
        check_place(html)  # before anything is measured
    if force and output is None:
        raise OptionError("force: there is nothing to replace without --output FOLDER")
    opening = {name: options.pop(name) for name in _OPENING}
    settings = Settings(
        concurrency=options.pop("concurrency") or (), rates=options.pop("rates") or (), **options
    )
    with reporting(still=True) as progress:
        progress.stage(f"opening {bundle}")
        benched = bench(
            bundle,
            settings,
            output=output,
            force=force,
            command=shlex.join(["specedge", *sys.argv[1:]]),
            report=_Timed(progress),
            note=progress.note,
            **opening,
        )
    summary = summarise(benched.kept)
    files = Files()
    files.write("report", html, lambda: render_benchmark(benched.kept, summary))
    _say_where(benched)
    if as_json:
        folder = None if benched.folder is None else str(benched.folder)
        click.echo(json.dumps({"folder": folder, **summary.to_dict()}, ensure_ascii=False))
    else:
        _print(bench_tables(summary), bench_lines(summary))
    files.check()
    if not benched.kept.header.complete:
        raise click.exceptions.Exit(130)
    if all(each.failure is not None for each in benched.kept.requests):
        raise click.exceptions.Exit(1)


@click.command(short_help="Compare two results.")
@click.argument("first", metavar="A", type=_FOLDER)
@click.argument("second", metavar="B", type=_FOLDER)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
def comparing(first: Path, second: Path, as_json: bool) -> None:
    """Compare two results of one bundle that `specedge bench --output` kept: what differs by more
    than noise, in B over A.
    """
    from specedge.cli._bench_tables import compare_lines, compare_tables
    from specedge.loadtest.comparing import compare
    from specedge.loadtest.keeping import read

    found = compare(read(first), read(second), (str(first), str(second)))
    if as_json:
        click.echo(json.dumps(found.to_dict(), ensure_ascii=False))
    else:
        _print(compare_tables(found), compare_lines(found))


def _print(tables: Sequence[Any], lines: Sequence[str]) -> None:
    from specedge.cli._tables import print_sentences, print_tables

    print_tables(tables)
    print_sentences(lines)


def _say_where(benched: Benched) -> None:
    header, requests = benched.kept.header, len(benched.kept.requests)
    lead = "result" if header.complete else f"interrupted after {requests:,} requests; incomplete"
    if benched.folder is not None:
        click.echo(f"{lead}: {benched.folder}", err=True)
    elif header.complete:
        click.echo("result: not kept; --output FOLDER keeps it", err=True)
    else:
        click.echo(f"{lead}, and not kept", err=True)


class _Timed:
    """A stage with its per cent, and how long everything will still take as it begins."""

    def __init__(self, progress: Stages, clock: Callable[[], float] = time.monotonic) -> None:
        self._percent = Percent(progress, "")
        self._clock = clock
        self._began: float | None = None
        self._stage = self._title = ""

    def __call__(self, stage: str, share: float, whole: float) -> None:
        if stage != self._stage:
            self._stage = stage
            self._title = f"{stage}{self._left(whole)}"
        self._percent(self._title, share)

    def _left(self, whole: float) -> str:
        if self._began is None:
            self._began = self._clock()
        if whole <= 0:
            return ""
        seconds = (self._clock() - self._began) * (1 - whole) / whole
        about = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
        return f", about {about} left"

"""`specedge build`: graphs of a bundle become plans of TensorRT or TensorRT-RTX."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from rich.table import Table

    from specedge.engines.trt.making import Made


@click.command(short_help="Compile a bundle's graphs for a GPU.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--backend",
    required=True,
    type=click.Choice(["tensorrt", "tensorrt-rtx"]),
    help="tensorrt compiles on the GPU that runs the plan; tensorrt-rtx for a compute capability, "
    "without a GPU.",
)
@click.option(
    "--compute-capability",
    "capabilities",
    multiple=True,
    type=click.IntRange(10, 999),
    metavar="CC",
    help="What to build for with tensorrt-rtx, as in 89; may be repeated. [default: this GPU's]",
)
@click.option(
    "--context",
    type=click.IntRange(1),
    metavar="T",
    help="Rows of KV. They are fixed in a plan: every call attends over all of them. [default: "
    "bundle's]",
)
@click.option(
    "--tune-for",
    type=click.IntRange(1),
    metavar="N",
    help="Tokens of a verification that the target's kernels are chosen for. [default: the "
    "bundle's draft length and one]",
)
@click.option(
    "--role",
    type=click.Choice(["target", "draft", "both"]),
    default="both",
    help="Which graphs; both is the target alone where there is no draft.",
)
@click.option("--force", is_flag=True, help="Build again what could be kept.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def command(
    bundle: Path,
    backend: Literal["tensorrt", "tensorrt-rtx"],
    capabilities: tuple[int, ...],
    context: int | None,
    tune_for: int | None,
    role: Literal["target", "draft", "both"],
    force: bool,
    as_json: bool,
) -> None:
    """Build the plans of BUNDLE that are missing or stale: of another version of the library, an
    older graph, or other options.

    BUNDLE must have been exported with --lowering standard. Plans lie in BUNDLE/plans, or in the
    user's cache where that cannot be written; a run with --engine tensorrt or tensorrt-rtx finds
    them. Kernels of tensorrt-rtx are finished on the GPU when a plan is first loaded.
    """
    if role == "draft" and tune_for is not None:
        raise click.UsageError(
            "--tune-for is of the target; a draft is tuned for one token at a time"
        )
    from specedge.bundle import Bundle
    from specedge.cli._progress import reporting
    from specedge.engines.trt.making import make

    opened = Bundle.open(bundle)
    with reporting() as progress:
        made = make(
            opened,
            backend=backend,
            capabilities=capabilities,
            context=context,
            tune_for=tune_for,
            role=role,
            force=force,
            progress=progress,
        )
    for each in made:
        name = each.plan.path.name
        click.echo(f"{name}: {'kept' if each.why is None else f'built: {each.why}'}", err=True)
        for note in each.plan.record.report.notes:
            click.echo(f"note: {name}: {note}", err=True)
    rows = max(each.plan.record.key.rows for each in made)
    click.echo(
        f"note: every call attends over all {rows} rows of its KV, whatever is cached; a smaller "
        "--context makes calls and KV smaller",
        err=True,
    )
    if as_json:
        click.echo(json.dumps({"plans": [_said(each) for each in made]}))
        return
    from specedge.cli._tables import print_tables

    print_tables([_table(made)])
    click.echo(f'next: specedge run {bundle} "..." --engine {backend}', err=True)


def _said(made: Made) -> dict[str, Any]:
    return {
        "path": str(made.plan.path),
        "built": made.why is not None,
        "why": made.why,
        **made.plan.record.model_dump(mode="json"),
    }


def _table(made: Sequence[Made]) -> Table:
    """One row a plan.

    KV is that of one sequence, taken whole whatever is cached. Activations are those of the widest
    call. Host is what this process took at its highest.
    """
    from rich.table import Table
    from rich.text import Text

    from specedge.memory import format_size

    columns = ("", "for", "context", "", "seconds", "plan", "weights", "KV", "activations", "host")
    table = Table(*columns, box=None, pad_edge=False)
    for each in made:
        key, report = each.plan.record.key, each.plan.record.report
        row = (
            key.role,
            key.folder,
            str(key.context),
            "kept" if each.why is None else "built",
            f"{report.seconds:.1f}",
            format_size(report.plan_bytes),
            format_size(report.device_weight_bytes or report.weight_bytes),
            format_size(report.kv_bytes),
            "unknown" if report.device_bytes is None else format_size(report.device_bytes),
            "unknown" if report.peak_host_bytes is None else format_size(report.peak_host_bytes),
        )
        table.add_row(*map(Text, row))
    return table

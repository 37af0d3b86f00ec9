"""`specedge build`: graphs of a bundle become plans of TensorRT or TensorRT-RTX."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from rich.table import Table

    from specedge.engines.trt.making import Made

_CAPABILITY = re.compile(r"(?:sm_?)?(\d{1,2})\.?(\d)", re.IGNORECASE)
_ABREAST = 4  # plans that a table of 80 columns has room for


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
    metavar="CC",
    help="What to build for with tensorrt-rtx, as in 8.9, 89 or sm89; may be repeated. [default: "
    "this GPU's]",
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
    capabilities: tuple[str, ...],
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
    from specedge.cli._next import after_build
    from specedge.cli._progress import reporting
    from specedge.cli._tables import print_tables
    from specedge.engines.trt import plans
    from specedge.engines.trt.making import make

    wanted = [_capability(each, backend) for each in capabilities]
    opened = Bundle.open(bundle)
    with reporting() as progress:
        made = make(
            opened,
            backend=backend,
            capabilities=wanted,
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
    print_tables(tables(made))
    keys = [each.plan.record.key for each in made]
    there = [plan.record.key for plan, damage in plans.beside(opened.path) if damage is None]
    click.echo(after_build(opened, bundle, keys, there, context), err=True)


def _capability(said: str, backend: Literal["tensorrt", "tensorrt-rtx"]) -> int:
    """89 for SM 8.9.

    Raises:
        OptionError: it is none.
    """
    from specedge.engines.trt import library
    from specedge.errors import EngineError, OptionError

    found = _CAPABILITY.fullmatch(said.strip())
    if found is not None:
        return int("".join(found.groups()))
    try:
        known = library.load(backend).capabilities
    except EngineError:
        known = ()
    names = ", ".join(map(str, known))
    raise OptionError(
        f"--compute-capability {said[:80]!r}: expected one as in 8.9, 89 or sm89"
        + (f"; {backend} knows {names}" if known else "")
    )


def _said(made: Made) -> dict[str, Any]:
    return {
        "path": str(made.plan.path),
        "built": made.why is not None,
        "why": made.why,
        **made.plan.record.model_dump(mode="json"),
    }


def tables(made: Sequence[Made]) -> list[Table]:
    """As many as it takes to have room for a column each."""
    return [_table(made[first : first + _ABREAST]) for first in range(0, len(made), _ABREAST)]


def _table(made: Sequence[Made]) -> Table:
    """A column for each plan.

    KV is that of one sequence, taken whole whatever is cached. Activations are those of the widest
    call.
    """
    from rich.text import Text

    from specedge.cli._tables import narrow
    from specedge.memory import format_size

    def size(found: int | None) -> str:
        return "unknown" if found is None else format_size(found)

    keys = [each.plan.record.key for each in made]
    reports = [each.plan.record.report for each in made]
    rows = {
        "for": [key.folder for key in keys],
        "context": [str(key.context) for key in keys],
        "state": ["kept" if each.why is None else "built" for each in made],
        "seconds to build": [f"{report.seconds:.1f}" for report in reports],
        "host memory to build": [size(report.peak_host_bytes) for report in reports],
        "plan on disk": [size(report.plan_bytes) for report in reports],
        "GPU: weights": [size(each.device_weight_bytes or each.weight_bytes) for each in reports],
        "GPU: KV of a sequence": [size(report.kv_bytes) for report in reports],
        "GPU: activations": [size(report.device_bytes) for report in reports],
    }
    table = narrow("plans")
    table.add_column(style="bold", no_wrap=True)
    for key in keys:
        table.add_column(key.role, overflow="fold")
    for name, cells in rows.items():
        table.add_row(name, *map(Text, cells))
    return table

"""`specedge export`: a config becomes a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click


@click.command(short_help="Make a bundle from a config.")
@click.argument("config")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the bundle goes. [default: bundles/NAME]",
)
@click.option("--set", "overrides", multiple=True, metavar="K=V", help="Override a config key.")
@click.option(
    "--precision",
    metavar="P",
    help="Of target and draft: fp32, fp16, bf16, int8 or int4; --set target.precision=P is for "
    "one of them.",
)
@click.option(
    "--lowering",
    metavar="L",
    help="ort: ONNX Runtime's fused operators; standard: operators of the ONNX standard, for "
    "TensorRT. Same as --set export.lowering=L.",
)
@click.option(
    "--frontend",
    metavar="F",
    help="native, or optimum: any decoder that optimum exports, slower. Same as --set "
    "export.frontend=F.",
)
@click.option("--context", type=int, metavar="T", help="Same as --set export.context=T.")
@click.option(
    "--memory-budget", metavar="SIZE", help="Refuse a bundle that needs more, as in 2GiB."
)
@click.option(
    "--drop-incompatible-draft",
    is_flag=True,
    help="Go on without a draft whose vocabulary differs.",
)
@click.option("--force", is_flag=True, help="Replace a bundle that is there already.")
def command(
    config: str,
    output: Path | None,
    overrides: tuple[str, ...],
    precision: str | None,
    lowering: str | None,
    frontend: str | None,
    context: int | None,
    memory_budget: str | None,
    drop_incompatible_draft: bool,
    force: bool,
) -> None:
    """Fetch the checkpoints that CONFIG names, quantise and pair them, and write a bundle.

    CONFIG is a .toml file or the name of a config that ships with specedge.
    """
    from specedge.bundle import Bundle
    from specedge.cli._progress import reporting
    from specedge.cli._tables import memory_table, print_error_table
    from specedge.config import load_config

    shortcuts = {
        "target.precision": precision,
        "export.lowering": lowering,
        "export.frontend": frontend,
        "export.context": context,
        "export.memory_budget": memory_budget,
    }
    given = [f"{key}={value}" for key, value in shortcuts.items() if value is not None]
    loaded = load_config(config, [*overrides, *given])
    if precision is not None and loaded.draft is not None:
        given.append(f"draft.precision={precision}")
        loaded = load_config(config, [*overrides, *given])
    destination = output or Path("bundles") / loaded.name
    with _extra_needed(), reporting() as progress:
        from specedge.export import build

        made = build(
            loaded,
            destination,
            force=force,
            drop_incompatible_draft=drop_incompatible_draft,
            progress=progress,
        )
    bundle = Bundle.open(made, verify=False)
    print_error_table(memory_table(bundle.manifest))
    size = sum(record.bytes for record in bundle.manifest.files.values())
    click.echo(f"{made}: {size / 2**20:.1f} MiB", err=True)
    click.echo(f'next: specedge run {made} "..."  or  specedge chat {made}', err=True)
    click.echo(str(made))


@contextmanager
def _extra_needed() -> Iterator[None]:
    """Turn a library that is not installed into one line that says how to get it."""
    from specedge.errors import ExportError

    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "specedge":
            raise
        raise ExportError(
            f'exporting needs {error.name}, which is not installed; pip install "specedge[export]"'
        ) from error

"""`specedge export`: a config becomes a bundle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from click.core import ParameterSource


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
@click.option(
    "--triton",
    "repository",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="REPOSITORY",
    help="Write the bundle as a model of an NVIDIA Triton model repository too; CONFIG may then be "
    "a bundle.",
)
@click.option(
    "--triton-set",
    "parameters",
    multiple=True,
    metavar="K=V",
    help="How the server loads the bundle: a keyword of specedge.load, as in engine=cuda.",
)
@click.option("--force", is_flag=True, help="Replace a bundle or a model that is there already.")
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
    repository: Path | None,
    parameters: tuple[str, ...],
    force: bool,
) -> None:
    """Fetch the checkpoints that CONFIG names, quantise and pair them, and write a bundle.

    CONFIG is a .toml file or the name of a config that ships with specedge.
    """
    from specedge.contract import MANIFEST

    if parameters and repository is None:
        raise click.UsageError("--triton-set goes with --triton")
    serving = _pairs("--triton-set", parameters)
    folder = Path(config)
    if repository is not None and (folder / MANIFEST).is_file():
        _refuse_build_options()
        _write_model(folder, repository, serving, force)
        return
    made = _build(
        config,
        output,
        overrides,
        {
            "target.precision": precision,
            "export.lowering": lowering,
            "export.frontend": frontend,
            "export.context": context,
            "export.memory_budget": memory_budget,
        },
        drop_incompatible_draft=drop_incompatible_draft,
        force=force,
    )
    if repository is not None:
        _write_model(made, repository, serving, force)


def _build(
    config: str,
    output: Path | None,
    overrides: Sequence[str],
    shortcuts: Mapping[str, str | int | None],
    *,
    drop_incompatible_draft: bool,
    force: bool,
) -> Path:
    """Make the bundle and say what it is; `shortcuts` are config keys that have options."""
    from specedge.bundle import Bundle
    from specedge.cli._next import after_export
    from specedge.cli._progress import reporting
    from specedge.cli._tables import memory_table, print_error_table
    from specedge.config import load_config
    from specedge.engines import options

    given = [f"{key}={value}" for key, value in shortcuts.items() if value is not None]
    loaded = load_config(config, [*overrides, *given])
    precision = shortcuts["target.precision"]
    if precision is not None and loaded.draft is not None:
        given.append(f"draft.precision={precision}")
        loaded = load_config(config, [*overrides, *given])
    options.check(loaded.engines)
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
    for line in after_export(bundle, made):
        click.echo(line, err=True)
    click.echo(str(made))
    return made


def _write_model(bundle: Path, repository: Path, serving: Mapping[str, str], force: bool) -> None:
    with _extra_needed():
        from specedge.export.triton import write_repository

        model = write_repository(bundle, repository, parameters=serving, force=force)
    click.echo(f"next: tritonserver --model-repository {repository}", err=True)
    click.echo(str(model))


def _refuse_build_options() -> None:
    """A bundle is there: what would shape it cannot be honoured any more."""
    context = click.get_current_context()
    meant = ("config", "repository", "parameters", "force")
    given = [
        next(iter(param.opts))
        for param in context.command.params
        if param.name not in meant
        and context.get_parameter_source(param.name or "") is not ParameterSource.DEFAULT
    ]
    if given:
        raise click.UsageError(
            f"{', '.join(given)}: CONFIG is a bundle, which is written as it is; name the config "
            "to export another"
        )


def _pairs(option: str, items: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{option} {item[:80]!r}: expected K=V, as in engine=cuda")
        if key in pairs:
            raise click.UsageError(f"{option}: {key[:80]} is given twice")
        pairs[key] = value
    return pairs


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

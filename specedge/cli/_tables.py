"""Tables for a terminal; each function turns one thing into one table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specedge.memory import format_size

if TYPE_CHECKING:
    from specedge.bundle import Bundle
    from specedge.contract import GraphSpec, Manifest
    from specedge.doctor import Row

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
_PIPED_WIDTH = 160  # a pipe has no width of its own


class _Console(Console):
    """On stdout. That its reader went away is for `specedge.cli.invoke` to answer."""

    def on_broken_pipe(self) -> NoReturn:
        """Called where the error is being handled. Raises BrokenPipeError."""
        raise


def print_tables(tables: Iterable[Table]) -> None:
    """To stdout."""
    console = _Console()
    _print(console if console.is_terminal else _Console(width=_PIPED_WIDTH), tables)


def print_error_table(table: Table) -> None:
    """To stderr, beside progress and notes."""
    console = Console(stderr=True)
    _print(console if console.is_terminal else Console(stderr=True, width=_PIPED_WIDTH), [table])


def print_sentences(sentences: Iterable[str]) -> None:
    """To stdout: wrapped between words on a terminal, one a line anywhere else."""
    console = _Console()
    for sentence in sentences:
        if console.is_terminal:
            console.print(Text(sentence))
        else:
            click.echo(sentence)


def _print(console: Console, tables: Iterable[Table]) -> None:
    for table in tables:
        console.print(table)


def narrow(title: str) -> Table:
    """An empty table for a terminal of 80 columns, its title on one line."""
    line = Text(title, no_wrap=True, overflow="ignore")  # else it is folded at the table's width
    return Table(title=line, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))


def pairs(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Names and what they are; `title` may be empty."""
    table = Table(
        title=title or None, title_justify="left", show_header=False, box=None, pad_edge=False
    )
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    return table


def _grid(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def doctor_table(rows: Iterable[Row]) -> Table:
    """Check, status, what was found and the remedy."""
    table = Table("check", "", "found", "remedy", box=None, pad_edge=False)
    table.columns[2].overflow = table.columns[3].overflow = "fold"
    for row in rows:
        status = Text(row.status, style=_STYLES[row.status])
        table.add_row(Text(row.check), status, Text(row.found), Text(row.remedy))
    return table


def memory_table(manifest: Manifest) -> Table:
    """The memory plan, part by part."""
    plan = manifest.memory
    parts = [
        ("target weights", plan.target_weights),
        (f"target KV, {plan.context} rows", plan.target_kv),
        ("draft weights", plan.draft_weights),
        ("draft KV", plan.draft_kv),
        (f"activations, {plan.max_verify} tokens verified", plan.activations),
        ("total", plan.total),
    ]
    rows = [(name, format_size(size)) for name, size in parts if size]
    if plan.budget is not None:
        rows.append(("budget", format_size(plan.budget)))
    return pairs("memory plan", rows)


def bundle_tables(bundle: Bundle) -> list[Table]:
    """Everything `specedge inspect` shows."""
    manifest = bundle.manifest
    tables = [_overview(bundle), _graphs(manifest), _sources(manifest)]
    if manifest.pairing is not None:
        tables.append(_pairing(manifest))
    tables += [memory_table(manifest), _defaults(manifest), _files(manifest)]
    if manifest.notes:
        tables.append(pairs("notes", [("-", note) for note in manifest.notes]))
    return tables


def _overview(bundle: Bundle) -> Table:
    manifest = bundle.manifest
    size = sum(record.bytes for record in manifest.files.values())
    tokenizer = manifest.tokenizer
    template = "with" if tokenizer.has_chat_template else "no"
    rows = [
        ("path", str(bundle.path)),
        ("size", format_size(size)),
        ("created", manifest.created),
        ("schema, contract", f"{manifest.schema_version}, {manifest.contract}"),
        ("made with", ", ".join(f"{name} {known}" for name, known in manifest.tool.items())),
        ("tokenizer", f"{tokenizer.vocab} ids, ends with {tokenizer.eos_ids}, {template} template"),
        ("vocabulary", tokenizer.vocabulary_hash),
        ("bundle hash", bundle.hash),
    ]
    return pairs(manifest.name, rows)


def _graphs(manifest: Manifest) -> Table:
    columns = ("", "family", "precision", "parameters", "layers", "hidden", "heads", "context")
    graphs = [spec for spec in (manifest.target, manifest.draft) if spec is not None]
    rows = [
        (
            spec.role,
            spec.model_type,
            _precision(spec),
            f"{spec.parameters / 1e6:.0f} M",
            str(spec.layers),
            str(spec.hidden),
            f"{spec.heads}/{spec.kv_heads} of {spec.head_dim}",
            str(spec.context),
            format_size(spec.weight_bytes),
            _quality(manifest, spec.role),
        )
        for spec in graphs
    ]
    return _grid("graphs", (*columns, "weights", "error"), rows)


def _precision(spec: GraphSpec) -> str:
    return spec.precision if spec.block_size is None else f"{spec.precision} b{spec.block_size}"


def _quality(manifest: Manifest, role: str) -> str:
    """The measured error of quantised weights, or why there is none."""
    record = manifest.quality.get(role)
    if record is None:
        return "not measured"
    unit = " nats KL" if record.method == "kl" else " relative"
    return f"{record.value:.4f}{unit}, {record.positions} positions, {record.rounding}"


def _sources(manifest: Manifest) -> Table:
    rows = []
    for role, source in manifest.sources.items():
        licence = source.licence or "no licence stated"
        note = f" ({source.licence_note})" if source.licence_note else ""
        rows.append((role, source.reference, licence + note, source.sha256 or "-"))
    return _grid("sources", ("", "from", "licence", "sha256"), rows)


def _pairing(manifest: Manifest) -> Table:
    proof = manifest.pairing
    assert proof is not None
    verdict = "usable" if proof.usable else "not usable, dropped"
    rows = [
        ("draft", verdict),
        ("ids compared", str(proof.compared_ids)),
        ("padded to", f"{proof.target_padded_to} (target), {proof.draft_padded_to} (draft)"),
        *(("note", note) for note in proof.notes),
    ]
    if proof.first_difference is not None:
        rows.insert(1, ("first difference", f"id {proof.first_difference}"))
    return pairs("pairing", rows)


def _defaults(manifest: Manifest) -> Table:
    speculation, generation = manifest.speculation, manifest.generation
    neutral = type(generation)()
    proposers = ", ".join(speculation.proposers) or "none"
    if "ngram" in speculation.proposers:
        proposers += f"; n-grams of {speculation.ngram_min} to {speculation.ngram_max}"
    rows = [
        ("speculation", f"{speculation.mode}, {speculation.draft_length} tokens, {proposers}"),
        ("acceptance", speculation.acceptance),
        *(
            (name.replace("_", " "), f"{value:g}" if isinstance(value, float) else str(value))
            for name, value in generation.model_dump().items()
            if name in ("temperature", "max_tokens") or value != getattr(neutral, name)
        ),
    ]
    return pairs("defaults", rows)


def _files(manifest: Manifest) -> Table:
    rows = [
        (name, format_size(record.bytes), record.sha256) for name, record in manifest.files.items()
    ]
    return _grid("files", ("", "size", "sha256"), rows)

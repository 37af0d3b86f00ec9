"""What `specedge inspect` shows of a bundle, as tables that read at 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from specedge.cli._tables import memory_table, narrow, pairs
from specedge.contract import tap
from specedge.load_options import usable_proposers
from specedge.memory import format_size

if TYPE_CHECKING:
    from specedge.bundle import Bundle
    from specedge.contract import GraphSpec, Manifest
    from specedge.engines.trt.plans import Plan

_GRAPH: tuple[tuple[str, Callable[[GraphSpec], str]], ...] = (
    ("family", lambda spec: spec.model_type),
    ("lowering", lambda spec: spec.lowering),
    ("weights", lambda spec: _precision(spec)),
    ("activations, KV", lambda spec: spec.kv_dtype),
    ("parameters", lambda spec: f"{spec.parameters / 1e6:.0f} M"),
    ("size", lambda spec: format_size(spec.weight_bytes)),
    ("layers", lambda spec: str(spec.layers)),
    ("hidden", lambda spec: str(spec.hidden)),
    ("heads", lambda spec: f"{spec.heads}, {spec.kv_heads} of KV, {spec.head_dim} wide"),
    ("context", lambda spec: str(spec.context)),
    ("verifies at most", lambda spec: str(spec.max_verify)),
    ("taps", lambda spec: ", ".join(map(tap, spec.taps))),
)


def bundle_tables(bundle: Bundle, plans: Sequence[tuple[Plan, str | None]]) -> list[Table]:
    """Everything.

    Args:
        plans: see `plans.beside`.
    """
    manifest = bundle.manifest
    tables = [_overview(bundle), _graphs(manifest), _errors(manifest), _sources(manifest)]
    if manifest.pairing is not None:
        tables.append(_pairing(manifest))
    tables += [memory_table(manifest), _defaults(manifest)]
    if manifest.engines:
        tables.append(_engines(manifest))
    if plans:
        tables.append(_plans(plans))
    tables.append(_files(manifest))
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


def _specs(manifest: Manifest) -> list[GraphSpec]:
    return [spec for spec in (manifest.target, manifest.draft) if spec is not None]


def _graphs(manifest: Manifest) -> Table:
    """A row for each property, a column for each graph."""
    graphs = _specs(manifest)
    table = narrow("graphs")
    table.add_column(style="bold", no_wrap=True)
    for spec in graphs:
        table.add_column(spec.role)
    for name, of in _GRAPH:
        cells = [of(spec) for spec in graphs]
        if any(cells):
            table.add_row(name, *(Text(cell or "none") for cell in cells))
    return table


def _precision(spec: GraphSpec) -> str:
    return (
        spec.precision
        if spec.block_size is None
        else f"{spec.precision}, blocks of {spec.block_size}"
    )


def _errors(manifest: Manifest) -> Table:
    rows = [(spec.role, _quality(manifest, spec.role)) for spec in _specs(manifest)]
    return pairs("error of quantised weights", rows)


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
        rows += [(role, source.reference), ("", licence + note)]
        if source.sha256 is not None:
            rows.append(("", source.sha256))
    return pairs("sources", rows)


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
    usable = usable_proposers(manifest, speculation.proposers)
    proposers = ", ".join(usable) or "none"
    if "ngram" in usable:
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


def _engines(manifest: Manifest) -> Table:
    rows = [
        (name, ", ".join(f"{key} = {_plain(value)}" for key, value in options.items()) or "none")
        for name, options in manifest.engines.items()
    ]
    return pairs("options of engines", rows)


def _plain(value: str | int | float | bool) -> str:
    """As a config says it, but without quotes."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plans(plans: Sequence[tuple[Plan, str | None]]) -> Table:
    """A row for each; the last column is for what is wrong with it."""
    table = narrow("plans")
    for name in ("", "built by", "for", "context", "size", ""):
        table.add_column(name, overflow="fold")
    for plan, trouble in plans:
        key = plan.record.key
        where = f"sm{key.compute_capability}" if key.device is None else key.device
        table.add_row(
            *map(
                Text,
                (
                    key.role,
                    f"{key.backend} {key.version}",
                    where,
                    str(key.context),
                    format_size(plan.record.bytes),
                    trouble or "",
                ),
            )
        )
    return table


def _files(manifest: Manifest) -> Table:
    table = narrow("files")
    table.add_column(no_wrap=True)
    table.add_column("size", no_wrap=True)
    table.add_column("sha256", overflow="fold")
    for name, record in manifest.files.items():
        table.add_row(*map(Text, (name, format_size(record.bytes), record.sha256)))
    return table

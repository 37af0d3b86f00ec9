"""From a config to a bundle: open, compare, plan, write, measure, seal.

Everything that can refuse does so before the first byte is written: families, pairing, context,
memory, disk.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from specedge import memory
from specedge.config import Config, ModelConfig
from specedge.contract import (
    GraphSpec,
    Ids,
    MemoryPlan,
    PairingProof,
    QualityRecord,
    rope_rows,
)
from specedge.errors import ExportError
from specedge.export import (
    acceptance_graph,
    calibration,
    families,
    pair,
    quality,
    staging,
)
from specedge.export.checkpoint import Checkpoint
from specedge.export.decoder import DecoderSpec
from specedge.export.importance import input_importance
from specedge.export.lowerings import LOWERINGS
from specedge.export.pair import Role
from specedge.export.placement import PlacedModel, count_parameters, place, predict_bytes
from specedge.export.quantize import Scheme
from specedge.export.stored import StoredWeights
from specedge.export.tokens import write_text_files
from specedge.export.weights import WeightWriter
from specedge.progress import Progress, Silent

_BITS = {"int4": 4, "int8": 8}
_LIBRARIES = ("specedge", "onnx", "onnx-ir", "gguf", "tokenizers", "numpy")
_QUALITY_BUDGET = 768 << 20  # of the export's 1 GiB; see docs/architecture.md


@dataclass(frozen=True)
class _Model:
    """One role, opened and described; `spec` and `graph` are sizes, nothing is written yet."""

    role: Role
    config: ModelConfig
    checkpoint: Checkpoint
    spec: DecoderSpec
    scheme: Scheme | None
    graph: GraphSpec


def build(
    config: Config,
    output: Path,
    *,
    force: bool = False,
    drop_incompatible_draft: bool = False,
    base: Path = Path(),
    progress: Progress | None = None,
) -> Path:
    """Export the pair that `config` describes as the bundle `output`.

    Args:
        config: from `specedge.config.load_config`.
        output: folder to make; parents are made too.
        force: replace a bundle that is there already.
        drop_incompatible_draft: go on with lookup proposers where the draft cannot be used.
        base: folder that relative sources start from.
        progress: told about stages and notes.

    Returns:
        `output`.

    Raises:
        SourceError, UnsupportedError: a checkpoint cannot be read or expressed.
        PairingError: the draft's tokens are not the target's.
        MemoryBudgetError: the plan does not fit `config.export.memory_budget`.
        ExportError: the destination, the disk, the context.
    """
    progress = Silent() if progress is None else progress
    output = Path(output)
    if config.export.frontend == "optimum":
        from specedge.export.optimum import build as build_with_optimum  # an extra

        return build_with_optimum(
            config,
            output,
            force=force,
            drop_incompatible_draft=drop_incompatible_draft,
            base=base,
            progress=progress,
        )
    with ExitStack() as stack, staging.staged(output, force=force) as folder:
        target = _open("target", config.target, config, base, progress, stack)
        draft, proof = _open_draft(
            target, config, base, progress, stack, drop=drop_incompatible_draft
        )
        plan = _plan(config, target, draft)
        needed = target.graph.weight_bytes
        if draft is not None and draft.graph.weights != target.graph.weights:
            needed += draft.graph.weight_bytes
        staging.check_space(folder, needed)

        graphs: dict[Role, GraphSpec] = {}
        hashes: dict[str, str] = {}
        measured: dict[str, QualityRecord] = {}
        for model in (target, draft):
            if model is None:
                continue
            if model.graph.weights in hashes:
                graphs[model.role] = graphs["target"].model_copy(update={"role": model.role})
                continue
            written = _write(model, folder, progress)
            graphs[model.role], hashes[model.graph.weights] = written.graph, written.sha256
            if model.scheme is not None:
                measured[model.role] = _measure(model, model.scheme, written, folder, progress)
        made = graphs["target"]
        if made.lowering == "standard" or made.kv_dtype != "float32":  # made for a GPU
            acceptance_graph.write(folder, made.vocab)
        write_text_files(target.checkpoint, folder)
        pair.seal(
            folder,
            config,
            graphs,
            {m.role: m.checkpoint for m in (target, draft) if m is not None},
            tool={library: version(library) for library in _LIBRARIES},
            proof=proof,
            plan=plan,
            files=staging.record_files(folder, progress, hashes),
            quality=measured,
        )
    return output


def _open(
    role: Role,
    model: ModelConfig,
    config: Config,
    base: Path,
    progress: Progress,
    stack: ExitStack,
    target: _Model | None = None,
) -> _Model:
    checkpoint = pair.opened(model, base, progress, stack)
    return _describe(role, model, checkpoint, config, target)


def _describe(
    role: Role,
    model: ModelConfig,
    checkpoint: Checkpoint,
    config: Config,
    target: _Model | None = None,
) -> _Model:
    """Sizes of one role; a draft knows no more ids than its target."""
    export = config.export
    spec = families.describe(checkpoint.config, export.context)
    families.check_weights(spec, checkpoint.tensors)
    lowering = LOWERINGS[export.lowering]
    lowering.check(spec)
    context = export.context
    if role == "target" and context > spec.max_positions:
        raise ExportError(
            f"[export] context = {context}, but the target was made for {spec.max_positions} "
            f"positions; set it to {spec.max_positions} or less"
        )
    context = min(context, spec.max_positions)
    deepest = max(export.hidden_taps, default=0)
    if role == "target" and deepest > len(spec.layers):
        raise ExportError(
            f"[export] hidden_taps: {deepest}, but the target has {len(spec.layers)} layers; "
            f"expected 0..{len(spec.layers)}, the last for what the final norm takes"
        )
    vocab = min(checkpoint.tokenizer.vocab, spec.vocab_rows)
    if target is not None:
        vocab = min(vocab, target.graph.vocab)
    scheme = None
    if model.precision in _BITS:
        bits = _BITS[model.precision]
        scheme = Scheme(
            bits,
            export.block_size,
            export.is_symmetric,
            export.rounding,
            positive_scales=bits == 8 and export.lowering == "standard",  # TensorRT takes no other
        )
    activations = config.activations(model)
    graph = GraphSpec(
        role=role,
        model=f"{role}/model.onnx",
        weights=f"{role}/weights.bin",
        model_type=spec.model_type,
        lowering=export.lowering,
        precision=model.precision,
        block_size=None if scheme is None else scheme.block_size,
        vocab=vocab,
        layers=len(spec.layers),
        hidden=spec.hidden,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        kv_dtype=activations,
        context=context,
        max_verify=export.max_verify,
        taps=list(export.hidden_taps) if role == "target" else [],
        weight_bytes=predict_bytes(
            spec, scheme, lowering.layout(activations), vocab=vocab, context=rope_rows(context)
        ),
        parameters=count_parameters(spec, vocab=vocab),
    )
    return _Model(role, model, checkpoint, spec, scheme, graph)


def _open_draft(
    target: _Model,
    config: Config,
    base: Path,
    progress: Progress,
    stack: ExitStack,
    *,
    drop: bool,
) -> tuple[_Model | None, PairingProof | None]:
    if config.draft is None:
        return None, None
    if pair.same_source(config.draft, target.config):
        draft = _describe("draft", config.draft, target.checkpoint, config, target)
        if config.draft.precision == target.config.precision:
            shared = {"model": target.graph.model, "weights": target.graph.weights}
            draft = _Model(
                "draft",
                draft.config,
                draft.checkpoint,
                draft.spec,
                draft.scheme,
                draft.graph.model_copy(update=shared),
            )
    else:
        draft = _open("draft", config.draft, config, base, progress, stack, target)
    vocabs = target.graph.vocab, draft.graph.vocab
    proof = pair.settled(
        target.checkpoint,
        draft.checkpoint,
        vocabs,
        config.export.context,
        drop=drop,
        progress=progress,
    )
    return (draft if proof.usable else None), proof


def _plan(config: Config, target: _Model, draft: _Model | None) -> MemoryPlan:
    return memory.plan(
        target.graph,
        None if draft is None else draft.graph,
        context=config.export.context,
        max_verify=config.export.max_verify,
        budget=config.export.memory_budget,
    )


@dataclass(frozen=True)
class _Written:
    """One role's files, done."""

    graph: GraphSpec
    sha256: str  # of the weights
    placed: PlacedModel


def _write(model: _Model, folder: Path, progress: Progress) -> _Written:
    """Weights, then the graph over them."""
    graph = model.graph
    lowering = LOWERINGS[graph.lowering]
    weights = folder / graph.weights
    weights.parent.mkdir(exist_ok=True)
    importance = None
    if model.scheme is not None and model.scheme.rounding == "calibrated":
        importance = input_importance(
            model.spec,
            model.checkpoint.tensors,
            _token_ids(model, calibration.PRACTICE),
            progress=progress,
        )
    progress.stage(f"{model.role}: {_precision(model)}", graph.parameters, "weights")
    with WeightWriter(weights) as writer:
        placed = place(
            model.spec,
            model.checkpoint.tensors,
            writer,
            model.scheme,
            lowering.layout(graph.kv_dtype),
            vocab=graph.vocab,
            context=rope_rows(graph.context),
            progress=progress,
            importance=importance,
        )
        written, sha256 = writer.bytes_written, writer.sha256
    lowering.write(
        model.spec,
        placed,
        folder / graph.model,
        weights=weights.name,
        version=version("specedge"),
        taps=graph.taps,
    )
    return _Written(graph.model_copy(update={"weight_bytes": written}), sha256, placed)


def _measure(
    model: _Model, scheme: Scheme, written: _Written, folder: Path, progress: Progress
) -> QualityRecord:
    return quality.measure(
        model.spec,
        model.checkpoint.tensors,
        StoredWeights(folder / written.graph.weights, written.placed, scheme),
        _token_ids(model, calibration.TEXT),
        vocab=written.graph.vocab,
        rounding=str(scheme),
        budget_bytes=_QUALITY_BUDGET,
        progress=progress,
    )


def _token_ids(model: _Model, text: str) -> Ids:
    """The model's ids of `text`, without those past the vocabulary that is kept."""
    tokenizer = Tokenizer.from_str(model.checkpoint.tokenizer.json)
    ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int64)
    return ids[ids < model.graph.vocab]


def _precision(model: _Model) -> str:
    return model.graph.precision if model.scheme is None else str(model.scheme)

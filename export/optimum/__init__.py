"""The second front end: any decoder that optimum exports becomes a bundle of contract "concat".

The native front end describes a decoder and writes its graph. Here optimum traces transformers' own
code instead, so an architecture needs no family of ours; the price is a graph that nothing is fused
in, whose KV grows by concatenation and that scores every position (engines/concat.py). Loop,
proposers, gates and probe are the same.

Weights stay float32: what the native front end does to weights, it does while it writes them.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from specedge import memory
from specedge.config import Config, ModelConfig
from specedge.contract import GraphSpec, PairingProof
from specedge.errors import ExportError
from specedge.export import families, pair, staging
from specedge.export.checkpoint import Checkpoint
from specedge.export.optimum.folders import folder_of
from specedge.export.optimum.sizes import Sizes, sizes_of
from specedge.export.optimum.tracing import Traced, check_installed, trace
from specedge.export.pair import Role
from specedge.export.tokens import write_text_files
from specedge.progress import Progress, Silent

# Keys of quantised weights are not among them: they mean nothing to fp32, in either front end.
_NATIVE_ONLY = ("lowering", "activations", "hidden_taps")
_NATIVE = ", ".join(families.SUPPORTED)
_FEWEST_COMPARED, _MOST_COMPARED = 32, 512  # tokens
_PAST_WINDOW = 16  # tokens compared beyond a sliding window
SLOWER = (
    "front end optimum: the graph copies its KV in every call and scores every position, so it is "
    "slower than one of the native front end, the more so the longer the text"
)


@dataclass(frozen=True)
class _Model:
    """One role, opened and described; nothing is written yet."""

    role: Role
    config: ModelConfig
    checkpoint: Checkpoint
    sizes: Sizes
    context: int

    @property
    def vocab(self) -> int:
        """Ids that the tokenizer knows and the model embeds."""
        known = self.checkpoint.tokenizer.vocab
        return min(known, int(self.checkpoint.config.get("vocab_size", known)))


def build(
    config: Config,
    output: Path,
    *,
    force: bool = False,
    drop_incompatible_draft: bool = False,
    base: Path = Path(),
    progress: Progress | None = None,
) -> Path:
    """Export the pair that `config` describes as the bundle `output`, through optimum.

    Args:
        config: with `export.frontend` "optimum" and precision fp32.
        output: folder to make; parents are made too.
        force: replace a bundle that is there already.
        drop_incompatible_draft: go on with lookup proposers where the draft cannot be used.
        base: folder that relative sources start from.
        progress: told about stages and notes.

    Returns:
        `output`.

    Raises:
        SourceError, UnsupportedError: a checkpoint cannot be read, or not as a decoder.
        PairingError: the draft's tokens are not the target's.
        MemoryBudgetError: the plan does not fit `config.export.memory_budget`.
        ExportError: an option that this front end cannot honour, the extra, the destination, the
            disk, the context, or optimum itself.
    """
    progress = Silent() if progress is None else progress
    output = Path(output)
    _check_options(config)
    tool = {name: version(name) for name in ("specedge", "tokenizers", "numpy")} | check_installed()
    with ExitStack() as stack, staging.staged(output, force=force) as folder:
        target = _open("target", config.target, config, base, progress, stack)
        draft, proof = _open_draft(
            target, config, base, progress, stack, drop=drop_incompatible_draft
        )
        graphs: dict[Role, GraphSpec] = {}
        notes = [SLOWER]
        for model in (target, draft):
            if model is None:
                continue
            if model.role == "draft" and model.checkpoint is target.checkpoint:
                graphs["draft"] = graphs["target"].model_copy(update={"role": "draft"})
                continue
            traced = _trace(model, folder, base, progress)
            graphs[model.role] = _graph(model, traced, config, graphs.get("target"))
            notes.append(_compared(model.role, traced))
        plan = memory.plan(
            graphs["target"],
            graphs.get("draft"),
            context=target.context,
            max_verify=graphs["target"].max_verify,
            budget=config.export.memory_budget,
        )
        for note in notes:
            progress.note(note)
        write_text_files(target.checkpoint, folder)
        pair.seal(
            folder,
            config,
            graphs,
            {m.role: m.checkpoint for m in (target, draft) if m is not None},
            tool=tool,
            proof=proof,
            plan=plan,
            files=staging.record_files(folder, progress),
            notes=notes,
        )
    return output


def _check_options(config: Config) -> None:
    """Refuse by name what this front end cannot honour."""
    for key in _NATIVE_ONLY:
        if key in config.export.model_fields_set:
            raise ExportError(
                f"[export] {key}: the optimum front end writes float32 graphs of its own kind and "
                f"has no such choice; remove the key (the native front end has it, for {_NATIVE})"
            )
    for role, model in (("target", config.target), ("draft", config.draft)):
        if model is None or "precision" not in model.model_fields_set:
            continue
        if model.precision != "fp32":
            raise ExportError(
                f"[{role}] precision = {model.precision!r}: the optimum front end has fp32 only; "
                "set precision = 'fp32' (--precision fp32); the native one has others, for "
                f"{_NATIVE}"
            )


def _open(
    role: Role,
    model: ModelConfig,
    config: Config,
    base: Path,
    progress: Progress,
    stack: ExitStack,
) -> _Model:
    checkpoint = pair.opened(model, base, progress, stack)
    sizes = sizes_of(checkpoint, model.source)
    return _Model(role, model, checkpoint, sizes, _context(role, sizes, config, progress))


def _context(role: Role, sizes: Sizes, config: Config, progress: Progress) -> int:
    """T: what was asked for, at most what the model was made for.

    Raises:
        ExportError: the config itself names a larger one, or verification would not fit.
    """
    export = config.export
    limit = sizes.max_positions
    if limit is None or export.context <= limit:
        return export.context
    if role == "target" and "context" in export.model_fields_set:
        raise ExportError(
            f"[export] context = {export.context}, but the target was made for {limit} positions; "
            f"set it to {limit} or less"
        )
    if role == "target" and export.max_verify > limit:
        raise ExportError(
            f"[export] max_verify = {export.max_verify}, but the target was made for {limit} "
            f"positions; set it to {limit} or less"
        )
    progress.note(f"{role}: context {limit}, which is what it was made for")
    return limit


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
        draft = replace(target, role="draft", config=config.draft)
    else:
        draft = _open("draft", config.draft, config, base, progress, stack)
    vocabs = target.vocab, draft.vocab
    proof = pair.settled(
        target.checkpoint, draft.checkpoint, vocabs, target.context, drop=drop, progress=progress
    )
    return (draft if proof.usable else None), proof


def _trace(model: _Model, folder: Path, base: Path, progress: Progress) -> Traced:
    """Write `ROLE`/model.onnx and its weights."""
    written = 4 * model.sizes.parameters
    # optimum's copy and ours; the head of a tied checkpoint is written out
    staging.check_space(folder, 3 * written)
    (folder / model.role).mkdir()
    window = model.sizes.window
    tokens = _FEWEST_COMPARED if window is None else window + _PAST_WINDOW
    with tempfile.TemporaryDirectory(dir=folder, prefix=".optimum-") as scratch:
        source = Path(scratch) / "source"
        work = Path(scratch) / "work"
        source.mkdir()
        work.mkdir()
        return trace(
            model.role,
            folder_of(model.config.source, model.checkpoint, base, source, progress),
            (folder / model.role / "model.onnx").absolute(),
            "weights.bin",
            work.absolute(),
            tokens=min(max(tokens, _FEWEST_COMPARED), _MOST_COMPARED, model.context),
            progress=progress,
        )


def _graph(model: _Model, traced: Traced, config: Config, target: GraphSpec | None) -> GraphSpec:
    """Sizes of one role; a draft knows no more ids than its target."""
    vocab = min(model.vocab, traced.columns)
    if target is not None:
        vocab = min(vocab, target.vocab)
    return GraphSpec(
        role=model.role,
        model=f"{model.role}/model.onnx",
        weights=f"{model.role}/weights.bin",
        model_type=model.sizes.model_type,
        lowering="concat",
        precision="fp32",
        vocab=vocab,
        layers=traced.layers,
        hidden=model.sizes.hidden,
        heads=model.sizes.heads,
        kv_heads=traced.kv_heads,
        head_dim=traced.head_dim,
        context=model.context,
        max_verify=min(config.export.max_verify, model.context),
        weight_bytes=traced.weight_bytes,
        parameters=traced.weight_bytes // 4,  # a tied table is stored twice, so it counts twice
    )


def _compared(role: Role, traced: Traced) -> str:
    return (
        f"{role}: over {traced.tokens} tokens the graph's logits are within {traced.error:.1g} of "
        "transformers' (relative to the largest)"
    )

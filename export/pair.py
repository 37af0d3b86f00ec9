"""What both front ends do alike with the pair that a config names: open its checkpoints, settle
whether the draft can be used, and write down what was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from specedge.config import Config, ModelConfig
from specedge.contract import (
    FileRecord,
    GenerationDefaults,
    GraphSpec,
    Manifest,
    MemoryPlan,
    PairingProof,
    QualityRecord,
    SpeculationDefaults,
)
from specedge.errors import PairingError
from specedge.export import pairing, staging
from specedge.export.checkpoint import Checkpoint
from specedge.export.sources import open_source
from specedge.export.tokens import tokenizer_spec
from specedge.progress import Progress

Role = Literal["target", "draft"]


def opened(model: ModelConfig, base: Path, progress: Progress, stack: ExitStack) -> Checkpoint:
    """A checkpoint, which `stack` closes.

    Args:
        base: folder that a relative source starts from.

    Raises:
        SourceError, UnsupportedError: it cannot be read.
    """
    checkpoint = open_source(
        model.source, sha256=model.sha256, licence=model.licence, base=base, progress=progress
    )
    stack.callback(checkpoint.tensors.close)
    if model.licence_note is not None:
        record = checkpoint.record.model_copy(update={"licence_note": model.licence_note})
        checkpoint = replace(checkpoint, record=record)
        progress.note(f"{model.source}: {record.licence}, {model.licence_note}")
    return checkpoint


def same_source(one: ModelConfig, other: ModelConfig) -> bool:
    """Both are read from the same checkpoint."""
    return (one.source, one.sha256) == (other.source, other.sha256)


def settled(
    target: Checkpoint,
    draft: Checkpoint,
    vocabs: tuple[int, int],
    context: int,
    *,
    drop: bool,
    progress: Progress,
) -> PairingProof:
    """Whether the draft is usable with the target; what a person should read of it is noted.

    Args:
        vocabs: ids that each embeds.
        context: T of the target.
        drop: go on where it is not.

    Raises:
        PairingError: it is not; names the first differing id with the token of each.
    """
    proof = pairing.examine(target, draft, context)
    embedded, drafted = vocabs
    if proof.usable and drafted < embedded:
        said = f"the draft embeds {drafted} ids, the target {embedded}"
        update = {"usable": False, "first_difference": drafted, "notes": [said]}
        proof = proof.model_copy(update=update)
    if proof.usable:
        for note in proof.notes:
            progress.note(f"draft: {note}")
    elif drop:
        progress.note(f"draft dropped, lookup proposers remain: {proof.notes[0]}")
    else:
        raise PairingError(
            f"[draft] {proof.notes[0]}; export a draft of the same tokenizer, or drop it "
            "(--drop-incompatible-draft)"
        )
    return proof


def seal(
    folder: Path,
    config: Config,
    graphs: Mapping[Role, GraphSpec],
    checkpoints: Mapping[Role, Checkpoint],
    *,
    tool: dict[str, str],
    proof: PairingProof | None,
    plan: MemoryPlan,
    files: dict[str, FileRecord],
    quality: dict[str, QualityRecord] | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Write the manifest, the last file of a bundle.

    Args:
        graphs, checkpoints: the target's, and the draft's where it is kept.
        tool: versions of what made it.
        files: everything else in the folder.
    """
    target = graphs["target"]
    manifest = Manifest(
        name=config.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tool=tool,
        target=target,
        draft=graphs.get("draft"),
        tokenizer=tokenizer_spec(checkpoints["target"], target.vocab),
        sources={role: checkpoint.record for role, checkpoint in checkpoints.items()},
        pairing=proof,
        memory=plan,
        quality=quality or {},
        speculation=SpeculationDefaults(**config.speculation.model_dump()),
        generation=GenerationDefaults(**config.generation.model_dump()),
        engines={name: dict(said) for name, said in config.engines.items()},
        files=files,
        notes=list(notes),
    )
    staging.write_manifest(folder, manifest)

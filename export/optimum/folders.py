"""A checkpoint as a folder that transformers reads, whatever form it came in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specedge.errors import SourceError
from specedge.export.checkpoint import Array, Checkpoint, read
from specedge.progress import Progress

SHARD_BYTES = 1 << 30
# Of the families that our sources rename to transformers' layout.
ARCHITECTURES = {
    "gemma3_text": "Gemma3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def folder_of(
    reference: str, checkpoint: Checkpoint, base: Path, scratch: Path, progress: Progress
) -> Path:
    """Where transformers can read an opened source.

    Args:
        reference: as the config has it.
        checkpoint: opened from it.
        base: folder that relative sources start from.
        scratch: existing and empty; weights of a GGUF are written there, in float32.

    Raises:
        SourceError: a hub's files have left the cache.
        ExportError: through the caller's staging, where the disk is full.
    """
    match checkpoint.record.kind:
        case "folder":
            path = Path(reference.strip()).expanduser()
            return next(one for one in (base / path, path) if one.is_dir()).absolute()
        case "hub":
            return _hub_folder(reference.strip().removeprefix("hub:"))
        case _:
            write_folder(checkpoint, scratch, progress)
            return scratch


def _hub_folder(name: str) -> Path:
    """Of files that the hub source has fetched."""
    import huggingface_hub

    repository, _, revision = name.partition("@")
    try:
        found = huggingface_hub.snapshot_download(
            repository, revision=revision or None, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise SourceError(
            f"hub:{name}: its files are not in the hub's cache any more; export again"
        ) from error
    return Path(found).absolute()


def write_folder(checkpoint: Checkpoint, out: Path, progress: Progress) -> None:
    """Write a folder: float32 safetensors in shards, config.json and the tokenizer."""
    _write_weights(checkpoint, out, progress)
    files = checkpoint.tokenizer
    ids = {
        "bos_token_id": files.bos_id,
        "eos_token_id": files.eos_ids,
        "pad_token_id": files.pad_id,
    }
    model_type = checkpoint.config["model_type"]
    config = {
        **checkpoint.config,
        "architectures": [ARCHITECTURES[model_type]],
        "dtype": "float32",
        **ids,
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": files.chat_template,
    }
    _write_json(out / "config.json", config)
    _write_json(out / "generation_config.json", ids)
    _write_json(out / "tokenizer_config.json", settings)
    (out / "tokenizer.json").write_text(files.json, encoding="utf-8")


def _write_weights(checkpoint: Checkpoint, out: Path, progress: Progress) -> None:
    """Shards of about SHARD_BYTES, and the index that names which tensor is where."""
    from safetensors.numpy import save_file

    where: dict[str, str] = {}
    shard: dict[str, Array] = {}
    number = size = total = 0

    def flush() -> None:
        nonlocal number, size
        if not shard:
            return
        number += 1
        name = f"model-{number:05}.safetensors"
        save_file(shard, out / name, metadata={"format": "pt"})
        where.update(dict.fromkeys(shard, name))
        shard.clear()
        size = 0

    names = checkpoint.tensors.names()
    progress.stage("weights as float32", len(names), "tensors")
    for name in names:
        tensor = read(checkpoint.tensors, name)
        shard[name] = tensor
        size += tensor.nbytes
        total += tensor.nbytes
        if size >= SHARD_BYTES:
            flush()
        progress.advance(1)
    flush()
    index = {"metadata": {"total_size": total}, "weight_map": where}
    _write_json(out / "model.safetensors.index.json", index)


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=1), encoding="utf-8")

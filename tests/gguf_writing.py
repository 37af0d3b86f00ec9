"""Tiny GGUF files for tests, written with the gguf library from checkpoint-layout arrays.

The conversion here is the converter's own formula (reshape, swap axes; norms plus one), so the
reader is tested against the other direction, not against itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from specedge.export.checkpoint import Array

HIDDEN, HEADS, KV_HEADS, DIM, INNER, VOCAB, LAYERS = 64, 4, 2, 16, 96, 40, 2
SPECIAL = ["<unk>", "<s>", "</s>"]


def tokens(vocab: int = VOCAB) -> dict[str, Any]:
    """Metadata of a byte-level tokenizer with `vocab` ids: three control tokens and letters."""
    letters = [chr(ord("a") + at) for at in range(26)]
    known = [*SPECIAL, *letters][:vocab]
    padding = [f"[PAD{id_}]" for id_ in range(len(known), vocab)]
    kinds = [3] * 3 + [1] * (len(known) - 3) + [5] * len(padding)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*known, *padding],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def metadata(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    """Keys of a tiny model; a change of None leaves the key out, `__` stands for a dot."""
    keys = {
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10_000.0,
    }
    result = {f"{architecture}.{key}": value for key, value in keys.items()} | tokens()
    result |= {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in result.items() if value is not None}


def weights(architecture: str = "llama", seed: int = 0) -> dict[str, Array]:
    """Random tensors by GGUF name, in the checkpoint's order and offset."""
    rng = np.random.default_rng(seed)

    def make(*shape: int) -> Array:
        return rng.standard_normal(shape, dtype=np.float32)

    result = {"token_embd.weight": make(VOCAB, HIDDEN), "output_norm.weight": make(HIDDEN)}
    for layer in range(LAYERS):
        block = {
            "attn_norm.weight": make(HIDDEN),
            "attn_q.weight": make(HEADS * DIM, HIDDEN),
            "attn_k.weight": make(KV_HEADS * DIM, HIDDEN),
            "attn_v.weight": make(KV_HEADS * DIM, HIDDEN),
            "attn_output.weight": make(HIDDEN, HEADS * DIM),
            "ffn_norm.weight": make(HIDDEN),
            "ffn_gate.weight": make(INNER, HIDDEN),
            "ffn_up.weight": make(INNER, HIDDEN),
            "ffn_down.weight": make(HIDDEN, INNER),
        }
        if architecture in ("qwen3", "gemma3"):
            block |= {"attn_q_norm.weight": make(DIM), "attn_k_norm.weight": make(DIM)}
        if architecture == "gemma3":
            block |= {
                "post_attention_norm.weight": make(HIDDEN),
                "post_ffw_norm.weight": make(HIDDEN),
            }
        if architecture == "phi3":
            for name in ("attn_q", "attn_k", "attn_v", "ffn_gate"):
                del block[f"{name}.weight"]
            block["attn_qkv.weight"] = make((HEADS + 2 * KV_HEADS) * DIM, HIDDEN)
            block["ffn_up.weight"] = make(2 * INNER, HIDDEN)
        result |= {f"blk.{layer}.{name}": value for name, value in block.items()}
    return result


def converted(architecture: str, name: str, value: Array) -> Array:
    """What the converter stores for a checkpoint tensor."""
    if architecture == "llama" and (".attn_q." in name or ".attn_k." in name):
        heads = HEADS if ".attn_q." in name else KV_HEADS
        halves = value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:])
        return halves.swapaxes(1, 2).reshape(value.shape)
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return value + 1
    return value


def write(
    path: Path,
    architecture: str = "llama",
    *,
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Array] | None = None,
    kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    big_endian: bool = False,
) -> Path:
    """A GGUF file of `tensors` (checkpoint order; float32 unless `kinds` names a quantisation)."""
    order = gguf.GGUFEndian.BIG if big_endian else gguf.GGUFEndian.LITTLE
    writer = gguf.GGUFWriter(path, architecture, endianess=order)
    for key, value in (metadata(architecture) if keys is None else keys).items():
        _add(writer, key, value)
    for name, value in (weights(architecture) if tensors is None else tensors).items():
        stored = np.ascontiguousarray(converted(architecture, name, value))
        kind = (kinds or {}).get(name)
        if kind is None:
            writer.add_tensor(name, stored)
        else:
            writer.add_tensor(name, gguf.quantize(stored, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value:
        writer.add_array(key, value)

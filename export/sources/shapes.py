"""Do the tensors have the shapes that the config implies?

Checked when a source is opened: a mismatch is a damaged or mislabelled checkpoint, and an hour
into an export is too late to say so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from specedge.errors import SourceError
from specedge.export.checkpoint import TensorMap

# Letters: V embedding rows, H hidden, I intermediate, Q heads * D, K kv_heads * D, D head width.
_SHAPES = {
    "model.embed_tokens.weight": "V H",
    "lm_head.weight": "V H",
    "model.norm.weight": "H",
    "self_attn.q_proj.weight": "Q H",
    "self_attn.q_proj.bias": "Q",
    "self_attn.k_proj.weight": "K H",
    "self_attn.k_proj.bias": "K",
    "self_attn.v_proj.weight": "K H",
    "self_attn.v_proj.bias": "K",
    "self_attn.o_proj.weight": "H Q",
    "self_attn.qkv_proj.weight": "QKV H",
    "self_attn.q_norm.weight": "D",
    "self_attn.k_norm.weight": "D",
    "mlp.gate_proj.weight": "I H",
    "mlp.up_proj.weight": "I H",
    "mlp.gate_up_proj.weight": "GU H",
    "mlp.down_proj.weight": "H I",
    "input_layernorm.weight": "H",
    "post_attention_layernorm.weight": "H",
    "pre_feedforward_layernorm.weight": "H",
    "post_feedforward_layernorm.weight": "H",
}
# Families whose head width is hidden / heads unless the config says otherwise.
_DIVIDED_HEADS = ("llama", "mistral", "qwen2", "phi3")
_LAYER = re.compile(r"model\.layers\.\d+\.(.+)")


def check_shapes(config: Mapping[str, Any], tensors: TensorMap, label: str) -> None:
    """Compare every tensor that a decoder of ours would read.

    A size that the config leaves to its family's default is not compared.

    Raises:
        SourceError: a shape differs; names the tensor, both shapes.
    """
    sizes = _sizes(config)
    for name in tensors.names():
        layer = _LAYER.fullmatch(name)
        letters = _SHAPES.get(layer[1] if layer else name)
        if letters is None:
            continue
        expected = [sizes.get(letter) for letter in letters.split()]
        found = tensors.shape(name)
        agrees = len(expected) == len(found) and all(
            want is None or want == got for want, got in zip(expected, found, strict=True)
        )
        if not agrees:
            shown = ", ".join("any" if want is None else str(want) for want in expected)
            raise SourceError(
                f"{label}: tensor {name!r} has shape {list(found)}, the config implies [{shown}]"
            )


def _sizes(config: Mapping[str, Any]) -> dict[str, int | None]:
    def size(key: str) -> int | None:
        value = config.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    kv_heads, dim, inner = size("num_key_value_heads"), size("head_dim"), size("intermediate_size")
    if dim is None and hidden and heads and config.get("model_type") in _DIVIDED_HEADS:
        dim = hidden // heads
    queries = heads * dim if heads and dim else None
    keys = kv_heads * dim if kv_heads and dim else None
    return {
        "V": size("vocab_size"),
        "H": hidden,
        "D": dim,
        "I": inner,
        "GU": 2 * inner if inner else None,
        "Q": queries,
        "K": keys,
        "QKV": queries + 2 * keys if queries and keys else None,
    }

"""Tensor names of GGUF architectures as names of the transformers checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping

from specedge.errors import UnsupportedError

# Architecture -> transformers model_type. "llama" also carries Mistral models.
MODEL_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "phi3": "phi3",
    "gemma3": "gemma3_text",
}

# Tensors that hold frequency factors: they become part of the config's rope_scaling.
ROPE_FACTORS = "rope_freqs.weight"
ROPE_FACTORS_LONG = "rope_factors_long.weight"
ROPE_FACTORS_SHORT = "rope_factors_short.weight"

_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LINEAR = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_INNER: dict[str, dict[str, str]] = {
    "llama": _LINEAR | _NORMS,
    "qwen2": _LINEAR | _NORMS,
    "qwen3": _LINEAR | _NORMS | _HEAD_NORMS,
    # One matrix for q, k, v; `ffn_up` holds gate and up.
    "phi3": _NORMS
    | {
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
    },
    "gemma3": _LINEAR
    | _HEAD_NORMS
    | {
        "attn_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def checkpoint_names(architecture: str, names: Mapping[str, object], label: str) -> dict[str, str]:
    """GGUF name by checkpoint name, for every tensor but the frequency factors.

    Raises:
        UnsupportedError: a tensor that this architecture is not known to have. Leaving it out
            would change the model without a word.
    """
    result: dict[str, str] = {}
    for name in names:
        if name in (ROPE_FACTORS, ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT):
            continue
        ours = _OUTER.get(name)
        if ours is None and (found := _BLOCK.fullmatch(name)):
            inner = _INNER[architecture].get(found[2])
            ours = inner and f"model.layers.{found[1]}.{inner}.{found[3]}"
        if ours is None:
            raise UnsupportedError(
                f"{label}: tensor {name!r} is not part of architecture {architecture!r} as "
                "specedge knows it"
            )
        result[ours] = name
    return result

"""GGUF metadata as the config of the transformers checkpoint it was converted from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from specedge.errors import SourceError, UnsupportedError
from specedge.export.sources.gguf_header import GgufHeader
from specedge.export.sources.gguf_names import MODEL_TYPES, ROPE_FACTORS

_GEMMA3_LOCAL_THETA = 10_000.0
_GEMMA3_PATTERN = 6  # every sixth layer attends globally
_GEMMA3_27B_LAYERS = 62  # the one size whose queries are not scaled by the head width


class Metadata:
    """Typed access to the keys of one architecture; complaints name the key."""

    def __init__(self, values: Mapping[str, Any], label: str) -> None:
        self.values, self.label = values, label
        self.architecture = str(values.get("general.architecture"))

    def get(self, key: str) -> Any:
        return self.values.get(f"{self.architecture}.{key}")

    def optional(self, key: str) -> float | None:
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SourceError(
                f"{self.label}: {self.architecture}.{key} must be one number, found {value!r}"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.optional(key)
        value = default if value is None else value
        if value is None:
            raise SourceError(f"{self.label}: metadata has no {self.architecture}.{key}")
        # The shortest decimal of a float32 is what the checkpoint's config said: 1e-06, not
        # 9.999999974752427e-07.
        return float(str(np.float32(value))) if isinstance(value, float) else value

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        value = self.number(key, default)
        if not isinstance(value, int) or value < least:
            raise SourceError(
                f"{self.label}: {self.architecture}.{key} must be an integer from {least}, found "
                f"{value!r}"
            )
        return value


def architecture_of(values: Mapping[str, Any], label: str) -> str:
    """`general.architecture`, when it is one we have.

    Raises:
        UnsupportedError: it is not.
    """
    name = values.get("general.architecture")
    if name not in MODEL_TYPES:
        raise UnsupportedError(
            f"{label}: architecture {name!r} is not supported; supported: "
            f"{', '.join(sorted(MODEL_TYPES))}"
        )
    return str(name)


def config_of(header: GgufHeader, factors: Mapping[str, list[float]], label: str) -> dict[str, Any]:
    """The config dictionary.

    Args:
        header: metadata and tensors.
        factors: the frequency factors by tensor name, those that the file has.
        label: the file, for messages.

    Raises:
        SourceError: a key is missing or odd.
        UnsupportedError: the metadata asks for something specedge does not have.
    """
    meta = Metadata(header.metadata, label)
    if meta.number("expert_count", 0) > 0:
        raise UnsupportedError(f"{label}: a mixture of experts is not supported")
    heads, hidden = meta.integer("attention.head_count"), meta.integer("embedding_length")
    head_dim = meta.integer("attention.key_length", hidden // heads)
    if head_dim % 2:
        raise SourceError(f"{label}: heads of {head_dim}; rotary embedding needs an even width")
    if meta.integer("attention.value_length", head_dim) != head_dim:
        raise UnsupportedError(
            f"{label}: keys of {head_dim} and values of {meta.get('attention.value_length')} "
            "per head; specedge needs them equal"
        )
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise SourceError(f"{label}: no tensor 'token_embd.weight'")
    layers = meta.integer("block_count")
    stored = {name.split(".")[1] for name in header.tensors if name.startswith("blk.")}
    if len(stored) != layers:
        raise SourceError(
            f"{label}: {meta.architecture}.block_count is {layers}, but tensors of {len(stored)} "
            "blocks are there; the header is damaged"
        )
    config: dict[str, Any] = {
        "model_type": MODEL_TYPES[meta.architecture],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": meta.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": meta.integer("feed_forward_length"),
        "rms_norm_eps": meta.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": meta.number("rope.freq_base", 10_000.0),
        "max_position_embeddings": meta.integer("context_length"),
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
        "bos_token_id": meta.values.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.values.get("tokenizer.ggml.eos_token_id"),
    }
    if scaling := _scaling(meta, factors):
        config["rope_scaling"] = scaling
    _add_rotary_width(meta, config, head_dim)
    window = meta.integer("attention.sliding_window", 0, least=0)
    if meta.architecture == "gemma3":
        _add_gemma3(meta, config, window)
    elif window:
        config["sliding_window"] = window
        if meta.architecture == "llama":
            config["model_type"] = "mistral"
    if meta.architecture == "phi3":
        original = meta.optional("rope.scaling.original_context_length")
        if original is not None:
            config["original_max_position_embeddings"] = int(original)
    return config


def _add_rotary_width(meta: Metadata, config: dict[str, Any], head_dim: int) -> None:
    width = meta.integer("rope.dimension_count", head_dim)
    if width == head_dim:
        return
    if meta.architecture != "phi3":
        raise UnsupportedError(
            f"{meta.label}: rotary embedding over {width} of {head_dim} dimensions is not "
            f"supported for architecture {meta.architecture!r}"
        )
    config["partial_rotary_factor"] = width / head_dim


def _add_gemma3(meta: Metadata, config: dict[str, Any], window: int) -> None:
    """What transformers' config says and the conversion leaves to the architecture's name."""
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    heads, head_dim = config["num_attention_heads"], config["head_dim"]
    pattern = meta.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        local = [bool(value) for value in pattern]
    else:
        period = meta.integer("attention.sliding_window_pattern", _GEMMA3_PATTERN)
        local = [(layer + 1) % period != 0 for layer in range(layers)]
    if len(local) != layers:
        raise SourceError(
            f"{meta.label}: attention.sliding_window_pattern has {len(local)} entries for "
            f"{layers} layers"
        )
    scalar = hidden / heads if layers == _GEMMA3_27B_LAYERS else head_dim
    config |= {
        "sliding_window": window or None,
        "layer_types": ["sliding_attention" if near else "full_attention" for near in local],
        "rope_local_base_freq": meta.number("rope.freq_base_swa", _GEMMA3_LOCAL_THETA),
        "query_pre_attn_scalar": scalar,
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": meta.optional("attn_logit_softcapping"),
        "final_logit_softcapping": meta.optional("final_logit_softcapping"),
    }
    del config["hidden_act"]
    if not window:
        raise SourceError(f"{meta.label}: metadata has no gemma3.attention.sliding_window")


def _scaling(meta: Metadata, factors: Mapping[str, list[float]]) -> dict[str, Any] | None:
    """`rope_scaling`, or None.

    The conversion of a Llama 3 scaling keeps its divisors only ("factors"), LongRoPE's both lists.
    """
    kind = str(meta.get("rope.scaling.type") or "none")
    attention = meta.optional("rope.scaling.attn_factor")
    long, short = (factors.get(f"rope_factors_{which}.weight") for which in ("long", "short"))
    if long is not None and short is not None:
        scaling: dict[str, Any] = {"rope_type": "longrope", "long_factor": long}
        scaling["short_factor"] = short
        if attention is not None:
            scaling["attention_factor"] = attention
        return scaling
    if ROPE_FACTORS in factors:
        # The reference runtime applies a linear factor besides; no converter writes both.
        if kind not in ("none", "linear") or meta.number("rope.scaling.factor", 1.0) != 1.0:
            raise UnsupportedError(f"{meta.label}: {ROPE_FACTORS} together with scaling {kind!r}")
        return {"rope_type": "factors", "factors": factors[ROPE_FACTORS]}
    if kind == "none":
        return None
    if kind == "linear":
        factor = meta.optional("rope.scaling.factor")
        return None if factor in (None, 1.0) else {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return _yarn(meta)
    raise UnsupportedError(f"{meta.label}: rope scaling {kind!r} is not supported")


def _yarn(meta: Metadata) -> dict[str, Any]:
    for key, neutral in (("attn_factor", 1.0), ("yarn_attn_factor", 1.0), ("yarn_ext_factor", 1.0)):
        if (value := meta.optional(f"rope.scaling.{key}")) not in (None, neutral):
            raise UnsupportedError(
                f"{meta.label}: {meta.architecture}.rope.scaling.{key} = {value}; only "
                f"{neutral} is supported"
            )
    if meta.optional("rope.scaling.yarn_log_multiplier"):
        raise UnsupportedError(f"{meta.label}: yarn with a log multiplier is not supported")
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": meta.number("rope.scaling.factor"),
        "original_max_position_embeddings": meta.integer("rope.scaling.original_context_length"),
    }
    for ours, theirs in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
        if (value := meta.optional(f"rope.scaling.{theirs}")) is not None:
            scaling[ours] = value
    return scaling

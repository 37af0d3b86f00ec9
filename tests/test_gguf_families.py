"""The same model as a folder and as a GGUF must describe the same decoder over the same weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specedge.export import families
from specedge.export.checkpoint import Array, Checkpoint, read
from specedge.export.decoder import DecoderSpec, Rope
from specedge.export.sources import open_source
from tests import gguf_writing
from tests.tiny_models import FAMILIES, make_checkpoint

CONTEXT = 64
ARCHITECTURES = {"mistral": "llama"}
_OWN = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(name: str, family: str) -> str:
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, kind = name.rsplit(".", 1)
    if stem in outer:
        return f"{outer[stem]}.{kind}"
    layer, inner = stem.removeprefix("model.layers.").split(".", 1)
    if inner == "post_attention_layernorm":
        own = "post_attention_norm" if family == "gemma3" else "ffn_norm"
    else:
        own = _OWN[inner]
    return f"blk.{layer}.{own}.{kind}"


def metadata(architecture: str, config: dict[str, Any]) -> dict[str, Any]:
    """What a converter writes for a transformers config."""
    keys = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_theta"],
    }
    if config.get("head_dim"):
        keys["attention.key_length"] = keys["attention.value_length"] = config["head_dim"]
    if config.get("sliding_window") and architecture != "qwen2":
        keys["attention.sliding_window"] = config["sliding_window"]
    if config.get("original_max_position_embeddings"):
        original = config["original_max_position_embeddings"]
        keys["rope.scaling.original_context_length"] = original
    if config.get("rope_local_base_freq"):
        keys["rope.freq_base_swa"] = config["rope_local_base_freq"]
    tokens = gguf_writing.tokens(config["vocab_size"])
    return {f"{architecture}.{key}": value for key, value in keys.items()} | tokens


def opened_both_ways(family: str, tmp_path: Path) -> tuple[Checkpoint, Checkpoint, Any]:
    # A GGUF does not carry the scale of Gemma's queries: it is the head width but for one size.
    overrides = {"query_pre_attn_scalar": 32} if family == "gemma3" else {}
    model = make_checkpoint(family, tmp_path / "folder", **overrides)
    folder = open_source("folder", base=tmp_path)
    architecture = ARCHITECTURES.get(family, family)
    tensors: dict[str, Array] = {
        gguf_name(name, family): read(folder.tensors, name) for name in folder.tensors.names()
    }
    keys = metadata(architecture, model.config.to_dict())
    gguf_writing.write(tmp_path / "m.gguf", architecture, keys=keys, tensors=tensors)
    return folder, open_source("m.gguf", base=tmp_path), model


def with_rope(spec: DecoderSpec, rope: Rope) -> DecoderSpec:
    """Ropes hold arrays and compare by identity: give every layer the same one."""
    layers = tuple(dataclasses.replace(layer, rope=rope) for layer in spec.layers)
    return dataclasses.replace(spec, layers=layers)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_is_the_same_decoder_as_its_folder(family: str, tmp_path: Path) -> None:
    folder, gguf, model = opened_both_ways(family, tmp_path)
    theirs = families.describe(folder.config, CONTEXT)
    ours = families.describe(gguf.config, CONTEXT)
    for a, b in zip(ours.layers, theirs.layers, strict=True):
        np.testing.assert_array_equal(a.rope.inv_freq, b.rope.inv_freq)
        assert a.rope.factor == b.rope.factor
    rope = ours.layers[0].rope
    assert with_rope(ours, rope) == with_rope(theirs, rope)
    families.check_weights(ours, gguf.tensors)
    state = model.state_dict()
    for name in gguf.tensors.names():
        expected = state[name].numpy()
        atol = 3e-7 if family == "gemma3" else 0  # plus one, minus one
        np.testing.assert_allclose(read(gguf.tensors, name), expected, rtol=0, atol=atol)

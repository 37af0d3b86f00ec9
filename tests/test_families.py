"""Families read configs strictly: both spellings, windows, and refusals that name the thing."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest

from specedge.errors import SourceError, UnsupportedError
from specedge.export.decoder import DecoderSpec
from specedge.export.families import SUPPORTED, check_weights, describe, unused, used
from tiny_models import ArrayTensors

BASE: dict[str, Any] = {
    "vocab_size": 304,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "sliding_window": None,
}


def config(family: str, **overrides: Any) -> dict[str, Any]:
    return {**BASE, "model_type": family, **overrides}


def windows(spec: DecoderSpec) -> list[int | None]:
    return [layer.window for layer in spec.layers]


def frequencies(spec: DecoderSpec) -> list[np.ndarray]:
    return [layer.rope.inv_freq for layer in spec.layers]


@pytest.mark.parametrize("family", [*SUPPORTED])
def test_every_family_describes_its_smallest_config_and_leaves_it_alone(family: str) -> None:
    given = config(family)
    if family.startswith("gemma3"):
        given["sliding_window"] = 16
    before = copy.deepcopy(given)
    spec = describe(given, 128)
    assert given == before
    assert spec.model_type == family
    assert [layer.index for layer in spec.layers] == [0, 1, 2, 3]
    assert (spec.vocab_rows, spec.hidden, spec.max_positions) == (304, 64, 512)
    assert spec.layers[0].qkv.out_features == (4 + 2 + 2) * 16
    assert spec.layers[0].gate_up.out_features == 2 * 96


def test_an_unknown_family_is_refused_with_the_list_of_those_supported() -> None:
    with pytest.raises(UnsupportedError) as caught:
        describe(config("mamba2"), 128)
    assert str(caught.value) == (
        "model config: model_type 'mamba2' is not supported; supported: gemma3, gemma3_text, "
        "llama, mistral, phi3, qwen2, qwen3; others go through optimum: --frontend optimum "
        "--precision fp32"
    )


@pytest.mark.parametrize("model_type", [None, 7, ["llama"]])
def test_a_config_without_a_usable_model_type_is_refused(model_type: Any) -> None:
    with pytest.raises(SourceError, match="model_type"):
        describe(config("llama") | {"model_type": model_type}, 128)


@pytest.mark.parametrize(
    ("family", "overrides", "named"),
    [
        ("llama", {"hidden_act": "relu"}, "hidden_act = 'relu'"),
        ("llama", {"hidden_act": ["silu"]}, r"hidden_act = \['silu'\]"),
        ("qwen2", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ("gemma3_text", {"hidden_activation": "gelu"}, "hidden_activation = 'gelu'"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ("qwen2", {"rope_scaling": {"type": "mrope", "mrope_section": [1]}}, "'mrope'"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("llama", {"num_local_experts": 8}, "num_local_experts = 8 .* mixture of experts"),
        ("qwen3", {"num_experts": 128}, "num_experts = 128"),
        ("llama", {"quantization_config": {"quant_method": "awq"}}, "quant_method': 'awq'"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ("mistral", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        (
            "mistral",
            {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2},
            "layer_types = .* different windows",
        ),
        (
            "gemma3_text",
            {"layer_types": ["full_attention"] * 3 + ["linear_attention"]},
            "layer 3 is 'linear_attention'",
        ),
        (
            "qwen3",
            {"use_sliding_window": True, "layer_types": ["chunked_attention"] * 4},
            "layer 0 is 'chunked_attention'",
        ),
    ],
)
def test_what_would_change_the_result_and_is_missing_here_is_refused_by_name(
    family: str, overrides: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedError, match=named) as caught:
        describe(config(family, **overrides), 128)
    assert "\n" not in str(caught.value)


ALWAYS = [
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
]
NO_DEFAULT = [*ALWAYS, "num_attention_heads", "vocab_size", "max_position_embeddings"]
REQUIRED = {
    "llama": NO_DEFAULT,
    "phi3": [*NO_DEFAULT, "rope_theta"],
    "qwen2": [*NO_DEFAULT, "rope_theta", "num_key_value_heads"],
    "qwen3": [*NO_DEFAULT, "rope_theta", "num_key_value_heads", "head_dim"],
    "mistral": [*NO_DEFAULT, "rope_theta", "num_key_value_heads", "sliding_window"],
    "gemma3_text": ALWAYS,
}


@pytest.mark.parametrize(
    ("family", "key"), [(family, key) for family, keys in REQUIRED.items() for key in keys]
)
def test_a_missing_key_is_named(family: str, key: str) -> None:
    broken = config(family)
    del broken[key]
    with pytest.raises(SourceError, match=f"'{key}' must be .*, found nothing") as caught:
        describe(broken, 128)
    assert not isinstance(caught.value, UnsupportedError)


@pytest.mark.parametrize(
    ("family", "overrides", "named"),
    [
        ("llama", {"hidden_size": "64"}, "'hidden_size' must be a positive integer, found '64'"),
        ("llama", {"num_hidden_layers": 0}, "'num_hidden_layers' .* found 0"),
        ("llama", {"num_hidden_layers": 2.5}, "'num_hidden_layers' .* found 2.5"),
        ("llama", {"num_hidden_layers": math.inf}, "'num_hidden_layers' .* found inf"),
        ("llama", {"num_hidden_layers": 10**400}, "'num_hidden_layers' must be a positive integer"),
        ("llama", {"num_hidden_layers": 10**6}, "'num_hidden_layers' must be at most 4096"),
        ("llama", {"hidden_size": 1 << 31}, r"'hidden_size' must be .* below 2\*\*31"),
        ("llama", {"rms_norm_eps": math.inf}, "'rms_norm_eps' must be a positive number"),
        ("llama", {"num_hidden_layers": True}, "'num_hidden_layers' .* found True"),
        ("llama", {"rms_norm_eps": -1e-5}, "'rms_norm_eps' must be a positive number"),
        ("llama", {"rms_norm_eps": math.nan}, "'rms_norm_eps' must be a positive number"),
        ("llama", {"attention_bias": "yes"}, "'attention_bias' must be true or false"),
        ("llama", {"rope_scaling": [1]}, "'rope_scaling' must be a table"),
        ("llama", {"rope_parameters": {"rope_theta": "big"}}, "a positive rope_theta"),
        ("llama", {"num_key_value_heads": 3}, "not a multiple of num_key_value_heads = 3"),
        ("llama", {"head_dim": None, "hidden_size": 66}, "'head_dim' must be"),
        ("gemma3_text", {"layer_types": ["full_attention"]}, "'layer_types' must be a list of 4"),
        ("gemma3_text", {"layer_types": 4}, "'layer_types' must be a list of 4"),
        ("mistral", {"layer_types": 4}, "'layer_types' must be a list of 4"),
        ("phi3", {"partial_rotary_factor": 1.5}, "'partial_rotary_factor' must be a share"),
        ("qwen2", {"use_sliding_window": True}, "'max_window_layers'"),
        (
            "qwen2",
            {"use_sliding_window": True, "max_window_layers": 0},
            "'sliding_window' must be a positive integer, found None",
        ),
    ],
)
def test_a_malformed_value_is_named(family: str, overrides: dict[str, Any], named: str) -> None:
    with pytest.raises(SourceError, match=named) as caught:
        describe(config(family, **overrides), 128)
    assert not isinstance(caught.value, UnsupportedError)


def test_the_first_llama_configs_are_read_with_their_defaults() -> None:
    old = config("llama")
    for key in ("rope_theta", "num_key_value_heads", "head_dim"):
        del old[key]
    spec = describe(old, 128)
    assert (spec.kv_heads, spec.head_dim) == (4, 16)
    np.testing.assert_array_equal(spec.layers[0].rope.inv_freq[1], 10_000.0 ** (-2 / 16))


def test_published_gemma_configs_may_leave_out_their_class_defaults() -> None:
    published = {
        "model_type": "gemma3",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    spec = describe(published, 4096)
    assert (spec.heads, spec.kv_heads, spec.head_dim, spec.vocab_rows) == (8, 4, 256, 262_208)
    assert windows(spec) == [None if (i + 1) % 6 == 0 else 1024 for i in range(34)]
    assert spec.head is None
    assert spec.embedding_scale == math.sqrt(2560)
    assert spec.scale == 1 / 16
    assert spec.layers[5].rope.inv_freq[0] == 1 / 8
    assert spec.layers[5].rope.inv_freq[1] == pytest.approx(1e6 ** (-2 / 256) / 8)
    assert spec.layers[4].rope.inv_freq[1] == pytest.approx(1e4 ** (-2 / 256))


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ],
    ids=lambda scaling: scaling["rope_type"],
)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_both_spellings_of_transformers_mean_the_same(family: str, scaling: dict[str, Any]) -> None:
    old = config(family, rope_theta=500_000.0, rope_scaling=scaling)
    new = config(family, rope_parameters={**scaling, "rope_theta": 500_000.0})
    del new["rope_theta"]
    for ours, theirs in zip(describe(old, 128).layers, describe(new, 128).layers, strict=True):
        np.testing.assert_array_equal(ours.rope.inv_freq, theirs.rope.inv_freq)
        assert ours.rope.factor == theirs.rope.factor
    assert describe(old, 128).max_positions == describe(new, 128).max_positions


def test_both_spellings_mean_the_same_for_gemma_with_a_table_per_kind_of_layer() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    common = {"sliding_window": 16, "sliding_window_pattern": 2}
    old = config(
        "gemma3_text",
        rope_theta=1e6,
        rope_scaling=scaling,
        rope_local_base_freq=5_000.0,
        **common,
    )
    new = config(
        "gemma3_text",
        rope_parameters={
            "full_attention": {**scaling, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5_000.0},
        },
        **common,
    )
    del new["rope_theta"]
    for ours, theirs in zip(
        frequencies(describe(old, 128)), frequencies(describe(new, 128)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert not np.array_equal(*frequencies(describe(old, 128))[:2])


def test_phi_spells_longrope_in_three_ways() -> None:
    factors = {"short_factor": [1.1] * 8, "long_factor": [4.0] * 8}
    tables = [{"type": name, **factors} for name in ("longrope", "su", "yarn")]
    for table in tables:
        spec = describe(
            config("phi3", rope_scaling=table, original_max_position_embeddings=64), 128
        )
        assert spec.layers[0].rope.inv_freq[0] == 1 / 4
        short = describe(
            config("phi3", rope_scaling=table, original_max_position_embeddings=64), 64
        )
        assert short.layers[0].rope.inv_freq[0] == 1 / 1.1


def test_phi_rotates_the_part_of_a_head_that_it_says() -> None:
    for spelled in (
        {"partial_rotary_factor": 0.75},
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75}},
    ):
        assert len(describe(config("phi3", **spelled), 128).layers[0].rope.inv_freq) == 6


def test_divisors_of_a_gguf_file_are_a_scaling_like_others() -> None:
    scaling = {"rope_type": "factors", "factors": [1.0, 1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 8.0]}
    spec = describe(config("llama", rope_scaling=scaling), 128)
    plain = describe(config("llama"), 128)
    np.testing.assert_allclose(
        plain.layers[0].rope.inv_freq / spec.layers[0].rope.inv_freq, scaling["factors"]
    )


@pytest.mark.parametrize(
    ("family", "overrides", "expected"),
    [
        ("qwen2", {"sliding_window": 16, "max_window_layers": 1}, [None] * 4),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3},
            [None, None, None, 16],
        ),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 9},
            [None] * 4,
        ),
        (
            "qwen3",
            {
                "use_sliding_window": True,
                "sliding_window": 16,
                "layer_types": ["full_attention", "sliding_attention"] * 2,
            },
            [None, 16, None, 16],
        ),
        ("mistral", {"sliding_window": 127}, [127] * 4),
        ("mistral", {"sliding_window": 128}, [None] * 4),
        ("phi3", {"sliding_window": 16}, [16] * 4),
        ("gemma3_text", {"sliding_window": 16, "sliding_window_pattern": 2}, [16, None] * 2),
        ("gemma3_text", {"sliding_window": 16, "_sliding_window_pattern": 3}, [16, 16, None, 16]),
        ("llama", {"sliding_window": 16}, [None] * 4),
    ],
)
def test_each_layer_has_the_window_that_its_family_gives_it(
    family: str, overrides: dict[str, Any], expected: list[int | None]
) -> None:
    assert windows(describe(config(family, **overrides), 128)) == expected


def test_a_window_that_the_context_cannot_fill_leaves_the_local_rope_in_place() -> None:
    given = config("gemma3_text", sliding_window=128, sliding_window_pattern=2)
    small = describe({**given, "rope_local_base_freq": 5_000.0}, 128)
    assert windows(small) == [None] * 4
    assert not np.array_equal(*frequencies(small)[:2])


@pytest.mark.parametrize(
    ("overrides", "biased"),
    [
        ({}, set()),
        ({"attention_bias": True}, {"qkv", "o"}),
        ({"mlp_bias": True}, {"gate_up", "down"}),
    ],
)
def test_llama_biases_reach_the_linears(overrides: dict[str, Any], biased: set[str]) -> None:
    layer = describe(config("llama", **overrides), 128).layers[0]
    for name in ("qkv", "o", "gate_up", "down"):
        linear = getattr(layer, name)
        assert bool(linear.bias) == (name in biased)
        assert len(linear.bias) in (0, len(linear.weights))


def tensors_for(spec: DecoderSpec) -> ArrayTensors:
    """Zeros of the right shapes, from a spec of the unfused layout."""
    arrays = {name: np.zeros(spec.hidden, np.float32) for name in used(spec)}
    for name in {spec.embedding, *([spec.head] if spec.head else [])}:
        arrays[name] = np.zeros((spec.vocab_rows, spec.hidden), np.float32)
    sizes = {"q": spec.heads * spec.head_dim, "k": spec.kv_heads * spec.head_dim}
    sizes |= {"v": sizes["k"], "gate": spec.intermediate, "up": spec.intermediate}
    sizes |= {"o": spec.hidden, "down": spec.hidden}
    for layer in spec.layers:
        for linear in (layer.qkv, layer.o, layer.gate_up, layer.down):
            for rows in linear.weights:
                out = sizes[rows.name.split(".")[-2].removesuffix("_proj")]
                arrays[rows.name] = np.zeros((out, linear.in_features), np.float32)
            for bias in linear.bias:
                out = sizes[bias.split(".")[-2].removesuffix("_proj")]
                arrays[bias] = np.zeros(out, np.float32)
    return ArrayTensors(arrays)


def test_a_checkpoint_that_fits_its_config_passes() -> None:
    spec = describe(config("qwen2"), 128)
    check_weights(spec, tensors_for(spec))


def test_a_tensor_without_a_place_is_refused_by_name() -> None:
    spec = describe(config("llama"), 128)
    tensors = tensors_for(spec)
    tensors.arrays["model.layers.1.self_attn.q_norm.weight"] = np.zeros(16, np.float32)
    with pytest.raises(UnsupportedError, match=r"1 tensors .* 'model.layers.1.self_attn.q_norm"):
        check_weights(spec, tensors)


def test_a_missing_tensor_is_refused() -> None:
    spec = describe(config("llama"), 128)
    tensors = tensors_for(spec)
    del tensors.arrays["model.layers.3.mlp.up_proj.weight"]
    with pytest.raises(SourceError, match=r"layers\.3\.mlp\.up_proj"):
        check_weights(spec, tensors)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.embed_tokens.weight", (303, 64)),
        ("model.norm.weight", (63,)),
        ("model.layers.0.input_layernorm.weight", (64, 1)),
        ("model.layers.2.self_attn.k_proj.weight", (48, 64)),
        ("model.layers.2.self_attn.k_proj.bias", (31,)),
        ("model.layers.2.self_attn.k_proj.bias", (32, 1)),
        ("model.layers.1.mlp.down_proj.weight", (64, 95)),
        ("model.layers.1.mlp.down_proj.weight", (64 * 96,)),
        ("lm_head.weight", (304, 32)),
    ],
)
def test_a_tensor_of_another_shape_is_refused_by_name(name: str, shape: tuple[int, ...]) -> None:
    spec = describe(config("qwen2"), 128)
    tensors = tensors_for(spec)
    assert name in tensors.arrays
    tensors.arrays[name] = np.zeros(shape, np.float32)
    with pytest.raises(SourceError, match=name.rsplit(".", 1)[0].replace(".", r"\.")):
        check_weights(spec, tensors)


def test_a_tied_head_and_stored_rotary_tables_may_be_ignored_but_not_an_untied_head() -> None:
    tied = describe(config("llama", tie_word_embeddings=True), 128)
    untied = describe(config("llama", tie_word_embeddings=False), 128)
    extra = ["lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"]
    assert unused(tied, [*used(tied), *extra]) == []
    assert unused(untied, [*used(untied), *extra]) == []
    assert "lm_head.weight" in used(untied)
    assert "lm_head.weight" not in used(tied)
    assert unused(tied, ["lm_head.bias"]) == ["lm_head.bias"]


def test_gemma_has_four_norms_a_block_and_the_second_is_on_the_branch() -> None:
    layer = describe(config("gemma3_text", sliding_window=16), 128).layers[0]
    assert layer.mlp_norm == "model.layers.0.pre_feedforward_layernorm.weight"
    assert layer.post_attention_norm == "model.layers.0.post_attention_layernorm.weight"
    assert layer.post_mlp_norm == "model.layers.0.post_feedforward_layernorm.weight"

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specedge.errors import SourceError, UnsupportedError
from specedge.export.checkpoint import Array
from specedge.export.sources.gguf_file import open_gguf
from tests import gguf_writing as tiny


def config(
    tmp_path: Path,
    architecture: str = "llama",
    tensors: dict[str, Array] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    keys = tiny.metadata(architecture, **changes)
    path = tiny.write(tmp_path / "m.gguf", architecture, keys=keys, tensors=tensors)
    return open_gguf(path).config


def test_sizes_have_the_names_of_the_transformers_config(tmp_path: Path) -> None:
    got = config(tmp_path)
    expected = {
        "model_type": "llama",
        "hidden_size": tiny.HIDDEN,
        "num_hidden_layers": tiny.LAYERS,
        "num_attention_heads": tiny.HEADS,
        "num_key_value_heads": tiny.KV_HEADS,
        "head_dim": tiny.DIM,
        "intermediate_size": tiny.INNER,
        "rms_norm_eps": 1e-6,  # not 9.999999974752427e-07, its float32
        "rope_theta": 10_000.0,
        "max_position_embeddings": 128,
        "vocab_size": tiny.VOCAB,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    assert {key: got.get(key) for key in expected} == expected
    assert "rope_scaling" not in got
    assert "sliding_window" not in got


def test_an_output_tensor_means_embeddings_are_not_tied(tmp_path: Path) -> None:
    tensors = tiny.weights()
    tensors["output.weight"] = tensors["token_embd.weight"]
    assert config(tmp_path, tensors=tensors)["tie_word_embeddings"] is False


def test_a_window_makes_a_llama_file_a_mistral(tmp_path: Path) -> None:
    got = config(tmp_path, llama__attention__sliding_window=32)
    assert (got["model_type"], got["sliding_window"]) == ("mistral", 32)


def test_linear_and_yarn_scalings_are_passed_on(tmp_path: Path) -> None:
    scaling = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}
    assert config(tmp_path, **scaling)["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    scaling = {
        "qwen2__rope__scaling__type": "yarn",
        "qwen2__rope__scaling__factor": 2.0,
        "qwen2__rope__scaling__original_context_length": 64,
        "qwen2__rope__scaling__yarn_beta_fast": 16.0,
    }
    assert config(tmp_path, "qwen2", **scaling)["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 16.0,
    }


def test_an_unknown_scaling_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="rope scaling 'spiral'"):
        config(tmp_path, llama__rope__scaling__type="spiral")


def test_the_divisors_of_a_llama3_scaling_become_factors(tmp_path: Path) -> None:
    tensors = tiny.weights()
    divisors = np.linspace(1, 8, tiny.DIM // 2, dtype=np.float32)
    tensors["rope_freqs.weight"] = divisors
    source = open_gguf(tiny.write(tmp_path / "m.gguf", tensors=tensors))
    assert source.config["rope_scaling"] == {"rope_type": "factors", "factors": divisors.tolist()}
    assert not [name for name in source.tensors.names() if "rope" in name]


def test_longrope_lists_become_the_scaling_of_phi3(tmp_path: Path) -> None:
    tensors = tiny.weights("phi3")
    long, short = (np.full(tiny.DIM // 2, value, dtype=np.float32) for value in (2.0, 1.0))
    tensors |= {"rope_factors_long.weight": long, "rope_factors_short.weight": short}
    got = config(
        tmp_path,
        "phi3",
        tensors,
        phi3__rope__scaling__original_context_length=32,
        phi3__rope__scaling__attn_factor=1.25,
    )
    assert got["original_max_position_embeddings"] == 32
    assert got["rope_scaling"] == {
        "rope_type": "longrope",
        "long_factor": long.tolist(),
        "short_factor": short.tolist(),
        "attention_factor": 1.25,
    }


def test_partial_rotation_is_phi3s_alone(tmp_path: Path) -> None:
    got = config(tmp_path, "phi3", phi3__rope__dimension_count=12)
    assert got["partial_rotary_factor"] == 0.75
    with pytest.raises(UnsupportedError, match="over 12 of 16 dimensions"):
        config(tmp_path, "qwen2", qwen2__rope__dimension_count=12)


def test_gemma3_gets_its_layer_pattern_and_scales(tmp_path: Path) -> None:
    got = config(tmp_path, "gemma3", gemma3__attention__sliding_window=8)
    assert got["model_type"] == "gemma3_text"
    assert got["layer_types"] == ["sliding_attention"] * tiny.LAYERS
    assert got["rope_local_base_freq"] == 10_000.0
    assert got["query_pre_attn_scalar"] == tiny.DIM
    assert got["hidden_activation"] == "gelu_pytorch_tanh"
    with pytest.raises(SourceError, match=r"gemma3\.attention\.sliding_window"):
        config(tmp_path, "gemma3")


@pytest.mark.parametrize(
    "key", ["block_count", "embedding_length", "attention.head_count", "feed_forward_length"]
)
def test_a_missing_key_is_named(key: str, tmp_path: Path) -> None:
    changes = {f"llama__{key.replace('.', '__')}": None}
    with pytest.raises(SourceError, match=f"metadata has no llama.{key}"):
        config(tmp_path, **changes)


def test_a_key_of_the_wrong_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"llama\.block_count must be one number, found 'two'"):
        config(tmp_path, llama__block_count="two")


@pytest.mark.parametrize("count", [tiny.LAYERS - 1, tiny.LAYERS + 1, 2**32 - 1])
def test_another_number_of_blocks_than_there_are_is_refused(count: int, tmp_path: Path) -> None:
    changes = {"gemma3__block_count": count, "gemma3__attention__sliding_window": 8}
    with pytest.raises(SourceError, match=f"block_count is {count}, but tensors of 2 blocks"):
        config(tmp_path, "gemma3", **changes)


def test_a_mixture_of_experts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="mixture of experts"):
        config(tmp_path, llama__expert_count=8)


def test_a_file_without_embedding_is_refused(tmp_path: Path) -> None:
    tensors = tiny.weights()
    del tensors["token_embd.weight"]
    with pytest.raises(SourceError, match=r"no tensor 'token_embd\.weight'"):
        config(tmp_path, tensors=tensors)


def test_more_tokens_than_embedding_rows_is_refused(tmp_path: Path) -> None:
    tensors = tiny.weights()
    tensors["token_embd.weight"] = tensors["token_embd.weight"][:20]
    with pytest.raises(SourceError, match="ids up to 28, the embedding 20 rows"):
        config(tmp_path, tensors=tensors)

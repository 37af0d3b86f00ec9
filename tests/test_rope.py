"""Rotary frequencies against transformers' own, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specedge.errors import SourceError, UnsupportedError
from specedge.export.rope import RopeRequest, make_rope, reachable_positions

WIDTH = 32
_RNG = np.random.default_rng(5)
SHORT = list(1 + _RNG.random(WIDTH // 2))
LONG = list(1 + 20 * _RNG.random(WIDTH // 2))


def request(scaling: dict[str, Any], **changes: Any) -> RopeRequest:
    defaults: dict[str, Any] = {
        "theta": 10_000.0,
        "rotary_dim": WIDTH,
        "max_positions": 4096,
        "context": 4096,
    }
    return RopeRequest(scaling, **{**defaults, **changes})


def transformers_rope(
    scaling: dict[str, Any], *, seq_len: int | None = None, **extra: Any
) -> tuple[np.ndarray, float]:
    """inv_freq (float32) and attention factor by transformers."""
    from transformers import PretrainedConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = PretrainedConfig()
    settings = {
        "rope_theta": 10_000.0,
        "hidden_size": 4 * WIDTH,
        "num_attention_heads": 4,
        "head_dim": WIDTH,
        "max_position_embeddings": 4096,
        "rope_scaling": scaling,
    }
    for key, value in {**settings, **extra}.items():
        setattr(config, key, value)
    frequencies, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu", seq_len)
    return frequencies.numpy(), factor


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 8.0},
        LLAMA3,
        {**LLAMA3, "factor": 32.0, "high_freq_factor": 2.5},
        YARN,
        {**YARN, "truncate": False},
        {**YARN, "beta_fast": 16, "beta_slow": 2},
        {**YARN, "attention_factor": 1.25},
        {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
        {"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 1024},
    ],
    ids=lambda scaling: ",".join(f"{key}={value}" for key, value in scaling.items()),
)
@pytest.mark.parametrize("theta", [10_000.0, 1_000_000.0])
def test_frequencies_equal_those_of_transformers(scaling: dict[str, Any], theta: float) -> None:
    want, factor = transformers_rope(scaling, rope_theta=theta)
    got = make_rope(request(scaling, theta=theta))
    np.testing.assert_allclose(got.inv_freq, want, rtol=2e-6)  # theirs are float32
    assert got.factor == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("context", [256, 1024, 1025, 4096])
def test_longrope_uses_the_long_factors_only_past_the_trained_positions(context: int) -> None:
    scaling = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG}
    want, factor = transformers_rope(
        scaling, seq_len=context, original_max_position_embeddings=1024
    )
    got = make_rope(request(scaling, context=context, original_positions=1024))
    np.testing.assert_allclose(got.inv_freq, want, rtol=2e-6)
    assert got.factor == pytest.approx(factor, rel=1e-12)
    assert got.factor > 1


def test_longrope_takes_the_attention_factor_of_the_config() -> None:
    scaling = {
        "rope_type": "longrope",
        "short_factor": SHORT,
        "long_factor": LONG,
        "attention_factor": 1.19,
        "original_max_position_embeddings": 1024,
    }
    assert make_rope(request(scaling)).factor == 1.19


def test_longrope_reads_the_trained_positions_inside_the_table_too() -> None:
    scaling = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG}
    outside = make_rope(request(scaling, original_positions=1024))
    inside = make_rope(request({**scaling, "original_max_position_embeddings": 1024}))
    np.testing.assert_array_equal(outside.inv_freq, inside.inv_freq)
    assert outside.factor == inside.factor


def test_divisors_by_frequency_reproduce_the_scaling_they_were_computed_from() -> None:
    llama3 = make_rope(request(LLAMA3))
    plain = make_rope(request({}))
    divisors = list(plain.inv_freq / llama3.inv_freq)
    got = make_rope(request({"rope_type": "factors", "factors": divisors}))
    np.testing.assert_allclose(got.inv_freq, llama3.inv_freq, rtol=1e-14)
    assert not np.allclose(got.inv_freq, plain.inv_freq)


def test_the_older_key_type_names_the_scaling_as_well() -> None:
    old = make_rope(request({"type": "linear", "factor": 2.0}))
    new = make_rope(request({"rope_type": "linear", "factor": 2.0}))
    np.testing.assert_array_equal(old.inv_freq, new.inv_freq)


def test_tables_are_cos_and_sin_of_position_times_frequency() -> None:
    rope = make_rope(request({**YARN}))
    cos, sin = rope.tables(300)
    assert cos.dtype == sin.dtype == np.float32
    assert cos.shape == sin.shape == (300, WIDTH // 2)
    for position in (0, 1, 299):
        for index in (0, 7, WIDTH // 2 - 1):
            angle = position * rope.inv_freq[index]
            assert cos[position, index] == np.float32(np.cos(angle) * rope.factor)
            assert sin[position, index] == np.float32(np.sin(angle) * rope.factor)


def test_yarn_reaches_past_the_positions_the_config_still_names() -> None:
    assert reachable_positions(request(YARN, max_positions=1024)) == 4096
    assert reachable_positions(request(YARN, max_positions=8192)) == 8192
    assert reachable_positions(request({}, max_positions=1024)) == 1024


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "'dynamic' changes its frequencies"),
        ({"rope_type": "ntk-by-hand"}, "'ntk-by-hand' is not supported; supported: default"),
        ({"type": "mrope", "mrope_section": [16, 24, 24]}, "'mrope'"),
        ({"rope_type": "default", "mrope_section": [16, 24, 24]}, r"'mrope_section' = \[16"),
        ({"rope_type": "longrope", "short_mscale": 1.2}, "'short_mscale' = 1.2"),
    ],
)
def test_a_scaling_we_do_not_have_is_refused_by_name(scaling: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        make_rope(request(scaling))


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"rope_type": "linear"}, "'linear' needs 'factor'"),
        ({"rope_type": "linear", "factor": -1.0}, "'factor' must be a positive number, found -1"),
        ({"rope_type": "linear", "factor": "8"}, "'factor' must be a positive number, found '8'"),
        ({"rope_type": "llama3", "factor": 8.0}, "needs 'low_freq_factor'"),
        ({**LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor above low_freq_factor"),
        ({"rope_type": "longrope", "short_factor": SHORT}, "needs 'long_factor'"),
        (
            {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG[1:]},
            "'long_factor' must hold 16 positive numbers",
        ),
        ({"rope_type": "factors", "factors": ["a"] * 16}, "'factors' must be a list of numbers"),
        ({"rope_type": "factors", "factors": [0.0] * 16}, "must hold 16 positive numbers"),
    ],
)
def test_a_malformed_scaling_is_refused_by_its_key(scaling: dict[str, Any], named: str) -> None:
    with pytest.raises(SourceError, match=named) as caught:
        make_rope(request(scaling, original_positions=64))
    assert "\n" not in str(caught.value)


def test_an_odd_rotated_width_is_refused() -> None:
    with pytest.raises(SourceError, match="of 15 dimensions"):
        make_rope(request({}, rotary_dim=15))

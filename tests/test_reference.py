"""The plain forward against transformers, for every family and rotary scaling.

Tolerance: largest difference of logits within 2e-5 of the largest logit. Both sides are float32;
they differ in summation order and in the precision of rotary tables, which grows with position.
"""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specedge.export.reference as reference_module
from parity_cases import CASES, ids_for, relative_error, transformers_logits
from specedge.export.decoder import DecoderSpec, Linear
from specedge.export.families import check_weights, describe, unused, used
from specedge.export.reference import CheckpointWeights, Reference, attend
from tiny_models import ArrayTensors, make_checkpoint, read_config

TOLERANCE = 2e-5


def opened(folder: Path, context: int) -> tuple[DecoderSpec, ArrayTensors]:
    return describe(read_config(folder), context), ArrayTensors.from_folder(folder)


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(case: str, tmp_path: Path) -> None:
    family, overrides, tokens, context = CASES[case]
    model = make_checkpoint(family, tmp_path, **overrides)
    spec, tensors = opened(tmp_path, context)
    ids = ids_for(tokens)
    want = transformers_logits(model, ids)
    got = Reference.from_checkpoint(spec, tensors).forward(ids)
    assert got.dtype == np.float32
    assert want.std() > 0.3, "degenerate logits would pass anything"
    assert relative_error(got, want) <= TOLERANCE


@pytest.mark.parametrize("case", CASES)
def test_the_decoder_uses_every_tensor_of_the_checkpoint(case: str, tmp_path: Path) -> None:
    family, overrides, _, context = CASES[case]
    make_checkpoint(family, tmp_path, **overrides)
    spec, tensors = opened(tmp_path, context)
    assert used(spec) == set(tensors.names())
    assert unused(spec, tensors.names()) == []
    check_weights(spec, tensors)


def _without(spec: DecoderSpec, change: str) -> DecoderSpec:
    """The same decoder with one of its features taken out."""
    first = spec.layers[0]
    plain = replace(first.rope, inv_freq=first.rope.inv_freq * 0.9)
    changes: dict[str, Any] = {
        "window": lambda layer: replace(layer, window=None),
        "window off by one": lambda layer: replace(layer, window=(layer.window or 99) + 1),
        "rope": lambda layer: replace(layer, rope=replace(plain, factor=layer.rope.factor)),
        "q_norm": lambda layer: replace(layer, q_norm=None),
        "post norm": lambda layer: replace(layer, post_mlp_norm=None),
    }
    if change in changes:
        return replace(spec, layers=tuple(map(changes[change], spec.layers)))
    fields: dict[str, Any] = {
        "embedding scale": {"embedding_scale": 1.0},
        "norm offset": {"norm_offset": 0.0},
        "attention scale": {"attention_scale": None},
        "activation": {"activation": "silu"},
    }
    return replace(spec, **fields[change])


@pytest.mark.parametrize(
    "change",
    [
        "window",
        "window off by one",
        "rope",
        "q_norm",
        "post norm",
        "embedding scale",
        "norm offset",
        "attention scale",
        "activation",
    ],
)
def test_the_comparison_notices_when_one_feature_is_missing(change: str, tmp_path: Path) -> None:
    model = make_checkpoint("gemma3", tmp_path)
    spec, tensors = opened(tmp_path, 512)
    ids = ids_for(40)
    got = Reference.from_checkpoint(_without(spec, change), tensors).forward(ids)
    assert relative_error(got, transformers_logits(model, ids)) > 50 * TOLERANCE


def slow_attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, scale: float, window: int | None
) -> np.ndarray:
    """One query and one head at a time, in float64."""
    rows, heads, _ = query.shape
    share = heads // key.shape[1]
    mixed = np.zeros(query.shape)
    for row in range(rows):
        oldest = 0 if window is None else max(0, row - window + 1)
        for head in range(heads):
            seen = key[oldest : row + 1, head // share].astype(np.float64)
            weights = np.exp(seen @ query[row, head] * scale)
            mixed[row, head] = weights / weights.sum() @ value[oldest : row + 1, head // share]
    return mixed


@pytest.mark.parametrize("window", [None, 1, 2, 5, 50])
@pytest.mark.parametrize("rows", [1, 4, 5, 21])
def test_chunked_attention_equals_one_query_at_a_time(
    window: int | None, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_module, "QUERIES_AT_ONCE", 4)
    rng = np.random.default_rng(rows)
    query = rng.standard_normal((rows, 6, 8), dtype=np.float32)
    key, value = rng.standard_normal((2, rows, 2, 8), dtype=np.float32)
    got = attend(query, key, value, 0.3, window)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, slow_attention(query, key, value, 0.3, window), atol=2e-6)


def test_attention_memory_stays_bounded_over_two_thousand_tokens() -> None:
    rng = np.random.default_rng(0)
    query = rng.standard_normal((2048, 4, 8), dtype=np.float32)
    key, value = rng.standard_normal((2, 2048, 1, 8), dtype=np.float32)
    tracemalloc.start()
    attend(query, key, value, 0.3, None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20  # all scores at once would be 64 MiB, several times over


@pytest.mark.parametrize("family", ["llama", "qwen3"])  # tied and untied head
def test_head_rows_can_be_asked_for_in_ranges(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(family, tmp_path)
    spec, tensors = opened(tmp_path, 512)
    model = Reference.from_checkpoint(spec, tensors)
    whole = model.forward(ids_for(5))
    monkeypatch.setattr(reference_module, "HEAD_BYTES_AT_ONCE", 4 * spec.hidden * 7)
    hidden = model.embed(ids_for(5))
    for layer in spec.layers:
        hidden = model.block(layer, hidden)
    hidden = model.final(hidden)
    np.testing.assert_allclose(model.logits(hidden, 10, 33), whole[:, 10:33], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(model.forward(ids_for(5), 290), whole[:, :290], rtol=1e-5, atol=1e-5)


def test_a_block_reports_the_input_of_each_of_its_linears(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path)
    spec, tensors = opened(tmp_path, 512)
    model = Reference.from_checkpoint(spec, tensors)
    seen: list[tuple[str, tuple[int, ...]]] = []

    def tap(linear: Linear, inputs: np.ndarray) -> None:
        seen.append((linear.name, inputs.shape))

    model.block(spec.layers[1], model.embed(ids_for(3)), tap)
    assert seen == [
        ("layers.1.attn.qkv", (3, 64)),
        ("layers.1.attn.o", (3, 64)),
        ("layers.1.mlp.gate_up", (3, 64)),
        ("layers.1.mlp.down", (3, 96)),
    ]


def test_weights_can_be_replaced_one_linear_at_a_time(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path)
    spec, tensors = opened(tmp_path, 512)
    weights = CheckpointWeights(spec, tensors)
    silenced = [layer.o.name for layer in spec.layers] + [layer.down.name for layer in spec.layers]

    def linear(which: Linear) -> tuple[np.ndarray, np.ndarray | None]:
        weight, bias = weights.linear(which)
        return (np.zeros_like(weight) if which.name in silenced else weight), bias

    model = Reference(spec, linear, weights.vector, weights.embedding)
    ids = ids_for(4)
    only_embedding = model.logits(model.final(model.embed(ids)))
    np.testing.assert_array_equal(model.forward(ids), only_embedding)


def test_no_tokens_give_no_rows(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path)
    spec, tensors = opened(tmp_path, 512)
    assert Reference.from_checkpoint(spec, tensors).embed(ids_for(0)).shape == (0, 64)

"""Weight error against float32: a direct KL on a tiny model, zero where nothing is lost."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from specedge.errors import ExportError
from specedge.export import calibration, quality
from specedge.export.checkpoint import Array, read
from specedge.export.decoder import DecoderSpec, Linear
from specedge.export.families import describe
from specedge.export.importance import EMBEDDING, HEAD, input_importance, mean_square
from specedge.export.quality import Divergence, measure
from specedge.export.quantize import Scheme, dequantize, quantize_rows
from specedge.export.reference import CheckpointWeights, Reference
from tiny_models import ArrayTensors

VOCAB, KEPT = 120, 113
BUDGET = 1 << 30


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def _model(rng: np.random.Generator, *, tied: bool = True) -> tuple[DecoderSpec, ArrayTensors]:
    config = {
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, 64),
        "model.norm.weight": (64,),
    }
    if not tied:
        shapes["lm_head.weight"] = (VOCAB, 64)
    for layer in range(3):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.self_attn.q_proj.weight": (64, 64),
            f"{at}.self_attn.k_proj.weight": (32, 64),
            f"{at}.self_attn.v_proj.weight": (32, 64),
            f"{at}.self_attn.o_proj.weight": (64, 64),
            f"{at}.mlp.gate_proj.weight": (96, 64),
            f"{at}.mlp.up_proj.weight": (96, 64),
            f"{at}.mlp.down_proj.weight": (64, 96),
            f"{at}.input_layernorm.weight": (64,),
            f"{at}.post_attention_layernorm.weight": (64,),
        }
    arrays = {
        name: rng.standard_normal(shape, dtype=np.float32) * np.float32(0.15)
        if len(shape) == 2
        else rng.lognormal(0, 1, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    arrays["model.norm.weight"] *= np.float32(0.5)  # mild logits: KL stays far from chaos
    return describe(config, 256), ArrayTensors(arrays)


class _Rounded:
    """`quality.Weights` of a scheme; None keeps the checkpoint's weights."""

    def __init__(
        self,
        spec: DecoderSpec,
        tensors: ArrayTensors,
        scheme: Scheme | None,
        importance: dict[str, Array] | None = None,
    ) -> None:
        self.plain = CheckpointWeights(spec, tensors)
        self.scheme = scheme
        self.importance = importance or {}
        self.table = self._round(read(tensors, spec.embedding), EMBEDDING)

    def _round(self, weight: Array, name: str) -> Array:
        if self.scheme is None:
            return weight
        return dequantize(quantize_rows(weight, self.scheme, importance=self.importance.get(name)))

    def linear(self, linear: Linear) -> tuple[Array, Array | None]:
        weight, bias = self.plain.linear(linear)
        return self._round(weight, linear.name), bias

    def embedding(self, ids: np.ndarray) -> Array:
        return self.table[ids]


def _direct_kl(
    spec: DecoderSpec, tensors: ArrayTensors, stored: _Rounded, ids: np.ndarray
) -> tuple[float, float]:
    """All logits at once, softmax in float64, the definition of KL; and the share of equal tops."""
    plain = stored.plain
    a = Reference.from_checkpoint(spec, tensors).forward(ids)[:, :KEPT].astype(np.float64)
    b = Reference(spec, stored.linear, plain.vector, stored.embedding).forward(ids)
    b = b[:, :KEPT].astype(np.float64)
    p, q = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (a, b))
    kl = float((p * np.log(p / q)).sum(axis=1).mean())
    return kl, float((a.argmax(axis=1) == b.argmax(axis=1)).mean())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("slice_bytes", [4, 40 * 4 * 25, 1 << 20])
def test_kl_equals_a_direct_computation(tied, slice_bytes, rng, monkeypatch):
    monkeypatch.setattr(quality, "_SLICE_BYTES", slice_bytes)  # 1 token, 25, all of them at once
    spec, tensors = _model(rng, tied=tied)
    ids = rng.integers(0, KEPT, 40)
    stored = _Rounded(spec, tensors, Scheme(4, 32, True))
    record = measure(
        spec, tensors, stored, ids, vocab=KEPT, rounding="r", budget_bytes=BUDGET, method="kl"
    )
    kl, same = _direct_kl(spec, tensors, stored, ids)
    assert kl > 1e-3
    assert record.value == pytest.approx(kl, rel=1e-4)
    assert record.detail["same_top1"] == pytest.approx(same)
    assert (record.method, record.positions, record.rounding) == ("kl", 40, "r")


@pytest.mark.parametrize("method", ["kl", "layerwise"])
def test_lossless_weights_have_no_error(method, rng):
    spec, tensors = _model(rng)
    record = measure(
        spec,
        tensors,
        _Rounded(spec, tensors, None),
        rng.integers(0, KEPT, 30),
        vocab=KEPT,
        rounding="none",
        budget_bytes=BUDGET,
        method=method,
    )
    assert record.value == 0


@pytest.mark.parametrize("method", ["kl", "layerwise"])
def test_coarser_quantisation_has_a_larger_error(method, rng):
    spec, tensors = _model(rng)
    ids = rng.integers(0, KEPT, 60)
    values = [
        measure(
            spec,
            tensors,
            _Rounded(spec, tensors, scheme),
            ids,
            vocab=KEPT,
            rounding=str(scheme),
            budget_bytes=BUDGET,
            method=method,
        ).value
        for scheme in (Scheme(8, 32, False), Scheme(4, 32, False), Scheme(4, 128, True, "plain"))
    ]
    assert 0 < values[0] < 0.2 * values[1]
    assert values[1] < values[2]


def test_layerwise_takes_each_block_on_the_exact_input(rng):
    spec, tensors = _model(rng)
    ids = rng.integers(0, KEPT, 20)
    stored = _Rounded(spec, tensors, Scheme(4, 32, False))
    record = measure(
        spec, tensors, stored, ids, vocab=KEPT, rounding="", budget_bytes=1, method=None
    )
    assert record.method == "layerwise"  # one byte of budget: KL does not fit
    exact = Reference.from_checkpoint(spec, tensors)
    coarse = Reference(spec, stored.linear, stored.plain.vector, stored.embedding)
    hidden = exact.embed(ids)
    for layer in spec.layers:
        want = exact.block(layer, hidden)
        error = np.linalg.norm(coarse.block(layer, hidden) - want) / np.linalg.norm(want - hidden)
        assert record.detail[f"layers.{layer.index}"] == pytest.approx(float(error), rel=1e-5)
        hidden = want
    assert record.value == pytest.approx(np.mean(list(record.detail.values())))


def test_a_smaller_budget_takes_fewer_positions_before_it_gives_up_kl(rng, monkeypatch):
    spec, tensors = _model(rng)
    ids = rng.integers(0, KEPT, 1000)
    monkeypatch.setattr(quality, "_SLICE_BYTES", 1024)
    limit = quality.needed_bytes(spec, 600)
    stored = _Rounded(spec, tensors, None)
    record = measure(spec, tensors, stored, ids, vocab=KEPT, rounding="", budget_bytes=limit)
    assert record.method == "kl"
    assert record.positions == 500


def test_measuring_stays_within_the_memory_it_says_it_needs(rng, monkeypatch):
    monkeypatch.setattr(quality, "_SLICE_BYTES", 16 << 10)
    spec, tensors = _model(rng)
    ids = rng.integers(0, KEPT, 200)
    stored = _Rounded(spec, tensors, None)
    tracemalloc.start()
    try:
        measure(
            spec, tensors, stored, ids, vocab=KEPT, rounding="", budget_bytes=BUDGET, method="kl"
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0.2 * quality.needed_bytes(spec, 200) < peak <= quality.needed_bytes(spec, 200)


def test_large_models_get_fewer_positions(rng):
    spec, _ = _model(rng)
    big = replace(spec, vocab_rows=150_000, hidden=8192)
    assert quality.affordable_positions(spec) == quality.MOST_POSITIONS
    assert quality.FEWEST_POSITIONS < quality.affordable_positions(big) < quality.MOST_POSITIONS


def test_broken_stored_weights_are_an_export_error(rng):
    spec, tensors = _model(rng)
    stored = _Rounded(spec, tensors, None)
    stored.table = np.full_like(stored.table, np.nan)
    with pytest.raises(ExportError, match="the weights file is damaged"):
        measure(
            spec,
            tensors,
            stored,
            rng.integers(0, KEPT, 8),
            vocab=KEPT,
            rounding="",
            budget_bytes=BUDGET,
        )


def test_divergence_survives_logits_far_apart(rng):
    """A later slice that dwarfs the earlier ones, and magnitudes whose exp overflows alone."""
    a = rng.standard_normal((5, 60)).astype(np.float32)
    a[:, 40:] += 300
    b = a + rng.standard_normal((5, 60)).astype(np.float32) * np.float32(0.1)
    ids = rng.integers(0, 60, 5)
    sums = Divergence(ids)
    for start in range(0, 60, 20):
        sums.add(start, a[:, start : start + 20], b[:, start : start + 20])

    def log_softmax(x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float64) - x.max(axis=1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=1, keepdims=True))

    p, q = log_softmax(a), log_softmax(b)
    np.testing.assert_allclose(sums.kl(), (np.exp(p) * (p - q)).sum(axis=1), atol=1e-4)
    assert sums.loss(0) == pytest.approx(-p[np.arange(4), ids[1:]].mean(), rel=1e-5)
    assert sums.loss(1) == pytest.approx(-q[np.arange(4), ids[1:]].mean(), rel=1e-5)


def test_importance_is_the_mean_square_of_each_linears_input(rng):
    spec, tensors = _model(rng, tied=False)
    ids = rng.integers(0, KEPT, 30)
    got = input_importance(spec, tensors, ids)
    assert set(got) == {HEAD} | {
        f"layers.{i}.{part}" for i in range(3) for part in ("attn.qkv", "attn.o")
    } | {f"layers.{i}.{part}" for i in range(3) for part in ("mlp.gate_up", "mlp.down")}
    model = Reference.from_checkpoint(spec, tensors)
    hidden = model.embed(ids)
    normed = hidden / np.sqrt((hidden**2).mean(axis=1, keepdims=True) + 1e-5)
    normed *= tensors.arrays["model.layers.0.input_layernorm.weight"]
    normed /= np.linalg.norm(normed, axis=1, keepdims=True)
    want = (normed**2).mean(axis=0)
    np.testing.assert_allclose(got["layers.0.attn.qkv"], want / want.mean(), rtol=0.02, atol=2e-3)


def test_one_giant_position_does_not_drown_the_others(rng):
    inputs = rng.standard_normal((50, 8), dtype=np.float32)
    giant = inputs.copy()
    giant[0] *= 1e4
    np.testing.assert_allclose(mean_square(giant), mean_square(inputs), rtol=1e-4)
    silent = np.zeros((3, 8), np.float32)
    np.testing.assert_array_equal(mean_square(silent), np.ones(8, np.float32))


def test_calibrated_rounding_lowers_the_kl_of_text_it_has_not_seen(rng):
    spec, tensors = _model(rng, tied=False)
    seen, unseen = rng.integers(0, KEPT, 100), rng.integers(0, KEPT, 100)
    importance = input_importance(spec, tensors, seen)

    def kl(rounding: str, weights: dict[str, Array] | None) -> float:
        scheme = Scheme(4, 64, False, rounding)  # type: ignore[arg-type]
        stored = _Rounded(spec, tensors, scheme, weights)
        return measure(
            spec, tensors, stored, unseen, vocab=KEPT, rounding=rounding, budget_bytes=BUDGET
        ).value

    assert kl("calibrated", importance) < 0.9 * kl("mse", None)


def test_the_text_that_is_measured_is_not_the_text_that_is_learnt_from():
    def pieces(text: str) -> set[str]:
        words = text.split()
        return {" ".join(words[i : i + 8]) for i in range(len(words) - 7)}

    assert not pieces(calibration.TEXT) & pieces(calibration.PRACTICE)

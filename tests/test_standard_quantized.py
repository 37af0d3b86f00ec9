"""int4 and int8 weights of lowering "standard": the file, what reads it, the graph over it.

The oracle opens the model file with onnx, multiplies codes by scales as the standard defines
DequantizeLinear, and runs the plain numpy decoder over the result. Errors are the largest
difference of logits over the largest logit.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from parity_cases import ids_for, relative_error
from raw_graph import RawGraph
from specedge.contract import LOGITS, GraphSpec, rope_rows
from specedge.errors import ExportError
from specedge.export import families
from specedge.export.builder import build
from specedge.export.columns import LEAD
from specedge.export.decoder import Linear, Rows
from specedge.export.elements import narrowed
from specedge.export.lowerings import LOWERINGS
from specedge.export.placement import place, predict_bytes
from specedge.export.quantize import Scheme, dequantize, quantize_rows
from specedge.export.reference import CheckpointWeights, Reference
from specedge.export.stored import StoredWeights
from specedge.export.weights import WeightWriter
from specedge.progress import Silent
from tiny_exports import TinyExports, config_for, quick_rounding, read_spec
from tiny_models import ArrayTensors, read_config

CONTEXT = 128
EXACT = {"session.qdq_matmulnbits_accuracy_level": "0"}  # no int8 arithmetic in MatMulNBits
# hidden 80 and 96 inner columns: no block size divides both; 272 ids, or the tokenizer's 295
ODD: dict[str, Any] = {"hidden_size": 80}
EVEN: dict[str, Any] = {"vocab_size": 272, "tie_word_embeddings": False}


class FileWeights:
    """`quality.Weights`, read from the initializers of a model file."""

    def __init__(self, model: Path) -> None:
        loaded = onnx.load(str(model))
        self._arrays = {t.name: numpy_helper.to_array(t) for t in loaded.graph.initializer}
        self._block = {
            node.input[0]: next(a.i for a in node.attribute if a.name == "block_size")
            for node in loaded.graph.node
            if node.op_type == "DequantizeLinear"
        }
        self.bits = 4 if self._arrays["layers.0.attn.qkv"].dtype == ml_dtypes.int4 else 8
        self._head = "head" if "head" in self._arrays else "embed"

    @property
    def smallest_scale(self) -> float:
        scales = (array for name, array in self._arrays.items() if name.endswith(".scales"))
        return min(float(np.abs(array.astype(np.float32)).min()) for array in scales)

    def matrix(self, name: str, features: int) -> np.ndarray:
        """float32 [out, in]."""
        own = name if name in self._arrays else f"{name}.table"
        scales = self._arrays[f"{own}.scales"].astype(np.float32)
        block = self._block.get(name) or self._block[self._head]
        codes = self._codes(name, scales.shape).astype(np.float32)
        assert not codes[features:].any(), "what pads a row is 0"
        return (codes * np.repeat(scales, block, axis=0))[:features].T

    def _codes(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Signed [K', N]; the table of an untied embedding is there as words alone."""
        if name in self._arrays:
            return self._arrays[name]
        body = self._arrays[f"{name}.table"][LEAD // 4 :].view(np.uint8)
        if self.bits == 8:
            return body.view(np.int8).reshape(-1, shape[1])
        signed = [
            int(nibble) - 16 * (nibble > 7) for byte in body for nibble in (byte & 15, byte >> 4)
        ]
        return np.array(signed).reshape(-1, shape[1])

    def linear(self, linear: Linear) -> tuple[np.ndarray, np.ndarray | None]:
        rows = linear.weights[0]
        if linear.name == "head":
            return self.matrix("head", linear.in_features)[rows.start : rows.stop], None
        bias = self._arrays.get(f"{linear.name}.bias")
        return self.matrix(linear.name, linear.in_features), bias

    def embedding(self, ids: np.ndarray, hidden: int) -> np.ndarray:
        return self.matrix("embed", hidden)[ids]


def exported(tiny_exports: TinyExports, overrides: dict[str, Any], **given: Any) -> Any:
    """Bundle, its GraphSpec, the decoder, and the plain numpy decoder over the file's weights."""
    checkpoint = tiny_exports.checkpoint("llama", **overrides)
    bundle = tiny_exports.bundle(
        checkpoint, lowering="standard", context=CONTEXT, rounding="mse", **given
    )
    spec = read_spec(bundle)
    decoder = families.describe(read_config(checkpoint), CONTEXT)
    stored = FileWeights(bundle / spec.model)
    vector = CheckpointWeights(decoder, ArrayTensors.from_folder(checkpoint)).vector
    oracle = Reference(
        decoder, stored.linear, vector, lambda ids: stored.embedding(ids, decoder.hidden)
    )
    return bundle, spec, oracle


def error(bundle: Path, spec: GraphSpec, oracle: Reference) -> float:
    ids = ids_for(24) % spec.vocab
    got = RawGraph(bundle, spec, entries=EXACT).forward(ids[None], [0])
    return relative_error(got[LOGITS], oracle.forward(ids, spec.vocab))


@pytest.mark.parametrize("overrides", [ODD, EVEN], ids=["odd, tied", "even, untied"])
@pytest.mark.parametrize("block_size", [32, 64, 128])
@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_a_quantised_graph_computes_what_its_file_says(
    tiny_exports: TinyExports, precision: str, block_size: int, overrides: dict[str, Any]
) -> None:
    given = {"precision": precision, "block_size": block_size, "activations": "fp32"}
    assert error(*exported(tiny_exports, overrides, **given)) <= 1e-4


@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_float16_around_quantised_weights_adds_what_float16_costs(
    tiny_exports: TinyExports, precision: str
) -> None:
    bundle, spec, oracle = exported(tiny_exports, ODD, precision=precision)
    assert spec.kv_dtype == "float16"
    assert 1e-5 < error(bundle, spec, oracle) <= 30 * 2.0**-11  # as in test_standard_parity


@pytest.mark.parametrize(
    ("bits", "block_size", "rows"), list(itertools.product((4, 8), (32, 128), (22, 23)))
)
def test_what_is_read_back_is_what_was_quantised(
    tiny_exports: TinyExports, tmp_path: Path, bits: int, block_size: int, rows: int
) -> None:
    """A file of one tied table and no layers, in parts whose rows share bytes."""
    rng = np.random.default_rng(rows)
    weight = rng.standard_normal((rows, 80)).astype(np.float32)
    scheme = Scheme(bits, block_size, True, "plain")
    want = dequantize(quantize_rows(weight, scheme))
    config = read_config(tiny_exports.checkpoint("llama"))
    decoder = families.describe({**config, "vocab_size": rows, "hidden_size": 80}, CONTEXT)
    decoder = replace(decoder, layers=())
    norm = np.ones(80, np.float32)
    tensors = ArrayTensors({decoder.embedding: weight, decoder.final_norm: norm})
    layout = LOWERINGS["standard"].layout("float32")
    with WeightWriter(tmp_path / "w") as writer:
        placed = place(
            decoder, tensors, writer, scheme, layout, vocab=rows, context=8, progress=Silent()
        )
    stored = StoredWeights(tmp_path / "w", placed, scheme)
    ids = rng.integers(0, rows, 9)
    np.testing.assert_array_equal(stored.embedding(ids), want[ids])
    for start, stop in ((0, rows), (3, 8), (4, rows)):
        head = Linear("head", (Rows("w", start, stop),), 80, stop - start)
        np.testing.assert_array_equal(stored.linear(head)[0], want[start:stop])


@pytest.mark.parametrize("activations", ["fp32", "fp16"])
def test_onnx_runtime_fuses_every_quantised_matrix_the_tied_head_too(
    tiny_exports: TinyExports, tmp_path: Path, activations: str
) -> None:
    """A matrix that is not fused is dequantised at every call: 50 times the work of a head."""
    given = {"precision": "int4", "activations": activations}
    bundle, spec, oracle = exported(tiny_exports, ODD, **given)
    optimised = tmp_path / "optimised.onnx"
    RawGraph(bundle, spec, optimised=optimised)
    model = onnx.load(str(optimised), load_external_data=False)
    operators = [node.op_type for node in model.graph.node]
    assert operators.count("MatMulNBits") == 4 * len(oracle.spec.layers) + 1
    assert "DequantizeLinear" not in operators


def test_int8_scales_of_the_standard_lowering_are_positive(tiny_exports: TinyExports) -> None:
    """TensorRT refuses others."""
    bundle, spec, _ = exported(tiny_exports, ODD, precision="int8")
    model = onnx.load(str(bundle / spec.model))
    scales = [t for t in model.graph.initializer if t.name.endswith(".scales")]
    assert len(scales) == 10
    assert all((numpy_helper.to_array(tensor) > 0).all() for tensor in scales)


@pytest.mark.parametrize("rounding", ["plain", "mse", "calibrated"])
@pytest.mark.parametrize("bits", [4, 8])
def test_positive_scales_cost_no_more_than_a_code(bits: int, rounding: Any) -> None:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((16, 64)).astype(np.float32)
    scheme = Scheme(bits, 32, True, rounding, positive_scales=True)
    quantized = quantize_rows(rows, scheme, importance=np.ones(64, np.float32))
    assert (quantized.scales > 0).all()
    step = np.repeat(quantized.scales, 32, axis=1)
    slack = 0.51 if rounding == "plain" else 1.6  # least squares may clip an outlier
    assert (np.abs(dequantize(quantized) - rows) <= slack * step).all()


# --- sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lowering", "precision"),
    [
        *itertools.product(("ort", "standard"), ("fp32", "fp16", "int4", "int8")),
        ("standard", "bf16"),
    ],
)
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma3"])
def test_the_size_foretold_is_the_size_written(
    tiny_exports: TinyExports,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    lowering: Any,
    precision: str,
) -> None:
    for name in ("PAGE", "ALIGN"):
        monkeypatch.setattr(f"specedge.export.weights.{name}", 1)
    checkpoint = tiny_exports.checkpoint(family)
    decoder = families.describe(read_config(checkpoint), CONTEXT)
    config = config_for(checkpoint, precision=precision, lowering=lowering)
    layout = LOWERINGS[config.export.lowering].layout(config.activations(config.target))
    scheme = None
    if precision.startswith("int"):
        scheme = Scheme(int(precision[3:]), 64, config.export.is_symmetric, "plain")
    sizes = {"vocab": 295, "context": rope_rows(CONTEXT)}
    with WeightWriter(tmp_path / "w") as writer:
        tensors = ArrayTensors.from_folder(checkpoint)
        place(decoder, tensors, writer, scheme, layout, progress=Silent(), **sizes)
    assert writer.bytes_written == predict_bytes(decoder, scheme, layout, **sizes)


# --- values that a dtype cannot hold ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "precision", "activations"),
    [
        ("model.layers.0.mlp.up_proj.weight", "fp16", "auto"),
        ("model.layers.1.self_attn.q_proj.bias", "fp16", "auto"),
        ("model.layers.1.self_attn.q_proj.bias", "int4", "fp16"),
    ],
)
@pytest.mark.parametrize("lowering", ["ort", "standard"])
def test_a_weight_beyond_float16_is_refused_by_name(
    tiny_exports: TinyExports,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    precision: str,
    activations: str,
    lowering: str,
) -> None:
    checkpoint = tiny_exports.checkpoint("llama", attention_bias=True, head_dim=32)
    _enlarge(monkeypatch, name, 7e4)
    config = config_for(
        checkpoint,
        precision=precision,
        lowering=lowering,
        activations=activations,
        context=CONTEXT,
        rounding="mse",
    )
    with pytest.raises(ExportError, match=f"^{name} is 70000, .*float16.*bf16") as raised:
        build(config, tmp_path / "out")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("lowering", ["ort", "standard"])
def test_a_scale_beyond_float16_is_refused_by_its_layer(
    tiny_exports: TinyExports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lowering: str
) -> None:
    checkpoint = tiny_exports.checkpoint("llama", head_dim=32)
    _enlarge(monkeypatch, "model.layers.1.mlp.down_proj.weight", 1e6)
    config = config_for(
        checkpoint,
        precision="int4",
        lowering=lowering,
        activations="fp16",
        context=CONTEXT,
        rounding="mse",
    )
    with pytest.raises(ExportError, match=r"^a scale of layers\.1\.mlp\.down is .*float16"):
        build(config, tmp_path / "out")


def test_what_is_too_small_becomes_zero_and_nothing_else_is_lost() -> None:
    values = np.array([1e-9, -1e-9, 65504, -2.0], np.float32)
    assert narrowed(values, "float16", "x").tolist() == [0, 0, 65504, -2]
    assert narrowed(values, "float32", "x") is values
    assert str(narrowed(values, "bfloat16", "x").dtype) == "bfloat16"


@pytest.mark.parametrize("precision", ["int4", "int8"])
@pytest.mark.parametrize(
    ("name", "stored", "features"),
    [
        ("model.embed_tokens", "embed", 64),
        ("model.layers.1.mlp.down_proj", "layers.1.mlp.down", 96),
    ],
)
def test_blocks_too_small_for_a_scale_are_zeros_with_a_scale(
    tiny_exports: TinyExports,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    stored: str,
    features: int,
    precision: str,
) -> None:
    """As embeddings of tokens that nobody trained; TensorRT takes no scale of 0."""
    checkpoint = tiny_exports.checkpoint("llama", head_dim=32)
    _change(
        monkeypatch, f"{name}.weight", lambda row, values: values * 1e-12 if row % 2 else values
    )
    config = config_for(checkpoint, precision=precision, lowering="standard", context=CONTEXT)
    with quick_rounding():
        made = build(config, tmp_path / "out")
    weights = FileWeights(made / "target/model.onnx")
    assert weights.smallest_scale > 0
    matrix = weights.matrix(stored, features)
    assert not matrix[1::2].any()
    assert matrix[::2].any(axis=1).all()


def _enlarge(monkeypatch: pytest.MonkeyPatch, name: str, value: float) -> None:
    """Let every checkpoint give one value of a tensor as `value`."""

    def changed(row: int, values: np.ndarray) -> np.ndarray:
        return np.where((row == 0) & (np.arange(values.size) == 0), np.float32(value), values)

    _change(monkeypatch, name, changed)


def _change(monkeypatch: pytest.MonkeyPatch, name: str, by_row: Any) -> None:
    """Let every checkpoint give the rows of a tensor as `by_row(index, row)`; a vector is one."""
    from specedge.export.sources.safetensors_map import SafetensorsMap

    read = SafetensorsMap.rows

    def rows(self: Any, asked: str, start: int, stop: int) -> np.ndarray:
        values = read(self, asked, start, stop)
        if asked != name:
            return values
        if values.ndim == 1:
            return by_row(start, values)
        changed = [by_row(start + index, row) for index, row in enumerate(values)]
        return np.stack(changed).astype(np.float32)

    monkeypatch.setattr(SafetensorsMap, "rows", rows)

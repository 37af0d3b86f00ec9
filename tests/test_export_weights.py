"""What is in a bundle's weights file, and what the engine computes with it.

The oracle reads codes, scales and zero points out of the graph, multiplies them out one by one,
and runs the plain numpy forward over the result. What is left is the runtime's own arithmetic:
activations rounded to int8, block by block.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from specedge.contract import Ids
from specedge.engines.base import prefill
from specedge.engines.ort import open_engine
from specedge.export.checkpoint import Array
from specedge.export.decoder import Linear
from specedge.export.families import describe
from specedge.export.reference import CheckpointWeights, Reference
from tiny_exports import TinyExports, read_spec
from tiny_models import ArrayTensors, read_config

CONTEXT = 64
# Norm of the difference of all logits, over theirs. Measured over these cases: fp32 1e-6; int4 and
# int8 0.021 to 0.038, all of it int8 activations; one small matrix with its blocks' scales or zero
# points in the wrong order gives 0.5.
TOLERANCE = {32: 1e-5, 4: 0.08, 8: 0.08}
WIDE = {"hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 2}
SCHEMES = [
    (precision, block, symmetric)
    for precision, blocks in (("int4", (32, 64, 128)), ("int8", (32, 64, 128)))
    for block in blocks
    for symmetric in (False, True)
]


def codes_of(packed: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """[..., bytes] to [..., codes], the low half of a byte first."""
    if bits == 8:
        return packed
    codes = np.empty((*packed.shape[:-1], 2 * packed.shape[-1]), np.uint8)
    codes[..., 0::2], codes[..., 1::2] = packed & 15, packed >> 4
    return codes


class GraphWeights:
    """Matrices out of the tensors that the graph's nodes refer to."""

    def __init__(self, bundle: Path) -> None:
        self.spec = read_spec(bundle)
        graph = onnx.load(bundle / self.spec.model).graph
        self.arrays = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}

    def linear(self, linear: Linear) -> tuple[Array, Array | None]:
        matrix = self.matrix(linear.name, linear.in_features)
        if linear.name == "head":
            (rows,) = linear.weights
            return matrix[rows.start : rows.stop], None
        return matrix, self.arrays.get(f"{linear.name}.bias")

    def embedding(self, ids: Ids) -> Array:
        return self.matrix("embed", self.spec.hidden)[ids]

    def matrix(self, name: str, features: int) -> Array:
        """float32 [out, in]."""
        if self.spec.precision == "fp32":
            return self.arrays[f"{name}.weight"]
        bits = int(self.spec.precision.removeprefix("int"))
        scales = self.arrays[f"{name}.scales"]
        rows, blocks = scales.shape
        # of an embedding that is no head as well, the graph has the table's shape only
        packed = self.arrays.get(name, self.arrays.get(f"{name}.table"))
        codes = codes_of(packed.reshape(rows, blocks, -1), bits).astype(np.float32)
        zeros = np.full((rows, blocks), 1 << (bits - 1), np.float32)
        if f"{name}.zero_points" in self.arrays:
            zeros[:] = codes_of(self.arrays[f"{name}.zero_points"], bits)[:, :blocks]
        values = (codes - zeros[:, :, None]) * scales[:, :, None]
        return values.reshape(rows, -1)[:, :features]


def bundle_of(
    exports: TinyExports, family: str, precision: str, block: int, symmetric: bool, **over: Any
) -> tuple[Path, Path]:
    checkpoint = exports.checkpoint(family, **over)
    given = {"precision": precision, "block_size": block, "symmetric": symmetric}
    return checkpoint, exports.bundle(checkpoint, context=CONTEXT, **given)


def error_of(checkpoint: Path, bundle: Path) -> float:
    """How far the engine is from plain arithmetic over the weights of the graph."""
    stored = GraphWeights(bundle)
    spec = describe(read_config(checkpoint), CONTEXT)
    plain = CheckpointWeights(spec, ArrayTensors.from_folder(checkpoint))
    oracle = Reference(spec, stored.linear, plain.vector, stored.embedding)
    engine = open_engine(bundle, read_spec(bundle))
    ids = np.random.default_rng(3).integers(5, engine.spec.vocab, 40)
    wanted = oracle.forward(ids, stop=engine.spec.vocab)
    slot = engine.new_slot()
    prefill(engine, slot, ids[:20], 0)
    got = engine.forward(slot, ids[20:], 20, 20).logits
    error = float(np.linalg.norm(got - wanted[20:]) / np.linalg.norm(wanted[20:]))
    engine.close()
    return error


@pytest.mark.parametrize(("precision", "block", "symmetric"), SCHEMES)
@pytest.mark.parametrize("family", ["qwen2", "qwen3"])  # tied with biases; untied
def test_the_engine_computes_with_the_weights_that_were_stored(
    tiny_exports: TinyExports, family: str, precision: str, block: int, symmetric: bool
) -> None:
    error = error_of(*bundle_of(tiny_exports, family, precision, block, symmetric))
    assert error <= TOLERANCE[int(precision.removeprefix("int"))]


def test_full_precision_is_exact_to_rounding(tiny_exports: TinyExports) -> None:
    error = error_of(*bundle_of(tiny_exports, "qwen2", "fp32", 64, False))
    assert error <= TOLERANCE[32]


@pytest.mark.parametrize("part", ["scales", "zero_points"])
def test_the_tolerance_is_tighter_than_a_misplaced_scale_or_zero_point(
    tiny_exports: TinyExports, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """One of the smaller matrices, its blocks the other way round."""
    made = bundle_of(tiny_exports, "qwen2", "int4", 32, False)
    opened = GraphWeights.__init__

    def swapped(self: GraphWeights, bundle: Path) -> None:
        opened(self, bundle)
        name = next(name for name in self.arrays if name.endswith(f"attn.o.{part}"))
        array = self.arrays[name]
        self.arrays[name] = array[:, ::-1] if part == "scales" else array << 4 | array >> 4

    monkeypatch.setattr(GraphWeights, "__init__", swapped)
    assert error_of(*made) > 3 * TOLERANCE[4]


@pytest.mark.parametrize("family", ["llama", "qwen3"])  # tied, untied
@pytest.mark.parametrize(("precision", "block", "symmetric"), [*SCHEMES[::2], SCHEMES[1]])
def test_the_weights_file_is_little_more_than_its_quantised_tensors(
    tiny_exports: TinyExports, family: str, precision: str, block: int, symmetric: bool
) -> None:
    checkpoint, bundle = bundle_of(tiny_exports, family, precision, block, symmetric, **WIDE)
    bits = int(precision[3:])
    vocab = read_spec(bundle).vocab
    total = 0.0
    for name, array in ArrayTensors.from_folder(checkpoint).arrays.items():
        if array.ndim == 2:
            rows = min(array.shape[0], vocab) if "embed" in name or "head" in name else len(array)
            a_block = block * bits / 8 + 4 + (0 if symmetric else bits / 8)
            total += rows * -(-array.shape[1] // block) * a_block
    size = (bundle / "target" / "weights.bin").stat().st_size
    assert total <= size <= 1.1 * total

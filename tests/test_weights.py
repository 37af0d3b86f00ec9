"""The weights file: what is written is what numpy and ONNX Runtime read back."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from specedge.errors import ExportError, ShapeError
from specedge.export.quantize import Scheme, dequantize, quantize_rows
from specedge.export.weights import ALIGN_LARGE_FROM, PAGE, Placed, WeightWriter, external


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def _read(path: Path, placed: Placed) -> np.ndarray:
    data = path.read_bytes()[placed.offset : placed.offset + placed.length]
    return np.frombuffer(data, placed.dtype).reshape(placed.shape)


def test_every_tensor_reads_back_as_it_was_written_in_pieces(tmp_path, rng):
    path = tmp_path / "weights.bin"
    big = rng.standard_normal((300, 130), dtype=np.float32)
    small = rng.integers(0, 255, (3, 5), dtype=np.uint8)
    table = rng.integers(-9, 9, (7,), dtype=np.int64)
    with WeightWriter(path) as writer:
        a = writer.add("small", np.uint8, (3, 5), [small])
        b = writer.add("big", np.float32, (300, 130), (big[i : i + 77] for i in range(0, 300, 77)))
        c = writer.add("table", np.int64, (7,), [table[:2], table[2:]])
    for placed, array in ((a, small), (b, big), (c, table)):
        np.testing.assert_array_equal(_read(path, placed), array)
    assert writer.bytes_written == path.stat().st_size
    assert writer.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_chunk_that_is_a_strided_view_is_written_in_c_order(tmp_path, rng):
    array = rng.standard_normal((6, 4), dtype=np.float32)
    with WeightWriter(tmp_path / "w") as writer:
        placed = writer.add("t", np.float32, (4, 6), [array.T])
    np.testing.assert_array_equal(_read(tmp_path / "w", placed), array.T)


def test_large_tensors_start_on_a_page_and_small_ones_on_64_bytes(tmp_path):
    with WeightWriter(tmp_path / "w") as writer:
        offsets = [
            writer.add(f"t{i}", np.uint8, (n,), [np.zeros(n, np.uint8)]).offset
            for i, n in enumerate([1, 65, ALIGN_LARGE_FROM - 1, ALIGN_LARGE_FROM])
        ]
    assert offsets[:3] == [0, 64, 192]
    assert offsets[3] % PAGE == 0


def test_an_alias_has_the_same_bytes_under_another_shape(tmp_path, rng):
    array = rng.integers(0, 255, (5, 2, 16), dtype=np.uint8)
    with WeightWriter(tmp_path / "w") as writer:
        head = writer.add("head", np.uint8, array.shape, [array])
        size = writer.bytes_written
    table = head.seen_as("table", np.uint8, (5, 32))
    assert size == (tmp_path / "w").stat().st_size
    np.testing.assert_array_equal(_read(tmp_path / "w", table), array.reshape(5, 32))
    with pytest.raises(ShapeError, match="head has 160 bytes"):
        head.seen_as("table", np.float32, (5, 32))


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([np.zeros(3, np.float32)], "4 bytes short"),
        ([np.zeros(5, np.float32)], "more than the 16 bytes"),
        ([np.zeros(4, np.float64)], "expected float32"),
    ],
)
def test_chunks_that_do_not_make_up_the_tensor_are_refused(tmp_path, chunks, message):
    with WeightWriter(tmp_path / "w") as writer, pytest.raises(ShapeError, match=message):
        writer.add("t", np.float32, (2, 2), chunks)


def test_a_name_is_used_once(tmp_path):
    with WeightWriter(tmp_path / "w") as writer:
        writer.add("t", np.uint8, (1,), [np.zeros(1, np.uint8)])
        with pytest.raises(ShapeError, match="already has a tensor t"):
            writer.add("t", np.uint8, (1,), [np.zeros(1, np.uint8)])


def test_a_full_disk_is_one_export_error_that_says_what_to_do(tmp_path, monkeypatch):
    class Full:
        def __init__(self, file):
            self.file, self.room = file, 5000

        def write(self, data):
            if len(data) > self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.room -= len(data)
            return self.file.write(data)

        def close(self):
            self.file.close()

    with WeightWriter(tmp_path / "w") as writer:
        monkeypatch.setattr(writer, "_file", Full(writer._file))
        writer.add("a", np.uint8, (4000,), [np.zeros(4000, np.uint8)])
        with pytest.raises(ExportError, match="No space left on device; choose") as caught:
            writer.add("b", np.uint8, (4000,), [np.zeros(4000, np.uint8)])
    assert "\n" not in str(caught.value)


def test_writes_that_take_a_part_only_are_continued(tmp_path, monkeypatch, rng):
    class Slow:
        def __init__(self, file):
            self.file = file

        def write(self, data):
            return self.file.write(data[:7])

        def close(self):
            self.file.close()

    array = rng.integers(0, 255, 100, dtype=np.uint8)
    with WeightWriter(tmp_path / "w") as writer:
        monkeypatch.setattr(writer, "_file", Slow(writer._file))
        placed = writer.add("a", np.uint8, (100,), [array])
    np.testing.assert_array_equal(_read(tmp_path / "w", placed), array)


@pytest.mark.parametrize("where", ["missing/w", "taken"])
def test_a_file_that_cannot_be_created_is_an_export_error(tmp_path, where):
    (tmp_path / "taken").touch()
    with pytest.raises(ExportError, match="cannot write weights"), WeightWriter(tmp_path / where):
        pass


def test_an_error_inside_the_block_is_not_replaced(tmp_path):
    with pytest.raises(KeyError), WeightWriter(tmp_path / "w"):
        raise KeyError("mine")


@pytest.mark.parametrize("symmetric", [True, False])
def test_onnxruntime_multiplies_with_a_quantised_weight_read_from_the_file(
    tmp_path, rng, symmetric
):
    weight = rng.standard_normal((24, 80), dtype=np.float32)
    scheme = Scheme(4, 32, symmetric)
    parts = [quantize_rows(weight[i : i + 10], scheme) for i in range(0, 24, 10)]
    with WeightWriter(tmp_path / "weights.bin") as writer:
        placed = writer.add_quantized("w", 24, 80, scheme, parts)
    assert writer.bytes_written <= 1.1 * scheme.weight_bytes(24, 80)

    whole = quantize_rows(weight, scheme)
    np.testing.assert_array_equal(_read(tmp_path / "weights.bin", placed.packed), whole.packed)

    def value(at: Placed | None) -> ir.Value | None:
        if at is None:
            return None
        tensor = external(at, "weights.bin")
        return ir.val(at.name, tensor.dtype, tensor.shape, const_value=tensor)

    x, out = ir.val("x", ir.DataType.FLOAT, ["S", 80]), ir.val("y", ir.DataType.FLOAT, ["S", 24])
    node = ir.node(
        "MatMulNBits",
        [x, value(placed.packed), value(placed.scales), value(placed.zero_points)],
        {"K": 80, "N": 24, "bits": 4, "block_size": 32},
        domain="com.microsoft",
        outputs=[out],
    )
    graph = ir.Graph(
        [x],
        [out],
        nodes=[node],
        initializers=[v for v in node.inputs if v is not None and v.const_value is not None],
        opset_imports={"": 21, "com.microsoft": 1},
        name="g",
    )
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").stat().st_size < 2000  # refers to the weights, has none

    session = ort.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    inputs = rng.standard_normal((3, 80), dtype=np.float32)
    np.testing.assert_allclose(
        session.run(None, {"x": inputs})[0], inputs @ dequantize(whole).T, atol=1e-4
    )

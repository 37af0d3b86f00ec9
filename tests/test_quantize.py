"""Blockwise quantisation: the operators' own arithmetic, the oracle, and what rounding promises."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from specedge.errors import ExportError, ShapeError
from specedge.export.quantize import (
    Quantized,
    Scheme,
    dequantize,
    pack,
    quantize_blocks,
    quantize_rows,
    unpack,
)

ALL = [
    Scheme(bits, block, symmetric)
    for bits, block, symmetric in itertools.product((4, 8), (32, 64, 128), (True, False))
]
INT4 = [scheme for scheme in ALL if scheme.bits == 4]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def _run(op: str, inputs: dict[str, np.ndarray | None], feed: str, **attributes: int) -> np.ndarray:
    """One contrib operator; every input but `feed` is a constant of the graph."""
    node = helper.make_node(
        op,
        [name if value is not None else "" for name, value in inputs.items()],
        ["out"],
        domain="com.microsoft",
        **attributes,
    )
    fed = inputs[feed]
    assert fed is not None
    constants = [
        numpy_helper.from_array(value, name)
        for name, value in inputs.items()
        if value is not None and name != feed
    ]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(feed, helper.np_dtype_to_tensor_dtype(fed.dtype), None)],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        constants,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {feed: fed})[0])


def _oracle(quantized: Quantized) -> np.ndarray:
    """One weight at a time, by the definition in the operators' documentation."""
    scheme, bits = quantized.scheme, quantized.scheme.bits
    n, blocks = quantized.scales.shape
    out = np.zeros((n, quantized.features), np.float32)
    for row, column in np.ndindex(out.shape):
        block, at = divmod(column, scheme.block_size)
        byte = int(quantized.packed[row, block, at * bits // 8])
        code = byte if bits == 8 else (byte >> (4 * (at % 2))) & 15
        zero = 1 << (bits - 1)
        if quantized.zero_points is not None:
            byte = int(quantized.zero_points[row, block * bits // 8])
            zero = byte if bits == 8 else (byte >> (4 * (block % 2))) & 15
        out[row, column] = quantized.scales[row, block] * np.float32(code - zero)
    assert blocks == scheme.blocks(quantized.features)
    return out


def _errors(rows: np.ndarray, scheme: Scheme, importance: np.ndarray | None = None) -> np.ndarray:
    """Squared error of each block [N, blocks], in float64."""
    got = dequantize(quantize_rows(rows, scheme, importance=importance))
    squares = (got.astype(np.float64) - rows) ** 2
    if importance is not None:
        squares *= importance
    short = scheme.blocks(rows.shape[1]) * scheme.block_size - rows.shape[1]
    squares = np.pad(squares, ((0, 0), (0, short)))
    return squares.reshape(len(rows), -1, scheme.block_size).sum(axis=2)


@pytest.mark.parametrize("features", [256, 576, 80])  # 576 is not a multiple of 128
@pytest.mark.parametrize("scheme", ALL, ids=str)
def test_matmulnbits_multiplies_by_what_dequantize_returns(scheme, features, rng):
    weight = rng.standard_normal((9, features), dtype=np.float32)
    q = quantize_rows(weight, scheme)
    x = rng.standard_normal((3, features), dtype=np.float32)
    got = _run(
        "MatMulNBits",
        {"x": x, "b": q.packed, "scales": q.scales, "zero_points": q.zero_points},
        "x",
        K=features,
        N=9,
        bits=scheme.bits,
        block_size=scheme.block_size,
    )
    np.testing.assert_allclose(got, x @ dequantize(q).T, atol=2e-4)


@pytest.mark.parametrize("features", [256, 576, 80])
@pytest.mark.parametrize("scheme", ALL, ids=str)
def test_the_same_bytes_serve_as_a_lookup_table(scheme, features, rng):
    q = quantize_rows(rng.standard_normal((9, features), dtype=np.float32), scheme)
    ids = np.array([[8, 0, 3]], np.int64)
    got = _run(
        "GatherBlockQuantized",
        {
            "table": q.packed.reshape(9, -1),
            "ids": ids,
            "scales": q.scales,
            "zero_points": q.zero_points,
        },
        "ids",
        bits=scheme.bits,
        block_size=scheme.block_size,
        gather_axis=0,
        quantize_axis=1,
    )
    width = scheme.blocks(features) * scheme.block_size
    assert got.shape == (1, 3, width)  # wider than a row when its last block is padded
    np.testing.assert_array_equal(got[..., :features], dequantize(q)[ids])
    assert not got[..., features:].any()


@pytest.mark.parametrize("scheme", ALL, ids=str)
def test_dequantize_agrees_with_the_definition(scheme, rng):
    q = quantize_rows(rng.standard_normal((3, 200), dtype=np.float32), scheme)
    np.testing.assert_array_equal(dequantize(q), _oracle(q))


@pytest.mark.parametrize("count", [1, 2, 7, 8])
def test_unpack_undoes_pack(count, rng):
    codes = rng.integers(0, 16, (3, count), dtype=np.uint8)
    np.testing.assert_array_equal(unpack(pack(codes, 4), 4, count), codes)
    assert pack(codes, 4).shape == (3, (count + 1) // 2)


@pytest.mark.parametrize("scheme", ALL, ids=str)
def test_plain_rounding_is_within_half_a_step_of_every_weight(scheme, rng):
    rows = rng.standard_normal((8, 256), dtype=np.float32)
    plain = Scheme(scheme.bits, scheme.block_size, scheme.symmetric, "plain")
    q = quantize_rows(rows, plain)
    steps = np.repeat(np.abs(q.scales), scheme.block_size, axis=1)
    # the short side of a symmetric range (7 of -8..7) may clip by up to one step; an integer zero
    # point shifts an asymmetric range by up to half of one
    assert (np.abs(dequantize(q) - rows) <= steps * 1.001).all()
    assert (np.abs(dequantize(q) - rows) <= steps * 0.501).mean() > 0.9


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("scheme", INT4, ids=str)
def test_no_block_is_worse_by_searched_rounding_than_by_plain(scheme, heavy, rng):
    rows = rng.standard_t(3, (16, 320)) if heavy else rng.standard_normal((16, 320))
    rows = rows.astype(np.float32)
    plain = Scheme(4, scheme.block_size, scheme.symmetric, "plain")
    got, bound = _errors(rows, scheme), _errors(rows, plain)
    assert (got <= bound * (1 + 1e-5)).all()
    assert got.sum() < 0.97 * bound.sum()


@pytest.mark.parametrize("scheme", INT4, ids=str)
def test_calibrated_rounding_lowers_the_weighted_error_of_every_block(scheme, rng):
    rows = rng.standard_normal((16, 320), dtype=np.float32)
    importance = rng.lognormal(0, 2, 320).astype(np.float32)
    shape = (scheme.block_size, scheme.symmetric)
    got = _errors(rows, Scheme(4, *shape, "calibrated"), importance)
    plain = _errors(rows, Scheme(4, *shape, "plain"), importance)
    assert (got <= plain * (1 + 1e-5)).all()
    assert got.sum() < 0.9 * _errors(rows, Scheme(4, *shape, "mse"), importance).sum()


def test_equal_importance_is_no_importance(rng):
    rows = rng.standard_normal((4, 96), dtype=np.float32)
    a = quantize_rows(rows, Scheme(4, 32, False, "mse"))
    b = quantize_rows(rows, Scheme(4, 32, False, "calibrated"), importance=np.ones(96, np.float32))
    np.testing.assert_array_equal(a.packed, b.packed)
    np.testing.assert_array_equal(a.scales, b.scales)


def test_the_search_comes_near_the_best_of_a_far_finer_grid(rng):
    """One block at a time, 400 scales by 16 zero points, nothing shared with the search."""
    rows = rng.standard_normal((6, 32), dtype=np.float32)
    got = _errors(rows, Scheme(4, 32, False)).ravel()
    bests = []
    for row in rows.astype(np.float64):
        best = np.inf
        for scale in np.linspace(0.3, 1.3, 400) * np.ptp(row) / 15:
            for zero in range(16):
                codes = np.clip(np.rint(row / scale), -zero, 15 - zero)
                best = min(best, float(((codes * scale - row) ** 2).sum()))
        bests.append(best)
    assert (got <= 1.15 * np.array(bests)).all()
    assert got.sum() <= 1.05 * sum(bests)


@pytest.mark.parametrize("rounding", ["plain", "mse"])
def test_weights_on_a_grid_through_zero_are_kept(rounding, rng):
    """Values scale * (code - zero) with both ends in use: what an earlier int4 left behind."""
    codes = rng.integers(0, 16, (20, 4, 32))
    codes[..., 0], codes[..., 1] = 0, 15
    zeros = rng.integers(0, 16, (20, 4, 1))
    scales = rng.uniform(1e-3, 1e-1, (20, 4, 1))
    rows = (scales * (codes - zeros)).reshape(20, 128).astype(np.float32)
    q = quantize_rows(rows, Scheme(4, 32, False, rounding))
    np.testing.assert_allclose(dequantize(q), rows, rtol=1e-5, atol=1e-7)


def test_symmetric_blocks_of_either_sign_are_kept(rng):
    codes = rng.integers(-8, 8, (20, 4, 32))
    codes[..., 0] = -8
    sign = rng.choice([-1.0, 1.0], (20, 4, 1))
    rows = (0.03 * sign * codes).reshape(20, 128).astype(np.float32)
    q = quantize_rows(rows, Scheme(4, 32, True))
    np.testing.assert_allclose(dequantize(q), rows, rtol=1e-5, atol=1e-7)
    assert (q.scales < 0).any()
    assert (q.scales > 0).any()


@pytest.mark.parametrize("rounding", ["plain", "mse", "calibrated"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("value", [0.0, 0.7, -0.7, 1e30, -1e-30, 1e-42])
def test_constant_blocks_are_kept(value, symmetric, rounding):
    rows = np.full((2, 70), value, np.float32)
    q = quantize_rows(rows, Scheme(4, 32, symmetric, rounding))
    assert np.isfinite(q.scales).all()
    assert (q.scales != 0).all()
    expected = 0 if abs(value) < 1e-36 else value  # magnitudes under 2^-120 become zero
    np.testing.assert_allclose(dequantize(q), expected, rtol=1e-6)


@pytest.mark.parametrize("scheme", INT4, ids=str)
def test_the_error_does_not_depend_on_the_magnitude(scheme, rng):
    rows = rng.standard_normal((4, 256), dtype=np.float32)
    relative = _errors(rows, scheme).sum()
    for power in (-100, 100):
        scaled = np.ldexp(rows, power)
        got = np.ldexp(dequantize(quantize_rows(scaled, scheme)).astype(np.float64), -power)
        assert ((got - rows) ** 2).sum() == pytest.approx(relative, rel=1e-4)


@pytest.mark.parametrize("rows", [1, 3, 700])
def test_result_depends_neither_on_chunks_nor_on_threads(rows, rng):
    weight = rng.standard_normal((rows, 160), dtype=np.float32)
    scheme = Scheme(4, 64, False)
    whole = quantize_rows(weight, scheme, threads=3)
    alone = quantize_rows(weight, scheme, threads=1)
    parts = list(quantize_blocks(np.array_split(weight, min(rows, 4)), scheme))
    for name in ("packed", "scales", "zero_points"):
        expected = getattr(whole, name)
        np.testing.assert_array_equal(getattr(alone, name), expected)
        np.testing.assert_array_equal(np.concatenate([getattr(p, name) for p in parts]), expected)


@pytest.mark.parametrize("symmetric", [True, False])
def test_temporaries_do_not_grow_with_the_rows(symmetric, rng):
    rows = rng.standard_normal((6000, 256), dtype=np.float32)
    scheme = Scheme(4, 32, symmetric, "calibrated")
    importance = np.ones(256, np.float32)
    tracemalloc.start()
    try:
        quantize_rows(rows, scheme, importance=importance, threads=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    unpacked_zero_points = 6000 * 8
    assert peak < scheme.weight_bytes(6000, 256) + unpacked_zero_points + (3 << 20)


def test_the_given_rows_are_left_alone(rng):
    for shape in ((1, 32), (5, 32), (1, 64)):
        rows = rng.standard_normal(shape, dtype=np.float32)
        before = rows.copy()
        quantize_rows(rows, Scheme(4, 32, False))
        np.testing.assert_array_equal(rows, before)


@pytest.mark.parametrize("scheme", ALL, ids=str)
def test_weight_bytes_are_those_of_the_arrays(scheme, rng):
    q = quantize_rows(rng.standard_normal((7, 200), dtype=np.float32), scheme)
    arrays = [q.packed, q.scales] + ([] if q.zero_points is None else [q.zero_points])
    assert scheme.weight_bytes(7, 200) == sum(array.nbytes for array in arrays)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 32, True), "bits is 3; it can be 4 or 8"),
        ((4, 48, True), "block_size is 48; it can be 16, 32, 64, 128 or 256"),
        ((4, 32, True, "exact"), "rounding is 'exact'; it can be plain, mse or calibrated"),
    ],
)
def test_a_scheme_the_operators_do_not_have_is_refused(arguments, message):
    with pytest.raises(ExportError, match=message):
        Scheme(*arguments)


@pytest.mark.parametrize("shape", [(0, 32), (3,), (2, 0)])
def test_rows_of_another_shape_are_refused(shape):
    with pytest.raises(ShapeError, match="expected non-empty rows"):
        quantize_rows(np.zeros(shape, np.float32), Scheme(4, 32, True))


def test_importance_of_another_width_is_refused():
    with pytest.raises(ShapeError, match="expected importance"):
        quantize_rows(
            np.ones((2, 32), np.float32),
            Scheme(4, 32, True, "calibrated"),
            importance=np.ones(31, np.float32),
        )

"""Blockwise int4 and int8 weights, in the layout of ONNX Runtime's operators.

A weight row [K] is cut into ceil(K / block) blocks; a block has one float32 scale, one zero point
z and codes q in 0..2^bits - 1, and means w = scale * (q - z).

- packed       uint8 [N, blocks, block * bits / 8], low nibble first; the last block is padded with
               z, so padding means 0
- scales       float32 [N, blocks]; may be negative when symmetric, so that the longer side of the
               range (-8 of -8..7) can serve either sign, unless the scheme keeps them positive
- zero_points  uint8 [N, ceil(blocks * bits / 8)], low nibble first; None when symmetric: z is then
               2^(bits - 1), the operators' default

`MatMulNBits` takes these arrays as they are. `GatherBlockQuantized` (gather_axis 0, quantize_axis
1) reads the same bytes as uint8 [N, blocks * block * bits / 8] and gives rows of blocks * block
values: cut them to K when block does not divide K.

Rounding
    plain       The largest magnitude (symmetric), or the smallest and largest value and 0
                (asymmetric), land on the ends of the code range; weights go to the nearest code.
    mse         Least squared error over a grid of scales (and zero points) per block. For fixed
                codes the best scale is <w, q - z> / <q - z, q - z> in closed form, so a candidate
                costs one rounding and two dot products; codes and scale are then refined in turn.
    calibrated  The same search, the squared error of column k counted importance[k] times: what
                the layer's output loses, not what its weights lose. It needs the importance that
                specedge.export.importance learns.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from specedge.errors import ExportError, ShapeError
from specedge.export.checkpoint import Array

Rounding = Literal["plain", "mse", "calibrated"]
Bytes = npt.NDArray[np.uint8]

BLOCK_SIZES = (16, 32, 64, 128, 256)  # what MatMulNBits takes
_CHUNK = 1 << 16  # weights worked on at once by a thread: its temporaries stay in the L2 cache
_FLOOR = np.float32(2.0**-120)  # a block whose largest magnitude is below counts as zeros
# Where the range's end falls, relative to the largest magnitude (symmetric) or to the spread
# (asymmetric): below 1 clips outliers, above 1 leaves room.
_GRID = (1.0, 0.72, 0.76, 0.8, 0.84, 0.87, 0.9, 0.93, 0.96, 0.98, 1.02, 1.05)
_REFINEMENTS = 2


@dataclass(frozen=True)
class Scheme:
    """How weights are quantised.

    Raises:
        ExportError: a value that the operators do not take.
    """

    bits: int
    block_size: int
    symmetric: bool
    rounding: Rounding = "mse"
    positive_scales: bool = False  # of symmetric codes; the range is then as long on either side

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("bits", self.bits, (4, 8)),
            ("block_size", self.block_size, BLOCK_SIZES),
            ("rounding", self.rounding, get_args(Rounding)),
        ):
            if value not in allowed:
                raise ExportError(
                    f"quantisation: {name} is {value!r}; it can be "
                    f"{', '.join(map(str, allowed[:-1]))} or {allowed[-1]}"
                )

    def blocks(self, features: int) -> int:
        """Blocks in a row of `features` weights."""
        return -(-features // self.block_size)

    def weight_bytes(self, rows: int, features: int, scale_bytes: int = 4) -> int:
        """Bytes of packed codes, scales and zero points of a [rows, features] tensor."""
        blocks = self.blocks(features)
        row = blocks * (self.block_size * self.bits // 8 + scale_bytes)
        return rows * (row if self.symmetric else row + -(-blocks * self.bits // 8))

    def __str__(self) -> str:
        kind = "symmetric" if self.symmetric else "asymmetric"
        return f"{kind} int{self.bits}, block {self.block_size}, {self.rounding}"


@dataclass(frozen=True, eq=False)
class Quantized:
    """Rows of one tensor; the module docstring gives the layouts."""

    packed: Bytes
    scales: Array
    zero_points: Bytes | None
    scheme: Scheme
    features: int  # K


def quantize_rows(
    rows: Array, scheme: Scheme, *, importance: Array | None = None, threads: int | None = None
) -> Quantized:
    """Quantise consecutive rows of a weight; rows are independent of one another.

    Args:
        rows: float32 [N, K], finite.
        scheme: bits, block size, symmetry and rounding.
        importance: float32 [K], positive; for "calibrated" rounding only, where None means
            that all columns count alike (an embedding that is looked up, not multiplied).
        threads: worker threads; default: one a core.

    Temporaries beyond the result stay under 3 MiB a thread.
    """
    if rows.ndim != 2 or 0 in rows.shape:
        raise ShapeError(f"expected non-empty rows [N, K], got shape {rows.shape}")
    n, features = rows.shape
    if importance is not None and importance.shape != (features,):
        raise ShapeError(f"expected importance [{features}], got {importance.shape}")
    blocks, bits = scheme.blocks(features), scheme.bits
    packed = np.empty((n, blocks, scheme.block_size * bits // 8), np.uint8)
    scales = np.empty((n, blocks), np.float32)
    zeros = np.empty((n, blocks), np.uint8)
    step = max(1, _CHUNK // (blocks * scheme.block_size))
    weights = None
    if importance is not None and scheme.rounding == "calibrated":
        weights = _columns(importance[None, :], scheme)

    def work(start: int) -> None:
        part = slice(start, min(start + step, n))
        columns = _columns(rows[part], scheme)
        if weights is None:
            w = None
        else:
            w = np.ascontiguousarray(np.tile(weights, part.stop - part.start))
        codes, scale, zero = _round(columns, scheme, w)
        flat = np.ascontiguousarray(codes.T).reshape(part.stop - part.start, blocks, -1)
        scales[part] = scale.reshape(-1, blocks)
        zeros[part] = zero.reshape(-1, blocks)
        if features % scheme.block_size:
            flat[:, -1, features % scheme.block_size :] = zeros[part, -1:]
        packed[part] = pack(flat, bits)

    starts = range(0, n, step)
    workers = min(len(starts), threads or os.cpu_count() or 1)
    if workers == 1:
        for start in starts:
            work(start)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(work, starts))
    return Quantized(
        packed, scales, None if scheme.symmetric else pack(zeros, bits), scheme, features
    )


def quantize_blocks(
    blocks: Iterable[Array], scheme: Scheme, *, importance: Array | None = None
) -> Iterator[Quantized]:
    """`quantize_rows` over consecutive blocks of a tensor that is never whole in memory."""
    for block in blocks:
        yield quantize_rows(block, scheme, importance=importance)


def dequantize(quantized: Quantized) -> Array:
    """float32 [N, K]: what the operators compute with, up to their own arithmetic."""
    scheme = quantized.scheme
    codes = unpack(quantized.packed, scheme.bits, scheme.block_size).astype(np.float32)
    n, blocks, _ = codes.shape
    if quantized.zero_points is None:
        codes -= np.float32(1 << (scheme.bits - 1))
    else:
        codes -= unpack(quantized.zero_points, scheme.bits, blocks)[:, :, None]
    codes *= quantized.scales[:, :, None]
    return codes.reshape(n, -1)[:, : quantized.features]


def pack(codes: Bytes, bits: int) -> Bytes:
    """Codes [..., n] to bytes [..., ceil(n * bits / 8)], low nibble first."""
    if bits == 8:
        return codes
    low, high = codes[..., 0::2], codes[..., 1::2]
    out = low.copy()
    out[..., : high.shape[-1]] |= high << 4
    return out


def unpack(packed: Bytes, bits: int, count: int) -> Bytes:
    """The first `count` codes of each last axis; the inverse of `pack`."""
    if bits == 8:
        return packed
    out = np.stack([packed & 15, packed >> 4], axis=-1)
    return out.reshape(*packed.shape[:-1], -1)[..., :count]


def _columns(rows: Array, scheme: Scheme) -> Array:
    """[N, K] to [block, N * blocks], zero-padded: reductions over a block run along axis 0."""
    features = rows.shape[1]
    short = scheme.blocks(features) * scheme.block_size - features
    if short:
        rows = np.pad(rows, ((0, 0), (0, short)))
    return np.array(rows.reshape(-1, scheme.block_size).T, np.float32, order="C")  # never a view


def _round(w: Array, scheme: Scheme, importance: Array | None) -> tuple[Bytes, Array, Bytes]:
    """Codes [block, M], scales [M] and zero points [M] of blocks [block, M]; `w` is spent."""
    size = np.abs(w).max(axis=0)
    size[size < _FLOOR] = np.inf  # a block of zeros: its weights become exact zeros
    w /= size  # magnitudes up to 1, so that no square below can overflow or vanish
    top = (1 << scheme.bits) - 1
    middle = np.float32(1 << (scheme.bits - 1))
    scale: Array
    zero: Array
    if scheme.symmetric:
        zero = np.full_like(size, middle)
        if scheme.positive_scales:
            scale = np.full_like(size, 1 / (middle - 1))
        else:
            end = np.where(w.max(axis=0) >= 1, np.float32(1), np.float32(-1))
            scale = (end / -middle).astype(np.float32)
    else:
        low, high = np.minimum(w.min(axis=0), 0), np.maximum(w.max(axis=0), 0)
        scale = (np.maximum(high - low, np.float32(1e-6)) / top).astype(np.float32)
        zero = np.clip(np.rint(-low / scale), 0, top)
    if scheme.rounding != "plain":
        scale, zero = _search(w, scale, zero, top, scheme, importance)
    codes = np.empty_like(w)
    _assign(w, np.reciprocal(scale), zero, top, codes)
    codes += zero
    empty = np.isinf(size)
    scales = np.where(empty, np.float32(1), scale * np.where(empty, np.float32(1), size))
    return codes.astype(np.uint8), scales.astype(np.float32), zero.astype(np.uint8)


def _assign(w: Array, inverse: Array, zero: Array, top: int, out: Array) -> None:
    """out = q - z of the nearest code of every weight, for a scale of 1 / inverse."""
    np.multiply(w, inverse, out=out)
    np.rint(out, out=out)
    np.clip(out, -zero, top - zero, out=out)


def _search(
    w: Array, scale: Array, zero: Array, top: int, scheme: Scheme, importance: Array | None
) -> tuple[Array, Array]:
    """The scale [M] and zero point [M] of least squared error, starting from plain rounding's.

    With codes fixed, the error at the best scale is <w, w> - <w, c>^2 / <c, c>, c = q - z, so the
    largest gain <w, c>^2 / <c, c> wins. Plain rounding's own grid is the first candidate and
    refinement never raises an error, so no block ends worse than plain.
    """
    target = w if importance is None else w * importance
    codes = np.empty_like(w)
    best = np.full_like(scale, -1)
    best_scale, best_zero = scale.copy(), zero.copy()

    def consider(at: Array, z: Array) -> None:
        _assign(w, np.reciprocal(at), z, top, codes)
        along = np.einsum("ij,ij->j", target, codes)
        weighted = codes if importance is None else codes * importance
        length = np.einsum("ij,ij->j", weighted, codes)
        np.maximum(length, np.float32(1e-30), out=length)
        fitted = along / length
        gain = along * fitted
        better = (gain > best) & (fitted != 0)
        np.copyto(best, gain, where=better)
        np.copyto(best_scale, fitted, where=better)
        np.copyto(best_zero, z, where=better)

    for share in _GRID:
        at = scale * np.float32(share)
        consider(at, zero)
        if scheme.symmetric:
            if not scheme.positive_scales:
                consider(-at, zero)
        else:
            for shift in (-1, 1):
                consider(at, np.clip(zero + shift, 0, top).astype(np.float32))
    for _ in range(_REFINEMENTS):
        consider(best_scale.copy(), best_zero.copy())
    return best_scale, best_zero

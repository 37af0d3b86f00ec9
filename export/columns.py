"""Blockwise weights as `DequantizeLinear` reads them before a MatMul.

A weight W [N, K] of `specedge.export.quantize`, symmetric, is stored for x W^T as

- codes   int4 or int8 [K', N], signed: q - z; K' is K rounded up to whole blocks, and rows past K
          are 0: a graph pads x with zeros, which changes no bit of the product
- scales  [K' / block, N]

An embedding is looked up in the same bytes, seen as int32 words: runtimes gather no int4, and
TensorRT turns a uint8 table into four times its bytes (docs/decisions/0010). So a tied head costs
nothing more in the file. The words begin LEAD bytes before the codes, because TensorRT's parser
knows a weight by its address and takes two that begin at one for the same.

Rows arrive in parts; a matrix is whole in memory as packed codes, its transpose as a slice only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from specedge.contract import Element, Ids
from specedge.export.checkpoint import Array
from specedge.export.elements import dtype_of, narrowed
from specedge.export.quantize import Bytes, Quantized, Scheme, pack, unpack
from specedge.export.weights import INT4, Placed, PlacedQuantized, WeightWriter

LEAD = 64  # bytes
_SLICE_BYTES = 32 << 20  # unpacked codes in hand while a matrix is turned


def padded(features: int, scheme: Scheme) -> int:
    """K': columns of a row with its last block whole."""
    return scheme.blocks(features) * scheme.block_size


def add_columns(
    writer: WeightWriter, name: str, parts: Iterable[Quantized], element: Element
) -> PlacedQuantized:
    """Append a matrix as signed codes [K', N] and scales [K' / block, N], from parts of its rows.

    Raises:
        ExportError: a scale is outside the range of `element`; the file cannot be written.
    """
    held = [_storable(part, element, name) for part in parts]
    scheme, features = held[0].scheme, held[0].features
    assert scheme.symmetric, "DequantizeLinear is given no zero points"
    blocks, width = scheme.blocks(features), padded(features, scheme)
    rows = sum(len(part.packed) for part in held)
    codes = writer.add(
        f"{name}.codes", np.uint8, (width * rows * scheme.bits // 8,), _turned(held, rows, width)
    )
    kind = INT4 if scheme.bits == 4 else np.dtype(np.int8)
    turned = np.ascontiguousarray(np.concatenate([part.scales for part in held]).T)
    return PlacedQuantized(
        codes.seen_as(name, kind, (width, rows)),
        writer.add(f"{name}.scales", dtype_of(element), (blocks, rows), [turned]),
        None,
    )


def _storable(part: Quantized, element: Element, name: str) -> Quantized:
    """The same with scales in `element`. A block whose scale that makes 0 becomes zeros by its
    codes, with a scale of 1: TensorRT takes no scale of 0 for int8."""
    scales = narrowed(part.scales, element, f"a scale of {name}")
    lost = scales == 0
    if not lost.any():
        return replace(part, scales=scales)
    packed = part.packed.copy()
    packed[lost] = 0x88 if part.scheme.bits == 4 else 0x80  # codes of z
    return replace(part, packed=packed, scales=np.where(lost, scales.dtype.type(1), scales))


def _turned(held: Sequence[Quantized], rows: int, width: int) -> Iterator[Bytes]:
    """Packed signed codes of [K', N], block of K' by block of K'."""
    bits, block = held[0].scheme.bits, held[0].scheme.block_size
    step = max(1, _SLICE_BYTES // (block * rows))
    for first in range(0, width // block, step):
        last = min(first + step, width // block)
        columns = np.empty(((last - first) * block, rows), np.uint8)
        start = 0
        for part in held:
            codes = unpack(part.packed[:, first:last], bits, block)
            columns[:, start : start + len(codes)] = codes.reshape(len(codes), -1).T
            start += len(codes)
        columns ^= np.uint8(1 << (bits - 1))  # q to q - z in two's complement
        # blocks hold an even number of rows, so a slice ends on a byte whatever N is
        yield pack(columns.reshape(-1) & np.uint8((1 << bits) - 1), bits)


def read_columns(
    codes: npt.NDArray[np.uint8],
    scales: npt.NDArray[Any],
    scheme: Scheme,
    features: int,
    ids: slice,
) -> Array:
    """Rows `ids` of the weight that `add_columns` stored, float32 [n, features].

    Args:
        codes: the bytes of the codes, flat.
        scales: [K' / block, N].
    """
    width, rows = padded(features, scheme), scales.shape[1]
    middle = np.uint8(1 << (scheme.bits - 1))
    start, stop, _ = ids.indices(rows)
    if scheme.bits == 8:
        part = codes.reshape(width, rows)[:, start:stop]
    elif rows % 2 == 0:
        first = start // 2
        bytes_ = codes.reshape(width, rows // 2)[:, first : -(-stop // 2)]
        part = unpack(bytes_, 4, 2 * bytes_.shape[1])[:, start - 2 * first :][:, : stop - start]
    else:  # rows of codes share bytes: unpack them all
        part = unpack(codes, 4, width * rows).reshape(width, rows)[:, start:stop]
    signed = (part ^ middle).astype(np.float32) - np.float32(middle)
    blocks = signed.reshape(-1, scheme.block_size, stop - start)
    blocks *= scales[:, None, start:stop].astype(np.float32)
    return np.ascontiguousarray(blocks.reshape(width, -1)[:features].T)


def look_up(
    words: Bytes, scales: npt.NDArray[Any], scheme: Scheme, features: int, ids: Ids
) -> Array:
    """Rows `ids` [n], in any order, of a weight whose words are given as bytes."""
    width, rows = padded(features, scheme), scales.shape[1]
    flat = ids[:, None] + np.arange(width) * rows  # of a code: in which byte, and where in it
    part = words[LEAD + flat * scheme.bits // 8]
    if scheme.bits == 4:
        part = (part >> (4 * (flat % 2)).astype(np.uint8)) & np.uint8(15)
    middle = np.uint8(1 << (scheme.bits - 1))
    signed = (part ^ middle).astype(np.float32) - np.float32(middle)
    blocks = signed.reshape(len(ids), -1, scheme.block_size)
    blocks *= scales[:, ids].T[:, :, None].astype(np.float32)
    weights: Array = blocks.reshape(len(ids), width)[:, :features]
    return weights


def as_words(codes: Placed, name: str) -> Placed:
    """`codes` and the LEAD bytes before them, as int32 [LEAD / 4 + K' * N * bits / 32]: eight
    codes of 4 bits a word, or four of 8, the first in the lowest bits."""
    length = LEAD + codes.length
    return Placed(name, np.dtype("<i4"), (length // 4,), codes.offset - LEAD, length)

"""The external data file of a graph: tensors one after the other, written as they are made.

- little-endian, C order, no header; the graph names offset and length of each
- a tensor of ALIGN_LARGE_FROM bytes or more starts on a page, so that a runtime can map it
  instead of reading it; a smaller one on 64 bytes (a cache line, and AVX-512's width)
- gaps are zero bytes and count in the hash

Nothing is held but the chunk in hand: a tensor may be larger than memory.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from specedge.contract import Element
from specedge.errors import ExportError, ShapeError
from specedge.export.elements import dtype_of, narrowed
from specedge.export.quantize import Quantized, Scheme

PAGE = 4096  # ONNX's external data asks for multiples of it where a file is mapped
ALIGN = 64
INT4 = np.dtype(ml_dtypes.int4)
ALIGN_LARGE_FROM = 64 << 10  # page alignment costs at most 6 % of such a tensor


def stored_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Bytes of a tensor in the file; two int4 values share one, over the ends of rows too."""
    values = math.prod(shape)
    return -(-values // 2) if dtype == INT4 else dtype.itemsize * values


@dataclass(frozen=True)
class Placed:
    """A tensor in the file, at bytes offset..offset + length."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    length: int

    def seen_as(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Placed:
        """The same bytes under another name, dtype and shape: nothing is written twice.

        Raises:
            ShapeError: dtype and shape do not cover exactly these bytes.
        """
        view = np.dtype(dtype)
        needed = stored_bytes(view, shape)
        if needed != self.length:
            raise ShapeError(f"{self.name} has {self.length} bytes, {view} {shape} needs {needed}")
        return Placed(name, view, shape, self.offset, self.length)


@dataclass(frozen=True)
class PlacedQuantized:
    """A quantised weight [N, K] in the file, in `MatMulNBits` layout."""

    packed: Placed  # uint8 [N, blocks, block * bits / 8]
    scales: Placed  # [N, blocks]
    zero_points: Placed | None  # uint8 [N, ceil(blocks * bits / 8)]


class WeightWriter:
    """Writes one weights file; use it as a context manager.

    Raises:
        ExportError: the file cannot be created or written (a full disk, no permission), from
            any method and from leaving the `with` block.
    """

    def __init__(self, path: Path) -> None:
        """`path` must not exist."""
        self.path = path
        self._file: BinaryIO | None = None
        self._hash = hashlib.sha256()
        self._position = 0
        self._placed: dict[str, Placed] = {}

    def __enter__(self) -> Self:
        try:
            self._file = self.path.open("xb", buffering=0)
        except OSError as error:
            raise self._failure(error) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._file is not None
        file, self._file = self._file, None
        try:
            file.close()
        except OSError as closing:
            if kind is None:
                raise self._failure(closing) from closing

    @property
    def bytes_written(self) -> int:
        """Length of the file so far, gaps included."""
        return self._position

    @property
    def sha256(self) -> str:
        """Of everything written so far."""
        return self._hash.hexdigest()

    def add(
        self,
        name: str,
        dtype: npt.DTypeLike,
        shape: tuple[int, ...],
        chunks: Iterable[npt.NDArray[Any]],
    ) -> Placed:
        """Append a tensor from consecutive pieces of its C-order data.

        Args:
            name: unique in this file.
            dtype: of the tensor, and of every chunk.
            shape: of the tensor; only the number of values in the chunks is compared with it.
            chunks: arrays of any shape, written in order.

        Raises:
            ShapeError: the chunks hold more or fewer values, or another dtype.
        """
        kind = np.dtype(dtype).newbyteorder("<")
        if name in self._placed:
            raise ShapeError(f"{self.path.name} already has a tensor {name}")
        length = kind.itemsize * math.prod(shape)
        self._align(PAGE if length >= ALIGN_LARGE_FROM else ALIGN)
        offset = self._position
        for chunk in chunks:
            if chunk.dtype != kind:
                raise ShapeError(f"{name}: expected {kind}, got a chunk of {chunk.dtype}")
            if self._position + chunk.nbytes > offset + length:
                raise ShapeError(f"{name}: chunks hold more than the {length} bytes of {shape}")
            self._write(np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data)
        if self._position != offset + length:
            missing = offset + length - self._position
            raise ShapeError(f"{name}: chunks are {missing} bytes short of {kind} {shape}")
        placed = Placed(name, kind, tuple(shape), offset, length)
        self._placed[name] = placed
        return placed

    def add_quantized(
        self,
        name: str,
        rows: int,
        features: int,
        scheme: Scheme,
        parts: Iterable[Quantized],
        element: Element = "float32",
    ) -> PlacedQuantized:
        """Append a quantised [rows, features] weight from consecutive parts of its rows.

        Codes go to the file as they come; scales and zero points, about an eighth of them at
        block 32, wait in memory until the codes are complete. Tensors are named `name`,
        `name.scales` and `name.zero_points`; `element` is the dtype of the scales.

        Raises:
            ExportError: a scale is outside the range of `element`.
        """
        blocks = scheme.blocks(features)
        scales: list[npt.NDArray[Any]] = []
        zeros: list[npt.NDArray[Any]] = []

        def codes() -> Iterable[npt.NDArray[Any]]:
            for part in parts:
                scales.append(narrowed(part.scales, element, f"a scale of {name}"))
                if part.zero_points is not None:
                    zeros.append(part.zero_points)
                yield part.packed

        width = scheme.block_size * scheme.bits // 8
        packed = self.add(name, np.uint8, (rows, blocks, width), codes())
        return PlacedQuantized(
            packed,
            self.add(f"{name}.scales", dtype_of(element), (rows, blocks), scales),
            None
            if scheme.symmetric
            else self.add(
                f"{name}.zero_points", np.uint8, (rows, -(-blocks * scheme.bits // 8)), zeros
            ),
        )

    def _align(self, to: int) -> None:
        gap = -self._position % to
        if gap:
            self._write(memoryview(bytes(gap)))

    def _write(self, data: memoryview) -> None:
        assert self._file is not None, "WeightWriter is used outside its `with` block"
        self._hash.update(data)
        while len(data):  # an unbuffered write may take a part only
            try:
                written = self._file.write(data)
            except OSError as error:
                raise self._failure(error) from error
            self._position += written
            data = data[written:]

    def _failure(self, error: OSError) -> ExportError:
        reason = error.strerror or str(error)
        return ExportError(
            f"{self.path}: cannot write weights after {self._position / 1e6:.0f} MB: {reason}; "
            "choose another folder, or free space"
        )


def external(placed: Placed, location: str) -> ir.ExternalTensor:
    """The tensor as the graph refers to it; `location` is relative to the model file's folder."""
    return ir.ExternalTensor(
        location,
        placed.offset,
        placed.length,
        ir.DataType.from_numpy(placed.dtype),
        shape=ir.Shape(placed.shape),
        name=placed.name,
    )

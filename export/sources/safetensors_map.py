"""Rows of safetensors files, single or sharded, read straight from the bytes.

A file is: header length (uint64, little-endian), a JSON header that gives dtype, shape and byte
range of every tensor, then the data. Reading it here instead of through the library keeps
bfloat16, which numpy does not know, as cheap as the rest, and checks every range at opening.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specedge.errors import SourceError, UnsupportedError
from specedge.export.checkpoint import Array
from specedge.export.sources.reading import (
    PIECE_BYTES,
    DataFile,
    check_finite,
    check_range,
    missing_tensor,
)

_HEADER_LIMIT = 100 << 20
_ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "U64": 8,
    "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
_READABLE = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class _Entry:
    file: DataFile
    dtype: str
    shape: tuple[int, ...]
    offset: int  # in the file


class SafetensorsMap:
    """A `TensorMap` over one file or over shards."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Read the headers.

        Raises:
            SourceError: a file is missing, cut short or not safetensors.
        """
        self._files: list[DataFile] = []
        self._entries: dict[str, _Entry] = {}
        try:
            for path in paths:
                file = DataFile(path)
                self._files.append(file)
                self._entries.update(_entries(file))
        except SourceError:
            self.close()
            raise
        self._label = str(paths[0]) if len(paths) == 1 else str(paths[0].parent)

    def names(self) -> list[str]:
        return sorted(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).shape

    def rows(self, name: str, start: int, stop: int) -> Array:
        entry = self._entry(name)
        if entry.dtype not in _READABLE:
            raise UnsupportedError(
                f"{entry.file.path}: tensor {name!r} is {entry.dtype}; supported: "
                f"{', '.join(_READABLE)}; give the checkpoint before it was quantised"
            )
        shape = entry.shape or (1,)
        check_range(name, start, stop, shape[0])
        width = math.prod(shape[1:])
        row_bytes = width * _ITEM_BYTES[entry.dtype]
        out = np.empty((stop - start, *shape[1:]), dtype=np.float32)
        step = max(1, PIECE_BYTES // max(1, 4 * width))
        for first in range(start, stop, step):
            last = min(first + step, stop)
            raw = entry.file.read(entry.offset + first * row_bytes, (last - first) * row_bytes)
            piece = out[first - start : last - start]
            piece[...] = _to_float32(raw, entry.dtype).reshape(piece.shape)
            check_finite(piece, name, first, str(entry.file.path))
        return out

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _entry(self, name: str) -> _Entry:
        try:
            return self._entries[name]
        except KeyError:
            raise missing_tensor(name, self._entries, self._label) from None


def _to_float32(raw: npt.NDArray[np.uint8], dtype: str) -> Array:
    if dtype == "F32":
        return raw.view("<f4")
    if dtype == "F16":
        with np.errstate(invalid="ignore"):  # a NaN is reported by the check that follows
            return raw.view("<f2").astype(np.float32)
    # bfloat16 is the upper half of a float32.
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _entries(file: DataFile) -> dict[str, _Entry]:
    """The header of one file, every range checked against the file's size."""
    damaged = f"{file.path}: not a safetensors file, or cut short"
    if file.size < 8:
        raise SourceError(f"{damaged}: it has {file.size} bytes")
    length = int(file.read(0, 8).view("<u8")[0])
    if length > min(_HEADER_LIMIT, file.size - 8):
        raise SourceError(f"{damaged}: header of {length} bytes, the file has {file.size}")
    try:
        header = json.loads(file.read(8, length).tobytes())
    except (ValueError, RecursionError):
        raise SourceError(f"{damaged}: its header is not JSON") from None
    if not isinstance(header, dict):
        raise SourceError(f"{damaged}: its header is not a JSON object")
    header.pop("__metadata__", None)
    return {name: _entry(file, name, fields, 8 + length) for name, fields in header.items()}


def _entry(file: DataFile, name: str, fields: Any, data: int) -> _Entry:
    try:
        dtype = str(fields["dtype"])
        shape = tuple(int(size) for size in fields["shape"])
        begin, end = (int(at) for at in fields["data_offsets"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise SourceError(f"{file.path}: tensor {name!r} has a malformed header entry") from None
    if not 0 <= begin <= end or data + end > file.size:
        raise SourceError(
            f"{file.path}: cut short: tensor {name!r} ends at byte {data + end}, the file has "
            f"{file.size}; fetch it again"
        )
    item = _ITEM_BYTES.get(dtype)
    if item is not None and (min(shape, default=0) < 0 or item * math.prod(shape) != end - begin):
        raise SourceError(
            f"{file.path}: tensor {name!r} of {dtype} {list(shape)} needs "
            f"{item * math.prod(shape)} bytes, its header gives {end - begin}"
        )
    return _Entry(file, dtype, shape, data + begin)

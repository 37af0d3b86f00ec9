"""The header of a GGUF file: metadata and where each tensor lies.

    magic "GGUF", version (uint32), tensor count, key count (uint64)
    keys:    name, value type (uint32), value; an array is item type, count, items
    tensors: name, dimension count (uint32), dimensions (uint64, fastest first), quantisation type
             (uint32), offset into the data (uint64)
    data:    from the next multiple of `general.alignment`

Strings are a uint64 length and UTF-8 bytes; all is little-endian. The `gguf` library's reader
makes an array object of every vocabulary entry (6 s and 0.5 GB for 150,000 tokens) and reads past
the end of a file that was cut short; its constants and dequantisers are used, its reader is not.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from specedge.errors import SourceError, UnsupportedError

_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_DIMENSIONS_LIMIT = 4


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: `shape` is slowest first, as numpy has it; rows are quantised one by one."""

    name: str
    kind: gguf.GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int  # in the file
    row_bytes: int

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def end(self) -> int:
        return self.offset + self.rows * self.row_bytes


@dataclass(frozen=True)
class GgufHeader:
    """Metadata by key, tensors by the file's own names."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


class _Cursor:
    """Reads forward; every read is checked against the end."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.at = data, path, 0

    def room(self, count: int) -> int:
        """Move over `count` bytes and say where they begin."""
        begin = self.at
        if count > len(self.data) - begin:
            raise SourceError(
                f"{self.path}: cut short: its header goes on at byte {begin}, the file has "
                f"{len(self.data)}; fetch it again"
            )
        self.at += count
        return begin

    def scalar(self, code: str) -> Any:
        return struct.unpack_from(code, self.data, self.room(struct.calcsize(code)))[0]

    def string(self) -> str:
        length = self.scalar("<Q")
        begin = self.room(length)
        return self.data[begin : begin + length].decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item = self.scalar("<I")
            if item != _ARRAY:  # nested lists are in no file we read, and may nest without end
                return self.array(item, self.scalar("<Q"))
        raise SourceError(f"{self.path}: metadata has value type {kind}; the header is damaged")

    def array(self, kind: int, count: int) -> list[Any]:
        if kind in _SCALARS:
            code = f"<{count}{_SCALARS[kind][1]}"
            size = struct.calcsize(_SCALARS[kind]) * count  # calcsize(code) overflows on nonsense
            begin = self.room(size)
            return list(struct.unpack_from(code, self.data, begin))
        # An item takes at least its length field, so a nonsensical count ends here at once.
        if 8 * count > len(self.data) - self.at:
            self.room(8 * count)
        return [self.value(kind) for _ in range(count)]


def read_header(path: Path) -> GgufHeader:
    """Read and check the header; every tensor lies inside the file.

    Raises:
        SourceError: unreadable, not GGUF, big-endian, or cut short.
        UnsupportedError: a version, split file or quantisation type that is not known.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
            if magic != b"GGUF":
                raise SourceError(
                    f"{path}: not a GGUF file: it begins with {magic!r}, expected b'GGUF'"
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(_Cursor(data, path))
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error


def _parse(cursor: _Cursor) -> GgufHeader:
    path = cursor.path
    cursor.room(4)
    version = cursor.scalar("<I")
    if version and version & 0xFFFF == 0:
        raise SourceError(f"{path}: this GGUF is big-endian; convert it to little-endian")
    if version not in _VERSIONS:
        raise UnsupportedError(
            f"{path}: GGUF version {version}; supported: {', '.join(map(str, _VERSIONS))}"
        )
    n_tensors, n_keys = cursor.scalar("<Q"), cursor.scalar("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(n_keys):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("<I"))
    if (parts := metadata.get("split.count")) not in (None, 0, 1):
        raise UnsupportedError(f"{path}: one of {parts} parts of a split GGUF; merge them first")
    found = [_tensor_fields(cursor) for _ in range(n_tensors)]
    alignment = metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise SourceError(f"{path}: general.alignment is {alignment!r}; the header is damaged")
    data = -(-cursor.at // alignment) * alignment
    tensors = {fields[0]: _info(path, data, *fields) for fields in found}
    if len(tensors) != n_tensors:
        raise SourceError(f"{path}: two tensors have the same name; the header is damaged")
    _check_ends(path, tensors, len(cursor.data))
    return GgufHeader(metadata, tensors)


def _tensor_fields(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, count = cursor.string(), cursor.scalar("<I")
    if not 1 <= count <= _DIMENSIONS_LIMIT:
        raise SourceError(
            f"{cursor.path}: tensor {name!r} has {count} dimensions; the header is damaged"
        )
    dims = tuple(cursor.scalar("<Q") for _ in range(count))
    return name, dims[::-1], cursor.scalar("<I"), cursor.scalar("<Q")


def _info(
    path: Path, data: int, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> TensorInfo:
    try:
        quantisation = gguf.GGMLQuantizationType(kind)
    except ValueError:
        raise UnsupportedError(
            f"{path}: tensor {name!r} has quantisation type {kind}, which is not known here"
        ) from None
    block, block_bytes = gguf.GGML_QUANT_SIZES[quantisation]
    if shape[-1] % block:
        raise SourceError(
            f"{path}: tensor {name!r} has rows of {shape[-1]}, not a multiple of the {block} "
            f"that {quantisation.name} packs together; the header is damaged"
        )
    return TensorInfo(name, quantisation, shape, data + offset, shape[-1] // block * block_bytes)


def _check_ends(path: Path, tensors: dict[str, TensorInfo], size: int) -> None:
    last = max(tensors.values(), key=lambda info: info.end, default=None)
    if last is None:
        raise SourceError(f"{path}: holds no tensors (a vocabulary-only file?)")
    if last.end > size:
        raise SourceError(
            f"{path}: cut short: tensor {last.name!r} ends at byte {last.end}, the file has "
            f"{size}; fetch it again"
        )

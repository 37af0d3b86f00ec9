"""Rows of a GGUF file as float32, under the checkpoint's names and in the checkpoint's order.

Two conversions are undone on the way, both without touching other rows:

- Architecture "llama" stores q and k for interleaved rotary embedding: row 2i + s of a head is the
  checkpoint's row s * D/2 + i (s in {0, 1}). Quantisation packs along a row, so whole rows of
  packed bytes are put back in order before they are dequantised.
- Architecture "gemma3" stores norm weights plus one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from specedge.errors import SourceError, UnsupportedError
from specedge.export.checkpoint import Array
from specedge.export.sources.gguf_header import GgufHeader, TensorInfo
from specedge.export.sources.gguf_names import checkpoint_names
from specedge.export.sources.reading import (
    PIECE_BYTES,
    DataFile,
    check_finite,
    check_range,
    missing_tensor,
)

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Entry:
    info: TensorInfo
    interleaved_dim: int | None = None  # D when rows are in interleaved order
    minus: float = 0.0


class GgufMap:
    """A `TensorMap` over one GGUF file."""

    def __init__(self, path: Path, header: GgufHeader, config: Mapping[str, Any]) -> None:
        """Name every tensor; nothing is read.

        Raises:
            SourceError: the file cannot be opened, or q or k do not consist of whole heads.
            UnsupportedError: a tensor or a quantisation type that is not known.
        """
        architecture = str(header.metadata["general.architecture"])
        names = checkpoint_names(architecture, header.tensors, str(path))
        self._entries: dict[str, _Entry] = {}
        for ours, theirs in names.items():
            info = header.tensors[theirs]
            _check_readable(info, path)
            self._entries[ours] = _entry(ours, info, architecture, int(config["head_dim"]), path)
        self._file = DataFile(path)

    def names(self) -> list[str]:
        return sorted(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entry(name).info.shape

    def rows(self, name: str, start: int, stop: int) -> Array:
        entry = self._entry(name)
        info = entry.info
        check_range(name, start, stop, info.shape[0])
        if len(info.shape) == 1:
            return self._vector(name, entry)[start:stop]
        width = info.shape[-1]
        inner = info.rows // info.shape[0]  # packed rows that make one row of the first axis
        out = np.empty((stop - start, *info.shape[1:]), dtype=np.float32)
        step = max(1, PIECE_BYTES // (4 * width * inner))
        for first in range(start, stop, step):
            last = min(first + step, stop)
            piece = out[first - start : last - start]
            packed = self._packed(entry, first * inner, last * inner)
            piece[...] = _to_float32(packed, info).reshape(piece.shape)
            self._finish(piece, name, first, entry)
        return out

    def close(self) -> None:
        self._file.close()

    def _entry(self, name: str) -> _Entry:
        try:
            return self._entries[name]
        except KeyError:
            raise missing_tensor(name, self._entries, str(self._file.path)) from None

    def _vector(self, name: str, entry: _Entry) -> Array:
        """A 1-D tensor: one packed row, small."""
        packed = self._file.read(entry.info.offset, entry.info.row_bytes)
        values = np.array(_to_float32(packed, entry.info))
        if entry.interleaved_dim is not None:
            values = values[interleaved_rows(0, len(values), entry.interleaved_dim)]
        self._finish(values, name, 0, entry)
        return values

    def _packed(self, entry: _Entry, start: int, stop: int) -> Bytes:
        """Packed rows start..stop of the checkpoint's order, uint8 [rows, row_bytes]."""
        info, dim = entry.info, entry.interleaved_dim
        if dim is None:
            raw = self._file.read(
                info.offset + start * info.row_bytes, (stop - start) * info.row_bytes
            )
            return raw.reshape(stop - start, info.row_bytes)
        # Whole heads are read: the rows asked for lie scattered over theirs.
        begin, end = start // dim * dim, -(-stop // dim) * dim
        raw = self._file.read(info.offset + begin * info.row_bytes, (end - begin) * info.row_bytes)
        return raw.reshape(end - begin, info.row_bytes)[interleaved_rows(start, stop, dim) - begin]

    def _finish(self, values: Array, name: str, first: int, entry: _Entry) -> None:
        check_finite(values, name, first, str(self._file.path))
        if entry.minus:
            values -= entry.minus


def _to_float32(packed: Bytes, info: TensorInfo) -> Array:
    # A damaged scale makes NaN or infinity here; the check on the result names the tensor and row.
    with np.errstate(all="ignore"):
        return np.asarray(gguf.dequantize(packed, info.kind), dtype=np.float32)


def interleaved_rows(start: int, stop: int, head_dim: int) -> npt.NDArray[np.int64]:
    """Where the checkpoint's rows start..stop lie in a file made for interleaved rotary embedding.

    Returns:
        int64 [stop - start]; row h * D + s * D/2 + i lies at h * D + 2i + s.
    """
    rows = np.arange(start, stop, dtype=np.int64)
    head, within = np.divmod(rows, head_dim)
    half, index = np.divmod(within, head_dim // 2)
    found: npt.NDArray[np.int64] = head * head_dim + 2 * index + half
    return found


def _entry(ours: str, info: TensorInfo, architecture: str, head_dim: int, path: Path) -> _Entry:
    stem = ours.rsplit(".", 1)[0]
    if architecture == "llama" and stem.endswith(("self_attn.q_proj", "self_attn.k_proj")):
        if info.shape[0] % head_dim:
            raise SourceError(
                f"{path}: tensor {info.name!r} has {info.shape[0]} rows, not a multiple of the "
                f"head width {head_dim}"
            )
        return _Entry(info, interleaved_dim=head_dim)
    # The test on the name is llama.cpp's own, so it also catches q_norm and k_norm.
    if architecture == "gemma3" and stem.endswith("norm"):
        return _Entry(info, minus=1.0)
    return _Entry(info)


def _check_readable(info: TensorInfo, path: Path) -> None:
    """Ask the library with a row of zero bytes, before hours of work depend on it."""
    _, block_bytes = gguf.GGML_QUANT_SIZES[info.kind]
    try:
        gguf.dequantize(np.zeros((1, 8 * block_bytes), dtype=np.uint8), info.kind)
    except NotImplementedError:
        raise UnsupportedError(
            f"{path}: tensor {info.name!r} has quantisation type {info.kind.name}, which the "
            "gguf library cannot dequantise"
        ) from None

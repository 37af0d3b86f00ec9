"""Read back what was placed: the weights a runtime will compute with, as float32 arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specedge.contract import Ids
from specedge.export.checkpoint import Array
from specedge.export.columns import read_columns, read_table
from specedge.export.decoder import Linear
from specedge.export.placement import PlacedLinear, PlacedModel
from specedge.export.quantize import Bytes, Quantized, Scheme, dequantize
from specedge.export.weights import Placed


class StoredWeights:
    """`quality.Weights` over a weights file.

    Args:
        path: the weights file.
        placed: what lies where in it.
        scheme: how its matrices were quantised.
    """

    def __init__(self, path: Path, placed: PlacedModel, scheme: Scheme) -> None:
        self._path = path
        self._placed = placed
        self._scheme = scheme

    def linear(self, linear: Linear) -> tuple[Array, Array | None]:
        """W [out, in] and bias; rows of an untied head are asked for as a Linear named "head"."""
        if linear.name == "head":
            (rows,) = linear.weights
            return self._rows(self._placed.head, slice(rows.start, rows.stop)), None
        placed = self._placed.linears[linear.name]
        bias = None if placed.bias is None else self._map(placed.bias).astype(np.float32)
        return self._rows(placed, slice(None)), bias

    def embedding(self, ids: Ids) -> Array:
        """Rows of the lookup table, float32 [S, H]."""
        table = self._placed.embedding
        assert table.scales is not None, "weights that are not quantised need no reading back"
        features = self._placed.head.in_features
        words, scales = self._map(table.table)[ids], self._map(table.scales)[ids]
        if self._placed.layout.columns:
            return dequantize(read_table(words, scales, self._scheme, features))
        zero_points = None if table.zero_points is None else self._map(table.zero_points)[ids]
        packed = words.reshape(len(ids), self._scheme.blocks(features), -1)
        return self._dequantized(packed, scales, zero_points, features)

    def _rows(self, placed: PlacedLinear, rows: slice) -> Array:
        assert placed.scales is not None, "weights that are not quantised need no reading back"
        if self._placed.layout.columns:
            codes = self._map(placed.weight.seen_as("bytes", np.uint8, (placed.weight.length,)))
            scales = self._map(placed.scales)
            return read_columns(codes, scales, self._scheme, placed.in_features, rows)
        zero_points = None
        if placed.zero_points is not None:
            zero_points = self._map(placed.zero_points)[rows]
        codes, scales = self._map(placed.weight)[rows], self._map(placed.scales)[rows]
        return self._dequantized(codes, scales, zero_points, placed.in_features)

    def _dequantized(
        self, packed: Bytes, scales: npt.NDArray[Any], zero_points: Bytes | None, features: int
    ) -> Array:
        wide = scales.astype(np.float32)
        return dequantize(Quantized(packed, wide, zero_points, self._scheme, features))

    def _map(self, placed: Placed) -> npt.NDArray[Any]:
        return np.memmap(
            self._path, placed.dtype, mode="r", offset=placed.offset, shape=placed.shape
        )

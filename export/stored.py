"""Read back what was placed: the weights a runtime will compute with, as float32 arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specedge.contract import Ids
from specedge.export.checkpoint import Array
from specedge.export.columns import look_up, read_columns
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
        scales = self._map(table.scales)
        if self._placed.layout.columns:
            return look_up(self._bytes(table.table), scales, self._scheme, features, ids)
        zero_points = None if table.zero_points is None else self._map(table.zero_points)[ids]
        packed = self._map(table.table)[ids].reshape(len(ids), self._scheme.blocks(features), -1)
        return self._dequantized(packed, scales[ids], zero_points, features)

    def _rows(self, placed: PlacedLinear, rows: slice) -> Array:
        assert placed.scales is not None, "weights that are not quantised need no reading back"
        if self._placed.layout.columns:
            codes, scales = self._bytes(placed.weight), self._map(placed.scales)
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

    def _bytes(self, placed: Placed) -> Bytes:
        return self._map(placed.seen_as(placed.name, np.uint8, (placed.length,)))

    def _map(self, placed: Placed) -> npt.NDArray[Any]:
        return np.memmap(
            self._path, placed.dtype, mode="r", offset=placed.offset, shape=placed.shape
        )

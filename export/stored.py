"""Read back what was placed: the weights a runtime will compute with, as float32 arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specedge.contract import Ids
from specedge.export.checkpoint import Array
from specedge.export.decoder import Linear
from specedge.export.placement import PlacedLinear, PlacedModel
from specedge.export.quantize import Quantized, Scheme, dequantize
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
            return self._rows(self._placed.head, np.arange(rows.start, rows.stop)), None
        placed = self._placed.linears[linear.name]
        bias = None if placed.bias is None else np.array(self._map(placed.bias))
        return self._rows(placed, np.arange(placed.out_features)), bias

    def embedding(self, ids: Ids) -> Array:
        """Rows of the lookup table, float32 [S, H]."""
        return self._rows(self._placed.embedding.linear, ids)

    def _rows(self, placed: PlacedLinear, ids: Ids) -> Array:
        assert placed.scales is not None, "a float32 file needs no reading back"
        zero_points = None
        if placed.zero_points is not None:
            zero_points = self._map(placed.zero_points)[ids]
        codes, scales = self._map(placed.weight)[ids], self._map(placed.scales)[ids]
        return dequantize(Quantized(codes, scales, zero_points, self._scheme, placed.in_features))

    def _map(self, placed: Placed) -> npt.NDArray[Any]:
        return np.memmap(
            self._path, placed.dtype, mode="r", offset=placed.offset, shape=placed.shape
        )

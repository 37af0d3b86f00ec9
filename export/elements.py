"""Dtypes of stored floating-point values, and the way from float32 to them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from specedge.contract import Element
from specedge.errors import ExportError
from specedge.export.checkpoint import Array

_DTYPES: dict[Element, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
_ONNX: dict[Element, ir.DataType] = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
}


def dtype_of(element: Element) -> np.dtype[Any]:
    """As numpy knows it."""
    return _DTYPES[element]


def onnx_type(element: Element) -> ir.DataType:
    """As a graph names it."""
    return _ONNX[element]


def narrowed(values: Array, element: Element, what: str) -> npt.NDArray[Any]:
    """`values` in `element`, to the nearest; what is too small for it becomes 0.

    Args:
        values: float32, finite.
        element: of the result.
        what: names the values in an error.

    Raises:
        ExportError: a value is beyond the range of `element`.
    """
    if element == "float32":
        return values
    with np.errstate(over="ignore"):
        stored = values.astype(_DTYPES[element])
    if not np.isfinite(stored).all():
        largest = float(np.abs(values).max())
        raise ExportError(
            f"{what} is {largest:g}, beyond the range of {element}; export with "
            "[export] activations = 'bf16' or 'fp32', or precision = 'bf16' or 'fp32'"
        )
    return stored

"""Where a session's buffers lie: in the host's memory, or on a device of their own.

On the host an array and the runtime's value are the same memory: what is written into the array is
what the runtime reads, and nothing is ever copied. On a device they are apart. Then the runtime
must be given values on the device (one on the host would be copied when it is bound, not when it
runs), and what is written into an array has to be pushed, what a run wrote has to be pulled.

A memory that is apart may lie on the host as well. That is how the path of a device is tested
where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from specedge.contract import Element
from specedge.engines.ort.providers import explained
from specedge.errors import EngineError
from specedge.memory import format_size

Array = npt.NDArray[Any]

_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16
_ARRAYS: dict[Element, type[np.generic]] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,  # numpy has no such type: its bits travel
}


@dataclass(eq=False, slots=True)
class Mirror:
    """An array on the host, and the value of the same shape and type that the runtime uses."""

    array: Array
    value: ort.OrtValue
    memory: Memory

    def push(self) -> None:
        """Make the runtime see what was written into the array."""
        if self.memory.is_apart:
            self.value.update_inplace(self.array)

    def pull(self) -> None:
        """Make the array hold what the runtime wrote."""
        if self.memory.is_apart:
            self.array[...] = self.memory.read(self.value)


class Memory:
    """Allocates on one device, and copies to and from it.

    Args:
        device: by ONNX Runtime's name: "cpu", "cuda".
        device_id: which of them.
        is_apart: values are copies of their arrays; on any device but the host they always are.
    """

    def __init__(self, device: str = "cpu", device_id: int = 0, *, is_apart: bool = False) -> None:
        self.device = device
        self.device_id = device_id
        self.is_apart = is_apart or device != "cpu"
        self.bytes_back = 0  # copied to the host so far

    def __str__(self) -> str:
        return self.device if self.device == "cpu" else f"{self.device}:{self.device_id}"

    def mirror(self, array: Array) -> Mirror:
        """A value that holds what the array does, or is the array's own memory."""
        if not self.is_apart:
            return Mirror(array, ort.OrtValue.ortvalue_from_numpy(array), self)
        value = self._allocate(array.shape, array.dtype.type)
        value.update_inplace(array)
        return Mirror(array, value, self)

    def over(self, array: Array, element: Element) -> ort.OrtValue:
        """The array's own memory as the runtime's value; on the host alone."""
        assert not self.is_apart, "a device cannot use the host's memory"
        if element == "bfloat16":
            return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16)
        return ort.OrtValue.ortvalue_from_numpy(array)

    def zeros(self, shape: Sequence[int], element: Element) -> ort.OrtValue:
        """A value of its own, all zeros."""
        value = self.empty(shape, element)
        value.update_inplace(host_zeros(shape, element))
        return value

    def empty(self, shape: Sequence[int], element: Element) -> ort.OrtValue:
        """A value of its own that nobody has written."""
        return self._allocate(shape, _BFLOAT16 if element == "bfloat16" else _ARRAYS[element])

    def read(self, value: ort.OrtValue) -> Array:
        """A copy on the host; bfloat16 arrives as its bits, in uint16."""
        if value.element_type() == _BFLOAT16:
            bits = np.empty(value.shape(), np.uint16)
            host = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _BFLOAT16)
            host.update_inplace(value)
        else:
            bits = np.array(value.numpy(), copy=True)
        self.bytes_back += bits.nbytes
        return bits

    def _allocate(self, shape: Sequence[int], element: type[np.generic] | int) -> ort.OrtValue:
        try:
            return ort.OrtValue.ortvalue_from_shape_and_type(
                list(shape), element, self.device, self.device_id
            )
        except Exception as error:  # the runtime's exceptions share no base below Exception
            width = 2 if isinstance(element, int) else np.dtype(element).itemsize
            size = format_size(width * prod(shape))
            raise EngineError(f"no room on {self} for {size} more: {explained(error)}") from error


def host_zeros(shape: Sequence[int], element: Element) -> Array:
    """Zeros of this element in memory that is taken when it is first written."""
    return np.zeros(shape, _ARRAYS[element])

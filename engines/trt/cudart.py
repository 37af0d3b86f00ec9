"""One GPU through the CUDA runtime: memory, copies, one stream's work, captured graphs.

Only what an engine needs, over `cuda.bindings.runtime` of 12.9 or 13, which spell these calls
alike. Each gives a tuple that begins with an error code; here a code other than 0 is a `CudaError`.

A failed call may be reported late, by a later call: a kernel runs when the call that queued it has
long returned. So a message says what was asked for, not that this was the cause.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specedge.engines import cuda
from specedge.errors import EngineError, one_line

BINDINGS = "cuda.bindings.runtime"
ALIGNMENT = 256  # bytes; what TensorRT expects of a tensor's address

OUT_OF_MEMORY = 2
_DRIVER_TOO_OLD = 35  # also: no driver at all
_BUSY = 46
_NO_DEVICE = 100
_LOST = range(700, 800)  # what a kernel did wrong; past it are calls that are not allowed
_NOT_FORWARD_COMPATIBLE = 804

Bytes = npt.NDArray[np.uint8]


class CudaError(EngineError):
    """A call of the CUDA runtime failed; `code` is its number."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Gpu:
    """What the runtime says of a device."""

    index: int
    name: str
    compute_capability: int  # 89 for 8.9
    total_bytes: int


def aligned(size: int) -> int:
    """`size` rounded up to whole ALIGNMENTs."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def bindings() -> Any:
    """`cuda.bindings.runtime`.

    Raises:
        EngineError: it is not installed.
    """
    try:
        return importlib.import_module(BINDINGS)
    except ImportError as error:
        raise EngineError(
            f"engine: cuda-bindings cannot be imported ({one_line(error)}); install "
            "specedge[tensorrt] or specedge[tensorrt-rtx]"
        ) from error


class Cuda:
    """A device, and the calls made on it.

    Args:
        index: of the device, as CUDA_VISIBLE_DEVICES leaves them.

    Raises:
        EngineError: no bindings, no driver or one too old, no such device, or one that is taken.
    """

    def __init__(self, index: int = 0) -> None:
        self._rt = bindings()
        count = self._count()
        if not 0 <= index < count:
            raise EngineError(
                f"engine: device = {index}, but CUDA sees {count} GPU(s); choose 0..{count - 1}"
            )
        self._index = index
        self.make_current()
        said = self._call("cudaGetDeviceProperties", index)
        name = said.name.decode() if isinstance(said.name, bytes) else str(said.name)
        self.gpu = Gpu(
            index, name.rstrip("\0"), 10 * int(said.major) + int(said.minor), said.totalGlobalMem
        )

    def _count(self) -> int:
        try:
            code, count = self._rt.cudaGetDeviceCount()
            driver = int(self._rt.cudaDriverGetVersion()[1] or 0)
        except RuntimeError as error:  # the bindings found no driver library to load
            raise cuda.unusable("engine", cuda.NOT_INSTALLED) from error
        code = int(code)
        if code == _DRIVER_TOO_OLD and driver == 0:
            raise cuda.unusable("engine", cuda.NOT_INSTALLED)
        if code in (_DRIVER_TOO_OLD, _NOT_FORWARD_COMPATIBLE):
            needs = int(self._rt.cudaRuntimeGetVersion()[1] or 0)
            raise EngineError(
                f"engine: the NVIDIA driver serves CUDA {_version(driver)}, cuda-bindings is for "
                f"{_version(needs)}; update the driver, or install cuda-bindings of CUDA "
                f"{_version(driver)}"
            )
        why = cuda.WHY.get(code or (0 if count else _NO_DEVICE))
        if why is not None:
            raise cuda.unusable("engine", why)
        if code:
            raise self._error("cudaGetDeviceCount", code)
        return int(count)

    def _call(self, name: str, *given: object) -> Any:
        """What the call gives after its error code, None where that is nothing."""
        code, *found = getattr(self._rt, name)(*given)
        if int(code):
            raise self._error(name, int(code))
        return found[0] if len(found) == 1 else found or None

    def _error(self, name: str, code: int) -> CudaError:
        said = "unknown error"
        with suppress(Exception):  # a code that these bindings do not list
            said = self._rt.cudaGetErrorString(self._rt.cudaError_t(code))[1].decode()
        with suppress(Exception):
            self._rt.cudaGetLastError()  # forget it: the next call shall speak for itself
        hint = ""
        if code == _BUSY:
            hint = "; another process has the GPU for itself"
        elif code == OUT_OF_MEMORY:
            hint = "; end what else uses the GPU, or build a plan of a smaller --context"
        elif code in _LOST:
            hint = "; the device's state is lost: restart the program"
        return CudaError(f"CUDA: {name}: {said} (error {code}){hint}", code)

    def make_current(self) -> None:
        """Of the calling thread; what is called here holds for threads one by one."""
        self._call("cudaSetDevice", self._index)

    def free_bytes(self) -> int:
        """What the device has left, for all who use it."""
        return int(self._call("cudaMemGetInfo")[0])

    # --- memory ---------------------------------------------------------------------------------

    def allocate(self, size: int) -> int:
        """Address of `size` bytes on the device, not cleared."""
        return int(self._call("cudaMalloc", max(1, size)))

    def free(self, address: int) -> None:
        self._call("cudaFree", address)

    def allocate_pinned(self, size: int) -> Bytes:
        """Page-locked host memory, which copies can use while the host goes on; not cleared.

        `free_pinned` ends the life of the array and of every view of it.
        """
        address = int(self._call("cudaMallocHost", max(1, size)))
        return np.ctypeslib.as_array((ctypes.c_uint8 * max(1, size)).from_address(address))

    def free_pinned(self, array: Bytes) -> None:
        self._call("cudaFreeHost", array.ctypes.data)

    def pin(self, array: npt.NDArray[Any]) -> bool:
        """Page-lock memory that numpy owns; False where the system does not allow it."""
        try:
            self._call("cudaHostRegister", array.ctypes.data, array.nbytes, 0)
        except CudaError:
            return False
        return True

    def unpin(self, array: npt.NDArray[Any]) -> None:
        self._call("cudaHostUnregister", array.ctypes.data)

    # --- a stream's work ------------------------------------------------------------------------

    def new_stream(self) -> Any:
        """A stream beside the default one, which no other library's work waits for."""
        return self._call("cudaStreamCreateWithFlags", self._rt.cudaStreamNonBlocking)

    def end_stream(self, stream: Any) -> None:
        self._call("cudaStreamDestroy", stream)

    def wait(self, stream: Any) -> None:
        """Until everything queued in `stream` is done."""
        self._call("cudaStreamSynchronize", stream)

    def copy_in(self, to: int, array: npt.NDArray[Any], size: int, stream: Any) -> None:
        """Queue a copy of the first `size` bytes of a host array to the device."""
        kind = self._rt.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call("cudaMemcpyAsync", to, array.ctypes.data, size, kind, stream)

    def copy_out(self, array: npt.NDArray[Any], at: int, size: int, stream: Any) -> None:
        """Queue a copy of `size` bytes from the device into a host array."""
        kind = self._rt.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", array.ctypes.data, at, size, kind, stream)

    def clear(self, address: int, size: int, stream: Any) -> None:
        """Queue writing zeros."""
        self._call("cudaMemsetAsync", address, 0, size, stream)

    def clear_columns(self, address: int, pitch: int, size: int, count: int, stream: Any) -> None:
        """Queue writing zeros to `size` bytes at the address and at each of the `count` - 1 that
        follow it `pitch` bytes apart."""
        self._call("cudaMemset2DAsync", address, pitch, 0, size, count, stream)

    def capture(self, stream: Any, enqueue: Callable[[], None]) -> Any:
        """What `enqueue` queues in `stream`, as a graph to launch instead; nothing is run.

        Raises:
            EngineError: the work cannot be captured. The stream can be used again.
        """
        # of this thread only: another engine's thread may allocate meanwhile
        mode = self._rt.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", stream, mode)
        try:
            enqueue()
        except BaseException:
            with suppress(CudaError):
                graph = self._call("cudaStreamEndCapture", stream)
                self._call("cudaGraphDestroy", graph)
            raise
        graph = self._call("cudaStreamEndCapture", stream)
        try:
            return self._call("cudaGraphInstantiate", graph, 0)
        finally:
            self._call("cudaGraphDestroy", graph)

    def launch(self, graph: Any, stream: Any) -> None:
        self._call("cudaGraphLaunch", graph, stream)

    def end_graph(self, graph: Any) -> None:
        self._call("cudaGraphExecDestroy", graph)


def _version(number: int) -> str:
    """12.9 for 12090."""
    return f"{number // 1000}.{number % 1000 // 10}"

"""A GPU that is none: `cuda.bindings.runtime` over host memory.

Work queued in a stream is done when somebody waits for it, and not before: results read too early
are those of earlier. Fresh memory is full of NaN. Memory that was freed, or is of the wrong kind,
makes the device fail for good, as an illegal address does. A captured graph keeps addresses and
shapes, and reads memory when it is launched.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

SUCCESS, INVALID, NO_MEMORY, NO_DRIVER, NO_DEVICE = 0, 1, 2, 35, 100
ILLEGAL_ADDRESS, CAPTURE_UNSUPPORTED, CAPTURE_INVALID = 700, 900, 901
_ALIGNMENT = 256
_WORDS = {
    NO_MEMORY: "out of memory",
    NO_DRIVER: "CUDA driver version is insufficient for CUDA runtime version",
    ILLEGAL_ADDRESS: "an illegal memory access was encountered",
    CAPTURE_UNSUPPORTED: "operation not permitted when stream is capturing",
}


class Failed(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def call(results: int = 0, *, unsafe: bool = False) -> Callable[[Any], Any]:
    """Give an error code first, as the bindings do. `unsafe`: not while a stream is captured."""

    def wrap(method: Callable[..., Any]) -> Any:
        @functools.wraps(method)
        def run(self: FakeCuda, *given: Any) -> tuple[Any, ...]:
            name = method.__name__
            self.called[name] = self.called.get(name, 0) + 1
            try:
                code, first = self.failing.get(name, (SUCCESS, 0))
                if code and self.called[name] >= first:
                    raise Failed(code)
                if self.broken:
                    raise Failed(self.broken)
                if unsafe and self.capturing is not None:
                    self.capturing.invalid = True
                    raise Failed(CAPTURE_UNSUPPORTED)
                found = method(self, *given)
            except Failed as failed:
                return (failed.code, *[None] * results)
            return (SUCCESS,) if results == 0 else (SUCCESS, found)

        return run

    return wrap


@dataclass
class Block:
    memory: Any
    address: int
    size: int


@dataclass(eq=False)
class Stream:
    queue: list[Callable[[], None]] = field(default_factory=list)
    graph: list[Callable[[], None]] | None = None  # while captured
    invalid: bool = False
    number: int = 0

    def __int__(self) -> int:
        return self.number


@dataclass(eq=False)
class Graph:
    work: list[Callable[[], None]]


class FakeCuda:
    """The module's functions, of a device with `memory` bytes.

    Args:
        devices: how many there are.
        driver: CUDA version of the driver, 0: none.
        count_code: what cudaGetDeviceCount fails with.

    Tests put into `failing`: an error code by the name of a function, and from which of its calls.
    """

    cudaStreamNonBlocking = 1
    cudaMemcpyKind = IntEnum(
        "cudaMemcpyKind", {"cudaMemcpyHostToDevice": 1, "cudaMemcpyDeviceToHost": 2}
    )
    cudaStreamCaptureMode = IntEnum(
        "cudaStreamCaptureMode", {"cudaStreamCaptureModeThreadLocal": 1}
    )

    def __init__(
        self,
        *,
        memory: int = 1 << 30,
        name: bytes = b"Stub GPU",
        capability: tuple[int, int] = (8, 9),
        devices: int = 1,
        driver: int = 13000,
        count_code: int = 0,
    ) -> None:
        self.memory, self.name, self.capability = memory, name, capability
        self.devices, self.driver, self.count_code = devices, driver, count_code
        self.failing: dict[str, tuple[int, int]] = {}
        self.called: dict[str, int] = {}
        self.broken = 0
        self.device: dict[int, Block] = {}
        self.host: dict[int, Block] = {}
        self.registered: set[int] = set()
        self.streams: dict[int, Stream] = {}
        self.graphs: set[Graph] = set()
        self.executables: set[Graph] = set()
        self.capturing: Stream | None = None
        self.current: int | None = None
        self.launches = 0
        self.bytes_out = 0  # copied to the host

    # --- what tests ask --------------------------------------------------------------------------

    @property
    def live_bytes(self) -> int:
        return sum(block.size for block in self.device.values())

    @property
    def leaks(self) -> dict[str, int]:
        """What nobody has given back."""
        kinds = {
            "device": self.device,
            "host": self.host,
            "registered": self.registered,
            "streams": self.streams,
            "graphs": self.graphs,
            "executables": self.executables,
        }
        return {name: len(held) for name, held in kinds.items() if held}

    def bytes_at(self, address: int, size: int) -> bytes:
        self.require(address, size, on_device=True)
        return ctypes.string_at(address, size)

    def require(self, address: int, size: int, *, on_device: bool) -> None:
        """Fail for good unless all of it is live memory of that kind."""
        inside = any(
            block.address <= address and address + size <= block.address + block.size
            for block in self.device.values()
        )
        if inside != on_device:
            self.broken = ILLEGAL_ADDRESS
            raise Failed(ILLEGAL_ADDRESS)

    def enqueue(self, stream: int, work: Callable[[], None]) -> None:
        there = self.streams[int(stream)]
        (there.queue if there.graph is None else there.graph).append(work)

    # --- devices ---------------------------------------------------------------------------------

    def cudaError_t(self, code: int) -> int:
        return code

    def cudaGetErrorString(self, code: int) -> tuple[int, bytes]:
        return SUCCESS, _WORDS.get(code, "something else").encode()

    def cudaGetLastError(self) -> tuple[int]:
        return (SUCCESS,)

    def cudaGetDeviceCount(self) -> tuple[int, int | None]:
        if self.count_code:
            return self.count_code, None
        return SUCCESS, self.devices

    def cudaDriverGetVersion(self) -> tuple[int, int]:
        return SUCCESS, self.driver

    def cudaRuntimeGetVersion(self) -> tuple[int, int]:
        return SUCCESS, 13000

    @call()
    def cudaSetDevice(self, index: int) -> None:
        if not 0 <= index < self.devices:
            raise Failed(101)
        self.current = index

    @call(1)
    def cudaGetDeviceProperties(self, index: int) -> Any:
        major, minor = self.capability
        return SimpleNamespace(name=self.name, major=major, minor=minor, totalGlobalMem=self.memory)

    def cudaMemGetInfo(self) -> tuple[int, int, int]:
        return SUCCESS, self.memory - self.live_bytes, self.memory

    # --- memory ----------------------------------------------------------------------------------

    def _block(self, size: int) -> Block:
        memory = (ctypes.c_uint8 * (size + _ALIGNMENT))()
        ctypes.memset(memory, 0xFF, len(memory))
        address = ctypes.addressof(memory)
        return Block(memory, address + -address % _ALIGNMENT, size)

    @call(1, unsafe=True)
    def cudaMalloc(self, size: int) -> int:
        if self.live_bytes + size > self.memory:
            raise Failed(NO_MEMORY)
        block = self._block(size)
        self.device[block.address] = block
        return block.address

    @call(unsafe=True)
    def cudaFree(self, address: int) -> None:
        if self.device.pop(address, None) is None:
            raise Failed(INVALID)

    @call(1, unsafe=True)
    def cudaMallocHost(self, size: int) -> int:
        block = self._block(size)
        self.host[block.address] = block
        return block.address

    @call(unsafe=True)
    def cudaFreeHost(self, address: int) -> None:
        if self.host.pop(address, None) is None:
            raise Failed(INVALID)

    @call(unsafe=True)
    def cudaHostRegister(self, address: int, size: int, flags: int) -> None:
        self.registered.add(address)

    @call(unsafe=True)
    def cudaHostUnregister(self, address: int) -> None:
        self.registered.remove(address)

    @call()
    def cudaMemcpyAsync(self, to: int, at: int, size: int, kind: int, stream: Stream) -> None:
        inwards = kind == self.cudaMemcpyKind.cudaMemcpyHostToDevice

        def work() -> None:
            self.require(to, size, on_device=inwards)
            self.require(at, size, on_device=not inwards)
            ctypes.memmove(to, at, size)
            self.bytes_out += 0 if inwards else size

        self.enqueue(int(stream), work)

    @call()
    def cudaMemsetAsync(self, address: int, value: int, size: int, stream: Stream) -> None:
        def work() -> None:
            self.require(address, size, on_device=True)
            ctypes.memset(address, value, size)

        self.enqueue(int(stream), work)

    @call()
    def cudaMemset2DAsync(
        self, address: int, pitch: int, value: int, width: int, height: int, stream: Stream
    ) -> None:
        def work() -> None:
            for row in range(height):
                self.require(address + row * pitch, width, on_device=True)
                ctypes.memset(address + row * pitch, value, width)

        self.enqueue(int(stream), work)

    # --- streams and graphs ----------------------------------------------------------------------

    @call(1, unsafe=True)
    def cudaStreamCreateWithFlags(self, flags: int) -> Stream:
        stream = Stream(number=1 + len(self.called) + sum(self.called.values()))
        self.streams[stream.number] = stream
        return stream

    @call()
    def cudaStreamDestroy(self, stream: Stream) -> None:
        del self.streams[stream.number]
        stream.queue = []

    @call()
    def cudaStreamSynchronize(self, stream: Stream) -> None:
        if stream.graph is not None:
            stream.invalid = True
            raise Failed(CAPTURE_UNSUPPORTED)
        queue, stream.queue = stream.queue, []
        for work in queue:
            work()

    @call()
    def cudaStreamBeginCapture(self, stream: Stream, mode: int) -> None:
        assert self.capturing is None
        stream.graph, stream.invalid, self.capturing = [], False, stream

    @call(1)
    def cudaStreamEndCapture(self, stream: Stream) -> Graph:
        work, stream.graph, self.capturing = stream.graph, None, None
        if stream.invalid or work is None:
            raise Failed(CAPTURE_INVALID)
        graph = Graph(work)
        self.graphs.add(graph)
        return graph

    @call(1)
    def cudaGraphInstantiate(self, graph: Graph, flags: int) -> Graph:
        executable = Graph(list(graph.work))
        self.executables.add(executable)
        return executable

    @call()
    def cudaGraphDestroy(self, graph: Graph) -> None:
        self.graphs.remove(graph)

    @call()
    def cudaGraphExecDestroy(self, graph: Graph) -> None:
        self.executables.remove(graph)
        graph.work = []

    @call()
    def cudaGraphLaunch(self, graph: Graph, stream: Stream) -> None:
        if graph not in self.executables:
            raise Failed(INVALID)
        self.launches += 1
        stream.queue.extend(graph.work)

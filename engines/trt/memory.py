"""Device memory of one engine: what it will need, held against what is free, and what it holds.

    total = plan + KV of one sequence + activations + buffers of a call

The plan's bytes stand for its weights. KV is T rows whatever is cached: T is static in a plan, so
only a plan of a smaller T needs less. Activations are one block for both profiles, whose calls
take turns in one stream. Captured graphs take memory too, outside this sum, as do CUDA's own
context and TensorRT-RTX's compiled kernels: RESERVE is left for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy.typing as npt

from specedge.contract import WIDEST_STEP, GraphSpec
from specedge.engines.trt.cudart import OUT_OF_MEMORY, Bytes, Cuda, CudaError
from specedge.errors import EngineError
from specedge.memory import CONTEXT_STEP, MIN_CONTEXT, format_size

RESERVE = 128 << 20


@dataclass(frozen=True)
class Needs:
    """Bytes on the device.

    Args:
        weights: 0 once the plan is loaded.
        kv: of one sequence.
        activations: 0 while unknown.
        buffers: inputs and outputs of a call, logits for the most part.
    """

    weights: int
    kv: int
    activations: int
    buffers: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.activations + self.buffers

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "KV": self.kv,
            "activations": self.activations,
            "buffers": self.buffers,
        }
        return ", ".join(f"{name} {format_size(size)}" for name, size in parts.items() if size)


def check_fits(needs: Needs, free: int, spec: GraphSpec, rows: int, command: str) -> None:
    """Refuse what cannot be allocated before anything is.

    Args:
        needs: at `rows`.
        free: bytes that the device has left.
        rows: T of the plan.
        command: what builds a plan, ending in "--context "; the context is added.

    Raises:
        EngineError: it does not fit; by name of the largest context that does.
    """
    room = free - RESERVE
    if needs.total <= room:
        return
    rest = needs.total - needs.kv  # activations hardly shrink where T does
    fitting = max(0, room - rest) // spec.kv_bytes(1) - 2 * WIDEST_STEP  # T is more than a context
    fitting = fitting - fitting % CONTEXT_STEP if fitting >= CONTEXT_STEP else MIN_CONTEXT
    fits = rest + spec.kv_bytes(fitting + 2 * WIDEST_STEP) <= room
    said = (
        f"{spec.role}: the GPU has {format_size(max(0, free))} free, of which "
        f"{format_size(RESERVE)} are left alone; T of {rows} needs {format_size(needs.total)} "
        f"({needs})"
    )
    if not fits or fitting < spec.max_verify:
        raise EngineError(
            f"{said}; no context fits: free some of it, use a smaller model or precision, or "
            "--engine cpu"
        )
    raise EngineError(f"{said}; the largest context that fits is {fitting}: {command}{fitting}")


class Held:
    """What one engine has allocated, so that closing frees all of it, however far it came."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._device: dict[int, int] = {}
        self._pinned: list[Bytes] = []
        self._registered: list[npt.NDArray[Any]] = []

    @property
    def device_bytes(self) -> int:
        return sum(self._device.values())

    def device(self, size: int, what: str) -> int:
        """Address of `size` bytes on the device.

        Raises:
            EngineError: out of memory; `what` says what for.
        """
        try:
            address = self._cuda.allocate(size)
        except CudaError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            raise out_of_memory(self._cuda, size, what) from error
        self._device[address] = size
        return address

    def pinned(self, size: int) -> Bytes:
        """Page-locked host memory, not cleared; its views die with it."""
        try:
            array = self._cuda.allocate_pinned(size)
        except CudaError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            raise EngineError(
                f"engine: {format_size(size)} of page-locked host memory cannot be had; raise "
                "`ulimit -l`, or free host memory"
            ) from error
        self._pinned.append(array)
        return array

    def register(self, array: npt.NDArray[Any]) -> None:
        """Page-lock numpy's own memory where that can be had: views of it outlive the engine."""
        if self._cuda.pin(array):
            self._registered.append(array)

    def close(self) -> None:
        """Free everything.

        Raises:
            EngineError: the first failure; the rest is freed all the same.
        """
        cuda = self._cuda
        work = [partial(cuda.free, address) for address in self._device]
        work += [partial(cuda.free_pinned, array) for array in self._pinned]
        work += [partial(cuda.unpin, array) for array in self._registered]
        self._device, self._pinned, self._registered = {}, [], []
        do_all(work)


def do_all(work: Iterable[Callable[[], None]]) -> None:
    """Do every piece of work, whatever fails.

    Raises:
        EngineError: what the first failure said. A new one: the old one's frames would keep alive
            what they know, and with it memory of the device.
    """
    said: str | None = None
    for each in work:
        try:
            each()
        except EngineError as error:
            said = said or str(error)
    if said is not None:
        raise EngineError(said)


def out_of_memory(cuda: Cuda, size: int, what: str) -> EngineError:
    """Says how much was asked for, and what is left."""
    return EngineError(
        f"engine: out of device memory: {what} needs {format_size(size)}, the GPU has "
        f"{format_size(cuda.free_bytes())} free; close what else uses it, or build a plan of a "
        "smaller --context"
    )

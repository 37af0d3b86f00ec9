"""What the CUDA driver says of this machine's GPU, asked through ctypes: no package is needed.

Device 0 is the first one that CUDA_VISIBLE_DEVICES leaves visible. Nothing here makes a context on
the device but `memory`, where NVML cannot be asked.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from specedge.contract import Element
from specedge.errors import EngineError
from specedge.power.nvml import Gpu, open_gpu

LEAST_CAPABILITY: dict[Element, tuple[int, int]] = {"float16": (5, 3), "bfloat16": (8, 0)}
"""From which compute capability a GPU computes in it."""

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
NOT_INSTALLED = (
    f"the NVIDIA driver is not installed here ({_LIBRARY} is missing); install it, or start the "
    "container with the GPU (docker run --gpus all)"
)
_MAJOR, _MINOR = 75, 76  # attributes of a device: compute capability
WHY = {  # by error of the driver or the runtime; what a person can do
    34: "the library found is the stub that programs are linked with; take the folder stubs out of "
    "LD_LIBRARY_PATH",
    100: "the driver finds no GPU; see whether nvidia-smi lists one, and give the container one "
    "(docker run --gpus all)",
    101: "the driver finds no such GPU; see CUDA_VISIBLE_DEVICES",
    803: "kernel module and driver library are of different versions; restart the machine",
    804: "the driver library is of a forward compatibility package that this GPU does not take; "
    "remove the package or update the driver",
    999: "the driver does not start; see dmesg, and restart the machine",
}


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU.

    Args:
        name: "NVIDIA H200".
        capability: compute capability, (9, 0).
        total_bytes: of its memory.
        cuda: newest CUDA that the driver serves, (13, 0).
    """

    name: str
    capability: tuple[int, int]
    total_bytes: int
    cuda: tuple[int, int]

    @property
    def sm(self) -> str:
        """ "SM90"."""
        return f"SM{self.capability[0]}{self.capability[1]}"

    def check_dtype(self, dtype: Element, where: str, key: str = "export.activations") -> None:
        """Raises EngineError where the GPU does not compute in it; `key` of a config says so."""
        least = LEAST_CAPABILITY.get(dtype, (0, 0))
        if self.capability < least:
            other = "fp16" if dtype == "bfloat16" and self.capability >= (5, 3) else "fp32"
            raise EngineError(
                f"{where}: activations are {dtype}, which needs compute capability "
                f"{least[0]}.{least[1]}; {self.name} has {self.capability[0]}.{self.capability[1]}"
                f": export with --set {key}={other}, or run with --engine cpu"
            )


def find(ordinal: int = 0) -> Device | str:
    """A GPU, or in one line why there is none and what to do.

    Args:
        ordinal: as CUDA counts the visible ones.
    """
    driver = _driver()
    if isinstance(driver, str):
        return driver
    version, count, handle = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    failed = driver.cuDeviceGetCount(ctypes.byref(count))
    if failed or not count.value:
        return WHY[100]
    if not 0 <= ordinal < count.value:
        return f"there is no GPU {ordinal}: CUDA sees {count.value}, counted from 0"
    if driver.cuDeviceGet(ctypes.byref(handle), ordinal):
        return WHY[101]
    name = ctypes.create_string_buffer(256)
    total = ctypes.c_size_t()
    parts = [ctypes.c_int(), ctypes.c_int()]
    driver.cuDeviceGetName(name, len(name), handle)
    driver.cuDeviceTotalMem_v2(ctypes.byref(total), handle)
    for part, attribute in zip(parts, (_MAJOR, _MINOR), strict=True):
        driver.cuDeviceGetAttribute(ctypes.byref(part), attribute, handle)
    number = version.value
    return Device(
        name.value.decode(errors="replace") or f"GPU {ordinal}",
        (parts[0].value, parts[1].value),
        total.value,
        (number // 1000, number % 1000 // 10),
    )


def required(where: str, ordinal: int = 0) -> Device:
    """The GPU. Raises EngineError, which begins with `where`, when there is none."""
    found = find(ordinal)
    if isinstance(found, str):
        raise unusable(where, found)
    return found


def unusable(where: str, why: str) -> EngineError:
    """The error that says so; `why` is what `find` gives."""
    return EngineError(f"{where}: no NVIDIA GPU can be used: {why}, or use --engine cpu")


def free_bytes(ordinal: int = 0) -> int | None:
    """Bytes of device memory that nobody has taken; None: there is no GPU, or it does not say.

    NVML is asked first: the driver answers inside a context only, which takes some hundred
    megabytes of what is asked about.
    """
    if ordinal == 0:
        gpu = open_gpu()
        if isinstance(gpu, Gpu):
            free = gpu.free_bytes()
            gpu.close()
            if free is not None:
                return free
    driver = _driver()
    if isinstance(driver, str):
        return None
    with _context(driver, ordinal) as held:
        if not held:
            return None
        left, total = ctypes.c_size_t(), ctypes.c_size_t()
        failed = driver.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total))
        return None if failed else left.value


@contextmanager
def _context(driver: Any, ordinal: int) -> Iterator[bool]:
    """The device's primary context, current meanwhile; False: it cannot be had."""
    handle, context, before = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    if driver.cuDeviceGet(ctypes.byref(handle), ordinal) or driver.cuDevicePrimaryCtxRetain(
        ctypes.byref(context), handle
    ):
        yield False
        return
    try:
        if driver.cuCtxPushCurrent_v2(context):
            yield False
            return
        try:
            yield True
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(before))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(handle)


def _driver() -> Any:
    """The driver's library, ready; or in one line why it is not."""
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        if "cannot open shared object" in str(error) or sys.platform == "win32":
            return NOT_INSTALLED
        return f"the NVIDIA driver's library does not load: {' '.join(str(error).split())}"
    code = driver.cuInit(0)
    if code:
        return WHY.get(code, f"the NVIDIA driver does not start (cuInit says {code})")
    return driver

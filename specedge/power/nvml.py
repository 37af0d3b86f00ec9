"""An NVIDIA GPU through `pynvml` of nvidia-ml-py: energy, clock, driver, why it slows down.

The package is looked for when a GPU is opened, so that nothing else needs it. A driver says "not
supported" to single questions; those answer None. NVML counts its users: each `Gpu` is one.
"""

from __future__ import annotations

import importlib
import os
import time
from types import ModuleType
from typing import Any

from specedge.power.counting import SAMPLE_S, Clock, CounterMeter, SampledMeter, Wrapping

REASONS = {  # bits of NVML's clocks event reasons; idling and clocks that were asked for are none
    0x004: "power limit",
    0x008: "hardware slowdown",
    0x020: "thermal slowdown",
    0x040: "thermal slowdown by hardware",
    0x080: "power brake",
    0x200: "board limit",
    0x400: "reliability limit",
}
_HARDWARE, _CAUSES = 0x008, 0x040 | 0x080  # the first is set along with either of the others


class Gpu:
    """One open GPU. Every question answers None where the driver does not."""

    def __init__(self, nvml: ModuleType, handle: Any, name: str) -> None:
        self.name = name
        self._nvml = nvml
        self._handle = handle
        self._open = True

    def joules(self) -> float | None:
        """Since the driver was loaded; Volta and newer."""
        return _scaled(self._ask("nvmlDeviceGetTotalEnergyConsumption"), 1e-3)

    def watts(self) -> float | None:
        return _scaled(self._ask("nvmlDeviceGetPowerUsage"), 1e-3)

    def limit_watts(self) -> float | None:
        """The power limit in force."""
        return _scaled(self._ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3)

    def mhz(self) -> float | None:
        """Clock of the multiprocessors."""
        clock = getattr(self._nvml, "NVML_CLOCK_SM", 1)
        return _scaled(self._ask("nvmlDeviceGetClockInfo", clock), 1.0)

    def throttled(self) -> tuple[str, ...] | None:
        """What holds its clocks down just now, in words."""
        mask = None
        # the second name is the older one; a driver or a package may know just one of them
        for name in (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        ):
            mask = self._ask(name)
            if mask is not None:
                break
        if not isinstance(mask, int):
            return None
        if mask & _CAUSES:
            mask &= ~_HARDWARE
        return tuple(word for bit, word in REASONS.items() if mask & bit)

    def free_bytes(self) -> int | None:
        """Of device memory."""
        free = getattr(self._ask("nvmlDeviceGetMemoryInfo"), "free", None)
        return free if isinstance(free, int) else None

    def driver(self) -> str | None:
        """Version, "575.57.08"."""
        said = self._ask("nvmlSystemGetDriverVersion", of_device=False)
        return (said.decode(errors="replace") if isinstance(said, bytes) else said) or None

    def close(self) -> None:
        if self._open:
            self._open = False
            _quietly(self._nvml, "nvmlShutdown")

    def _ask(self, name: str, *more: Any, of_device: bool = True) -> Any:
        if not self._open:
            return None
        asked = (self._handle, *more) if of_device else more
        return _quietly(self._nvml, name, *asked)


def open_gpu() -> Gpu | str:
    """The GPU that this process computes on, or why it cannot be asked.

    The first one that CUDA_VISIBLE_DEVICES names, else number 0. With several unlike GPUs CUDA
    may number them otherwise than NVML, unless CUDA_DEVICE_ORDER=PCI_BUS_ID is set.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except Exception as error:  # a broken package may raise anything
        if isinstance(error, ModuleNotFoundError):
            return "NVML: nvidia-ml-py is not installed"
        return f"NVML: pynvml cannot be imported: {_told(error)}"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return f"NVML: {_told(error)}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    first = "0" if visible is None else visible.split(",")[0].strip()
    try:
        if first.isdecimal():
            handle = nvml.nvmlDeviceGetHandleByIndex(int(first))
        elif first.startswith(("GPU-", "MIG-")):
            handle = nvml.nvmlDeviceGetHandleByUUID(first)
        else:
            _quietly(nvml, "nvmlShutdown")
            return f"NVML: CUDA_VISIBLE_DEVICES={first} shows no GPU"
    except nvml.NVMLError as error:
        _quietly(nvml, "nvmlShutdown")
        return f"NVML: GPU {first}: {_told(error)}"
    said = _quietly(nvml, "nvmlDeviceGetName", handle)
    name = said.decode(errors="replace") if isinstance(said, bytes) else said
    return Gpu(nvml, handle, name if isinstance(name, str) else f"GPU {first}")


class _Owning:
    """A meter that closes its GPU with itself."""

    def __init__(self, meter: CounterMeter | SampledMeter, gpu: Gpu) -> None:
        self.source = meter.source
        self._meter = meter
        self._gpu = gpu

    def joules(self) -> float | None:
        return self._meter.joules()

    def close(self) -> None:
        self._meter.close()
        self._gpu.close()


def open_nvml(*, every_s: float = SAMPLE_S, clock: Clock = time.monotonic) -> _Owning | str:
    """A meter of the GPU alone, or why there is none."""
    gpu = open_gpu()
    if isinstance(gpu, str):
        return gpu
    if gpu.joules() is not None:
        counter = CounterMeter(f"NVML {gpu.name}", [Wrapping(gpu.joules, None)], clock)
        return _Owning(counter, gpu)
    if gpu.watts() is not None:
        sampled = SampledMeter(f"NVML {gpu.name}, sampled", gpu.watts, every_s=every_s, clock=clock)
        return _Owning(sampled, gpu)
    gpu.close()
    return f"NVML: {gpu.name} tells neither energy nor power"


def _quietly(nvml: ModuleType, name: str, *asked: Any) -> Any:
    """What the function returns; None where it is missing or fails."""
    try:
        return getattr(nvml, name)(*asked)
    except Exception:  # NVMLError, which cannot be named before the import; ctypes' own
        return None


def _scaled(value: Any, factor: float) -> float | None:
    return value * factor if isinstance(value, int) and value >= 0 else None


def _told(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__

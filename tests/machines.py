"""File trees of machines that are not at hand, and a GPU that is none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

POWERCAP = "sys/class/powercap"
CPU = "sys/devices/system/cpu"
ORIN_NANO = "sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon1"


def put(root: Path, files: dict[str, object]) -> Path:
    """Write files under `root`, each with its folders."""
    for name, value in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    return root


def zone(root: Path, zone: str, name: str, energy_uj: object, range_uj: object = 10**9) -> Path:
    """A RAPL domain; returns its counter."""
    folder = f"{POWERCAP}/intel-rapl:{zone}"
    put(
        root,
        {
            f"{folder}/name": name,
            f"{folder}/energy_uj": energy_uj,
            f"{folder}/max_energy_range_uj": range_uj,
        },
    )
    return root / folder / "energy_uj"


def orin_nano(root: Path, *, in_mv: int = 5000, in_ma: int = 2000) -> Path:
    rails = {1: "VDD_IN", 2: "VDD_CPU_GPU_CV", 3: "VDD_SOC"}
    put(root, {f"{ORIN_NANO}/in{n}_label": name for n, name in rails.items()})
    put(root, {f"{ORIN_NANO}/in{n}_input": 5000 for n in rails})
    put(root, {f"{ORIN_NANO}/curr{n}_input": 500 for n in rails})
    put(root, {f"{ORIN_NANO}/in7_label": "sum of shunt voltages", f"{ORIN_NANO}/in7_input": 9})
    return put(root, {f"{ORIN_NANO}/in1_input": in_mv, f"{ORIN_NANO}/curr1_input": in_ma})


class Ticks:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class NVMLError(Exception):
    pass


class FakeNvml(SimpleNamespace):
    """`pynvml` with one GPU; what `lacks` names fails as on a driver that cannot."""

    NVML_CLOCK_SM = 1
    NVMLError = NVMLError

    def __init__(self, lacks: tuple[str, ...] = ()) -> None:
        super().__init__(energy=5_000_000, power=300_000, limit=700_000, reasons=0, clock=1980)
        self.lacks = lacks
        self.users = 0
        self.asked_for: object = None

    def __getattribute__(self, name: str) -> object:
        if name.startswith("nvml") and name in super().__getattribute__("lacks"):
            return self._refuse
        return super().__getattribute__(name)

    def _refuse(self, *asked: object) -> None:
        raise NVMLError("Not Supported")

    def nvmlInit(self) -> None:
        self.users += 1

    def nvmlShutdown(self) -> None:
        self.users -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index > 1:
            raise NVMLError("Invalid Argument")
        self.asked_for = index
        return "handle"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked_for = uuid
        return "handle"

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(total=143 << 30, free=140 << 30, used=3 << 30)

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"575.57.08"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return int(self.energy)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return int(self.power)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        return int(self.limit)

    def nvmlDeviceGetClockInfo(self, handle: str, which: int) -> int:
        assert which == self.NVML_CLOCK_SM
        return int(self.clock)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return int(self.reasons)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return int(self.reasons)


def install(monkeypatch, module: object) -> None:
    """Let `import pynvml` find `module`; None: let it fail."""
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def failing(error: BaseException) -> Callable[..., object]:
    def fail(*asked: object, **more: object) -> object:
        raise error

    return fail

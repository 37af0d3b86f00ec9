"""Jetson boards: INA3221 power sensors, power mode, over-current events, clock of the GPU.

Sensors are found under the kernel's driver of theirs, in either of two forms:

    ina3221/*/hwmon/hwmon*/      inN_label, inN_input in mV, currN_input in mA       JetPack 5 on
    ina3221x/*/iio:deviceN/      rail_name_N, in_powerN_input in mW                  JetPack 4

They measure rails, some of which feed others, so that only named rails may be added up.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from specedge.power import files
from specedge.power.counting import SAMPLE_S, Clock, SampledMeter

HWMON = "sys/bus/i2c/drivers/ina3221/*/hwmon/hwmon*"
IIO = "sys/bus/i2c/drivers/ina3221x/*/iio:device*"
GPU_CLOCKS = (
    "sys/devices/gpu.0/devfreq/*/cur_freq",
    "sys/devices/platform/*gpu*/devfreq/*/cur_freq",
    "sys/class/devfreq/*gpu*/cur_freq",
    "sys/class/devfreq/*.g[apv]1[01]b/cur_freq",  # named after the chip: 17000000.ga10b
)

TOTALS = (
    ("VDD_IN",),  # Orin Nano and NX, Xavier NX, TX2
    ("POM_5V_IN",),  # Nano
    ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),  # AGX Orin; VDDQ_VDD2_1V8AO hangs on the last
    ("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"),  # AGX Xavier
)

_CHANNEL = re.compile(r"(?:in([0-9]+)_label|rail_name_([0-9]+))")
_MODE = re.compile(r"pmode:([0-9]{1,4})")


def rails(root: Path) -> dict[str, Callable[[], float | None]]:
    """A reader of watts by the name of its rail; names that two rails share are left out."""
    found: dict[str, Callable[[], float | None]] = {}
    twice = set()
    for pattern, reader in ((f"{HWMON}/in*_label", _hwmon), (f"{IIO}/rail_name_*", _iio)):
        for path in files.matching(root, pattern):
            channel, name = _CHANNEL.fullmatch(path.name), files.line(path)
            if channel is None or name is None:
                continue
            if name in found:
                twice.add(name)
            found[name] = reader(path.parent, channel[1] or channel[2])
    return {name: read for name, read in found.items() if name not in twice}


def _hwmon(folder: Path, channel: str) -> Callable[[], float | None]:
    def watts() -> float | None:
        millivolts = files.count(folder / f"in{channel}_input")
        milliamperes = files.count(folder / f"curr{channel}_input")
        if millivolts is None or milliamperes is None:
            return None
        return millivolts * milliamperes / 1e6

    return watts


def _iio(folder: Path, channel: str) -> Callable[[], float | None]:
    def watts() -> float | None:
        milliwatts = files.count(folder / f"in_power{channel}_input")
        return None if milliwatts is None else milliwatts / 1e3

    return watts


def open_jetson(
    root: Path, *, every_s: float = SAMPLE_S, clock: Clock = time.monotonic
) -> SampledMeter | str:
    """A meter of the whole module, or why there is none."""
    found = rails(root)
    if not found:
        return f"INA3221: no sensor under {root / 'sys/bus/i2c/drivers'}"
    total = next((names for names in TOTALS if found.keys() >= set(names)), None)
    if total is None:
        return f"INA3221: no known sum of the rails {', '.join(sorted(found))}"
    watts = _summed({name: found[name] for name in total})
    if watts() is None:
        return f"INA3221: {' + '.join(total)} cannot be read"
    return SampledMeter(f"INA3221 {' + '.join(total)}", watts, every_s=every_s, clock=clock)


def _summed(parts: Mapping[str, Callable[[], float | None]]) -> Callable[[], float | None]:
    def watts() -> float | None:
        read = [part() for part in parts.values()]
        known = [each for each in read if each is not None]
        return sum(known) if len(known) == len(read) else None

    return watts


def power_mode(root: Path) -> str | None:
    """The mode's name ("15W", "MAXN"), or "mode 2" where its table does not name it."""
    status = _MODE.search(files.text(root / "var/lib/nvpmodel/status") or "")
    if status is None:
        return None
    number = int(status[1])
    table = files.text(root / "etc/nvpmodel.conf") or ""
    name = re.search(rf"<\s*POWER_MODEL\s+ID={number}\s+NAME=(\w{{1,40}})\s*>", table)
    return name[1] if name else f"mode {number}"


def release(root: Path) -> str | None:
    """Which driver a Jetson's GPU has: "L4T R36.4.3"; None on anything else."""
    said = re.match(
        r"# (R[0-9]{1,3}) \(release\), REVISION: ([0-9.]{1,10})",
        files.text(root / "etc/nv_tegra_release") or "",
    )
    return f"L4T {said[1]}.{said[2]}" if said else None


def gpu_clock_paths(root: Path) -> list[Path]:
    """Files with the GPU's clock in Hz."""
    return next((found for each in GPU_CLOCKS if (found := files.matching(root, each))), [])

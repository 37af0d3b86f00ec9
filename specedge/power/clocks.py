"""Clock rates in MHz, now: the fastest core's, or the GPU's.

Of all cores the fastest is taken, because idle ones stand at their lowest clock whatever happens.
It says something of a load only right after that load.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Protocol

from specedge.power import files
from specedge.power.jetson import gpu_clock_paths

MOST_CORES = 64  # looked at: each is one file

_CPUINFO = re.compile(r"^cpu MHz\s*:\s*([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*$", re.MULTILINE)


class Clocks(Protocol):
    def mhz(self) -> float | None: ...


class CpuClocks:
    """The fastest of the cores that this process may run on."""

    def __init__(self, root: Path) -> None:
        self._cpuinfo = root / "proc/cpuinfo"
        folder = root / "sys/devices/system/cpu"
        cores = sorted(_usable(files.matching(folder, "cpu[0-9]*")))[:MOST_CORES]
        self._paths = [folder / f"cpu{core}/cpufreq/scaling_cur_freq" for core in cores]

    def mhz(self) -> float | None:
        khz = [found for path in self._paths if (found := files.count(path))]
        if khz:
            return max(khz) / 1e3
        told = _CPUINFO.findall(files.text(self._cpuinfo) or "")
        return max(map(float, told), default=0.0) or None


class DevfreqClocks:
    """A GPU with a devfreq entry, as on a Jetson."""

    def __init__(self, root: Path) -> None:
        self._paths = gpu_clock_paths(root)

    def mhz(self) -> float | None:
        hertz = [found for path in self._paths if (found := files.count(path))]
        return max(hertz) / 1e6 if hertz else None


def _usable(folders: list[Path]) -> set[int]:
    present = {int(folder.name[3:]) for folder in folders if folder.name[3:].isdecimal()}
    if hasattr(os, "sched_getaffinity"):
        # a tree that is not this machine's may have none of this process's cores
        return present & os.sched_getaffinity(0) or present
    return present

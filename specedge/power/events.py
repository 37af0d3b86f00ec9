"""What rises when the processor or the board is slowed down: counters and states of the kernel.

cpuN/thermal_throttle/   how often a core, or a package, became too hot (Intel)
cooling_device*/         how far the kernel holds a processor or a GPU down (mostly ARM)
hwmon*/ocN_event_cnt     over-current and low voltage (Jetson)
get_throttled            low voltage, capped, throttled: bits (Raspberry Pi)
"""

from __future__ import annotations

import re
from pathlib import Path

from specedge.power import files

RASPBERRY = "sys/devices/platform/soc/soc:firmware/get_throttled"
RASPBERRY_BITS = {
    0: "low voltage",
    1: "clock capped",
    2: "throttled",
    3: "soft temperature limit",
}
OVER_CURRENT = {1: "low voltage", 2: "average over-current", 3: "over-current"}

_COOLED = re.compile("processor|cpu|devfreq|gpu", re.IGNORECASE)
_HEX = re.compile("(?:0x)?([0-9a-fA-F]{1,8})")


class ThrottleCounts:
    """How often the processor throttled: `rose()` says by how much since it was made."""

    def __init__(self, root: Path) -> None:
        cpus = "sys/devices/system/cpu/cpu[0-9]*/thermal_throttle"
        self._cores = files.matching(root, f"{cpus}/core_throttle_count")
        # every core repeats its package's count
        self._packages = files.matching(root, f"{cpus}/package_throttle_count")
        self._before = self._read()

    def lines(self) -> list[str]:
        names = ("CPU throttle count", "CPU package throttle count")
        found = []
        for name, before, now in zip(names, self._before, self._read(), strict=True):
            if before is not None and now is not None and now > before:
                found.append(f"{name} rose by {now - before}")
        return found

    def _read(self) -> tuple[int | None, int | None]:
        cores = [files.count(path) for path in self._cores]
        packages = [files.count(path) for path in self._packages]
        known = [each for each in cores if each is not None]
        # a core that went off line would make the sum fall, or hide a rise
        total = sum(known) if known and len(known) == len(cores) else None
        return total, max((each for each in packages if each is not None), default=None)


class Cooling:
    """Devices that the kernel slows down to cool them."""

    def __init__(self, root: Path) -> None:
        folders = files.matching(root, "sys/class/thermal/cooling_device[0-9]*")
        self._before: dict[Path, tuple[str, int]] = {}
        for folder in folders:
            kind, state = files.line(folder / "type"), files.count(folder / "cur_state")
            if kind is not None and state is not None and _COOLED.search(kind):
                self._before[folder] = (kind, state)
        self._highest = {folder: state for folder, (_, state) in self._before.items()}

    def check(self) -> None:
        for folder, highest in self._highest.items():
            state = files.count(folder / "cur_state")
            self._highest[folder] = max(highest, state if state is not None else highest)

    def lines(self) -> list[str]:
        self.check()
        worst: dict[str, tuple[int, int]] = {}  # a kind has many devices, one a core
        for folder, (kind, before) in self._before.items():
            if self._highest[folder] > before:
                name = re.sub("[-_ ]?[0-9]+$", "", kind)
                worst[name] = max(worst.get(name, (0, 0)), (self._highest[folder], before))
        return [
            f"slowed down to cool ({name}: state {highest}, before {before})"
            for name, (highest, before) in worst.items()
        ]


class OverCurrent:
    """Events of a Jetson's power supply, each of which throttles it for a moment."""

    def __init__(self, root: Path) -> None:
        paths = files.matching(root, "sys/class/hwmon/hwmon*/oc[1-3]_event_cnt")
        self._before = {path: files.count(path) for path in paths}

    def lines(self) -> list[str]:
        found = []
        for path, before in self._before.items():
            now = files.count(path)
            if before is not None and now is not None and now > before:
                what = OVER_CURRENT[int(path.name[2])]
                found.append(f"throttled by {what}: {now - before} events")
        return found


class Raspberry:
    """Bits that hold just now, gathered over all checks."""

    def __init__(self, root: Path) -> None:
        self._path = root / RASPBERRY
        self._seen = 0

    def check(self) -> None:
        said = _HEX.fullmatch(files.text(self._path) or "")
        self._seen |= int(said[1], 16) if said else 0

    def lines(self) -> list[str]:
        self.check()
        return [
            f"Raspberry Pi: {word}"
            for bit, word in RASPBERRY_BITS.items()
            if self._seen & (1 << bit)
        ]

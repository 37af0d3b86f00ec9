"""RAPL: energy counters of x86 processors, /sys/class/powercap/intel-rapl:* (AMD's too).

Counted are the packages, and the memory where it has a domain of its own: together that is what
decoding draws, for each token reads all weights from memory. A domain `core` or `uncore` lies
inside its package. `psys`, the whole platform, is left alone: it is right only where the maker of
the board wired it up, stands at zero or tells nonsense elsewhere, and contains the packages.
The same counters are listed once more as intel-rapl-mmio; the pattern does not match those.

Since 2020 only root may read `energy_uj`, because power tells of what is computed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from specedge.power import files
from specedge.power.counting import Clock, CounterMeter, Wrapping

FOLDERS = "sys/class/powercap/intel-rapl:*"


@dataclass(frozen=True)
class Domain:
    """One counter; `folder` is its zone's."""

    folder: Path
    name: str

    def joules(self) -> float | None:
        found = files.count(self.folder / "energy_uj")
        return None if found is None else found / 1e6

    def range_joules(self) -> float | None:
        found = files.count(self.folder / "max_energy_range_uj")
        return found / 1e6 if found else None


def domains(root: Path) -> list[Domain]:
    """Packages, then memories; no two of them count the same joule."""
    found = []
    for folder in files.matching(root, FOLDERS):
        name = files.line(folder / "name")
        if name is not None and (name.startswith("package") or name == "dram"):
            found.append(Domain(folder, name))
    return sorted(found, key=lambda domain: (domain.name == "dram", domain.folder.name))


def open_rapl(root: Path, clock: Clock = time.monotonic) -> CounterMeter | str:
    """A meter, or why there is none."""
    found = domains(root)
    if not any(domain.name.startswith("package") for domain in found):
        return f"RAPL: no package under {root / 'sys/class/powercap'}"
    for domain in found:
        if why := files.trouble(domain.folder / "energy_uj"):
            return f"RAPL: {why}"
    names = [domain.name for domain in found]
    shown = dict.fromkeys(f"{names.count(n)} x {n}" if names.count(n) > 1 else n for n in names)
    counters = [Wrapping(domain.joules, domain.range_joules()) for domain in found]
    return CounterMeter(f"RAPL {' + '.join(shown)}", counters, clock)

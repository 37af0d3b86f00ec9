"""What a measurement depends on: when none of it changed, it need not be repeated."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

from specedge import __version__
from specedge.bundle import Bundle
from specedge.doctor import INSTRUCTIONS, cpu_quota, cpuinfo, usable_cores
from specedge.engines.base import Engine

Part = str | int | bool | None
Fingerprint = dict[str, Part]

_THREADS = re.compile(r"(\d+) threads?")
_GOVERNORS = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor"
_POWER_MODES = ("/sys/firmware/acpi/platform_profile", "/var/lib/nvpmodel/status")


def take(
    bundle: Bundle,
    target: Engine,
    draft: Engine | None = None,
    *,
    threads: int | None = None,
    exact: bool = True,
) -> Fingerprint:
    """Everything that costs depend on, by name; None where this machine does not say.

    Args:
        bundle: its hash stands for graphs and weights.
        target: open, with the context that is measured.
        draft: open, or None.
        threads: as asked for; what the engine says of itself counts more.
        exact: as asked for.
    """
    engine, provider, said = _described(target.description)
    model, flags = cpuinfo()
    quota = cpu_quota()
    return {
        "bundle": bundle.hash,
        "specedge": __version__,
        "engine": engine,
        "provider": provider,
        "threads": said or threads or usable_cores(),
        "exact": exact,
        "width_step": target.width_step,
        "target_context": _context(target),
        "draft_context": None if draft is None else _context(draft),
        "processor": model,
        "instructions": " ".join(name for name in INSTRUCTIONS if name in flags) or None,
        "cores": f"{usable_cores()} of {os.cpu_count() or usable_cores()}",
        "cpu_quota": None if quota is None else f"{quota:g} cores",
        "governor": _governor(),
        "power_mode": _power_mode(),
        "gpu_driver": _driver(target),
    }


def short_hash(fingerprint: Fingerprint) -> str:
    """16 hexadecimal digits, independent of the order of the parts."""
    text = json.dumps(fingerprint, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def changed(old: Fingerprint, new: Fingerprint) -> tuple[str, ...]:
    """What differs, for a person: ("threads 2 -> 1",). In the order of `new`."""
    names = [*new, *(name for name in old if name not in new)]
    return tuple(
        f"{name.replace('_', ' ')} {_shown(old.get(name))} -> {_shown(new.get(name))}"
        for name in names
        if old.get(name) != new.get(name)
    )


def _shown(part: Part) -> str:
    text = "unknown" if part is None else str(part)
    return f"{text[:12]}…" if re.fullmatch("[0-9a-f]{64}", text) else text


def _described(description: str) -> tuple[str, str | None, int | None]:
    """Runtime with version, provider, threads: the parts of `Engine.description`."""
    engine, *rest = description.split(", ")
    threads = None
    provider = []
    for part in rest:
        if match := _THREADS.fullmatch(part):
            threads = int(match[1])
        else:
            provider.append(part)
    return engine, ", ".join(provider) or None, threads


def _context(engine: Engine) -> int:
    """T of the engine's slots."""
    slot = engine.new_slot()
    try:
        return slot.context
    finally:
        engine.release(slot)


def _governor() -> str | None:
    """The frequency governors of all cores, each named once."""
    cores = range(os.cpu_count() or 1)
    found = {name for core in cores if (name := _first_line(_GOVERNORS.format(core)))}
    return ", ".join(sorted(found)) or None


def _power_mode() -> str | None:
    return next((line for path in _POWER_MODES if (line := _first_line(path))), None)


def _driver(engine: Engine) -> str | None:
    """An engine on a GPU has a `driver`; the protocol asks none of the others for one."""
    driver = getattr(engine, "driver", None)
    return driver if isinstance(driver, str) else None


def _first_line(path: str) -> str | None:
    """Of a file that only some machines have; None when there is none, or it is empty."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").split("\n", 1)
    except OSError:
        return None
    return lines[0].strip() or None

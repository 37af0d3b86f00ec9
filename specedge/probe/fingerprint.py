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
from specedge.engines import matching
from specedge.engines.base import Engine
from specedge.power import jetson, settings
from specedge.power.nvml import Gpu, open_gpu

Part = str | int | bool | None
Fingerprint = dict[str, Part]

_THREADS = re.compile(r"(\d+) threads?")
_GPU = re.compile("cuda|tensorrt|gpu", re.IGNORECASE)


def take(
    bundle: Bundle,
    target: Engine,
    *,
    context: int,
    draft_context: int | None = None,
    draft_engine: str | None = None,
    threads: int | None = None,
    exact: bool = True,
    root: Path = Path("/"),
) -> Fingerprint:
    """Everything that costs depend on, by name; None where this machine does not say.

    Args:
        bundle: its hash stands for graphs and weights.
        target: open.
        context: T, rows of the target's slot.
        draft_context: the same of the draft's; None: there is none.
        draft_engine: name of the draft's engine; it need not be open.
        threads: as asked for; what the engine says of itself counts more.
        exact: as asked for.
        root: of the file tree that settings are read from.
    """
    engine, provider, said = _described(target.description)
    model, flags = cpuinfo()
    quota = cpu_quota()
    gpu, gpu_driver, gpu_limit = None, None, None
    if on_gpu(target) or draft_engine in matching.ON_GPU:
        gpu, gpu_driver, gpu_limit = _gpu(target, root)
    return {
        "bundle": bundle.hash,
        "specedge": __version__,
        "engine": engine,
        "provider": provider,
        "threads": said or threads or usable_cores(),
        "exact": exact,
        "width_step": target.width_step,
        "target_context": context,
        "draft_context": draft_context,
        "draft_engine": None if draft_context is None else draft_engine,
        "processor": model,
        "instructions": " ".join(name for name in INSTRUCTIONS if name in flags) or None,
        "cores": f"{usable_cores()} of {os.cpu_count() or usable_cores()}",
        "cpu_quota": None if quota is None else f"{quota:g} cores",
        "governor": settings.governor(root),
        "power_mode": settings.power_mode(root),
        "power": settings.power_source(root),
        "gpu": gpu,
        "gpu_driver": gpu_driver,
        "gpu_power_limit": gpu_limit,
    }


def short_hash(fingerprint: Fingerprint) -> str:
    """16 hexadecimal digits, independent of the order of the parts."""
    text = json.dumps(fingerprint, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def changed(old: Fingerprint, new: Fingerprint) -> tuple[str, ...]:
    """What differs, for a person: ("threads 2 -> 1",). In the order of `new`."""
    names = [*new, *(name for name in old if name not in new)]
    return tuple(
        f"{name.replace('_', ' ')} {_shown(name, old)} -> {_shown(name, new)}"
        for name in names
        if old.get(name) != new.get(name)
    )


def _shown(name: str, parts: Fingerprint) -> str:
    part = parts.get(name)
    missing = "no draft" if name.startswith("draft_") and name in parts else "unknown"
    text = missing if part is None else str(part)
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


def on_gpu(engine: Engine) -> bool:
    """Whether an engine computes on an NVIDIA GPU, by its description."""
    runtime, provider, _ = _described(engine.description)
    return runtime.startswith(matching.PLANNED) or _GPU.search(provider or "") is not None


def _gpu(engine: Engine, root: Path) -> tuple[str | None, str | None, str | None]:
    """Name, driver and power limit of the GPU.

    An engine may have a `driver`; the protocol asks none for one.
    """
    said = getattr(engine, "driver", None)
    driver = said if isinstance(said, str) else jetson.release(root)
    gpu = open_gpu()
    if not isinstance(gpu, Gpu):
        return None, driver, None
    watts = gpu.limit_watts()
    driver = driver or gpu.driver()
    name = gpu.name
    gpu.close()
    return name, driver, None if watts is None else f"{watts:.0f} W"

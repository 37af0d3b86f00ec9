"""Is this machine, and this environment, ready to run bundles?

`examine` looks and changes nothing. Each check returns rows: what was looked at, ok / warn / fail,
what was found, and for anything but ok the remedy.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from specedge.bundle import cache_dir
from specedge.doctor_row import Row as Row
from specedge.memory import format_size
from specedge.versions import version

PYTHON = (3, 11)
RUNTIMES = {"onnxruntime": ((1, 32), (1, 33)), "onnxruntime-gpu": ((1, 31), (1, 33))}
RIVALS = (
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
    "onnxruntime-training",
    "onnxruntime-silicon",
    "ort-nightly",
)
EXTRAS = {
    "export": ("gguf", "onnx", "onnx-ir", "safetensors", "ml-dtypes"),
    "guidance": ("llguidance", "jsonschema"),
    "hub": ("huggingface-hub",),
    "metrics": ("prometheus-client",),
    "tensorrt": ("tensorrt", "cuda-bindings"),
    "tensorrt-rtx": ("tensorrt-rtx", "cuda-bindings"),
    "optimum": ("optimum", "optimum-onnx", "transformers", "torch"),
    "triton": ("tritonclient",),
}
ONLY_ON_GPU = ("tensorrt",)  # of these; TensorRT-RTX builds plans without one
_NEEDED = {
    "export": "to export",
    "guidance": "for structured output",
    "hub": "to fetch from a hub",
    "metrics": "to write Prometheus text",
    "tensorrt": "for --engine tensorrt",
    "tensorrt-rtx": "to build plans without a GPU, and for --engine tensorrt-rtx",
    "optimum": "for --frontend optimum",
    "triton": "to try a Triton model repository",
}
BASE = ("click", "jinja2", "numpy", "pydantic", "rich", "tokenizers")
INSTRUCTIONS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "asimd", "asimddp")
ENOUGH_MEMORY = 1 << 30
ENOUGH_DISK = 4 << 30

_METER_REMEDIES = {  # by what the reason says
    "Permission denied": "for joules per token: sudo chmod a+r "
    "/sys/class/powercap/intel-rapl:*/energy_uj, until the next boot",
    "not installed": 'for joules per token: pip install "specedge[power]"',
}

_PROBE = (
    "import json, onnxruntime as o; "
    "print(json.dumps([o.__version__, o.get_available_providers(), o.get_device()]))"
)


def examine() -> list[Row]:
    """All checks, in the order a person would fix things."""
    from specedge.device_checks import check_gpu  # and nothing of it for a fingerprint

    checks: tuple[Callable[[], Iterable[Row]], ...] = (
        check_python,
        check_base,
        check_runtime,
        check_gpu,
        check_extras,
        check_cpu,
        check_memory,
        check_power,
        check_cache,
    )
    return [row for check in checks for row in check()]


def check_python() -> Iterable[Row]:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    needed = ".".join(map(str, PYTHON))
    if sys.version_info >= PYTHON:
        yield Row("python", "ok", found)
    else:
        yield Row("python", "fail", found, f"use Python {needed} or newer")
    where = Path(__file__).resolve().parent
    yield Row("specedge", "ok", f"{version('specedge') or 'not installed'} at {where}")


def check_base() -> Iterable[Row]:
    found = {name: version(name) for name in BASE}
    missing = [name for name, known in found.items() if known is None]
    if missing:
        remedy = "pip install --force-reinstall specedge"
        yield Row("libraries", "fail", f"missing: {', '.join(missing)}", remedy)
    else:
        yield Row("libraries", "ok", ", ".join(f"{name} {known}" for name, known in found.items()))


def check_runtime() -> Iterable[Row]:
    """Exactly one ONNX Runtime distribution: two overwrite each other's files."""
    installed = [name for name in (*RUNTIMES, *RIVALS) if version(name) is not None]
    names = ", ".join(f"{name} {version(name)}" for name in installed)
    if not installed:
        yield Row("onnxruntime", "fail", "not installed", 'pip install "specedge[cpu]"')
        return
    if len(installed) > 1:
        remedy = f"pip uninstall -y {' '.join(installed)}; then pip install "
        again = "gpu" if "onnxruntime-gpu" in installed and _has_gpu() else "cpu"
        yield Row("onnxruntime", "fail", f"several: {names}", f'{remedy}"specedge[{again}]"')
        return
    (name,) = installed
    if name not in RUNTIMES:
        remedy = f'pip uninstall -y {name}; then pip install "specedge[cpu]"'
        yield Row("onnxruntime", "warn", f"{names}: specedge was not tried with it", remedy)
    elif not _within(version(name) or "", *RUNTIMES[name]):
        low, high = (".".join(map(str, bound)) for bound in RUNTIMES[name])
        yield Row("onnxruntime", "warn", names, f'pip install "{name}>={low},<{high}"')
    else:
        yield Row("onnxruntime", "ok", names)
    yield _providers(name)


def _within(found: str, low: tuple[int, ...], high: tuple[int, ...]) -> bool:
    parts = found.split(".")[:2]
    return all(p.isdigit() for p in parts) and low <= tuple(map(int, parts)) < high


def _providers(distribution: str) -> Row:
    """Import the runtime in a child: a broken install may end the process, not raise."""
    again = f"pip install --force-reinstall --no-deps {distribution}"
    try:
        child = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=120, check=False
        )
        loaded, providers, device = json.loads(child.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return Row("providers", "fail", "import onnxruntime did not end in 120 s", again)
    except (IndexError, ValueError):
        last = (child.stderr.strip().splitlines() or [f"exit {child.returncode}"])[-1]
        return Row("providers", "fail", f"import onnxruntime: {last}", again)
    found = f"{', '.join(providers)} (onnxruntime {loaded}, built for {device})"
    if "CPUExecutionProvider" not in providers:
        return Row("providers", "fail", found, again)
    return Row("providers", "ok", found)


def _has_gpu() -> bool:
    from specedge.engines import cuda  # and nothing of it for a fingerprint

    return isinstance(cuda.find(), cuda.Device)


def check_extras() -> Iterable[Row]:
    for extra, names in EXTRAS.items():
        missing = [name for name in names if version(name) is None]
        if missing and extra in ONLY_ON_GPU and not _has_gpu():
            yield Row(f"[{extra}]", "ok", "not installed; of no use without a GPU")
        elif missing:
            found = f"not installed: {', '.join(missing)}"
            needed = _NEEDED[extra]
            yield Row(f"[{extra}]", "warn", found, f'{needed}: pip install "specedge[{extra}]"')
        else:
            yield Row(f"[{extra}]", "ok", ", ".join(f"{name} {version(name)}" for name in names))


def check_cpu() -> Iterable[Row]:
    model, flags = cpuinfo()
    known = [name for name in INSTRUCTIONS if name in flags]
    found = f"{model}; {', '.join(known) or 'instruction sets unknown'}"
    if flags and not known:
        yield Row("cpu", "warn", found, "int4 arithmetic is slow without AVX2 or NEON; try fp32")
    else:
        yield Row("cpu", "ok", found)
    usable, present = usable_cores(), os.cpu_count() or 1
    quota = cpu_quota()
    if quota is not None and quota < usable:
        remedy = f"run with --threads {max(1, int(quota))}"
        yield Row("threads", "warn", f"{usable} cores but a quota of {quota:g}", remedy)
    else:
        yield Row("threads", "ok", f"{usable} of {present} cores usable")


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpuinfo() -> tuple[str, set[str]]:
    """Model of the processor, and its instruction flags where the system tells."""
    fields: dict[str, str] = {}
    for line in _lines("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    model = fields.get("model name") or platform.processor() or platform.machine()
    return model, set(fields.get("flags", fields.get("Features", "")).split())


def cpu_quota() -> float | None:
    """Cores' worth of time that a control group allows, or None."""
    for line in _lines("/sys/fs/cgroup/cpu.max"):
        quota, _, period = line.partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            return int(quota) / int(period)
    return None


def check_memory() -> Iterable[Row]:
    kib = {}
    for line in _lines("/proc/meminfo"):
        key, _, value = line.partition(":")
        kib[key] = value.split()[0]
    if "MemAvailable" not in kib:
        yield Row("memory", "ok", "size unknown on this system")
        return
    total, free = int(kib["MemTotal"]) << 10, int(kib["MemAvailable"]) << 10
    for line in _lines("/sys/fs/cgroup/memory.max"):
        if line.strip().isdigit():
            total, free = min(total, int(line)), min(free, int(line))
    found = f"{format_size(free)} available of {format_size(total)}"
    if free < ENOUGH_MEMORY:
        remedy = "close programs, or run with a smaller --context"
        yield Row("memory", "warn", found, remedy)
    else:
        yield Row("memory", "ok", found)


def check_power(root: Path = Path("/")) -> Iterable[Row]:
    """What a probe can say of joules and clocks; it does without either."""
    from specedge.power import open_meter, why_no_meter
    from specedge.power.clocks import Clocks, CpuClocks, DevfreqClocks
    from specedge.power.nvml import Gpu, open_gpu
    from specedge.power.settings import all_of

    on_gpu = version("onnxruntime-gpu") is not None
    meter = open_meter(root, on_gpu=on_gpu, every_s=0)
    if meter is not None:
        meter.close()
        yield Row("power meter", "ok", meter.source)
    else:
        why = why_no_meter(root, on_gpu=on_gpu)
        remedy = next((remedy for sign, remedy in _METER_REMEDIES.items() if sign in why), "")
        yield Row("power meter", "warn" if remedy else "ok", f"none: {why}", remedy)

    gpu = open_gpu() if on_gpu else None
    clocks: list[tuple[str, Clocks]] = [("CPU", CpuClocks(root))]
    if on_gpu:
        clocks.append(("GPU", gpu if isinstance(gpu, Gpu) else DevfreqClocks(root)))
    shown = [f"{name} {mhz:.0f} MHz" for name, source in clocks if (mhz := source.mhz())]
    if isinstance(gpu, Gpu):
        gpu.close()
    state = {name: value for name, value in all_of(root).items() if value is not None}
    found = ", ".join([*(shown or ["unreadable"]), *(f"{n} {v}" for n, v in state.items())])
    if state.get("power") == "battery":
        yield Row("clocks", "warn", found, "plug in before `specedge probe`: it measures speed")
    else:
        yield Row("clocks", "ok", found)


def check_cache() -> Iterable[Row]:
    """Where fetched weights and verified hashes are kept; a run does without it."""
    try:
        folder = cache_dir()
    except RuntimeError:
        yield Row("cache", "warn", "no home folder", "set SPECEDGE_CACHE to a writable folder")
        return
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        remedy = "set SPECEDGE_CACHE to a writable folder"
        yield Row("cache", "warn", f"{folder} is not writable", remedy)
        return
    free = shutil.disk_usage(existing).free
    found = f"{folder}, {format_size(free)} free"
    if free < ENOUGH_DISK:
        remedy = "free some space, or set SPECEDGE_CACHE to another disk, before exporting"
        yield Row("cache", "warn", found, remedy)
    else:
        yield Row("cache", "ok", found)


def _lines(path: str) -> list[str]:
    """Lines of a file that only some systems have."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []

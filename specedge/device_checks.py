"""Rows of `specedge doctor` about the GPU and the runtimes that compute on it.

A machine without a GPU is no worse for it, unless a package is installed that needs one. Packages
are imported in a child: a broken one may end its process, not raise.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from specedge.doctor_row import Row
from specedge.engines import cuda
from specedge.memory import format_size
from specedge.power.nvml import Gpu, open_gpu
from specedge.versions import version

ON_GPU = ("onnxruntime-gpu", "tensorrt")  # of no use without one; TensorRT-RTX builds without
TENSORRT = ("tensorrt", "tensorrt-rtx")
_ORT = """
import json, sys
from specedge.engines.ort import libraries
names = sys.argv[1:]
for name in names:
    libraries.prepare(name)
print(json.dumps([libraries.built_for(), [libraries.trouble(name) for name in names]]))
"""
_TENSORRT = """
import json, sys
from specedge.engines.trt.library import load
from specedge.errors import SpecedgeError
try:
    found = load(sys.argv[1])
    said = [found.version, list(found.capabilities), ""]
except SpecedgeError as error:
    said = ["", [], str(error)]
print(json.dumps(said))
"""


def check_gpu() -> Iterable[Row]:
    """The GPU, its driver, and what each installed runtime makes of it."""
    device = cuda.find()
    needing = [name for name in ON_GPU if version(name) is not None]
    if isinstance(device, cuda.Device):
        yield _gpu(device)
    else:
        why, _, remedy = device.partition("; ")
        if needing:
            yield Row("gpu", "warn", f"none: {why}", f"for {' and '.join(needing)}: {remedy}")
        else:
            yield Row("gpu", "ok", f"none: {why}")
    if "onnxruntime-gpu" in needing:
        yield from _onnxruntime(device if isinstance(device, cuda.Device) else None)
    for name in TENSORRT:
        if version(name) is not None:
            yield _tensorrt(name, device if isinstance(device, cuda.Device) else None)


def _gpu(device: cuda.Device) -> Row:
    gpu = open_gpu()
    driver, free = None, None
    if isinstance(gpu, Gpu):
        driver, free = gpu.driver(), gpu.free_bytes()
        gpu.close()
    major, minor = device.capability
    size = format_size(device.total_bytes)
    found = [
        f"{device.name}, compute capability {major}.{minor}",
        f"{size} of memory" if free is None else f"{format_size(free)} free of {size}",
        f"driver {driver or 'of unknown version'} for CUDA {device.cuda[0]}.{device.cuda[1]}",
    ]
    if free is not None and free < device.total_bytes / 10:
        remedy = "end what else computes on it; nvidia-smi lists it"
        return Row("gpu", "warn", "; ".join(found), remedy)
    return Row("gpu", "ok", "; ".join(found))


def _onnxruntime(device: cuda.Device | None) -> Iterable[Row]:
    """Whether the libraries of its providers are there, and the driver is new enough."""
    said = _child(_ORT, "cuda", "tensorrt")
    if isinstance(said, str):
        yield Row("engine cuda", "warn", said, "see the row onnxruntime")
        return
    built, troubles = said
    for name, trouble in zip(("cuda", "ort-tensorrt"), troubles, strict=True):
        why, _, remedy = (trouble or "").partition("; ")
        if device is None:
            here = "" if why else "; its libraries are here"
            yield Row(f"engine {name}", "ok", f"not usable: no GPU{here}")
        elif why:
            yield Row(f"engine {name}", "warn", why, remedy)
        elif built and device.cuda[0] < built[0]:
            found = f"ONNX Runtime is built for CUDA {built[0]}.{built[1]}, the driver is older"
            yield Row(f"engine {name}", "warn", found, "update the NVIDIA driver")
        else:
            yield Row(f"engine {name}", "ok", "its libraries are here")


def _tensorrt(name: str, device: cuda.Device | None) -> Row:
    """One of the two libraries, and whether it serves this GPU."""
    said = _child(_TENSORRT, name)
    if isinstance(said, str):
        return Row(name, "warn", said, f'pip install --force-reinstall "specedge[{name}]"')
    loaded, capabilities, trouble = said
    if trouble:
        why, _, remedy = trouble.removeprefix("engine: ").partition("; ")
        return Row(name, "warn", why, remedy)
    bindings = version("cuda-bindings")
    shown = [str(each) for each in capabilities]
    builds = f"; builds for compute capability {', '.join(shown)}" if shown else ""
    found = f"{loaded}, cuda-bindings {bindings or 'not installed'}{builds}"
    if bindings is None:
        return Row(name, "warn", found, f'to run plans: pip install "specedge[{name}]"')
    if (
        device is not None
        and shown
        and f"{device.capability[0]}{device.capability[1]}" not in shown
    ):
        return Row(name, "warn", f"{found}; not for {device.name}", "use the engine tensorrt here")
    return Row(name, "ok", found)


def _child(code: str, *arguments: str) -> Any:
    """What a program prints as JSON; or in one line why it does not."""
    try:
        child = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return json.loads(child.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return f"importing the libraries of {arguments[0]} did not end in 120 s"
    except (IndexError, ValueError):
        last = (child.stderr.strip().splitlines() or [f"exit {child.returncode}"])[-1]
        return f"importing the libraries of {arguments[0]}: {last}"

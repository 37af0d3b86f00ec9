"""What a box has, and which engines can therefore not run on it."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform

from gpu.running import MB, Emit, Json, line

ENGINES = ("cuda", "ort-tensorrt", "tensorrt", "tensorrt-rtx")


def box(request: Json, emit: Emit) -> None:
    """What is here, by name; of what is missing the reason."""
    found: Json = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
        "specedge": _version("specedge"),
        "gpu": _gpu(),
        "onnxruntime": _module("onnxruntime", "get_available_providers"),
        "tensorrt": _module("tensorrt"),
        "tensorrt_rtx": _module("tensorrt_rtx"),
        "cuda_bindings": _version("cuda-bindings"),
        "torch": _torch(),
    }
    emit(status="measured", figures=found)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpu() -> Json:
    """Of device 0: what the driver says; {"missing": reason} where there is none."""
    from specedge.engines import cuda
    from specedge.power.nvml import open_gpu

    device = cuda.find()
    if isinstance(device, str):
        return {"missing": device}
    said: Json = {
        "name": device.name,
        "capability": list(device.capability),
        "memory_mb": device.total_bytes // MB,
        "cuda": list(device.cuda),
    }
    gpu = open_gpu()
    said["driver"] = gpu if isinstance(gpu, str) else gpu.driver()
    if not isinstance(gpu, str):
        gpu.close()
    return said


def _module(name: str, call: str | None = None) -> Json:
    try:
        module = importlib.import_module(name)
        said: Json = {"version": getattr(module, "__version__", "not told")}
        if call is not None:
            said["providers"] = list(getattr(module, call)())
        if hasattr(module, "ComputeCapability"):
            said["capabilities"] = [name for name in dir(module.ComputeCapability) if "SM" in name]
    except Exception as error:  # a library that is missing raises whatever its loader does
        return {"missing": f"{type(error).__name__}: {line(error)}"}
    return said


def _torch() -> Json:
    said = _module("torch")
    if "version" in said:
        import torch

        said |= {"cuda": torch.version.cuda, "sees_gpu": torch.cuda.is_available()}
    return said


def why_not(engine: str, found: Json) -> str | None:
    """Why an engine cannot run on a box like this; None: it may."""
    ort, gpu = found["onnxruntime"], found["gpu"]
    if engine == "cpu":
        return f"ONNX Runtime: {ort['missing']}" if "missing" in ort else None
    if "missing" in gpu:
        return f"no GPU: {gpu['missing']}"
    if engine in ("cuda", "ort-tensorrt"):
        if "missing" in ort:
            return f"ONNX Runtime: {ort['missing']}"
        provider = "CUDAExecutionProvider" if engine == "cuda" else "TensorrtExecutionProvider"
        if provider not in ort["providers"]:
            return f"onnxruntime {ort['version']} has no {provider}; it wants onnxruntime-gpu"
        return None
    library = found[engine.replace("-", "_")]
    if "missing" in library:
        return f"{engine}: {library['missing']}"
    if found["cuda_bindings"] is None:
        return f"{engine}: cuda-bindings is not installed"
    sm = "SM{}{}".format(*gpu["capability"])
    if engine == "tensorrt-rtx" and sm not in library.get("capabilities", []):
        return f"tensorrt-rtx {library['version']} does not list {sm}"
    return None


def device_mb() -> float | None:
    """Used on the device, by everybody; None: cannot be asked."""
    from specedge.engines import cuda

    device, free = cuda.find(), cuda.free_bytes()
    return None if isinstance(device, str) or free is None else (device.total_bytes - free) / MB

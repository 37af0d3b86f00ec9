"""The shared libraries that ONNX Runtime's GPU providers need, found before the runtime looks.

CUDA and cuDNN come with the system or with the nvidia-* packages (PyTorch's CUDA build brings
them); TensorRT comes with the system or with the package tensorrt. What the packages hold is on no
search path, and is found by loading it first.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import onnxruntime as ort

_MISSING = re.compile(r"(\S+): cannot open shared object file")
_SHARED = "libonnxruntime_providers_shared.so"
_FILES = {
    "cuda": "libonnxruntime_providers_cuda.so",
    "tensorrt": "libonnxruntime_providers_tensorrt.so",
}
_LOAD = """
import ctypes, sys
from specedge.engines.ort import libraries
libraries.prepare(sys.argv[1])
ctypes.CDLL(sys.argv[2], mode=ctypes.RTLD_GLOBAL)
ctypes.CDLL(sys.argv[3])
"""


def built_for() -> tuple[int, int] | None:
    """The CUDA that this ONNX Runtime was built for; None: it does not say."""
    try:
        said = importlib.import_module("onnxruntime.capi.build_and_package_info").cuda_version
        major, minor = str(said).split(".")[:2]
        return int(major), int(minor)
    except (ImportError, AttributeError, ValueError):
        return None


def tensorrt_version() -> str:
    """Of the package; "system" where TensorRT did not come as one."""
    try:
        return importlib.metadata.version("tensorrt")
    except importlib.metadata.PackageNotFoundError:
        return "system"


def prepare(provider: str) -> None:
    """Load what packages hold; a session then finds it.

    Args:
        provider: "cuda" or "tensorrt".
    """
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it cannot load
        # by itself the runtime looks for the packages beside its own folder alone
        for folder in nvidia_folders():
            ort.preload_dlls(directory=str(folder))
        ort.preload_dlls()
    if provider == "tensorrt":
        with contextlib.suppress(Exception):  # a broken package may raise anything
            importlib.import_module("tensorrt")
    # what is missing would be written to stderr by every session; `trouble` says it in one line
    ort.set_default_logger_severity(4)


def nvidia_folders() -> list[Path]:
    """Where the nvidia-* packages keep their libraries, wherever they are installed."""
    found = importlib.util.find_spec("nvidia")
    places = [] if found is None else list(found.submodule_search_locations or ())
    return [folder for place in places for folder in sorted(Path(place).glob("*/lib"))]


def trouble(provider: str) -> str | None:
    """Which library a provider does not find, and what to do; None: it finds all of them."""
    missing = missing_library(provider)
    if missing is None:
        return None
    major = re.search(r"\.so\.(\d+)", missing)
    if missing.startswith(("libnvinfer", "libnvonnxparser")):
        version = f">={major[1]},<{int(major[1]) + 1}" if major else ""
        remedy = f'pip install "tensorrt{version}", or put TensorRT on LD_LIBRARY_PATH'
    else:
        cuda = built_for()
        named = "CUDA" if cuda is None else f"CUDA {cuda[0]}"
        remedy = (
            f"install the libraries of {named} and cuDNN (PyTorch's build for {named} brings "
            "them), or put them on LD_LIBRARY_PATH"
        )
    return f"ONNX Runtime needs {missing}, which is not here; {remedy}"


def missing_library(provider: str) -> str | None:
    """Name of the first one that a provider's own library does not find.

    In a child: loaded ahead of the runtime, a provider's library would not find the runtime.
    """
    folder = Path(ort.__file__).parent / "capi"
    files = [str(folder / name) for name in (_SHARED, _FILES[provider])]
    command = [sys.executable, "-c", _LOAD, provider, *files]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _MISSING.search(child.stderr)
    return Path(found[1]).name if found else None

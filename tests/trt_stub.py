"""TensorRT's face over TensorRT-RTX: a library that compiles for "the GPU at hand" only.

It builds real plans, for SM89, without naming a compute capability; so the code that serves
TensorRT itself runs here as far as its builder goes.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from specedge.engines import cuda
from specedge.engines.trt import cudart, library, making

VERSION = "10.15.1"
GPU = cuda.Device("NVIDIA Stub 4000", (8, 9), 1 << 34, (13, 0))


def install(monkeypatch: pytest.MonkeyPatch, *, gpu: bool = True) -> None:
    """`tensorrt` can be imported, and there is a GPU; without one its builder is not made."""
    module = face(gpu=gpu)
    forget()
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    # the process keeps one logger, and the real library below knows the other one
    log = library.logger("tensorrt-rtx")
    monkeypatch.setattr(library, "logger", lambda backend: log)
    monkeypatch.setattr(cuda, "find", lambda ordinal=0: GPU)
    monkeypatch.setattr(making, "Cuda", lambda ordinal: cudart)


def forget() -> None:
    """What `load` remembers."""
    library.load.cache_clear()


def face(*, gpu: bool) -> ModuleType:
    import tensorrt_rtx as real

    class Aimed:
        """The builder, whose configs compile for SM89."""

        def __init__(self, log: Any) -> None:
            if not gpu:
                log.lines.append((1, "CUDA initialization failure with error: 35"))
                raise TypeError("pybind11::init(): factory function returned nullptr")
            self._builder = real.Builder(log)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._builder, name)

        def create_builder_config(self) -> Any:
            config = self._builder.create_builder_config()
            config.num_compute_capabilities = 1
            config.set_compute_capability(real.ComputeCapability.SM89, 0)
            return config

    module = ModuleType("tensorrt")
    for name in dir(real):
        if not name.startswith("__") and name != "ComputeCapability":
            setattr(module, name, getattr(real, name))
    module.Builder = Aimed  # type: ignore[attr-defined]
    module.__version__ = VERSION  # type: ignore[attr-defined]
    return module

"""Speculative decoding at the edge: the target's own text, sooner where that can be had.

    model = specedge.load("bundles/smollm2")
    for event in model.stream("def quicksort(xs):", max_tokens=128):
        print(event.text, end="", flush=True)

Names are resolved when they are first used, so that `import specedge` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from specedge.errors import (
    BenchError,
    BundleError,
    BusyError,
    ConfigError,
    DeadEndError,
    EngineError,
    ExportError,
    MemoryBudgetError,
    OptionError,
    PairingError,
    PlanError,
    ProbeError,
    PromptError,
    ProposerError,
    SamplingError,
    ShapeError,
    SourceError,
    SpecedgeError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from specedge.bundle import Bundle
    from specedge.chat import Chat
    from specedge.generation import Generation
    from specedge.loading import load
    from specedge.model import Model
    from specedge.result import Event, Result

__version__ = "0.1.0"

__all__ = [
    "BenchError",
    "Bundle",
    "BundleError",
    "BusyError",
    "Chat",
    "ConfigError",
    "DeadEndError",
    "EngineError",
    "Event",
    "ExportError",
    "Generation",
    "MemoryBudgetError",
    "Model",
    "OptionError",
    "PairingError",
    "PlanError",
    "ProbeError",
    "PromptError",
    "ProposerError",
    "Result",
    "SamplingError",
    "ShapeError",
    "SourceError",
    "SpecedgeError",
    "UnsupportedError",
    "load",
]

_HOME = {
    "Bundle": "bundle",
    "Chat": "chat",
    "Event": "result",
    "Generation": "generation",
    "Model": "model",
    "Result": "result",
    "load": "loading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'specedge' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"specedge.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

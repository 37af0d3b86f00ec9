"""Installed versions, as results and reports keep them."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable

from specedge import __version__

COMPUTING = ("numpy", "onnxruntime", "onnxruntime-gpu", "tokenizers")
"""What computes, if it is there."""


def version(distribution: str) -> str | None:
    """Of an installed distribution; None: it is not there."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions(engine: str, distributions: Iterable[str] = COMPUTING) -> dict[str, str]:
    """Of specedge, Python, the engine as it describes itself, and what of these is installed."""
    known = {name: version(name) for name in distributions}
    found = {"specedge": __version__, "python": platform.python_version(), "engine": engine}
    return found | {name: number for name, number in known.items() if number is not None}

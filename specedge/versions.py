"""Installed versions, as results and reports keep them."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable

from specedge import __version__

COMPUTING = (
    *("numpy", "onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt-rtx", "cuda-bindings"),
    "tokenizers",
)
"""What computes, if it is there."""


def version(distribution: str) -> str | None:
    """Of an installed distribution; None: it is not there."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions(
    engine: str, distributions: Iterable[str] = COMPUTING, *, draft: str | None = None
) -> dict[str, str]:
    """Of specedge, Python, the engine as it describes itself, and what of these is installed.

    Args:
        engine: the target's.
        distributions: to look for.
        draft: the draft's engine; named where it is another one.
    """
    known = {name: version(name) for name in distributions}
    found = {"specedge": __version__, "python": platform.python_version(), "engine": engine}
    if draft is not None and draft != engine:
        found["draft engine"] = draft
    return found | {name: number for name, number in known.items() if number is not None}

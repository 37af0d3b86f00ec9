"""What TensorRT-RTX compiled for this GPU, kept beside the plan: compiled once, not at every load.

A plan of TensorRT-RTX holds kernels for a compute capability that are finished on the device. The
library checks a cache against GPU, driver and its own version, and refuses one that differs;
what is refused is written anew. TensorRT has no such cache: its plans are finished.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from specedge.replacing import replace_bytes

ENDING = ".kernels"


class Kernels:
    """The cache of one plan.

    Args:
        engine: the library's, of the plan.
        plan: the plan's file.
    """

    def __init__(self, engine: Any, plan: Path) -> None:
        self._path = plan.with_suffix(ENDING)
        self._known = 0  # bytes of what was loaded
        self._cache: Any = None
        config: Any = engine.create_runtime_config() if _configured(engine) else None
        create = getattr(config, "create_runtime_cache", None)
        if create is None:
            return
        self._cache = create()
        with suppress(OSError):
            data = self._path.read_bytes()
            if self._cache.deserialize(data):
                self._known = len(data)

    def use_in(self, config: Any) -> None:
        """Let contexts made with a runtime config take kernels from here, and leave theirs."""
        if self._cache is not None:
            config.set_runtime_cache(self._cache)

    def keep(self) -> None:
        """Write what was compiled since; where that cannot be, it is compiled again next time."""
        if self._cache is None:
            return
        made = self._cache.serialize()
        if made is None:
            return
        data = memoryview(made).cast("B")
        if len(data) != self._known:
            with suppress(OSError):
                replace_bytes(self._path, data)
                self._known = len(data)

    def close(self) -> None:
        """Let go of the library's object."""
        self._cache = None


def _configured(engine: Any) -> bool:
    return hasattr(engine, "create_runtime_config")

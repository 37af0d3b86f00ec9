"""Buffers of vocabulary size that are used again.

A fresh array of a million bytes costs more in page faults than an exponential of it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt

SMALL = 4096
"""Elements up to which a fresh array is as quick."""


class Scratch:
    """Uninitialised arrays, handed out anew after `reset`; what was handed out before is then
    overwritten. Not for two threads at once."""

    __slots__ = ("_free", "_taken", "_work")

    def __init__(self) -> None:
        self._free: defaultdict[tuple[type, int], list[npt.NDArray[Any]]] = defaultdict(list)
        self._taken: list[tuple[tuple[type, int], npt.NDArray[Any]]] = []
        self._work: dict[tuple[type, int, str], npt.NDArray[Any]] = {}

    def _take(self, kind: type, n: int) -> npt.NDArray[Any]:
        if n <= SMALL:
            return np.empty(n, kind)
        key = (kind, n)
        free = self._free[key]
        buffer = free.pop() if free else np.empty(n, kind)
        self._taken.append((key, buffer))
        return buffer

    def floats(self, n: int) -> npt.NDArray[np.float64]:
        """float64 [n]."""
        return self._take(np.float64, n)

    def singles(self, n: int) -> npt.NDArray[np.float32]:
        """float32 [n]."""
        return self._take(np.float32, n)

    def work(self, kind: type, n: int, name: str = "") -> npt.NDArray[Any]:
        """[n] of the type `kind`: the same array each time for the same `name`, for what is done
        with when the next one asks."""
        if n <= SMALL:
            return np.empty(n, kind)
        buffer = self._work.get((kind, n, name))
        if buffer is None:
            buffer = self._work[kind, n, name] = np.empty(n, kind)
        return buffer

    def reset(self) -> None:
        """Take every buffer back."""
        for key, buffer in self._taken:
            self._free[key].append(buffer)
        self._taken.clear()

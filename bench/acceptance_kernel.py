"""Rejection as compiled C, `acceptance_kernel.c`, for `acceptance.py` to compare with."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from acceptance_means import Means, Setting, round_draws

from specedge.acceptance import Verdict
from specedge.engines.base import Scored
from specedge.randomness import Stream

SOURCE = Path(__file__).with_name("acceptance_kernel.c")
FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
NATIVE: tuple[list[str], ...] = (["-march=native"], ["-mcpu=native"], [])
NARROW: tuple[list[str], ...] = (["-march=x86-64-v3"], [])


class Kernel(Means):
    name = "C kernel"

    def __init__(self, setting: Setting, library: ctypes.CDLL) -> None:
        super().__init__(setting)
        s = self.setting
        self._scale = ctypes.c_float(1 / s.temperature)
        self._token = np.zeros(1, np.int64)
        k, v, blocks = s.k, s.vocab, -(-s.vocab // 256)
        kept: list[Any]
        own: list[Any] = []
        if s.top_k:
            self._choose, self._accept = library.choose_top, library.accept_top
            ids = np.zeros((k, s.top_k), np.int32)
            kept = [ids, np.zeros((k, s.top_k)), np.zeros((k, 1))]
        else:
            self._choose, self._accept = library.choose_full, library.accept_full
            kept = [np.zeros((k, v), np.float32), np.zeros((k, blocks))]
            own = [np.zeros(v, np.float32), np.zeros(blocks)]
        self._choose.restype = self._accept.restype = ctypes.c_int64
        self._keep = kept, own
        self._rows = [[_at(array[i]) for array in kept] for i in range(k)]
        self._q, self._own = [_at(array) for array in kept], [_at(array) for array in own]
        self._drafted, self._out = _at(self.tokens), _at(self._token)
        self._sizes = ctypes.c_int64(k), ctypes.c_int64(v)

    def choose(self, scored: Scored, place: int) -> int:
        u = self.randomness.uniform(Stream.DRAFT, self.seq.n_tokens, place)
        given: list[Any] = [_at(scored.logits), self._sizes[1], self._scale, ctypes.c_double(u)]
        if self.setting.top_k:
            given.append(self.setting.top_k)
        return int(self._choose(*given, *self._rows[place]))

    def accept(self, scored: Scored) -> Verdict:
        accept, following = round_draws(self)
        given: list[Any] = [_at(scored.logits), *self._sizes, self._scale, self._drafted, *self._q]
        given += [_at(accept), _at(following)]
        given += [self.setting.top_k] if self.setting.top_k else self._own
        return Verdict(self._accept(*given, self._out), self._token.item(0))


def _at(array: np.ndarray[Any, Any]) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


def compiled(narrow_cpu: bool) -> ctypes.CDLL | None:
    """The kernel, made by the system's compiler; None where there is none."""
    cc = shutil.which("cc")
    if cc is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernel.so"
        for machine in NARROW if narrow_cpu else NATIVE:
            command = [cc, *FLAGS, *machine, str(SOURCE), "-o", str(library), "-lm"]
            if subprocess.run(command, capture_output=True).returncode == 0:
                return ctypes.CDLL(str(library))
    return None

"""What `acceptance.py` measures on: rows of logits, and what runs between two timed calls."""

from __future__ import annotations

import ctypes
import statistics
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specedge.bundle import Bundle
from specedge.engines import registry
from specedge.engines.base import Engine, Scored, Slot, prefill
from specedge.tokenizer import Tokenizer

Rows = npt.NDArray[np.float32]

TEXT = Path(__file__).parent / "prompts" / "edit_60_lines.md"
CACHED = 256  # rows of KV before the step that is timed
SWEEP = 64 << 20  # bytes, beyond the caches of most processors


class Scene:
    """Target rows [K + 1, V], draft rows [K, V] of each case, and steps without an engine.

    The worst case drafts from the target's own rows, so that all of the draft stands. The typical
    one drafts from these with noise.
    """

    description = "synthetic logits; a step is a sweep through 64 MB of memory"

    def __init__(self, rows: Rows, noise: float, seed: int) -> None:
        self.rows = rows
        self.k, self.vocab = len(rows) - 1, rows.shape[1]
        rng = np.random.default_rng(seed)
        noisy = rows[:-1] + noise * rng.standard_normal((self.k, self.vocab), np.float32)
        self.drafts: dict[str, Rows] = {"worst": rows[:-1].copy(), "typical": noisy}
        self.step_ms: list[float] = []
        self._target_out = rows.copy()
        self._draft_out = np.empty((1, self.vocab), np.float32)
        self._greedy = {id(each): each.argmax(axis=1) for each in (rows, *self.drafts.values())}
        self._sweep = ctypes.create_string_buffer(SWEEP)
        self._byte = 0

    def target(self, stepping: bool) -> Scored:
        """K + 1 rows, in the same memory every time; after a step if one is asked for."""
        if stepping:
            self._cold()
            _write(self._target_out, self.rows)
        return Scored(self._greedy[id(self.rows)], self._target_out, 0.0)

    def draft(self, case: str, place: int, stepping: bool) -> Scored:
        """One row, in the memory that all drafted tokens share, as an engine's output is."""
        if stepping:
            self._cold_draft()
        rows = self.drafts[case]
        _write(self._draft_out, rows[place : place + 1])
        return Scored(self._greedy[id(rows)][place : place + 1], self._draft_out, 0.0)

    @property
    def t_ms(self) -> float | None:
        """T(K + 1), the median so far; None without an engine."""
        return statistics.median(self.step_ms) if self.step_ms else None

    def _cold(self) -> None:
        # Not numpy: its code is to be as cold as after an engine's run.
        self._byte ^= 1
        ctypes.memset(self._sweep, self._byte, SWEEP)

    def _cold_draft(self) -> None:
        self._cold()

    def close(self) -> None:
        pass


def _write(to: Rows, source: Rows) -> None:
    """Without numpy's code."""
    ctypes.memmove(to.ctypes.data, source.ctypes.data, source.nbytes)


def synthetic(vocab: int, k: int, noise: float, seed: int) -> Scene:
    """Rows as a language model's: wide, with a few tokens high above the others."""
    rng = np.random.default_rng(seed)
    rows = 2.5 * rng.standard_normal((k + 1, vocab), np.float32)
    for row in rows:
        row[rng.integers(0, vocab, 8)] = rng.uniform(10, 16, 8)
    return Scene(rows, noise, seed)


class Stepped(Scene):
    """Rows of a bundle's target on a text; a step is its forward of K + 1 tokens.

    A drafted token's step is one of the bundle's draft, or a sweep through memory.
    """

    def __init__(
        self, path: str, k: int, noise: float, seed: int, *, engine: str, threads: int
    ) -> None:
        bundle = Bundle.open(path, verify=False)
        manifest = bundle.manifest
        tokenizer = Tokenizer(bundle.tokenizer_json, manifest.tokenizer)
        ids = tokenizer.encode(TEXT.read_text(encoding="utf-8"))
        ids = np.resize(ids, CACHED + k + 1)
        self._ids = ids
        self._engines: list[tuple[Engine, Slot]] = []
        for spec in filter(None, (manifest.target, manifest.draft)):
            opened = registry.create(
                engine,
                bundle.path,
                spec,
                threads=threads,
                context=2 * CACHED,
                takes_turns=manifest.draft is not None,
            )
            slot = opened.new_slot()
            self._engines.append((opened, slot))
            prefill(opened, slot, ids[:CACHED], 0)
        scored = self._step()
        self.description = f"{self._engines[0][0].description}; T({k + 1}) past {CACHED} tokens"
        super().__init__(scored.logits.copy(), noise, seed)
        self._last = self._step()

    def _step(self) -> Scored:
        engine, slot = self._engines[0]
        step = self._ids[CACHED:]
        return engine.forward(slot, step, CACHED, len(step))

    def target(self, stepping: bool) -> Scored:
        if stepping:
            began = time.perf_counter()
            self._last = self._step()
            self.step_ms.append((time.perf_counter() - began) * 1e3)
        return self._last

    def _cold_draft(self) -> None:
        if len(self._engines) == 1:
            return self._cold()
        engine, slot = self._engines[1]
        engine.forward(slot, self._ids[CACHED : CACHED + 1], CACHED, 1)
        return None

    def close(self) -> None:
        for engine, slot in self._engines:
            engine.release(slot)
            engine.close()

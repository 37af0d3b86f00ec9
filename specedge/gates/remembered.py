"""An engine that computes the logits of each context once, so that thousands of rounds are cheap.

Rounds after one text all begin with the same tokens, the stem, and few ways to go on are likely.
Everything behind the logits is the real thing: the loop, samplers, proposers. What comes before
them, wide calls and KV, is looked at by the gates that compare tokens.

A branch is what follows the stem. Behind a rare one the logits of its likely part stand in: its
tokens are too few to be tested, and whatever is scored there, the tokens elsewhere must follow
their law.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specedge.contract import GraphSpec, Ids, Logits
from specedge.engines.base import Engine, Scored, Slot, prefill

RARE = 1 / 200
"""Chance of a branch, by the target at temperature 1, below which nothing is computed for it."""

CERTAIN = 1e4  # above every other logit: exp(-1e4) is 0

Branch = tuple[int, ...]


class Memory:
    """Logits of one real engine after a stem.

    Args:
        engine: not owned.
        stem: int64 [R], R >= 1; the engine's slots have room for it and likely branches.
        target: says which branches are likely; None: this one's own logits do.

    Raises:
        EngineError: no slot can be had, or a call failed.
    """

    def __init__(self, engine: Engine, stem: Ids, target: Memory | None = None) -> None:
        self.engine = engine
        self.stem = stem
        self._target = self if target is None else target
        self._rows: dict[Branch, Logits] = {}
        self._chances: dict[Branch, float] = {(): 1.0}
        self._slot = engine.new_slot()
        self._rows[()] = prefill(engine, self._slot, stem, 0).logits[0].copy()

    def row(self, branch: Branch) -> Logits:
        """float32 [V], the logits of the token behind it; only to be read."""
        found = self._rows.get(branch)
        if found is None:
            found = self._row(self._target.likely(branch))
            self._rows[branch] = found
        return found

    def likely(self, branch: Branch) -> Branch:
        """The longest part of it from the stem on that is not rare."""
        for n in range(1, len(branch) + 1):
            if self._chance(branch[:n]) < RARE:
                return branch[: n - 1]
        return branch

    def _chance(self, branch: Branch) -> float:
        """Of a branch whose part before the last token is likely."""
        known = self._chances.get(branch)
        if known is None:
            row = self._row(branch[:-1]).astype(np.float64)
            row -= row.max()
            share = np.exp(row[branch[-1]]) / np.exp(row).sum()
            known = self._chances[branch] = self._chances[branch[:-1]] * float(share)
        return known

    def _row(self, branch: Branch) -> Logits:
        """Computed in one call behind the stem, whose rows stay valid."""
        found = self._rows.get(branch)
        if found is None:
            ids = np.array(branch, np.int64)
            logits = self.engine.forward(self._slot, ids, len(self.stem), 1).logits
            found = self._rows[branch] = logits[0].copy()
        return found

    def close(self) -> None:
        """Free the slot."""
        self.engine.release(self._slot)


@dataclass(eq=False, slots=True)
class RememberedSlot:
    """int64 [T]: the ids that stand for keys and values."""

    ids: Ids

    @property
    def context(self) -> int:
        return len(self.ids)

    def touch(self) -> None: ...


class RememberedEngine:
    """A `Memory` as an `Engine` for the real loop and the real draft model.

    The last token of the stem is certain: behind a prompt that lacks it, it is what the prefill
    gives, and all that is drawn freely is drawn in speculative rounds.

    Args:
        memory: not owned.
        context: T of its slots.
    """

    width_step = 1
    width_noise = 0.0
    prefill_chunk = 2**20

    def __init__(self, memory: Memory, context: int) -> None:
        self.memory = memory
        self._context = context
        self._first = np.zeros(self.spec.vocab, np.float32)
        self._first[memory.stem[-1]] = CERTAIN
        self._logits = np.empty((0, self.spec.vocab), np.float32)
        self._likeliest: dict[Branch, int] = {}

    @property
    def spec(self) -> GraphSpec:
        return self.memory.engine.spec

    @property
    def description(self) -> str:
        return self.memory.engine.description

    def new_slot(self) -> RememberedSlot:
        return RememberedSlot(np.zeros(self._context, np.int64))

    def release(self, slot: Slot) -> None: ...

    def forward(self, slot: Slot, tokens: Ids, n_cached: int, rows: int) -> Scored:
        """As `Engine.forward`; the arrays of the last result are overwritten."""
        assert isinstance(slot, RememberedSlot), "a slot of another engine"
        stop = n_cached + len(tokens)
        slot.ids[n_cached:stop] = tokens
        if len(self._logits) < rows:
            self._logits = np.empty((rows, self.spec.vocab), np.float32)
        n = len(self.memory.stem)
        assert stop - rows >= n - 2, "a row inside the stem"
        assert np.array_equal(slot.ids[: min(stop, n)], self.memory.stem[:stop]), "another text"
        branch = tuple(slot.ids[n:stop].tolist())
        logits, greedy = self._logits[:rows], np.empty(rows, np.int64)
        for row in range(rows):
            end = stop - n - rows + row + 1  # tokens of the branch before it; -1: inside the stem
            np.copyto(logits[row], self._first if end < 0 else self.memory.row(branch[:end]))
            greedy[row] = self.memory.stem[-1] if end < 0 else self._greedy(branch[:end])
        return Scored(greedy, logits, 0.0)

    def _greedy(self, branch: Branch) -> int:
        found = self._likeliest.get(branch)
        if found is None:
            found = self._likeliest[branch] = int(self.memory.row(branch).argmax())
        return found

    def close(self) -> None: ...

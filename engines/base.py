"""The engine protocol and the KV slots an engine hands out.

An engine owns the buffers; whoever holds a `Slot` owns the number of valid rows in it. There is
no rollback: a call at `n_cached` overwrites rows from `n_cached` on, and rows at or past it are
never attended to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from specedge.contract import GraphSpec, Ids, Logits

if TYPE_CHECKING:
    from specedge.acceptance import Verdict
    from specedge.acceptance.device import Question

Decide = Callable[["Question"], "Verdict"]
"""The rejection rule where the logits are; see `specedge.acceptance.device`."""


class Scored:
    """What one call returns for its scored rows.

    Args:
        greedy_ids: int64 [M]; argmax of each row, ties to the lowest id.
        logits: float32 [M, V]; row i scores the token after the i-th scored input token. Or how to
            fetch them from a device, which happens when they are first read.
        run_ms: milliseconds inside the runtime's own call.
        decide: decides about a draft without fetching logits; raises EngineError. None: it would
            be no quicker than reading them, or the engine has no way to.

    Both arrays are views of the engine's buffers: valid until that engine's next call. So is what
    `decide` looks at.
    """

    __slots__ = ("_logits", "decide", "greedy_ids", "run_ms")

    def __init__(
        self,
        greedy_ids: Ids,
        logits: Logits | Callable[[], Logits],
        run_ms: float,
        decide: Decide | None = None,
    ) -> None:
        self.greedy_ids = greedy_ids
        self._logits = logits
        self.run_ms = run_ms
        self.decide = decide

    @property
    def logits(self) -> Logits:
        if callable(self._logits):
            self._logits = self._logits()
        return self._logits


class Slot(Protocol):
    """One sequence's KV buffers inside an engine."""

    @property
    def context(self) -> int:
        """T: rows the buffers hold."""
        ...

    def touch(self) -> None:
        """Write zeros to every row, so that all of the memory is really there.

        Memory that was never written may be one shared page, which is read out of the cache:
        timed calls would find a long past cheaper than it is.
        """
        ...


class Engine(Protocol):
    """Runs one graph of contract 1."""

    @property
    def spec(self) -> GraphSpec: ...

    @property
    def description(self) -> str:
        """Runtime, version, provider and threads, for reports."""
        ...

    @property
    def width_step(self) -> int:
        """Calls are padded to a multiple of it; a draft of K costs as much as the widest one with
        the same padded K + 1."""
        ...

    @property
    def width_noise(self) -> float:
        """Largest difference of a logit between calls of different widths; 0.0: bit for bit the
        same, so that greedy text cannot depend on speculation."""
        ...

    @property
    def prefill_chunk(self) -> int:
        """Widest call worth making; longer prompts are fed in chunks of this size."""
        ...

    def new_slot(self) -> Slot:
        """Allocate zeroed KV buffers for one sequence."""
        ...

    def release(self, slot: Slot) -> None:
        """Give the buffers back; the slot must not be used again."""
        ...

    def forward(self, slot: Slot, tokens: Ids, n_cached: int, rows: int) -> Scored:
        """Run `tokens` after `n_cached` valid rows and score the last `rows` of them.

        Args:
            slot: from this engine's `new_slot`.
            tokens: int64 [S], 1 <= S; n_cached + S <= slot.context.
            n_cached: rows of the slot that are valid.
            rows: M, 1 <= M <= S.

        Returns:
            Scored with M rows.

        Raises:
            EngineError: the runtime failed, or a scored row is not finite.
            ShapeError: a size is outside the ranges above.
        """
        ...

    def close(self) -> None:
        """Free sessions and buffers; further calls raise EngineError."""
        ...


def prefill(engine: Engine, slot: Slot, tokens: Ids, n_cached: int, rows: int = 1) -> Scored:
    """Feed `tokens` in chunks of at most `engine.prefill_chunk`; score the last `rows` (M) rows.

    The head runs for one row in each earlier chunk and for `rows` in the last, which is made at
    least that wide. Raises what `Engine.forward` raises; `run_ms` is the sum over chunks.
    """
    spent = 0.0
    start = 0
    last_width = max(rows, min(engine.prefill_chunk, len(tokens)))
    while len(tokens) - start > last_width:
        stop = min(start + engine.prefill_chunk, len(tokens) - rows)
        spent += engine.forward(slot, tokens[start:stop], n_cached + start, 1).run_ms
        start = stop
    scored = engine.forward(slot, tokens[start:], n_cached + start, rows)
    scored.run_ms += spent
    return scored

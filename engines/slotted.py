"""What engines over a runtime do alike: slots kept for re-use, checks of a call, widths, warm-up.

An exact engine pads calls to the widths that agree to the bit, so that plain and speculative
decoding see the same logits; what padding writes is overwritten by the next call. See `widths`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import isfinite
from typing import Generic, Protocol, TypeVar, cast

import numpy as np

from specedge.contract import GraphSpec, Ids, Logits
from specedge.engines import widths
from specedge.engines.base import Scored, Slot
from specedge.engines.widths import Padding
from specedge.errors import EngineError, ShapeError
from specedge.memory import PREFILL_CHUNK


def checked_context(spec: GraphSpec, context: int | None) -> int:
    """Rows that a slot offers; None: all that were exported.

    Raises:
        EngineError: more than were exported, or none.
    """
    rows = spec.context if context is None else context
    if not 1 <= rows <= spec.context:
        raise EngineError(
            f"engine: context {rows} is outside 1..{spec.context} of the exported {spec.role}; "
            "export again with a larger [export] context"
        )
    return rows


class Kept(Slot, Protocol):
    """A slot whose buffers outlive the sequence."""

    released: bool

    @property
    def owner(self) -> object:
        """The engine that made it."""
        ...


S = TypeVar("S", bound=Kept)


class SlottedEngine(ABC, Generic[S]):
    """An `Engine` but for how it makes a slot and runs a call.

    Args:
        spec: of the graph.
        context: rows that a slot offers, at most spec.context; None: all of them.

    Raises:
        EngineError: the context was not exported.
    """

    def __init__(self, spec: GraphSpec, context: int | None) -> None:
        self._spec = spec
        self._context = checked_context(spec, context)
        self._padding = Padding()
        self._free: list[S] = []

    # --- what an engine adds --------------------------------------------------------------------

    @abstractmethod
    def _check_open(self) -> None:
        """Raise EngineError where the engine is closed."""

    @abstractmethod
    def _made(self) -> S:
        """A new slot of the engine's context."""

    @abstractmethod
    def _run(self, slot: S, tokens: Ids, n_cached: int, rows: int) -> Scored:
        """`forward` of what was checked."""

    @abstractmethod
    def _scrub(self, slot: S, first: int) -> None:
        """Write zeros to rows from `first` on: a masked weight of 0 times NaN is NaN."""

    @abstractmethod
    def _measured(self, *, exact: bool) -> Padding:
        """`widths.padding` over this engine's calls."""

    # --- the protocol ---------------------------------------------------------------------------

    @property
    def spec(self) -> GraphSpec:
        return self._spec

    @property
    def width_step(self) -> int:
        return self._padding.step

    @property
    def width_noise(self) -> float:
        return self._padding.noise

    @property
    def prefill_chunk(self) -> int:
        return min(PREFILL_CHUNK, self._context)

    def new_slot(self) -> S:
        self._check_open()
        if self._free:
            slot = self._free.pop()
            slot.released = False
            return slot
        return self._made()

    def release(self, slot: Slot) -> None:
        """Keep the buffers for the next sequence: rows at or past n_cached are never read."""
        own = self._own(slot)
        own.released = True
        self._free.append(own)

    def forward(self, slot: Slot, tokens: Ids, n_cached: int, rows: int) -> Scored:
        self._check_open()
        own = self._own(slot)
        width = len(tokens)
        if not 1 <= rows <= width:
            raise ShapeError(f"{rows} scored rows of {width} tokens; expected 1..{width}")
        if n_cached < 0 or n_cached + width > own.context:
            raise ShapeError(
                f"{n_cached} cached rows + {width} tokens, but the slot holds {own.context} rows"
            )
        return self._run(own, tokens, n_cached, rows)

    # --- for the engine itself ------------------------------------------------------------------

    def warm_up(self, *, exact: bool = True) -> None:
        """Find out which widths agree, and run the widest call once, so that the first request
        pays no first-touch costs.

        Args:
            exact: pad calls, where that makes logits independent of how many tokens a call has.

        Raises:
            EngineError: the runtime failed, or the weights are damaged.
        """
        self._padding = self._measured(exact=exact)
        slot = self.new_slot()
        tokens = widths.some_tokens(self.prefill_chunk, self._spec.vocab)
        scored = self.forward(slot, tokens, 0, 1)
        # a NaN in a row of the head reaches one id's logit only; later calls look at the best
        found = np.isfinite(scored.logits[0])
        if not found.all():
            raise EngineError(
                f"{self._spec.role}: the logit of id {int(found.argmin())} is not finite; the "
                "weights are damaged, or too large for the activations' type: export the bundle "
                "again"
            )
        self.release(slot)

    def _trial(self, slot: S) -> widths.Run:
        """Calls in a slot, as `widths.padding` wants them."""

        def run(padding: Padding, tokens: Ids, n_cached: int, rows: int) -> Logits:
            self._padding = padding
            return self.forward(slot, tokens, n_cached, rows).logits.copy()

        return run

    def _own(self, slot: Slot) -> S:
        """The slot as what it is. Raises EngineError unless it is this engine's, and in use."""
        own = cast(S, slot)
        if getattr(slot, "owner", None) is not self or own.released:
            raise EngineError(f"{self._spec.role}: the slot was released, or is another engine's")
        return own

    def _closed(self) -> EngineError:
        return EngineError(f"{self._spec.role}: the engine is closed; load the bundle again")

    def _check_finite(self, slot: S, best: list[float], n_cached: int, total: int) -> None:
        """Raise EngineError at the first scored row whose greatest logit is no number; a NaN in
        the hidden state reaches every logit of its row, the greatest included.

        Args:
            slot: which is left without the rows of this call.
            best: of each row. Python's floats: right after a run numpy's own code is cold, and
                takes seven times as long.
            n_cached, total: rows before the call, and after it.
        """
        for row, logit in enumerate(best):
            if not isfinite(logit):
                position = total - len(best)
                self._scrub(slot, n_cached)
                raise EngineError(
                    f"{self._spec.role}: logits are not finite at position {position + row}; the "
                    "weights or the runtime are damaged"
                )

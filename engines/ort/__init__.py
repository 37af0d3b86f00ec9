"""ONNX Runtime, CPU execution provider.

An exact engine pads calls to the widths that agree to the bit, so that plain and speculative
decoding see the same logits; what padding writes is overwritten by the next call. See `widths`.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from specedge.contract import (
    CACHED_LENGTHS,
    GREEDY_IDS,
    INPUT_IDS,
    LOGIT_ROWS,
    LOGITS,
    TOTAL_LENGTH,
    WIDEST_STEP,
    EngineOptions,
    GraphSpec,
    Ids,
    Logits,
    past,
    present,
)
from specedge.engines import widths
from specedge.engines.base import Scored, Slot
from specedge.engines.ort.providers import PROVIDERS as PROVIDERS
from specedge.engines.ort.providers import check_graph, open_session
from specedge.engines.widths import Widths
from specedge.errors import EngineError, ShapeError, one_line

PREFILL_CHUNK = 128
_PROBE_ROWS = 48  # of the slot that widths are measured in
_ODD_WIDTHS_KEPT = 4  # bindings of prefill remainders; those of verification are all kept


def open_engine(
    bundle_path: Path,
    spec: GraphSpec,
    *,
    provider: str = "cpu",
    options: EngineOptions | None = None,
    threads: int | None = None,
    context: int | None = None,
    exact: bool = True,
    takes_turns: bool = False,
) -> OrtEngine:
    """Load a bundle's graph and run it once.

    Args:
        bundle_path: the bundle's folder.
        spec: which graph of it.
        provider: a key of PROVIDERS.
        options: of the provider, in its own words.
        threads: of the intra-op pool; None: every core this process may run on.
        context: rows of the KV buffer, at most spec.context; None: all of them.
        exact: pad calls, where that makes logits independent of how many tokens a call has;
            False: the narrowest and fastest kernels.
        takes_turns: another engine runs between this one's calls: threads stop spinning when a
            call ends.

    Raises:
        EngineError: the graph does not load, or the provider is not the one asked for.
    """
    wanted = len(os.sched_getaffinity(0)) if threads is None else threads
    if wanted < 1:
        raise EngineError(f"engine: threads = {threads}; expected 1 or more")
    session = open_session(
        bundle_path,
        spec,
        provider,
        wanted,
        options=options,
        context=context,
        takes_turns=takes_turns,
    )
    check_graph(spec, session)
    engine = OrtEngine(spec, session, f"{provider}, {wanted} threads", context)
    engine.warm_up(exact=exact)
    return engine


class OrtSlot:
    """KV buffers of one sequence and the bindings made over them."""

    def __init__(self, owner: OrtEngine, spec: GraphSpec, context: int, spare: int) -> None:
        """`spare` rows past the context take what padding writes at the last position."""
        shape = (1, spec.kv_heads, context + spare, spec.head_dim)
        self.owner = owner
        self.context = context
        self.released = False
        # zeros, not empty: a masked weight of 0 times NaN is NaN
        self.kv = [
            (np.zeros(shape, np.float32), np.zeros(shape, np.float32)) for _ in range(spec.layers)
        ]
        self.values = [
            (ort.OrtValue.ortvalue_from_numpy(k), ort.OrtValue.ortvalue_from_numpy(v))
            for k, v in self.kv
        ]
        self.cached = np.zeros(1, np.int32)
        self.total = np.zeros((), np.int32)
        self.bindings: OrderedDict[tuple[int, int], _Binding] = OrderedDict()

    def touch(self) -> None:
        for key, value in self.kv:
            key.fill(0)
            value.fill(0)


@dataclass(slots=True)
class _Binding:
    """Everything a call of S tokens and M scored rows reads and writes."""

    io: ort.IOBinding
    width: int  # S, padding included
    ids: Ids  # [N] of the [1, S] that are bound, without padding
    greedy_ids: Ids  # [M]
    logits: Logits  # [M, V]
    flat_logits: npt.NDArray[np.float32]  # [M * V], the same memory
    keep: list[object]  # arrays whose memory the binding points at


class OrtEngine:
    """Runs one graph on one ONNX Runtime session."""

    def __init__(
        self,
        spec: GraphSpec,
        session: ort.InferenceSession,
        placement: str,
        context: int | None,
    ) -> None:
        """`placement` says provider and threads, for reports."""
        self._step = 1  # calls are padded to a multiple of it
        self._head_step = 1  # and the rows that are scored to a multiple of this
        self._widths: Widths | None = None
        self._spec = spec
        self._context = spec.context if context is None else context
        if not 1 <= self._context <= spec.context:
            raise EngineError(
                f"engine: context {context} is outside 1..{spec.context} of the exported "
                f"{spec.role}; export again with a larger [export] context"
            )
        self._session: ort.InferenceSession | None = session
        self._placement = placement
        self._free: list[OrtSlot] = []
        self._logits = np.empty((0, spec.vocab), np.float32)

    @property
    def spec(self) -> GraphSpec:
        return self._spec

    @property
    def description(self) -> str:
        return f"onnxruntime {ort.__version__}, {self._placement}"

    @property
    def providers(self) -> tuple[str, ...]:
        """What the runtime uses, by its own names, most wanted first."""
        return tuple(self._live().get_providers())

    @property
    def width_step(self) -> int:
        return self._step

    @property
    def width_noise(self) -> float:
        exact = self._widths is not None and self._widths.step in (1, self._step)
        return 0.0 if self._widths is None or exact else self._widths.noise

    @property
    def prefill_chunk(self) -> int:
        return min(PREFILL_CHUNK, self._context)

    def new_slot(self) -> OrtSlot:
        self._live()
        if self._free:
            slot = self._free.pop()
            slot.released = False
            return slot
        return OrtSlot(self, self._spec, self._context, self._step - 1)

    def release(self, slot: Slot) -> None:
        """Keep the buffers for the next sequence: rows at or past n_cached are never read."""
        own = self._own(slot)
        own.released = True
        self._free.append(own)

    def warm_up(self, *, exact: bool) -> None:
        """Find out which widths agree, and run the widest call once, so that the first request
        pays no first-touch costs."""
        self._measure_widths(exact=exact)
        slot = self.new_slot()
        scored = self.forward(slot, self._some_tokens(self.prefill_chunk), 0, 1)
        # a NaN in a row of the head reaches one id's logit only; later calls look at the best
        if not np.isfinite(scored.logits).all():
            damaged = int(np.flatnonzero(~np.isfinite(scored.logits[0]))[0])
            raise EngineError(
                f"{self._spec.role}: the logit of id {damaged} is not finite; the weights are "
                "damaged: export the bundle again"
            )
        self.release(slot)

    def _measure_widths(self, *, exact: bool) -> None:
        """In a slot of its own, so that what is found does not depend on the context asked for."""
        rows = min(self._spec.context, _PROBE_ROWS)
        past_rows = rows // 4
        widest = min(widths.WIDEST, (rows - past_rows) // 2)
        if widest < 2:
            return
        tokens = self._some_tokens(rows)
        slot = OrtSlot(self, self._spec, rows, WIDEST_STEP - 1)
        self.forward(slot, tokens[:past_rows], 0, 1)
        text = tokens[past_rows:]

        def score(start: int, width: int) -> Logits:
            part = text[start : start + width]
            return self.forward(slot, part, past_rows + start, width).logits.copy()

        places = widths.places_for(self._spec.parameters)
        self._widths = widths.measure(score, widest, places=places)
        if not exact or self._widths.step in (None, 1):
            return
        self._step = self._head_step = self._widths.step
        wide = min(WIDEST_STEP, widest) // self._step * self._step

        def score_head(rows: int) -> Logits:
            return self.forward(slot, text[:wide], past_rows, rows).logits.copy()

        # measured without padding the head; a context too short for it keeps the common step
        self._head_step = 1
        self._head_step = widths.measure_head(score_head, wide, self._step)

    def _some_tokens(self, count: int) -> Ids:
        return (np.arange(count, dtype=np.int64) * 7919) % self._spec.vocab

    def forward(self, slot: Slot, tokens: Ids, n_cached: int, rows: int) -> Scored:
        session = self._live()
        slot = self._own(slot)
        width = len(tokens)
        binding = slot.bindings.get((width, rows))
        if binding is None:
            binding = self._bind(session, slot, width, rows)
        if n_cached < 0 or n_cached + width > slot.context:
            raise ShapeError(
                f"{n_cached} cached rows + {width} tokens, but the slot holds {slot.context} rows"
            )
        binding.ids[:] = tokens
        slot.cached[0] = n_cached
        slot.total[()] = n_cached + binding.width
        started = time.perf_counter_ns()
        try:
            # without run options: looking up an entry that they lack costs 60 microseconds
            session.run_with_iobinding(binding.io)
        except Exception as error:  # the runtime's exceptions share no base below Exception
            raise EngineError(
                f"{self._spec.role}: ONNX Runtime failed on {width} tokens after {n_cached} "
                f"cached: {one_line(error)}"
            ) from error
        run_ms = (time.perf_counter_ns() - started) * 1e-6
        # A NaN in the hidden state reaches every logit of its row, the greatest included. Read as
        # Python floats: right after a run numpy's own code is cold, and takes seven times as long.
        item, vocab = binding.flat_logits.item, self._spec.vocab
        for row, token in enumerate(binding.greedy_ids.tolist()):
            if not isfinite(item(row * vocab + token)):
                raise EngineError(
                    f"{self._spec.role}: logits are not finite at position "
                    f"{n_cached + width - rows + row}; the weights or the runtime are damaged"
                )
        return Scored(binding.greedy_ids, binding.logits, run_ms)

    def close(self) -> None:
        self._session = None
        self._free.clear()

    def _live(self) -> ort.InferenceSession:
        if self._session is None:
            raise EngineError(f"{self._spec.role}: the engine is closed; load the bundle again")
        return self._session

    def _own(self, slot: Slot) -> OrtSlot:
        if not isinstance(slot, OrtSlot) or slot.released or slot.owner is not self:
            raise EngineError(f"{self._spec.role}: the slot was released, or is another engine's")
        return slot

    def _bind(
        self, session: ort.InferenceSession, slot: OrtSlot, width: int, rows: int
    ) -> _Binding:
        if not 1 <= rows <= width:
            raise ShapeError(f"{rows} scored rows of {width} tokens; expected 1..{width}")
        self._grow_logits(self._padded(rows, self._head_step))
        binding = self._new_binding(session, slot, width, rows)
        slot.bindings[width, rows] = binding
        odd = [key for key in slot.bindings if key[0] > self._spec.max_verify]
        for key in odd[:-_ODD_WIDTHS_KEPT]:
            del slot.bindings[key]
        return binding

    @staticmethod
    def _padded(width: int, step: int) -> int:
        return -(-width // step) * step

    def _grow_logits(self, rows: int) -> None:
        """One logits buffer serves every width; earlier bindings keep the one they point at."""
        if rows > len(self._logits):
            size = max(
                rows, self._padded(min(self._spec.max_verify, self._context), self._head_step)
            )
            self._logits = np.empty((size, self._spec.vocab), np.float32)

    def _new_binding(
        self, session: ort.InferenceSession, slot: OrtSlot, width: int, rows: int
    ) -> _Binding:
        padded = self._padded(width, self._step)
        ids = np.zeros((1, padded), np.int64)
        # the head is padded as well: its width is the number of scored rows
        scored = self._padded(rows, self._head_step)
        logit_rows = np.minimum(np.arange(scored, dtype=np.int64) + width - rows, width - 1)
        logits = self._logits[:scored]
        greedy = np.zeros(scored, np.int64)
        keep: list[object] = [logit_rows]
        io = session.io_binding()

        def bound(array: npt.NDArray[np.generic]) -> ort.OrtValue:
            value = ort.OrtValue.ortvalue_from_numpy(array)
            keep.append(value)
            return value

        io.bind_ortvalue_input(INPUT_IDS, bound(ids))
        io.bind_ortvalue_input(CACHED_LENGTHS, bound(slot.cached))
        io.bind_ortvalue_input(TOTAL_LENGTH, bound(slot.total))
        io.bind_ortvalue_input(LOGIT_ROWS, bound(logit_rows))
        io.bind_ortvalue_output(LOGITS, bound(logits))
        io.bind_ortvalue_output(GREEDY_IDS, bound(greedy))
        for layer, (key, value) in enumerate(slot.values):
            io.bind_ortvalue_input(past(layer, "key"), key)
            io.bind_ortvalue_input(past(layer, "value"), value)
            io.bind_ortvalue_output(present(layer, "key"), key)
            io.bind_ortvalue_output(present(layer, "value"), value)
        flat = logits.reshape(-1)
        return _Binding(io, padded, ids[0, :width], greedy[:rows], logits[:rows], flat, keep)

"""The engine over one ONNX Runtime session.

An exact engine pads calls to the widths that agree to the bit, so that plain and speculative
decoding see the same logits; what padding writes is overwritten by the next call. See `widths`.

On a device, keys, values and logits stay there. A call takes ids and lengths along, and brings
back the greedy ids and their logits; whole rows of logits come when somebody reads them.
"""

from __future__ import annotations

import time
from itertools import count
from math import isfinite

import numpy as np
import onnxruntime as ort

from specedge.contract import WIDEST_STEP, GraphSpec, Ids, Logits
from specedge.engines import widths
from specedge.engines.base import Scored, Slot
from specedge.engines.ort.accepting import Accepting
from specedge.engines.ort.bindings import Binding, Outputs, Ports, bind
from specedge.engines.ort.memory import Memory
from specedge.engines.ort.providers import explained
from specedge.engines.ort.slots import OrtSlot
from specedge.engines.widths import Widths
from specedge.errors import EngineError, ShapeError
from specedge.memory import format_size

PREFILL_CHUNK = 128
_PROBE_ROWS = 48  # of the slot that widths are measured in
_GRAPH_ID = "gpu_graph_id"  # entry of a run: which graph to capture or replay
_NO_GRAPH = -1


class OrtEngine:
    """Runs one graph on one ONNX Runtime session."""

    def __init__(
        self,
        spec: GraphSpec,
        session: ort.InferenceSession,
        placement: str,
        context: int | None,
        *,
        memory: Memory | None = None,
        captures: bool = False,
        steps: bool = True,
        accepting: Accepting | None = None,
    ) -> None:
        """
        Args:
            spec: of the graph.
            session: over it.
            placement: provider and threads, for reports.
            context: as `open_engine`.
            memory: of keys, values and outputs; None: the host's.
            captures: CUDA graphs of verifications, which the session was asked for.
            steps: T follows the sequence where a call pays for all of T; False: it is the whole
                context in every slot, as it must be where a runtime compiles for one T.
            accepting: decides about drafts over logits that stay in `memory`.

        Raises:
            EngineError: the context was not exported, or the graph is too old for a device.
        """
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
        self._memory = memory or Memory()
        self._ports = Ports(spec, session, self._memory)
        self._graph_ids = count() if captures else None
        self._is_measuring = False
        self._has_one_size = not steps
        self._follows = steps and not captures and spec.lowering == "standard"
        self._outputs = Outputs(spec.vocab, self._memory, spec.max_verify)
        self._accepting = accepting
        self._free: list[OrtSlot] = []
        self._calls = 0

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
        return self._slot(self._context)

    def release(self, slot: Slot) -> None:
        """Keep the buffers for the next sequence: rows at or past n_cached are never read."""
        own = self._own(slot)
        own.released = True
        self._free.append(own)

    def warm_up(self, *, exact: bool) -> None:
        """Find out which widths agree, and run the widest call once, so that the first request
        pays no first-touch costs."""
        self._is_measuring = True
        self._measure_widths(exact=exact)
        self._is_measuring = False
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
        rows = min(self._context if self._has_one_size else self._spec.context, _PROBE_ROWS)
        past_rows = rows // 4
        widest = min(widths.WIDEST, (rows - past_rows) // 2)
        if widest < 2:
            return
        tokens = self._some_tokens(rows)
        slot = self._slot(self._context if self._has_one_size else rows)
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
        if not 1 <= rows <= width:
            raise ShapeError(f"{rows} scored rows of {width} tokens; expected 1..{width}")
        if n_cached < 0 or n_cached + width > slot.context:
            raise ShapeError(
                f"{n_cached} cached rows + {width} tokens, but the slot holds {slot.context} rows"
            )
        total = n_cached + self._padded(width, self._step)
        key = (slot.fit(total), width, rows)
        binding = slot.bindings.get(key)
        if binding is None:
            binding = self._bind(session, slot, width, rows)
            slot.keep(key, binding)
        binding.ids[:] = tokens
        slot.lengths.say(n_cached, total)
        self._calls += 1
        try:
            for each in binding.inputs:
                each.push()
            started = time.perf_counter_ns()
            if binding.options is None:  # looking up an entry that they lack costs 60 microseconds
                session.run_with_iobinding(binding.io)
            else:
                session.run_with_iobinding(binding.io, binding.options)
            run_ms = (time.perf_counter_ns() - started) * 1e-6
            for each in binding.outputs:
                each.pull()
        except Exception as error:  # the runtime's exceptions share no base below Exception
            raise EngineError(
                f"{self._spec.role}: ONNX Runtime failed on {width} tokens after {n_cached} "
                f"cached: {explained(error)}"
            ) from error
        damaged = _first_not_finite(binding, self._spec.vocab)
        if damaged is not None:
            slot.cache.scrub(n_cached)
            raise EngineError(
                f"{self._spec.role}: logits are not finite at position "
                f"{n_cached + width - rows + damaged}; the weights or the runtime are damaged"
            )
        if binding.logits is not None:
            return Scored(binding.greedy_ids, binding.logits, run_ms)
        called = self._calls
        accepting = self._accepting
        decide = None if accepting is None else accepting.decider(binding.logits_value)
        return Scored(binding.greedy_ids, lambda: self._fetched(binding, called), run_ms, decide)

    def _fetched(self, binding: Binding, called: int) -> Logits:
        """Logits of a call, from the device."""
        if called != self._calls:
            raise EngineError(
                f"{self._spec.role}: logits must be read before the engine's next call"
            )
        logits: Logits = self._memory.read(binding.logits_value)[: binding.rows]
        return logits

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

    def _slot(self, context: int) -> OrtSlot:
        try:
            return OrtSlot(
                self,
                self._spec,
                context,
                WIDEST_STEP - 1,
                memory=self._memory,
                ports=self._ports,
                steps=self._follows,
            )
        except (EngineError, MemoryError) as error:
            said = str(error) if isinstance(error, EngineError) else explained(error)
            size = format_size(self._spec.kv_bytes(context))
            raise EngineError(
                f"{self._spec.role}: keys and values for a context of {context} take {size}: {said}"
            ) from error

    def _bind(self, session: ort.InferenceSession, slot: OrtSlot, width: int, rows: int) -> Binding:
        padded = self._padded(width, self._step)
        # the head is padded as well: its width is the number of scored rows
        scored = self._padded(rows, self._head_step)
        return bind(
            session,
            self._ports,
            self._outputs,
            slot.lengths,
            slot.cache.values,
            width=width,
            rows=rows,
            padded=padded,
            scored=scored,
            memory=self._memory,
            options=self._run_options(width),
        )

    def _run_options(self, width: int) -> ort.RunOptions | None:
        if self._graph_ids is None:
            return None
        captured = width <= self._spec.max_verify and not self._is_measuring
        options = ort.RunOptions()
        graph = next(self._graph_ids) if captured else _NO_GRAPH
        options.add_run_config_entry(_GRAPH_ID, str(graph))
        return options

    @staticmethod
    def _padded(width: int, step: int) -> int:
        return -(-width // step) * step


def _first_not_finite(binding: Binding, vocab: int) -> int | None:
    """The first scored row whose greatest logit is no number; a NaN in the hidden state reaches
    every logit of its row, the greatest included."""
    # As Python floats: right after a run numpy's own code is cold, and takes seven times as long.
    if binding.greedy_logits is not None:
        best = binding.greedy_logits.tolist()
    else:
        assert binding.logits is not None, "graphs of a device have greedy_logits"
        item = binding.logits.reshape(-1).item
        best = [item(row * vocab + id_) for row, id_ in enumerate(binding.greedy_ids.tolist())]
    return next((row for row, logit in enumerate(best) if not isfinite(logit)), None)

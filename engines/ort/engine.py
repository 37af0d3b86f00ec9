"""The engine over one ONNX Runtime session.

On a device, keys, values and logits stay there. A call takes ids and lengths along, and brings
back the greedy ids and their logits; whole rows of logits come when somebody reads them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import count

import onnxruntime as ort

from specedge.contract import WIDEST_STEP, GraphSpec, Ids, Logits
from specedge.engines import widths
from specedge.engines.base import Scored
from specedge.engines.ort.accepting import Accepting
from specedge.engines.ort.bindings import Binding, Outputs, Ports, bind
from specedge.engines.ort.memory import Memory
from specedge.engines.ort.providers import explained
from specedge.engines.ort.slots import OrtSlot
from specedge.engines.slotted import SlottedEngine
from specedge.engines.widths import Padding, padded
from specedge.errors import EngineError
from specedge.memory import format_size

_GRAPH_ID = "gpu_graph_id"  # entry of a run: which graph to capture or replay
_NO_GRAPH = -1


class OrtEngine(SlottedEngine[OrtSlot]):
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
        super().__init__(spec, context)
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
        self._calls = 0

    @property
    def description(self) -> str:
        return f"onnxruntime {ort.__version__}, {self._placement}"

    @property
    def providers(self) -> tuple[str, ...]:
        """What the runtime uses, by its own names, most wanted first."""
        return tuple(self._live().get_providers())

    def _made(self) -> OrtSlot:
        return self._slot(self._context)

    def _scrub(self, slot: OrtSlot, first: int) -> None:
        slot.cache.scrub(first)

    def _measured(self, *, exact: bool) -> Padding:
        """In a slot of its own, so that what is found does not depend on the context asked for."""
        rows = self._context if self._has_one_size else min(self._spec.context, widths.ROWS)
        self._is_measuring = True
        found = widths.padding(self._trial(self._slot(rows)), self._spec, rows, exact=exact)
        self._is_measuring = False
        return found

    def _run(self, slot: OrtSlot, tokens: Ids, n_cached: int, rows: int) -> Scored:
        session, width = self._live(), len(tokens)
        total = n_cached + padded(width, self._padding.step)
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
        self._check_finite(slot, _best(binding, self._spec.vocab), n_cached, n_cached + width)
        if binding.logits is not None:
            return Scored(binding.greedy_ids, binding.logits, run_ms)
        last = partial(self._check_last, self._calls)
        decide = None
        if self._accepting is not None:
            decide = self._accepting.decider(binding.logits_value, last)
        return Scored(binding.greedy_ids, lambda: self._fetched(binding, last), run_ms, decide)

    def _check_last(self, called: int) -> None:
        """Raise EngineError unless the buffers hold the logits of call number `called`."""
        self._check_open()
        if called != self._calls:
            raise EngineError(
                f"{self._spec.role}: logits must be read before the engine's next call"
            )

    def _fetched(self, binding: Binding, check: Callable[[], None]) -> Logits:
        """Logits of a call, from the device."""
        check()
        logits: Logits = self._memory.read(binding.logits_value)[: binding.rows]
        return logits

    def close(self) -> None:
        self._session = self._accepting = None
        self._outputs = Outputs(self._spec.vocab, self._memory, self._spec.max_verify)
        self._free.clear()

    def _live(self) -> ort.InferenceSession:
        if self._session is None:
            raise self._closed()
        return self._session

    def _check_open(self) -> None:
        self._live()

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
        return bind(
            session,
            self._ports,
            self._outputs,
            slot.lengths,
            slot.cache.values,
            width=width,
            rows=rows,
            padded=padded(width, self._padding.step),
            # the head is padded as well: its width is the number of scored rows
            scored=padded(rows, self._padding.head_step),
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


def _best(binding: Binding, vocab: int) -> list[float]:
    """Logit of each greedy id."""
    if binding.greedy_logits is not None:
        best: list[float] = binding.greedy_logits.tolist()
        return best
    assert binding.logits is not None, "graphs of a device have greedy_logits"
    item = binding.logits.reshape(-1).item
    return [item(row * vocab + id_) for row, id_ in enumerate(binding.greedy_ids.tolist())]

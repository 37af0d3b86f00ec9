"""One call on the device: inputs in, the plan's kernels, verdicts out, all queued in one stream.

    pinned host             device                          pinned host
    lengths, rows, ids  ->  inputs -> profile's context ->  greedy ids, greedy logits
                            past.* = present.*  (the slot's)
                            logits              (stay, until somebody reads them)

Inputs lie in one block and so do verdicts: one copy each way. Addresses never change, so the whole
of it, copies included, can be captured as one CUDA graph for a cache, a width and a number of rows;
a launch then reads whatever the pinned inputs hold. A graph is captured at the second call of its
kind, right after a plain one of the same shapes: TensorRT finishes what a change of shapes leaves
to do in the next plain call, which a capture must not record. One-off widths are never captured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from specedge.contract import (
    CACHED_LENGTHS,
    GREEDY_IDS,
    GREEDY_LOGITS,
    INPUT_IDS,
    LOGIT_ROWS,
    LOGITS,
    GraphSpec,
    Ids,
    Logits,
)
from specedge.engines.trt.contexts import Context, new_context
from specedge.engines.trt.cudart import Cuda
from specedge.engines.trt.deserialising import Deserialised
from specedge.engines.trt.kernels import Kernels
from specedge.engines.trt.layout import Cache, Call, Layout, cache_bytes, cache_tensors
from specedge.engines.trt.log import Refused, logged, name_of
from specedge.engines.trt.memory import Held, do_all
from specedge.engines.trt.plans import PREFILL, VERIFY
from specedge.errors import EngineError, one_line

_CAPTURED_AT = 2  # plain calls of a kind, after which it is captured


class Execution:
    """Runs calls of one plan in one stream; `open` before anything else.

    Args:
        cuda: the plan's device.
        plan: deserialised there.
        spec: of its graph.
        layout: of a call's buffers.
        kernels: compiled ones, of the plan.
        held: where memory is allocated; whoever owns it closes it after this.
        captures: use CUDA graphs.
    """

    def __init__(
        self,
        cuda: Cuda,
        plan: Deserialised,
        spec: GraphSpec,
        layout: Layout,
        kernels: Kernels,
        held: Held,
        *,
        captures: bool,
    ) -> None:
        self._cuda, self._plan, self._spec, self._held = cuda, plan, spec, held
        self._layout, self._kernels, self._captures = layout, kernels, captures
        self.notes: list[str] = []
        self._stream: Any = None
        self._contexts: list[Context] = []
        self._caches: list[Cache] = []
        self._host_logits: Logits | None = None

    def open(self) -> None:
        """Allocate buffers, make contexts and bind them.

        Raises:
            EngineError: out of device memory, or the library refuses; `close` ends what was made.
        """
        cuda, held, layout, plan = self._cuda, self._held, self._layout, self._plan
        self._stream = cuda.new_stream()
        self._inputs = held.pinned(layout.input_bytes)
        self._verdicts = held.pinned(layout.verdict_bytes)
        self._inputs_at = held.device(layout.input_bytes, "a call's inputs")
        self._verdicts_at = held.device(layout.verdict_bytes, "a call's verdicts")
        self._logits_at = held.device(layout.logits_bytes, f"{layout.max_verify} rows of logits")
        activations = held.device(plan.activation_bytes, "activations")
        self._cached = self._inputs[:4].view(np.int32)
        self._rows = self._inputs[layout.rows_at : layout.ids_at].view(np.int64)
        self._ids = self._inputs[layout.ids_at :].view(np.int64)
        self._greedy_ids = self._verdicts[: layout.best_at].view(np.int64)
        self._greedy_logits = self._verdicts[layout.best_at :].view(np.float32)
        addresses = {
            CACHED_LENGTHS: self._inputs_at,
            LOGIT_ROWS: self._inputs_at + layout.rows_at,
            INPUT_IDS: self._inputs_at + layout.ids_at,
            GREEDY_IDS: self._verdicts_at,
            GREEDY_LOGITS: self._verdicts_at + layout.best_at,
            LOGITS: self._logits_at,
        }
        with logged(plan.library):
            for profile in (VERIFY, PREFILL):
                context = new_context(plan, self._kernels, profile, int(self._stream), activations)
                self._contexts.append(context)
                cuda.wait(self._stream)
                context.bind(self._spec, plan.rows, addresses)

    # --- caches ---------------------------------------------------------------------------------

    def new_cache(self) -> Cache:
        """Zeroed: a masked weight of 0 times NaN is NaN.

        Raises:
            EngineError: out of device memory.
        """
        rows = self._plan.rows
        size = cache_bytes(self._spec, rows)
        address = self._held.device(size, f"KV of {rows} rows")
        cache = Cache(address, size, cache_tensors(self._spec, rows, address))
        self._caches.append(cache)
        self.clear(cache)
        return cache

    def clear(self, cache: Cache) -> None:
        """Write zeros to all of it."""
        self._cuda.clear(cache.address, cache.size, self._stream)
        self._cuda.wait(self._stream)

    def scrub(self, cache: Cache, first: int) -> None:
        """Write zeros from row `first` on, of every head."""
        row = self._spec.head_dim * self._spec.element_bytes
        pitch = self._plan.rows * row
        for address in sorted({*cache.tensors.values()}):
            self._cuda.clear_columns(
                address + first * row, pitch, pitch - first * row, self._spec.kv_heads, self._stream
            )
        self._cuda.wait(self._stream)

    # --- calls ----------------------------------------------------------------------------------

    def write(self, tokens: Ids, n_cached: int, width: int, first_row: int, rows: int) -> None:
        """Fill the pinned inputs.

        Args:
            tokens: int64 [N], N <= width (S); what is missing is padded with id 0.
            first_row: of those that are scored.
            rows: M; those past the last token score it again.
        """
        count = len(tokens)
        self._cached[0] = n_cached
        self._ids[:count] = tokens
        self._ids[count:width] = 0
        self._rows[:rows] = np.minimum(np.arange(first_row, first_row + rows), count - 1)

    def run(self, cache: Cache, width: int, rows: int) -> float:
        """Run what was written; milliseconds until its verdicts are on the host.

        Raises:
            EngineError: the library or the device failed.
        """
        call = (width, rows)
        graph = cache.graphs.get(call)
        started = time.perf_counter_ns()
        if graph is not None:
            self._cuda.launch(graph, self._stream)
        else:
            with logged(self._plan.library):
                self._enqueue(cache, call)
        self._cuda.wait(self._stream)
        run_ms = (time.perf_counter_ns() - started) * 1e-6
        if graph is None and self._captures and width <= self._layout.max_verify:
            cache.calls[call] = cache.calls.get(call, 0) + 1
            if cache.calls[call] >= _CAPTURED_AT:
                self._capture(cache, call)
        return run_ms

    def _context(self, width: int) -> Context:
        return self._contexts[VERIFY if width <= self._layout.max_verify else PREFILL]

    def _enqueue(self, cache: Cache, call: Call) -> None:
        width, rows = call
        cuda, layout, context = self._cuda, self._layout, self._context(width)
        context.prepare(cache, call)
        cuda.copy_in(self._inputs_at, self._inputs, layout.ids_at + 8 * width, self._stream)
        if not context.inner.execute_async_v3(int(self._stream)):
            name = name_of(self._plan.library)
            raise Refused(f"{self._spec.role}: {name} refuses a call of {width} tokens")
        cuda.copy_out(self._verdicts, self._verdicts_at, layout.best_at + 4 * rows, self._stream)

    def _capture(self, cache: Cache, call: Call) -> None:
        """From now on calls of this kind are launched as one; where that cannot be, a note."""
        able = getattr(self._context(call[0]).inner, "is_stream_capturable", None)
        try:
            if able is not None and not able(int(self._stream)):  # TensorRT-RTX can tell
                raise EngineError("the library says that it cannot be captured")
            with logged(self._plan.library):
                cache.graphs[call] = self._cuda.capture(
                    self._stream, lambda: self._enqueue(cache, call)
                )
        except EngineError as error:
            self._captures = False
            self.notes.append(
                f"{self._spec.role}: no CUDA graph of a call of {call[0]} tokens "
                f"({one_line(error)}): kernels are launched one by one"
            )

    def verdicts(self, rows: int) -> tuple[Ids, npt.NDArray[np.float32]]:
        """Greedy ids and their logits of the last call, [rows] each: copies."""
        return self._greedy_ids[:rows].copy(), self._greedy_logits[:rows].copy()

    def logits(self, rows: int) -> Logits:
        """The last call's logits, fetched: float32 [rows, V], valid until they are next fetched."""
        if self._host_logits is None:
            shape = (self._layout.max_verify, self._layout.vocab)
            self._host_logits = np.empty(shape, np.float32)
            self._held.register(self._host_logits)
        size = 4 * rows * self._layout.vocab
        self._cuda.copy_out(self._host_logits, self._logits_at, size, self._stream)
        self._cuda.wait(self._stream)
        return self._host_logits[:rows]

    def close(self) -> None:
        """End graphs, contexts and the stream.

        Raises:
            EngineError: the first failure; the rest is ended all the same.
        """
        cuda, stream = self._cuda, self._stream
        graphs = [graph for cache in self._caches for graph in cache.graphs.values()]
        for cache in self._caches:
            cache.graphs.clear()
        self._stream, self._caches = None, []
        if stream is None:
            return
        work: list[Callable[[], None]] = [partial(cuda.wait, stream)]
        work += [partial(cuda.end_graph, graph) for graph in graphs]
        work += [context.close for context in self._contexts]
        work += [partial(cuda.end_stream, stream)]
        self._contexts = []
        do_all(work)

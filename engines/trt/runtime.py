"""Plans of TensorRT and TensorRT-RTX as an engine: KV, logits and the loop's calls on one GPU.

Nothing but greedy ids and their logits comes back from a call; the other logits follow when they
are read. As on a CPU, an exact engine pads calls to the widths whose logits agree to the bit, which
is measured when it is opened (see `specedge.engines.widths`), but never beyond max_verify, the
widest call of the profile that verifies.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from specedge.contract import EngineOptions, GraphSpec, Ids, Logits
from specedge.engines import widths
from specedge.engines.base import Scored
from specedge.engines.matching import PLANNED
from specedge.engines.slotted import SlottedEngine, checked_context
from specedge.engines.trt import library as libraries
from specedge.engines.trt import plans
from specedge.engines.trt.cudart import Cuda
from specedge.engines.trt.deserialising import Deserialised, deserialise
from specedge.engines.trt.execution import Execution
from specedge.engines.trt.kernels import Kernels
from specedge.engines.trt.layout import Cache, Layout, cache_bytes
from specedge.engines.trt.library import Library
from specedge.engines.trt.memory import Held, Needs, check_fits, do_all
from specedge.engines.trt.options import Settings
from specedge.engines.trt.plans import Plan, PlanKey
from specedge.engines.widths import Padding, padded
from specedge.errors import EngineError


def open_engine(
    bundle_path: Path,
    spec: GraphSpec,
    *,
    backend: str,
    options: EngineOptions | None = None,
    context: int | None = None,
    exact: bool = True,
) -> TrtEngine:
    """Load a plan of a bundle's graph and run it.

    Args:
        bundle_path: the bundle's folder.
        spec: which graph of it.
        backend: "tensorrt" or "tensorrt-rtx".
        options: see `specedge.engines.trt.options`.
        context: rows that a slot offers, at most spec.context; None: all of them. The plan's T may
            be larger.
        exact: pad calls, where that makes logits independent of how many tokens a call has.

    Raises:
        EngineError: an unknown option, a library or a driver that is missing or too old, no such
            GPU, or too little memory on it.
        PlanError: no plan for this graph, library and GPU, or one that does not load.
    """
    if backend not in PLANNED:
        raise EngineError(f"engine: no backend {backend!r}; there are tensorrt and tensorrt-rtx")
    settings = Settings.checked(backend, options)
    rows = checked_context(spec, context)
    library = libraries.load(backend)
    cuda = Cuda(settings.device)
    wanted = plans.key_for(
        bundle_path,
        spec,
        backend=backend,
        version=library.version,
        compute_capability=cuda.gpu.compute_capability,
        device=cuda.gpu.name,
        context=rows,
    )
    plan = plans.find(bundle_path, wanted)
    engine = TrtEngine(spec, library, cuda, plan.record.key, rows, graphs=settings.cuda_graphs)
    try:
        engine.open(plan, plans.command(bundle_path, wanted), exact=exact)
    except BaseException:
        with suppress(EngineError):  # the first failure is the one to tell
            engine.close()
        raise
    return engine


class TrtSlot:
    """One sequence's KV on the device."""

    def __init__(self, owner: TrtEngine, cache: Cache, context: int) -> None:
        self.owner = owner
        self.cache = cache
        self.context = context
        self.released = False

    def touch(self) -> None:
        self.owner.clear(self)


class TrtEngine(SlottedEngine[TrtSlot]):
    """Runs one plan in one stream of one GPU; made by `open_engine`."""

    def __init__(
        self,
        spec: GraphSpec,
        library: Library,
        cuda: Cuda,
        key: PlanKey,
        context: int,
        *,
        graphs: bool,
    ) -> None:
        super().__init__(spec, context)
        self._library, self._cuda, self._key, self._graphs = library, cuda, key, graphs
        self._held = Held(cuda)
        self._plan: Deserialised | None = None
        self._kernels: Kernels | None = None
        self._execution: Execution | None = None
        self._calls = 0  # logits belong to the last one

    # --- opening --------------------------------------------------------------------------------

    def open(self, plan: Plan, command: str, *, exact: bool) -> None:
        """Check memory, load the plan, allocate, measure widths, and run the widest call once.

        Args:
            command: what builds a plan of this context, for messages.

        Raises:
            EngineError, PlanError: as `open_engine`. `close` frees what was made.
        """
        spec, key, cuda = self._spec, self._key, self._cuda
        layout = Layout(key.max_verify, key.prefill_chunk, spec.vocab)
        smaller = command.partition("--context ")[0] + f"--role {spec.role} --context "

        def check(weights: int, rows: int, activations: int) -> None:
            needs = Needs(weights, cache_bytes(spec, rows), activations, layout.total)
            check_fits(needs, cuda.free_bytes(), spec, key.rows, smaller)

        check(plan.record.bytes, key.rows, plan.record.report.device_bytes or 0)
        self._plan = deserialise(self._library, plan, spec, f"{command} --force")
        check(0, self._plan.rows, self._plan.activation_bytes)  # now the library itself says it
        self._kernels = Kernels(self._plan.engine, plan.path)
        self._execution = Execution(
            cuda, self._plan, spec, layout, self._kernels, self._held, captures=self._graphs
        )
        self._execution.open()
        self.warm_up(exact=exact)
        self._kernels.keep()

    def _scrub(self, slot: TrtSlot, first: int) -> None:
        self._live().scrub(slot.cache, first)

    def _measured(self, *, exact: bool) -> Padding:
        """Over the widths of profile VERIFY; prefill's kernels are others, and alike for all."""
        most, slot = self._key.max_verify, self.new_slot()
        found = widths.padding(
            self._trial(slot), self._spec, self._context, exact=exact, widest=most, most_scored=most
        )
        self.release(slot)
        return found

    # --- the protocol ---------------------------------------------------------------------------

    @property
    def description(self) -> str:
        gpu = self._cuda.gpu
        graphs = "" if self._graphs else ", no CUDA graphs"
        return (
            f"{self._library.backend} {self._library.version}, {gpu.name} "
            f"(SM{gpu.compute_capability}), T {self._key.rows}{graphs}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of how it runs."""
        return () if self._execution is None else tuple(self._execution.notes)

    @property
    def device_bytes(self) -> int:
        """Allocated by the engine itself: KV, activations and buffers, without weights."""
        return self._held.device_bytes

    @property
    def width_noise(self) -> float:
        """Not 0.0 either where a padded call at the end of the context would pass the plan's T."""
        found = self._padding
        if found.widths is None or self._spare >= found.step - 1:
            return found.noise
        return found.widths.noise

    @property
    def _spare(self) -> int:
        """Rows past the context, which take what padding writes."""
        return 0 if self._plan is None else self._plan.rows - self._context

    @property
    def prefill_chunk(self) -> int:
        return min(self._key.prefill_chunk, self._context)

    def _made(self) -> TrtSlot:
        return TrtSlot(self, self._live().new_cache(), self._context)

    def clear(self, slot: TrtSlot) -> None:
        """See `Slot.touch`."""
        self._live().clear(self._own(slot).cache)

    def _run(self, slot: TrtSlot, tokens: Ids, n_cached: int, rows: int) -> Scored:
        execution, width = self._live(), len(tokens)
        widest = max(self._key.max_verify, self._key.prefill_chunk)
        if width > widest or rows > self._key.max_verify:
            return self._in_pieces(slot, tokens, n_cached, rows, widest)
        wide = self._padded(width, self._padding.step)
        if n_cached + wide > slot.context + self._spare:
            wide = width
        scored = self._padded(rows, self._padding.head_step)
        execution.write(tokens, n_cached, wide, width - rows, scored)
        self._calls += 1
        run_ms = execution.run(slot.cache, wide, scored)
        ids, best_logits = execution.verdicts(rows)
        self._check_finite(slot, best_logits.tolist(), n_cached, n_cached + width)
        of = self._calls
        return Scored(ids, lambda: self._fetch(of, rows), run_ms)

    def _padded(self, width: int, step: int) -> int:
        """Up to max_verify, which agrees with the multiples of `step`: they were compared with it.
        Wider calls are another profile's."""
        if width > self._key.max_verify:
            return width
        return min(padded(width, step), self._key.max_verify)

    def _fetch(self, of: int, rows: int) -> Logits:
        execution = self._live()
        if of != self._calls:
            raise EngineError(
                f"{self._spec.role}: logits of an earlier call were read after a later one"
            )
        return execution.logits(rows)

    def _in_pieces(
        self, slot: TrtSlot, tokens: Ids, n_cached: int, rows: int, widest: int
    ) -> Scored:
        """A call too wide for the profiles, or scoring too many rows, as several."""
        first, most = len(tokens) - rows, self._key.max_verify
        spent, start = 0.0, 0
        ids: list[Ids] = []
        logits: list[Logits] = []
        while start < len(tokens):
            stop = min(start + widest, len(tokens), max(first, start) + most)
            wanted = max(0, stop - max(first, start))
            part = self.forward(slot, tokens[start:stop], n_cached + start, max(1, wanted))
            spent += part.run_ms
            if wanted:
                ids.append(part.greedy_ids)
                logits.append(part.logits.copy())
            start = stop
        return Scored(np.concatenate(ids), np.concatenate(logits), spent)

    def close(self) -> None:
        execution, kernels, plan = self._execution, self._kernels, self._plan
        self._execution = self._kernels = self._plan = None
        self._free.clear()
        work: list[Callable[[], None]] = [self._cuda.make_current]
        if execution is not None:
            work.append(execution.close)
        work.append(self._held.close)  # contexts are gone by now, and with them who used it
        work += [each.close for each in (kernels, plan) if each is not None]
        do_all(work)

    def _live(self) -> Execution:
        if self._execution is None:
            raise self._closed()
        # a thread starts with device 0, whatever another one chose
        self._cuda.make_current()
        return self._execution

    def _check_open(self) -> None:
        if self._execution is None:
            raise self._closed()

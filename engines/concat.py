"""Contract "concat": graphs of other exporters, whose KV grows by concatenation. ONNX Runtime, CPU.

inputs
    input_ids                    int64 [1, S]
    attention_mask               int64 [1, n + S]     all ones; n rows are cached; some lack it
    position_ids                 int64 [1, S]         n .. n + S - 1; some lack it
    past_key_values.{l}.key      float32 [1, H_kv, n, D], or the axis of n elsewhere
    past_key_values.{l}.value    the same
outputs
    logits                       float32 [1, S, V']   V' >= V: the padded tail is cut here
    present.{l}.key / .value     float32 [1, H_kv, n + S, D]

Such a graph copies all of its KV in every call and scores every row, so it is slower than a graph
of contract 1, and the more so the longer the text. Where KV lies is nothing that a slot of contract
1 could not hold, though: a slot has two buffers for each tensor, a call reads one and writes the
other, and rows that a call should not see (those of refused drafts) are left out by one more copy.

Nothing is padded to make calls of different widths agree: a row's softmax runs over as many columns
as the whole call has, so its last bit depends on the width whatever one does. `width_noise` says
by how much, as it was measured at load.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from specedge.contract import INPUT_IDS, LOGITS, EngineOptions, GraphSpec, Ids
from specedge.engines import widths
from specedge.engines.base import Scored
from specedge.engines.ort.providers import open_session, pool_size
from specedge.engines.slotted import SlottedEngine
from specedge.engines.widths import Padding
from specedge.errors import EngineError, one_line

PAST, PRESENT = "past_key_values.", "present."
MASK, POSITIONS = "attention_mask", "position_ids"


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
) -> ConcatEngine:
    """Load a bundle's graph and run it once.

    Args:
        bundle_path: the bundle's folder.
        spec: which graph of it.
        provider: "cpu"; these graphs run nowhere else.
        options: of the session ([engines.cpu]), in its own words.
        threads: of the intra-op pool; None: every core this process may run on.
        context: rows of KV, at most spec.context; None: all of them.
        exact: of no effect: there is nothing to pad.
        takes_turns: another engine runs between this one's calls.

    Raises:
        EngineError: another provider, the graph does not load, or is not of this contract.
    """
    if provider != "cpu":
        raise EngineError(
            f"engine: a bundle of the optimum front end runs on cpu only, not on {provider}; "
            "use --engine cpu, or export with the native front end"
        )
    wanted = pool_size(threads)
    session = open_session(
        bundle_path, spec, provider, wanted, options=options, takes_turns=takes_turns
    )
    engine = ConcatEngine(spec, session, f"{provider}, {wanted} threads", context)
    engine.warm_up()
    return engine


@dataclass(frozen=True, slots=True)
class Grown:
    """One tensor of KV: its two names, and where its rows are.

    Args:
        before: shape up to the axis of rows, batch 1 included.
        after: shape past it.
    """

    past: str
    present: str
    before: tuple[int, ...]
    after: tuple[int, ...]

    def shape(self, rows: int) -> tuple[int, ...]:
        return (*self.before, rows, *self.after)

    @property
    def row_elements(self) -> int:
        return int(np.prod((*self.before, *self.after)))


def kv_of(inputs: dict[str, list[Any]], outputs: dict[str, list[Any]]) -> list[Grown]:
    """KV tensors of a graph, in the order of its inputs.

    Args:
        inputs, outputs: shape by name; a size that varies is a string or None.

    Raises:
        EngineError: an input that nothing could be fed to, or KV of a shape that is not understood.
    """
    found = []
    for name, shape in inputs.items():
        if not name.startswith(PAST):
            if name not in (INPUT_IDS, MASK, POSITIONS):
                raise EngineError(
                    f"graph: input {name!r} is not of contract concat; expected {INPUT_IDS}, "
                    f"{MASK}, {POSITIONS} and {PAST}*"
                )
            continue
        free = [axis for axis, size in enumerate(shape) if not isinstance(size, int) or size == 1]
        rows = [axis for axis in free if axis and "past" in str(shape[axis])]
        output = PRESENT + name.removeprefix(PAST)
        fixed = [size for axis, size in enumerate(shape) if axis and axis not in rows]
        known = all(isinstance(size, int) for size in fixed)
        if 0 not in free or len(rows) != 1 or not known or output not in outputs:
            raise EngineError(
                f"graph: KV input {name!r} of shape {shape} is not understood; expected "
                f"[batch, heads, past, width] and an output {output!r}"
            )
        axis = rows[0]
        found.append(Grown(name, output, (1, *shape[1:axis]), tuple(shape[axis + 1 :])))
    if not found or LOGITS not in outputs:
        raise EngineError(f"graph: no KV inputs {PAST}*, or no output {LOGITS!r}")
    return found


class ConcatSlot:
    """KV of one sequence, twice: what the last call read, and what it wrote."""

    def __init__(self, owner: ConcatEngine, kv: list[Grown], context: int) -> None:
        self.owner = owner
        self.context = context
        self.released = False
        self.held = 0  # rows in `current`; those past it count as zeros
        self.current = [np.zeros(each.row_elements * context, np.float32) for each in kv]
        self.other = [np.zeros(each.row_elements * context, np.float32) for each in kv]

    def touch(self) -> None:
        for buffer in (*self.current, *self.other):
            buffer.fill(0)
        self.held = 0

    def hold(self, kv: list[Grown], rows: int) -> None:
        """Make `current` hold exactly the first `rows` rows; one copy where it held others.

        Rows lie a head apart, so fewer of them are another memory layout.
        """
        if rows == self.held:
            return
        kept = min(rows, self.held)
        for each, source, target in zip(kv, self.current, self.other, strict=True):
            at = (slice(None),) * len(each.before)
            new = view(target, each.shape(rows))
            new[(*at, slice(kept))] = view(source, each.shape(self.held))[(*at, slice(kept))]
            new[(*at, slice(kept, None))] = 0
        self.swap(rows)

    def swap(self, rows: int) -> None:
        """`other` was written and holds `rows` rows."""
        self.current, self.other = self.other, self.current
        self.held = rows


def view(flat: npt.NDArray[np.float32], shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """The beginning of a flat buffer in another shape."""
    return flat[: int(np.prod(shape))].reshape(shape)


class ConcatEngine(SlottedEngine[ConcatSlot]):
    """Runs one graph of contract concat on one ONNX Runtime session."""

    def __init__(
        self,
        spec: GraphSpec,
        session: ort.InferenceSession,
        placement: str,
        context: int | None,
    ) -> None:
        """`placement` says provider and threads, for reports."""
        super().__init__(spec, context)
        inputs = {node.name: list(node.shape) for node in session.get_inputs()}
        outputs = {node.name: list(node.shape) for node in session.get_outputs()}
        self._kv = kv_of(inputs, outputs)
        self._columns = _checked_columns(spec, self._kv, outputs)
        self._session: ort.InferenceSession | None = session
        self._placement = placement
        self._has = {name: name in inputs for name in (MASK, POSITIONS)}
        self._ones = np.ones((1, self._context), np.int64)
        self._positions = np.arange(self._context, dtype=np.int64)[None]
        self._logits = np.empty((0, self._columns), np.float32)

    @property
    def description(self) -> str:
        return f"onnxruntime {ort.__version__}, {self._placement}, growing KV"

    def _made(self) -> ConcatSlot:
        return ConcatSlot(self, self._kv, self._context)

    def _scrub(self, slot: ConcatSlot, first: int) -> None:
        slot.hold(self._kv, first)

    def _measured(self, *, exact: bool) -> Padding:
        rows = min(self._context, widths.ROWS)
        slot = ConcatSlot(self, self._kv, rows)
        # there is nothing to pad, whatever was asked for
        return widths.padding(self._trial(slot), self._spec, rows, exact=False)

    def _run(self, slot: ConcatSlot, tokens: Ids, n_cached: int, rows: int) -> Scored:
        session, width = self._live(), len(tokens)
        total = n_cached + width
        ids = np.ascontiguousarray(tokens, np.int64)[None]
        started = time.perf_counter_ns()
        slot.hold(self._kv, n_cached)  # part of what a call costs here
        io, keep = self._bound(session, slot, ids, n_cached)
        try:
            session.run_with_iobinding(io)
        except Exception as error:  # the runtime's exceptions share no base below Exception
            raise EngineError(
                f"{self._spec.role}: ONNX Runtime failed on {width} tokens after {n_cached} "
                f"cached: {one_line(error)}"
            ) from error
        run_ms = (time.perf_counter_ns() - started) * 1e-6
        del keep
        slot.swap(total)
        logits = np.ascontiguousarray(self._logits[width - rows : width, : self._spec.vocab])
        greedy = logits.argmax(-1)  # the first NaN, where there is one
        best = [logits.item(row, token) for row, token in enumerate(greedy.tolist())]
        self._check_finite(slot, best, n_cached, total)
        return Scored(greedy, logits, run_ms)

    def _bound(
        self, session: ort.InferenceSession, slot: ConcatSlot, ids: Ids, n_cached: int
    ) -> tuple[ort.IOBinding, list[object]]:
        """One call's inputs and outputs; the list keeps alive what the binding points at."""
        width = ids.shape[1]
        total = n_cached + width
        if width > len(self._logits):
            rows = max(width, min(self._spec.max_verify, self._context))
            self._logits = np.empty((rows, self._columns), np.float32)
        io = session.io_binding()
        keep: list[object] = []

        def bound(array: npt.NDArray[np.generic]) -> ort.OrtValue:
            value = ort.OrtValue.ortvalue_from_numpy(array)
            keep.append(value)
            return value

        io.bind_ortvalue_input(INPUT_IDS, bound(ids))
        if self._has[MASK]:
            io.bind_ortvalue_input(MASK, bound(self._ones[:, :total]))
        if self._has[POSITIONS]:
            io.bind_ortvalue_input(POSITIONS, bound(self._positions[:, n_cached:total]))
        io.bind_ortvalue_output(LOGITS, bound(self._logits[None, :width]))
        for each, current, other in zip(self._kv, slot.current, slot.other, strict=True):
            io.bind_ortvalue_input(each.past, bound(view(current, each.shape(n_cached))))
            io.bind_ortvalue_output(each.present, bound(view(other, each.shape(total))))
        return io, keep

    def close(self) -> None:
        self._session = None
        self._free.clear()

    def _live(self) -> ort.InferenceSession:
        if self._session is None:
            raise self._closed()
        return self._session

    def _check_open(self) -> None:
        self._live()


def _checked_columns(spec: GraphSpec, kv: list[Grown], outputs: dict[str, list[Any]]) -> int:
    """V', the width of the graph's logits.

    Raises:
        EngineError: the manifest promises other sizes than the graph has.
    """
    columns = outputs[LOGITS][-1]
    sizes = {each.row_elements for each in kv}
    expected = {
        "layers": (spec.layers, len(kv) / 2),
        "kv_heads * head_dim": (spec.kv_heads * spec.head_dim, max(sizes)),
    }
    for name, (said, found) in expected.items():
        if said != found:
            raise EngineError(
                f"{spec.model}: the manifest says {name} = {said}, the graph has {found:g}; one "
                "of them was altered: export the bundle again"
            )
    if not isinstance(columns, int) or columns < spec.vocab:
        raise EngineError(
            f"{spec.model}: the manifest says vocab = {spec.vocab}, the graph's logits have "
            f"{columns} columns; one of them was altered: export the bundle again"
        )
    return columns

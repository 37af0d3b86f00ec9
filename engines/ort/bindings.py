"""What a call reads and writes, bound once per T, width and number of scored rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from specedge.contract import (
    CACHED_LENGTHS,
    GREEDY_IDS,
    GREEDY_LOGITS,
    INPUT_IDS,
    LOGIT_ROWS,
    LOGITS,
    TOTAL_LENGTH,
    GraphSpec,
    Ids,
    Logits,
    past,
    present,
)
from specedge.engines.ort.memory import Memory, Mirror
from specedge.engines.ort.rows import Values
from specedge.errors import EngineError


class Ports:
    """Which of the contract's inputs and outputs a session has, and where it wants each input.

    A provider keeps small inputs that decide shapes on the host, whatever its device is.
    """

    def __init__(self, spec: GraphSpec, session: ort.InferenceSession, memory: Memory) -> None:
        names = [node.name for node in session.get_inputs()]
        outputs = {node.name for node in session.get_outputs()}
        self.has_total = TOTAL_LENGTH in names
        self.has_greedy_logits = GREEDY_LOGITS in outputs
        self._memory = memory
        self._host = Memory()
        self._on_host: set[str] = set()
        if memory.is_apart:
            if not self.has_greedy_logits:
                raise EngineError(
                    f"{spec.model}: the graph has no output {GREEDY_LOGITS!r}, which engines of a "
                    "device need; export the bundle again"
                )
            wanted = zip(names, session.get_input_memory_infos(), strict=True)
            self._on_host = {name for name, info in wanted if info.name.lower() != memory.device}

    def mirror(self, name: str, array: npt.NDArray[np.generic]) -> Mirror:
        """A buffer for this input where the session reads it."""
        memory = self._host if name in self._on_host else self._memory
        return memory.mirror(array)


@dataclass(eq=False, slots=True)
class Lengths:
    """A slot's own inputs, which all of its bindings share."""

    cached: Mirror  # int32 [1]
    total: Mirror | None  # int32 []

    @classmethod
    def of(cls, ports: Ports) -> Lengths:
        total = ports.mirror(TOTAL_LENGTH, np.zeros((), np.int32)) if ports.has_total else None
        return cls(ports.mirror(CACHED_LENGTHS, np.zeros(1, np.int32)), total)

    def say(self, cached: int, total: int) -> None:
        self.cached.array[0] = cached
        if self.total is not None:
            self.total.array[()] = total


class Outputs:
    """Logits of every width, which the calls of an engine write over in turn."""

    def __init__(self, vocab: int, memory: Memory, usual: int) -> None:
        """`usual`: rows of the widest verification, for which there is room from the start."""
        self._vocab, self._memory, self._usual = vocab, memory, usual
        self._rows: Logits = np.empty((0, vocab), np.float32)
        self._values: dict[int, ort.OrtValue] = {}

    def logits(self, rows: int) -> tuple[ort.OrtValue, Logits | None]:
        """[rows, V] to bind, and as an array where that is the same memory."""
        if self._memory.is_apart:
            if rows not in self._values:
                self._values[rows] = self._memory.empty((rows, self._vocab), "float32")
            return self._values[rows], None
        if rows > len(self._rows):  # earlier bindings keep the buffer that they point at
            self._rows = np.empty((max(rows, self._usual), self._vocab), np.float32)
        part = self._rows[:rows]
        return self._memory.over(part, "float32"), part


@dataclass(eq=False, slots=True)
class Binding:
    """Everything a call of S tokens and M scored rows reads and writes."""

    io: ort.IOBinding
    width: int  # S, padding included
    rows: int  # M, without padding
    ids: Ids  # [N] of the [1, S] that are bound, without padding
    inputs: Sequence[Mirror]  # to be pushed before a run
    outputs: Sequence[Mirror]  # to be pulled after it
    greedy_ids: Ids  # [M]
    greedy_logits: npt.NDArray[np.float32] | None  # [M]
    logits: Logits | None  # [M, V] on the host
    logits_value: ort.OrtValue  # [M with padding, V]
    options: ort.RunOptions | None
    keep: list[object]  # whose memory the binding points at


def bind(
    session: ort.InferenceSession,
    ports: Ports,
    outputs: Outputs,
    lengths: Lengths,
    values: Values,
    *,
    width: int,
    rows: int,
    padded: int,
    scored: int,
    memory: Memory,
    options: ort.RunOptions | None,
) -> Binding:
    """Bind one call.

    Args:
        session, ports: of the engine.
        outputs: the engine's logits.
        lengths, values: the slot's lengths and the keys and values at its present T.
        width, padded: N and S, tokens without and with padding.
        rows, scored: M and the number of rows that reach the head, padding included.
        memory: of the outputs.
        options: of each run, where it has any.
    """
    io = session.io_binding()
    ids = ports.mirror(INPUT_IDS, np.zeros((1, padded), np.int64))
    picked = np.minimum(np.arange(scored, dtype=np.int64) + width - rows, width - 1)
    logit_rows = ports.mirror(LOGIT_ROWS, picked)
    inputs = [ids, lengths.cached]
    io.bind_ortvalue_input(INPUT_IDS, ids.value)
    io.bind_ortvalue_input(CACHED_LENGTHS, lengths.cached.value)
    io.bind_ortvalue_input(LOGIT_ROWS, logit_rows.value)
    if lengths.total is not None:
        inputs.append(lengths.total)
        io.bind_ortvalue_input(TOTAL_LENGTH, lengths.total.value)

    logits_value, logits = outputs.logits(scored)
    io.bind_ortvalue_output(LOGITS, logits_value)
    greedy = memory.mirror(np.zeros(scored, np.int64))
    io.bind_ortvalue_output(GREEDY_IDS, greedy.value)
    pulled = [greedy]
    best = None
    if ports.has_greedy_logits:
        best = memory.mirror(np.zeros(scored, np.float32))
        io.bind_ortvalue_output(GREEDY_LOGITS, best.value)
        pulled.append(best)
    for layer, (key, value) in enumerate(values):
        io.bind_ortvalue_input(past(layer, "key"), key)
        io.bind_ortvalue_input(past(layer, "value"), value)
        io.bind_ortvalue_output(present(layer, "key"), key)
        io.bind_ortvalue_output(present(layer, "value"), value)
    apart = memory.is_apart
    return Binding(
        io=io,
        width=padded,
        rows=rows,
        ids=ids.array[0, :width],
        inputs=[each for each in inputs if each.memory.is_apart],
        outputs=pulled if apart else (),
        greedy_ids=greedy.array[:rows],
        greedy_logits=None if best is None else best.array[:rows],
        logits=None if logits is None else logits[:rows],
        logits_value=logits_value,
        options=options,
        keep=[ids, logit_rows, greedy, best, logits, lengths, values],
    )

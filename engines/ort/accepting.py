"""Runs a bundle's `accept` graph over logits that stay where the target's session left them.

A round with a temperature then copies a plan of a few hundred bytes to the device and two integers
back, instead of K + 1 rows of the vocabulary. On the CPU numpy is quicker (docs/decisions/0004), so
an engine there does not offer it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from specedge.acceptance import Verdict, device
from specedge.acceptance.device import Question
from specedge.engines.base import Decide
from specedge.errors import EngineError, ShapeError, one_line

Array = np.ndarray[Any, Any]


class Accepting:
    """A session of the accept graph and its buffers on one device; for one request at a time.

    Args:
        model: the graph, `specedge.acceptance.device.MODEL` of a bundle.
        provider: the runtime's name of the target's provider.
        options: the target's, so that both use the same device.
        kind: the runtime's name of the device: "cpu", "cuda".
        ordinal: which of them.

    Raises:
        EngineError: the graph does not load there.
    """

    def __init__(
        self,
        model: Path,
        *,
        provider: str = "CPUExecutionProvider",
        options: Mapping[str, str] | None = None,
        kind: str = "cpu",
        ordinal: int = 0,
    ) -> None:
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = settings.inter_op_num_threads = 1
        settings.log_severity_level = 4
        try:
            self._session = ort.InferenceSession(
                model, settings, providers=[(provider, dict(options or {}))], enable_fallback=0
            )
        except Exception as error:  # the runtime's exceptions share no base below Exception
            raise EngineError(
                f"{model.name}: ONNX Runtime cannot load the accept graph: {one_line(error)}"
            ) from error
        found = self._session.get_providers()[0]
        if found != provider:
            raise EngineError(f"{device.MODEL}: asked for {provider}, ONNX Runtime chose {found}")
        self._device = kind, ordinal
        self._vocab: int = self._session.get_inputs()[0].shape[1]
        self._io = self._session.io_binding()
        self._verdict: Array = np.zeros(2, np.int64)
        self._io.bind_ortvalue_output(
            device.VERDICT, ort.OrtValue.ortvalue_from_numpy(self._verdict)
        )
        self._law = _Input(np.zeros(2, np.float32), self._device)
        self._plans: dict[int, _Input] = {}  # by rows
        self._q = {1: _Input(np.zeros((1, self._vocab), np.float32), self._device)}  # by rows

    @classmethod
    def of(cls, bundle_path: Path, **where: Any) -> Accepting | None:
        """That of a bundle, as above; None: it has no such graph."""
        model = bundle_path / device.MODEL
        return cls(model, **where) if model.is_file() else None

    def decider(self, logits: ort.OrtValue, check: Callable[[], None] = lambda: None) -> Decide:
        """For the `Scored` of a call.

        Args:
            logits: float32 [M, V] on the session's device, as the target left them. Rows past the
                round's K + 1 are padding.
            check: raises EngineError where they are those of another call by now.
        """

        def decide(question: Question) -> Verdict:
            check()
            return self._decide(logits, question)

        return decide

    def _decide(self, logits: ort.OrtValue, question: Question) -> Verdict:
        rows, vocab = logits.shape()
        k = len(question.draft)
        if vocab != self._vocab or rows < k + 1:
            raise ShapeError(
                f"accept: {k} drafted tokens need logits of at least [{k + 1}, {self._vocab}], "
                f"found [{rows}, {vocab}]"
            )
        plan = self._plans.get(rows)
        if plan is None:
            plan = self._plans[rows] = _Input(_empty_plan(rows), self._device)
        plan.array[k + 1 :] = _empty_plan(1)
        question.plan(plan.array[: k + 1])
        plan.send()
        question.law(self._law.array)
        self._law.send()
        self._io.bind_ortvalue_input(device.LOGITS, logits)
        self._io.bind_ortvalue_input(device.PLAN, plan.value)
        self._io.bind_ortvalue_input(device.LAW, self._law.value)
        self._io.bind_ortvalue_input(device.Q, self._drawn(question).value)
        try:
            self._session.run_with_iobinding(self._io)
        except Exception as error:  # as above
            raise EngineError(
                f"accept: ONNX Runtime failed on {k} drafted tokens: {one_line(error)}"
            ) from error
        n_accepted, token = self._verdict.tolist()
        return Verdict(n_accepted, token)

    def _drawn(self, question: Question) -> _Input:
        """float32 [R, V]: what the tokens were drawn from; one row of zeros, which stays on the
        device, where they are certain."""
        rows = 1 if question.q is None else 1 + len(question.q)
        q = self._q.get(rows)
        if q is None:
            q = self._q[rows] = _Input(np.zeros((rows, self._vocab), np.float32), self._device)
        if rows > 1:
            device.q_rows(question, q.array)
            q.send()
        return q


class _Input:
    """An array here, and its copy on the device; on the CPU the array itself."""

    def __init__(self, array: Array, where: tuple[str, int]) -> None:
        self.array = array
        self.value = ort.OrtValue.ortvalue_from_numpy(array, *where)
        self._shared = where[0] == "cpu"

    def send(self) -> None:
        if not self._shared:
            self.value.update_inplace(self.array)


def _empty_plan(rows: int) -> Array:
    """int64 [rows, COLUMNS] of rows in which nothing is drafted."""
    plan = np.zeros((rows, device.COLUMNS), np.int64)
    plan[:, 0] = device.BONUS
    return plan

"""A model without weights: the next token is a rule over the ids in the KV rows.

Shipped, so that an application can test its own code without a bundle. It keeps ids where a
model keeps keys and values and reads them back for every scored row, so a wrong `n_cached`, a
stale row or a row that was never written gives a wrong text, as it would with a model.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from specedge.contract import GraphSpec, Ids, Logits
from specedge.engines.base import Scored, Slot
from specedge.errors import EngineError, ShapeError

Rule = Callable[[Ids], int]
"""int64 [n], every token up to and including the scored one → id of the next; pure."""

Scores = Callable[[Ids], Logits]
"""As `Rule`, → float32 [V], the logits of the next token."""

Fault = BaseException | Literal["nan"]

UNWRITTEN = -1  # in a row that no call has filled
SPOILED = -2  # in a row that a failed call may have touched


def hashed(vocab: int, *, last: int | None = None, seed: int = 0) -> Rule:
    """Next token by a hash of the last `last` tokens (None: of all of them).

    With `last` the text repeats itself sooner or later, which is what lookups live on.
    """

    def rule(tokens: Ids) -> int:
        seen = tokens if last is None else tokens[-last:]
        return zlib.crc32(seen.tobytes(), seed) % vocab

    return rule


def table(successors: Mapping[int, int], default: int = 0) -> Rule:
    """Next token by the last one alone."""
    return lambda tokens: successors.get(int(tokens[-1]), default)


def scripted(script: Ids | list[int], n_prompt: int, default: int = 0) -> Rule:
    """After a prompt of `n_prompt` tokens say `script`, then `default` for ever."""
    ids = [int(token) for token in script]

    def rule(tokens: Ids) -> int:
        position = len(tokens) - n_prompt
        return ids[position] if 0 <= position < len(ids) else default

    return rule


def agreeing(rule: Rule, probability: float, vocab: int, *, seed: int = 0) -> Rule:
    """A draft's rule: as `rule` with this probability, decided by the text; else the id after."""

    def other(tokens: Ids) -> int:
        draw = zlib.crc32(tokens.tobytes(), seed ^ 0x5EED) / 2**32
        token = rule(tokens)
        return token if draw < probability else (token + 1) % vocab

    return other


def fake_spec(
    vocab: int = 32,
    context: int = 64,
    *,
    role: Literal["target", "draft"] = "target",
    max_verify: int = 16,
) -> GraphSpec:
    """A GraphSpec for a FakeEngine; sizes that it does not use are 1 or 0."""
    return GraphSpec(
        role=role,
        model="fake",
        weights="fake",
        model_type="fake",
        lowering="ort",
        precision="fp32",
        vocab=vocab,
        layers=1,
        hidden=1,
        heads=1,
        kv_heads=1,
        head_dim=1,
        context=context,
        max_verify=max_verify,
        weight_bytes=0,
        parameters=0,
    )


@dataclass(eq=False, slots=True)
class FakeSlot:
    """int64 [T]: the ids that stand for keys and values."""

    rows: Ids

    @property
    def context(self) -> int:
        return len(self.rows)

    def touch(self) -> None:
        """Forget what was written: this slot's zeros are UNWRITTEN."""
        self.rows.fill(UNWRITTEN)


@dataclass(frozen=True, slots=True)
class Call:
    """One `forward`, as the engine saw it."""

    width: int  # S
    n_cached: int
    rows: int  # M


class FakeEngine:
    """An `Engine` that follows a rule, makes every check a real one makes, and can fail.

    `calls` lists what was asked of it. A row of logits falls by 1 / V a step from the chosen id
    upwards (modulo V), so all its values differ and it depends on the text.
    """

    description = "fake"
    width_step = 1
    width_noise = 0.0

    def __init__(
        self,
        spec: GraphSpec,
        rule: Rule | None = None,
        *,
        context: int | None = None,
        prefill_chunk: int = 64,
        faults: Mapping[int, Fault] | None = None,
        delay_ms: float = 0.0,
        scores: Scores | None = None,
    ) -> None:
        """
        Args:
            spec: see `fake_spec`.
            rule: the model; `hashed(spec.vocab)` when None.
            context: T of its slots; spec.context when None.
            prefill_chunk: widest prefill call.
            faults: by number of the `forward` call, from 0: an exception to raise there, or
                "nan" for logits that are not finite.
            delay_ms: what each call takes at least.
            scores: the model, where its distributions matter; in place of `rule`.
        """
        self.spec = spec
        self.rule = rule or hashed(spec.vocab)
        self._scores = scores
        self.prefill_chunk = prefill_chunk
        self.calls: list[Call] = []
        self._context = spec.context if context is None else context
        self._faults = dict(faults or {})
        self._delay_ms = delay_ms
        self._slots: list[FakeSlot] = []
        self._closed = False
        self._ramp: Logits = (-np.arange(spec.vocab) / spec.vocab).astype(np.float32)
        self._logits: Logits = np.empty((0, spec.vocab), dtype=np.float32)
        self._greedy: Ids = np.empty(0, dtype=np.int64)

    def new_slot(self) -> FakeSlot:
        """Raises EngineError when the engine is closed."""
        self._check_open()
        slot = FakeSlot(np.full(self._context, UNWRITTEN, dtype=np.int64))
        self._slots.append(slot)
        return slot

    def release(self, slot: Slot) -> None:
        """Raises EngineError for a slot that is not this engine's."""
        self._slots.remove(self._own(slot))

    def forward(self, slot: Slot, tokens: Ids, n_cached: int, rows: int) -> Scored:
        """As `Engine.forward`; the arrays of the last result are overwritten."""
        began = time.perf_counter_ns()
        self._check_open()
        kv = self._own(slot).rows
        if tokens.ndim != 1 or tokens.dtype != np.int64:
            raise ShapeError(f"tokens: expected int64 [S], found {tokens.dtype} {tokens.shape}")
        width = len(tokens)
        if not 1 <= width <= len(kv) - n_cached or n_cached < 0:
            raise ShapeError(
                f"tokens: {width} after {n_cached} cached rows, expected at least 1 and at most "
                f"{len(kv)} in all"
            )
        if not 1 <= rows <= width:
            raise ShapeError(f"rows: expected 1..{width}, found {rows}")
        if tokens.min() < 0 or tokens.max() >= self.spec.vocab:
            raise ShapeError(f"tokens: expected ids 0..{self.spec.vocab - 1}, found {tokens}")
        fault = self._faults.get(len(self.calls))
        self.calls.append(Call(width, n_cached, rows))
        if self._delay_ms:
            time.sleep(self._delay_ms / 1e3)
        stop = n_cached + width
        if isinstance(fault, BaseException):
            kv[n_cached:stop] = SPOILED
            raise fault
        kv[n_cached:stop] = tokens
        if len(self._greedy) < rows:
            self._logits = np.empty((rows, self.spec.vocab), dtype=np.float32)
            self._greedy = np.empty(rows, dtype=np.int64)
        logits, greedy = self._logits[:rows], self._greedy[:rows]
        for row in range(rows):
            seen = kv[: stop - rows + row + 1]
            if self._scores is None:
                token = self.rule(seen)
                logits[row] = np.roll(self._ramp, token)
                greedy[row] = token
            else:
                logits[row] = self._scores(seen)
                greedy[row] = logits[row].argmax()
        if fault == "nan":
            logits[-1] = np.nan
        if not np.isfinite(logits).all():
            raise EngineError(
                f"{self.description}: logits after {n_cached} cached rows are not finite; the "
                "weights or the graph are damaged"
            )
        return Scored(greedy, logits, (time.perf_counter_ns() - began) / 1e6)

    def close(self) -> None:
        self._closed = True
        self._slots.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError(f"{self.description}: the engine is closed; load the model again")

    def _own(self, slot: Slot) -> FakeSlot:
        for own in self._slots:
            if own is slot:
                return own
        raise EngineError(f"{self.description}: the slot was released, or is another engine's")

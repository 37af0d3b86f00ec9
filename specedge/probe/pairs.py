"""One prompt on the engines: decoded plainly, held against a draft, and run in pairs.

A pair is a plain and a speculative run from the same prefilled prompt, one right after the other,
both through the loop that serves requests. The prompt's rows stay valid in the slots, so a run
costs one call of one row before its first token, and what is timed begins after it, as the speed
of a run does. The draft has read the prompt before: what that costs is a matter of request length.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from specedge.contract import GraphSpec, Ids
from specedge.controller import Controller
from specedge.engines.base import Engine
from specedge.errors import EngineError, ProbeError, ProposerError, one_line
from specedge.loop import decode
from specedge.metrics import Metrics
from specedge.probe.measuring import Watch
from specedge.proposers import DraftModelProposer, NgramProposer, Proposer
from specedge.sampling.sampler import GREEDY
from specedge.sequence import Sequence
from specedge.speculator import Speculator

STEPS = 9  # calls behind a T(1), at least
STEPS_MS = 200.0  # and as many more as take this long together
STEP_PAST = 128  # rows that they come after, where the context has as many

_PLAIN = Speculator((), Controller(0), mode="off")


@dataclass(frozen=True, slots=True)
class Pair:
    """A plain and a speculative run of one prompt.

    Args:
        workload: class of the prompt.
        proposer: who drafted.
        k: tokens a round, as far as there was room.
        prompt: index in its class.
        plain_ms: of the tokens after the first.
        spec_ms: of as many tokens.
        tokens: how many those were.
        began_s: when, in seconds from the first look at the clock.
    """

    workload: str
    proposer: str
    k: int
    prompt: int
    plain_ms: float
    spec_ms: float
    tokens: int
    began_s: float


class Meter(Protocol):
    """Counts energy."""

    def joules(self) -> float | None:
        """Since any fixed moment; None: it cannot be read."""
        ...


@dataclass(slots=True)
class Use:
    """Joules of runs that were metered, and the tokens they gave."""

    joules: float = 0.0
    tokens: int = 0

    @property
    def per_token(self) -> float | None:
        return self.joules / self.tokens if self.tokens else None


@dataclass(frozen=True, slots=True)
class Run:
    """Output of one run, int64 [n] with n >= 1, and milliseconds from its first token to its last.

    `ms` is 0 where n is 1.
    """

    output: Ids
    ms: float


class Rig:
    """Both engines with a slot each, which are given back on leaving, whatever happened.

    Args:
        target: stays open.
        draft: stays open; None: there is no draft model.
        watch: of all durations.
        eos_ids: end a run.
        tokens: most of a run's output, 1 or more.
        ngrams: shortest and longest match of lookups.
        meter: read before and after each timed run; None: energy is not counted.

    Raises:
        EngineError: a slot cannot be had.
    """

    def __init__(
        self,
        target: Engine,
        draft: Engine | None,
        watch: Watch,
        *,
        eos_ids: frozenset[int],
        tokens: int,
        ngrams: tuple[int, int],
        meter: Meter | None = None,
    ) -> None:
        self._target = target
        self._watch = watch
        self._eos_ids = eos_ids
        self._tokens = tokens
        self._meter = meter
        self._proposers: dict[str, Proposer] = {"ngram": NgramProposer(*ngrams)}
        self._reader: DraftModelProposer | None = None
        if draft is not None:
            self._reader = self._proposers["draft"] = DraftModelProposer(_Lent(draft))
        self._rows = 1 if draft is None else draft.spec.max_verify
        self.plain_use, self.spec_use = Use(), Use()
        self._slot = target.new_slot()
        self.context = self._slot.context
        self._seq: Sequence | None = None  # what the target's slot holds
        self._prompt: Ids = np.empty(0, dtype=np.int64)
        self._first = 0
        self._has_read = False  # the draft, this prompt

    def __enter__(self) -> Self:
        # Or T(1) would be taken over rows that are not there yet, and later over rows that are.
        self._slot.touch()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            for proposer in self._proposers.values():
                proposer.close()
        finally:
            self._target.release(self._slot)

    def step_ms(self) -> float:
        """T(1) now: the median of some plain steps after the same rows as ever."""
        past = min(STEP_PAST, self.context - 1)
        self._seq = None  # it writes over a row
        token = np.zeros(1, dtype=np.int64)
        self._target.forward(self._slot, token, past, 1)
        steps: list[float] = []
        while len(steps) < STEPS or sum(steps) < STEPS_MS:
            steps.append(self._step_ms(token, past))
        return statistics.median(steps)

    def _step_ms(self, token: Ids, past: int) -> float:
        began = self._watch.now()
        self._target.forward(self._slot, token, past, 1)
        return self._since(began, "a plain step")

    def prefill(self, prompt: Ids) -> None:
        """Turn to int64 [1..context] `prompt`; the runs that follow begin after it."""
        self._prompt = prompt
        self._has_read = False
        rounds = decode(self._resumed(), self._target, self._slot, _PLAIN, Metrics())
        self._first = next(rounds).tokens[0]

    def read(self) -> None:
        """Let the draft read the prompt and its first token, so that a run need not pay for it."""
        if not self._has_read:
            self._drafted_second()
            self._has_read = True

    def plain(self) -> Run:
        """Raises EngineError, ProbeError."""
        return self._run(_PLAIN, self.plain_use)

    def speculative(self, proposer: str, k: int) -> Run:
        """Raises EngineError, ProbeError; ProposerError where the draft's engine failed."""
        if proposer == "draft":
            self.read()
        speculator = Speculator((self._proposers[proposer],), Controller(k), mode="on")
        return self._run(speculator, self.spec_use)

    def _run(self, speculator: Speculator, use: Use) -> Run:
        seq = self._resumed()
        rounds = decode(seq, self._target, self._slot, speculator, Metrics())
        next(rounds)
        before = None if self._meter is None else self._meter.joules()
        began = self._watch.now()
        for _ in rounds:
            pass
        output, ms = seq.generated.copy(), 0.0
        if len(output) > 1:
            ms = self._since(began, f"{len(output) - 1} tokens")
            after = None if self._meter is None else self._meter.joules()
            # A counter that has begun anew tells nothing about this run.
            if before is not None and after is not None and after >= before:
                use.joules += after - before
                use.tokens += len(output) - 1
        return Run(output, ms)

    def agreement(self, output: Ids) -> list[bool]:
        """Which tokens of int64 [n] `output` the draft would have proposed after those before.

        The text is read in calls that score as many rows as the draft's graph can: exactly what
        drafting them one at a time gives, as far as its calls do not depend on their width.

        Returns:
            n outcomes. The first token is nobody's to draft, and past its context the draft
            proposes nothing: both count as False.

        Raises:
            ProposerError: the draft failed.
        """
        reader = self._reader
        assert reader is not None, "there is a draft to hold against the text"
        agreed = [False] * len(output)
        if len(output) < 2:
            return agreed
        # Drafting begins anew here: rows of an earlier run do not stand for being asked.
        agreed[1] = self._drafted_second() == output[1]
        self._has_read = True
        text = np.concatenate([self._prompt, output])
        start, n_prompt = 2, len(self._prompt)
        while start < len(output):
            stop = min(start + self._rows, len(output), self.context - n_prompt)
            if stop <= start:
                break
            seq = Sequence(text[: n_prompt + stop], context=self.context, max_tokens=1)
            with _drafting():
                reader.start(seq, GREEDY)
                outcomes = reader.agreement(seq, stop - start)
            agreed[stop - len(outcomes) : stop] = outcomes
            start = stop
        return agreed

    def _drafted_second(self) -> int | None:
        """What the draft proposes after prompt and first token, which it reads as far as needed."""
        assert self._reader is not None, "there is a draft to read"
        if len(self._prompt) >= self.context:
            return None
        text = np.append(self._prompt, self._first)
        seq = Sequence(text, context=self.context, max_tokens=1)
        with _drafting():
            self._reader.start(seq, GREEDY)
            draft = self._reader.propose(seq, 1)
        return int(draft.tokens[0]) if len(draft.tokens) else None

    def _resumed(self) -> Sequence:
        """The target's sequence at the prompt, with as many rows as its slot already has."""
        room = self.context + 1 - len(self._prompt)
        most = max(1, min(self._tokens, room))
        if self._seq is None:
            self._seq = Sequence(
                self._prompt, context=self.context, max_tokens=most, eos_ids=self._eos_ids
            )
        else:
            self._seq.resume(self._prompt, max_tokens=most)
        return self._seq

    def _since(self, began: float, what: str) -> float:
        ms = (self._watch.now() - began) * 1e3
        if not 0 < ms < float("inf"):
            raise ProbeError(
                f"clock: {what} took {ms} ms, expected more than 0; the clock is too coarse to "
                "measure with"
            )
        return ms


@contextmanager
def _drafting() -> Iterator[None]:
    """What an engine raises in here is the draft's failure, not the target's."""
    try:
        yield
    except (EngineError, MemoryError) as error:
        raise ProposerError(f"proposer draft failed: {one_line(error)}") from error


class _Lent:
    """An engine as a proposer takes it, which would close it: its owner does."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.forward = engine.forward
        self.new_slot = engine.new_slot
        self.release = engine.release

    @property
    def spec(self) -> GraphSpec:
        return self._engine.spec

    @property
    def description(self) -> str:
        return self._engine.description

    @property
    def width_step(self) -> int:
        return self._engine.width_step

    @property
    def width_noise(self) -> float:
        return self._engine.width_noise

    @property
    def prefill_chunk(self) -> int:
        return self._engine.prefill_chunk

    def close(self) -> None: ...

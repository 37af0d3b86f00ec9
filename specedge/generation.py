"""One running request: rounds in, events out, a result at the end however it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

from specedge.errors import BusyError
from specedge.logprobs import TokenLogprobs
from specedge.loop import Round
from specedge.metrics import Metrics
from specedge.result import Event, Result, RoundReport
from specedge.sampling.params import RuleName
from specedge.sequence import Sequence
from specedge.speculator import SpeculationState
from specedge.stream import Delta, FinishReason, TextStream

OnEnd = Callable[[Result | None, BaseException | None], None]


@dataclass(slots=True)
class Sample:
    """One of the n texts of a request, as far as it has come.

    Args:
        seq: at its prompt.
        rounds: from `specedge.loop.decode` over `seq`.
        text: decodes and looks for stop strings.
        metrics: fed by `rounds`.
        acceptance: the rule that runs.
        seed: of its randomness; None: there is none.
        reproducible: see `Result`.
        number: 0..n - 1.
    """

    seq: Sequence
    rounds: Iterator[Round]
    text: TextStream
    metrics: Metrics
    acceptance: RuleName
    seed: int | None
    reproducible: bool
    number: int = 0
    said: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    rounds_said: list[RoundReport] = field(default_factory=list)
    out: int = 0  # tokens that have left in events
    rounds_out: int = 0  # the same of `rounds_said`
    result: Result | None = None


class Generation:
    """Iterator over the events of one request; `Model.stream` makes it.

    Running out, an exception, `close()`, leaving its `with` block and being garbage-collected
    all end the request: then, and only then, the model is free for the next one.

    Args:
        begin: makes the sample of this number; called for 0 at once.
        n: samples, made one after the other; all but the first find the prompt's KV in the slot.
        echo: goes out first in every sample, before anything runs.
        logprobs: whether rounds carry them.
        explain: whether events and result carry a report of each round.
        state: what speculation is doing.
        on_end: told the result and the exception that ended the request, if one did; called once.
        after: told the result when the consumer asks for more than the last event; the model is
            free by then.
    """

    def __init__(
        self,
        begin: Callable[[int], Sample],
        *,
        n: int = 1,
        echo: str,
        logprobs: bool,
        explain: bool = False,
        state: Callable[[], SpeculationState],
        on_end: OnEnd,
        after: Callable[[Result], None] | None = None,
    ) -> None:
        self.result: Result | None = None
        self._begin = begin
        self._n = n
        self._samples = [begin(0)]  # all but the last have ended
        self._echo = self._unsaid = echo
        self._logprobs = logprobs
        self._explain = explain
        self._state = state
        self._on_end = on_end
        self._after = after
        # The reader is a thread's id, not a flag: Ctrl-C can keep a flag from being cleared, and
        # then the thread that was interrupted is still itself.
        self._reader: int | None = None
        self._ended = False
        self._finished = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        """The next event; the last carries the result.

        Raises:
            BusyError: another thread is inside this call.
            EngineError, ProposerError: as `specedge.loop.decode`; the result so far stays
                readable as `result`.
        """
        if self._ended:
            after, self._after = self._after, None
            if after is not None and self.result is not None:
                after(self.result)
            raise StopIteration
        if self._read_elsewhere():
            raise BusyError("stream: another thread is reading it; give each thread its own model")
        try:
            self._reader = threading.get_ident()
            sample = self._samples[-1]
            if sample.result is not None:
                sample = self._begin(len(self._samples))
                self._samples.append(sample)
                self._unsaid = self._echo
            if self._unsaid:
                event, self._unsaid = Event(self._unsaid, sample=sample.number), ""
                sample.said.append(event.text)
                return event
            return self._advance(sample)
        except BaseException as error:  # Ctrl-C too ends the request and frees the model
            self._end("cancelled", error)
            raise
        finally:
            self._reader = None

    def _advance(self, sample: Sample) -> Event:
        while True:
            done = next(sample.rounds)
            sample.tokens += done.tokens
            if self._logprobs:
                sample.logprobs += done.logprobs or []
            if self._explain and done.number:
                sample.rounds_said.append(_report(done, sample.seq.n_tokens, self._state))
            delta = sample.text.push(done.tokens)
            reason: FinishReason | None = None
            if sample.seq.done and not delta.stopped:
                rest = sample.text.finish()
                delta = Delta(delta.text + rest.text, rest.n_tokens, rest.stopped)
                reason = sample.seq.finish_reason
            if delta.stopped:
                reason = "stop_string"
                sample.seq.truncate(sample.seq.n_prompt + delta.n_tokens)
            if reason is None and not delta.text and delta.n_tokens == sample.out:
                continue
            return self._event(sample, delta, reason)

    def _event(self, sample: Sample, delta: Delta, reason: FinishReason | None) -> Event:
        fresh = slice(sample.out, delta.n_tokens)
        sample.out = delta.n_tokens
        if delta.text:
            sample.said.append(delta.text)
        event = Event(delta.text, sample.tokens[fresh], reason, sample=sample.number)
        if self._logprobs:
            event.logprobs = sample.logprobs[fresh]
        if self._explain:
            event.rounds = sample.rounds_said[sample.rounds_out :]
            sample.rounds_out = len(sample.rounds_said)
        if reason is not None:
            last = sample.number == self._n - 1
            event.result = self._end(reason, None) if last else self._end_sample(sample, reason)
        return event

    @property
    def finished(self) -> bool:
        """Whether the request has ended and let go of the model."""
        return self._finished

    def _read_elsewhere(self) -> bool:
        return self._reader not in (None, threading.get_ident())

    def _end_sample(self, sample: Sample, reason: FinishReason) -> Result:
        """Once for each sample; again, to its end, after Ctrl-C came in between."""
        sample.rounds = iter(())  # lets go of the slot
        if sample.result is None:
            sample.result = Result(
                text="".join(sample.said),
                tokens=sample.tokens[: sample.out],
                finish_reason=reason,
                prompt_tokens=sample.seq.n_prompt,
                seed=sample.seed,
                speculation=self._state(),
                metrics=sample.metrics.summary(),
                acceptance=sample.acceptance,
                reproducible=sample.reproducible,
                logprobs=sample.logprobs[: sample.out] if self._logprobs else None,
                rounds=list(sample.rounds_said) if self._explain else None,
            )
        return sample.result

    def _end(self, reason: FinishReason, error: BaseException | None) -> Result | None:
        """As `_end_sample`, for the request; a sample that has ended keeps its own reason."""
        if self._finished:
            return self.result
        self._ended = True
        try:
            self.result = self._end_sample(self._samples[-1], reason)
            if self._n > 1:
                results = [each.result for each in self._samples if each.result is not None]
                self.result = replace(results[0], samples=results)
        finally:  # a second Ctrl-C must not leave the model busy for ever
            self._finished = True
            self._on_end(self.result, error)
        return self.result

    def close(self) -> None:
        """End the request now; its result says "cancelled". A request that has ended stays so.

        Raises:
            BusyError: another thread is inside `next`.
        """
        if self._finished:
            return
        if self._read_elsewhere():
            raise BusyError("stream: another thread is reading it; stop that thread first")
        self._end("cancelled", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_finished", True):
            self._reader = None  # whoever was inside `next` would still hold this object
            self.close()


def _report(done: Round, n_tokens: int, state: Callable[[], SpeculationState]) -> RoundReport:
    """A round after which the sequence has `n_tokens`."""
    choice = done.choice
    committed = len(done.tokens)
    why: str
    if choice is not None:
        why, reason = choice.why, choice.reason
    elif done.proposer is not None:
        why, reason = "fixed", f"{done.proposer}: the draft length is fixed"
    else:
        now = state()
        why, reason = "plain", f"plain step: {'nobody drafted' if now.on else now.reason}"
    return RoundReport(
        number=done.number,
        past=n_tokens - committed - 1,
        proposer=done.proposer,
        drafted=done.drafted,
        accepted=done.accepted,
        committed=committed,
        ms=done.ms,
        draft_ms=done.draft_ms,
        expected_tokens_per_second=(choice.expected_tokens_per_s or None) if choice else None,
        why=why,
        reason=reason,
    )

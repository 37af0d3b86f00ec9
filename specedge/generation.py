"""One running request: rounds in, events out, a result at the end however it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from specedge.errors import BusyError
from specedge.logprobs import TokenLogprobs
from specedge.loop import Round
from specedge.metrics import Metrics
from specedge.result import Event, Result
from specedge.sequence import Sequence
from specedge.speculator import SpeculationState
from specedge.stream import Delta, FinishReason, TextStream

OnEnd = Callable[[Result | None, BaseException | None], None]


class Generation:
    """Iterator over the events of one request; `Model.stream` makes it.

    Running out, an exception, `close()`, leaving its `with` block and being garbage-collected
    all end the request: then, and only then, the model is free for the next one.

    Args:
        seq: at its prompt.
        rounds: from `specedge.loop.decode` over `seq`.
        text: decodes and looks for stop strings.
        echo: goes out first, before anything runs.
        metrics: fed by `rounds`.
        logprobs: whether rounds carry them.
        state: what speculation is doing.
        on_end: told the result and the exception that ended the request, if one did; called once.
    """

    def __init__(
        self,
        seq: Sequence,
        rounds: Iterator[Round],
        text: TextStream,
        *,
        echo: str,
        metrics: Metrics,
        logprobs: bool,
        state: Callable[[], SpeculationState],
        on_end: OnEnd,
    ) -> None:
        self.result: Result | None = None
        self._seq = seq
        self._rounds = rounds
        self._text = text
        self._echo = echo
        self._metrics = metrics
        self._state = state
        self._on_end = on_end
        self._said: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] | None = [] if logprobs else None
        self._out = 0  # tokens that have left in events
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
            raise StopIteration
        if self._read_elsewhere():
            raise BusyError("stream: another thread is reading it; give each thread its own model")
        try:
            self._reader = threading.get_ident()
            if self._echo:
                event, self._echo = Event(self._echo), ""
                self._said.append(event.text)
                return event
            return self._advance()
        except BaseException as error:  # Ctrl-C too ends the request and frees the model
            self._end("cancelled", error)
            raise
        finally:
            self._reader = None

    def _advance(self) -> Event:
        while True:
            done = next(self._rounds)
            self._tokens += done.tokens
            if self._logprobs is not None:
                self._logprobs += done.logprobs or []
            delta = self._text.push(done.tokens)
            reason: FinishReason | None = None
            if self._seq.done and not delta.stopped:
                rest = self._text.finish()
                delta = Delta(delta.text + rest.text, rest.n_tokens, rest.stopped)
                reason = self._seq.finish_reason
            if delta.stopped:
                reason = "stop_string"
                self._seq.truncate(self._seq.n_prompt + delta.n_tokens)
            if reason is None and not delta.text and delta.n_tokens == self._out:
                continue
            return self._event(delta, reason)

    def _event(self, delta: Delta, reason: FinishReason | None) -> Event:
        fresh = slice(self._out, delta.n_tokens)
        self._out = delta.n_tokens
        if delta.text:
            self._said.append(delta.text)
        event = Event(delta.text, self._tokens[fresh], reason)
        if self._logprobs is not None:
            event.logprobs = self._logprobs[fresh]
        if reason is not None:
            event.result = self._end(reason, None)
        return event

    @property
    def finished(self) -> bool:
        """Whether the request has ended and let go of the model."""
        return self._finished

    def _read_elsewhere(self) -> bool:
        return self._reader not in (None, threading.get_ident())

    def _end(self, reason: FinishReason, error: BaseException | None) -> Result | None:
        """Once for each request; again, to its end, after Ctrl-C came in between."""
        if self._finished:
            return self.result
        self._ended = True
        self._rounds = iter(())  # lets go of the slot
        try:
            self.result = Result(
                text="".join(self._said),
                tokens=self._tokens[: self._out],
                finish_reason=reason,
                prompt_tokens=self._seq.n_prompt,
                seed=None,
                speculation=self._state(),
                metrics=self._metrics.summary(),
                logprobs=None if self._logprobs is None else self._logprobs[: self._out],
            )
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

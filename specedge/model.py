"""The model an application holds: one target, one slot, one request at a time.

prompt          a string is completed as it stands, with the BOS token its tokenizer adds;
                a list of messages goes through the model's chat template first;
                token ids are taken as they are
KV re-use       the slot keeps its rows between requests: the next prompt runs only what
                follows the prefix it shares with the tokens that are cached
concurrency     a second request while one runs gets BusyError, from any thread; what a canary
                decodes between requests is interrupted instead
"""

from __future__ import annotations

import secrets
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from specedge.bundle import Bundle
from specedge.canary.turns import Turn, Turns
from specedge.chat import Chat
from specedge.contract import Ids
from specedge.counters import Counters
from specedge.encoding import Encoder, Prompt
from specedge.engines.base import Engine, Slot
from specedge.errors import BusyError, EngineError, OptionError
from specedge.generation import Generation, OnEnd, Sample
from specedge.guidance.compiling import Guidance
from specedge.loop import decode
from specedge.metrics import Metrics
from specedge.options import GenerationOptions, OptionKeywords
from specedge.proposers import DraftModelProposer
from specedge.result import Result
from specedge.sampling.sampler import make_sampler
from specedge.sampling.scratch import Scratch
from specedge.sequence import Sequence
from specedge.speculator import SpeculationState, Speculator
from specedge.stream import TextStream
from specedge.template import ChatTemplate
from specedge.tokenizer import Tokenizer

if TYPE_CHECKING:
    from specedge.canary.watching import Canary

_SEED_BITS = 53  # a drawn seed survives a JSON reader that knows only doubles


class Model:
    """A loaded bundle; `specedge.load` makes it.

    Args:
        bundle: opened and checked.
        target: engine of the bundle's target; owned, closed by `close`.
        speculator: owned, closed by `close`.
        tokenizer: the bundle's.
        notes: what loading left out, for the reason that a result gives.

    Raises:
        EngineError: the slot cannot be allocated. Engine and speculator are then still open.
    """

    def __init__(
        self,
        bundle: Bundle,
        target: Engine,
        speculator: Speculator,
        tokenizer: Tokenizer,
        notes: Iterable[str] = (),
    ) -> None:
        self.bundle = bundle
        self.tokenizer = tokenizer
        self.last_result: Result | None = None
        self.notes = tuple(notes)
        self.canary: Canary | None = None  # decodes a share of requests both ways
        self.counters = Counters(bundle.manifest.name, target.description)
        self._target = target
        self._speculator = speculator
        self._slot: Slot | None = target.new_slot()
        self._context = self._slot.context
        self._scratch = Scratch()
        self._encoder = Encoder.of(bundle, tokenizer)
        self._guidance: Guidance | None = None  # made when a grammar is first asked for
        self._seq: Sequence | None = None
        self._starting = threading.RLock()  # one that Ctrl-C left locked still opens here
        self._running: weakref.ref[Generation] | None = None
        self._turns = Turns()

    @property
    def context(self) -> int:
        """T: a prompt may have this many tokens, prompt and output one more."""
        return self._context

    @property
    def has_chat_template(self) -> bool:
        return self._encoder.has_template

    @property
    def engine(self) -> str:
        """Runtime, version, provider and threads of the target."""
        return self._target.description

    @property
    def draft_engine(self) -> str | None:
        """The same of the draft model; None: it is not open."""
        drafts = (p for p in self._speculator.proposers if isinstance(p, DraftModelProposer))
        return next((proposer.engine.description for proposer in drafts), None)

    @property
    def speculation(self) -> SpeculationState:
        """As of the current request, or of the last one; what loading left out is in the reason."""
        return self._state_of(self._speculator)

    def _state_of(self, speculator: Speculator) -> SpeculationState:
        state = speculator.state()
        return replace(state, reason="; ".join((state.reason, *self.notes)))

    @property
    def target(self) -> Engine:
        """The engine whose text this is; calls of one's own disturb a running request."""
        return self._target

    @property
    def speculator(self) -> Speculator:
        """Who drafts."""
        return self._speculator

    def stream(self, prompt: Prompt, **options: Unpack[OptionKeywords]) -> Generation:
        """Start a request; iterate over what this returns to run it.

        Options are `max_tokens`, `stop`, `ignore_eos`, `echo`, `logprobs`, `explain` (see
        `GenerationOptions`), those of `SamplingParams`, and one of `json_schema`, `regex` and
        `grammar`, which the whole output then follows. Everything is checked here, before the
        first event. With `n` > 1 the samples come one after the other, and share the prompt's KV.

        Raises:
            OptionError: an option that is unknown or cannot be honoured.
            PromptError: an empty prompt, one longer than the context, or not text.
            BusyError: another request is running.
            EngineError: the model is closed.
        """
        return self.start(prompt, options)

    def generate(self, prompt: Prompt, **options: Unpack[OptionKeywords]) -> Result:
        """`stream` to its end, a canary's included.

        On Ctrl-C what was made so far is in `last_result`.
        """
        return self.finish(self.start(prompt, options))

    def chat(self, system: str | None = None) -> Chat:
        """Begin a conversation. Raises PromptError when the model has no chat template."""
        return Chat(self, system)

    def encode(self, prompt: Prompt) -> tuple[Ids, str]:
        """As `Encoder.encode`."""
        return self._encoder.encode(prompt)

    def require_template(self, what: str) -> ChatTemplate:
        """As `Encoder.require_template`."""
        return self._encoder.require_template(what)

    def start(
        self,
        prompt: Prompt,
        options: Mapping[str, Any],
        on_end: OnEnd | None = None,
        *,
        speculator: Speculator | None = None,
        turn: Turn | None = None,
    ) -> Generation:
        """`stream` with the options in a mapping, and somebody to tell when it ends.

        `speculator` decodes this request in another way than the model's own, with proposers that
        nobody else uses meanwhile; it is not closed with the model.

        `turn` makes it work between requests: it is not counted and leaves no `last_result`, and
        it ends by `Wanted` where another thread wants the model. Whoever holds the turn ends that.
        """
        eos_ids = self.bundle.manifest.tokenizer.eos_ids
        chosen = GenerationOptions.parse(
            options,
            self.bundle.manifest.generation,
            speculation=self.bundle.manifest.speculation,
            vocab=self.bundle.manifest.target.vocab,
            end_ids=eos_ids,
            special=self.tokenizer.special_tokens(),
        )
        stops, stop_ids = self._stops(chosen.stop)
        ends = stop_ids if chosen.ignore_eos else stop_ids.union(eos_ids)
        params = chosen.sampling
        seed = params.seed
        if seed is None:
            seed = secrets.randbits(_SEED_BITS)
        ids, text = self.encode(prompt)
        drafts = self._speculator if speculator is None else speculator
        grammar = chosen.grammar
        if grammar is not None:
            if self._guidance is None:
                self._guidance = Guidance.of(self.bundle)
            self._guidance.check(grammar)
        guidance = self._guidance

        def begin(number: int) -> Sample:
            metrics = Metrics()
            seq = self._sequence(ids, chosen)
            sampler = make_sampler(
                params,
                seq,
                vocab=self._target.spec.vocab,
                end_ids=ends,
                seed=seed,
                sample=number,
                scratch=self._scratch,
                constraint=guidance.constraint(grammar) if guidance and grammar else None,
            )
            rounds = decode(seq, self._target, slot, drafts, metrics, chosen.logprobs, sampler)
            if turn is not None:
                rounds = turn.unless_wanted(rounds)
            return Sample(
                seq,
                rounds,
                TextStream(self.tokenizer.stream(ids.tolist()), stops, stop_ids),
                metrics,
                sampler.rule,
                seed=None if sampler.rule == "greedy" else seed,
                # calls of other widths may see other logits
                reproducible=sampler.rule in ("greedy", "coupled") and not self._target.width_noise,
                number=number,
            )

        def end(result: Result | None, error: BaseException | None) -> None:
            if turn is None:
                self.counters.add(result, error)
                self.last_result = result
            if on_end is not None:
                on_end(result, error)

        after: Callable[[Result], None] | None = None
        if self.canary is not None and speculator is None:
            after = self.canary.chosen(self, ids, options, params, ends)
        with self._starting:
            if turn is None:
                self._turns.make_way()
            slot = self._open_slot()
            if turn is not None:
                self._turns.begin(turn)
            generation = Generation(
                begin,
                n=params.n,
                echo=text if chosen.echo else "",
                logprobs=chosen.logprobs is not None,
                explain=chosen.explain,
                state=lambda: self._state_of(drafts),
                on_end=end,
                after=after,
            )
            # A request that has ended, or that nobody holds any more, is one no longer: nothing
            # has to be released, which Ctrl-C could prevent.
            self._running = weakref.ref(generation)
        return generation

    def _open_slot(self) -> Slot:
        """The slot, if the model is open and nobody is using it."""
        running = None if self._running is None else self._running()
        if running is not None and not running.finished:
            raise BusyError(
                "model: it is already generating; read that stream to its end or close it, "
                "or load the bundle a second time"
            )
        if self._slot is None:
            raise EngineError("model: it is closed; load the bundle again")
        return self._slot

    @staticmethod
    def finish(generation: Generation) -> Result:
        """Run a request to its end and return its result."""
        for _ in generation:
            pass
        assert generation.result is not None, "a request ended without a result"
        return generation.result

    def _sequence(self, ids: Ids, options: GenerationOptions) -> Sequence:
        """The sequence at its new prompt, keeping the cached rows of the common prefix."""
        eos_ids = frozenset() if options.ignore_eos else self.bundle.manifest.tokenizer.eos_ids
        budget = self._context + 1 if options.max_tokens is None else options.max_tokens
        if self._seq is None:
            self._seq = Sequence(
                ids, context=self._context, max_tokens=budget, eos_ids=frozenset(eos_ids)
            )
        else:
            self._seq.resume(ids, max_tokens=budget, eos_ids=frozenset(eos_ids))
        return self._seq

    def forget(self) -> None:
        """Drop the cached rows: the next prompt is run whole.

        Raises:
            BusyError: a request is running.
            EngineError: the model is closed.
        """
        with self._starting:
            self._turns.make_way()
            self._open_slot()
            self._seq = None

    def _stops(self, stops: tuple[str, ...]) -> tuple[tuple[str, ...], frozenset[int]]:
        """Stop strings to look for in the text, and the ids of those that are a special token."""
        special = self.tokenizer.special_tokens()
        texts = tuple(stop for stop in stops if stop not in special)
        for stop in texts:
            inside = next((token for token in special if token in stop), None)
            if inside is not None:
                raise OptionError(
                    f"stop: {stop!r} contains the special token {inside!r}, which has no text to "
                    f"match; give {inside!r} as a stop string of its own"
                )
        return texts, frozenset(special[stop] for stop in stops if stop in special)

    def close(self) -> None:
        """End a running request and free the engines; closing twice is fine.

        Raises:
            BusyError: another thread is inside the running request.
        """
        with self._starting:
            self._turns.make_way()
            running = self._running() if self._running is not None else None
            if running is not None:
                running.close()
            if self._slot is None:
                return
            slot, self._slot, self._seq = self._slot, None, None
        self._speculator.close()
        self._target.release(slot)
        self._target.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<specedge.Model {self.bundle.manifest.name} ({self.engine})>"

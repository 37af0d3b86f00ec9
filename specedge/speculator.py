"""Proposers in priority order, and what happens when one of them fails.

A failing proposer never costs the user text: speculation ends for that request, plain decoding
goes on, and `state()` tells why. Under mode "on" it is a ProposerError instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from specedge.contract import GraphSpec, Ids
from specedge.controller import Chooser
from specedge.errors import OptionError, ProposerError, with_class
from specedge.guidance.drafting import GRAMMAR, Fitted, forced
from specedge.policy.choice import Choice
from specedge.proposers.base import NO_DRAFT, Draft, Proposer
from specedge.sampling.constraint import Constraint
from specedge.sampling.sampler import Sampler
from specedge.sequence import Sequence

Mode = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class SpeculationState:
    """What speculation is doing, for a person and for a result's `speculation`.

    Args:
        mode: what was asked for.
        on: drafts are being made in the current request.
        reason: why it is on or off, in one line.
        proposer: who drafted most tokens of the current request; None when nobody did.
        failures: proposer failures since this speculator was made, over all requests.
    """

    mode: Mode
    on: bool
    reason: str
    proposer: str | None
    failures: int


class Speculator:
    """Owns the proposers of one model and serves one request at a time."""

    def __init__(
        self, proposers: Iterable[Proposer], controller: Chooser, *, mode: Mode = "auto"
    ) -> None:
        """
        Args:
            proposers: in priority order; closed by `close`.
            controller: chooses who drafts, and K.
            mode: "auto" falls back to plain decoding, "on" raises instead, "off" never drafts.

        Raises:
            OptionError: mode is unknown, or is "on" with nobody to draft.
        """
        self._proposers = tuple(proposers)
        self._controller = controller
        if mode not in ("auto", "on", "off"):
            raise OptionError(f"speculation: expected auto, on or off, found {mode!r}")
        if mode == "on" and not (self._proposers and controller.longest):
            raise OptionError(
                'speculation "on" needs a proposer and a draft_length of 1 or more, found '
                f"{len(self._proposers)} proposers and {controller.longest}; "
                'use "auto", or add "ngram" to the proposers'
            )
        self._mode = mode
        self._failures = 0
        self._resting: str | None = None  # why it never drafts again
        self._vocab = self._max_verify = 0
        self._drafted: dict[str, int] = {}
        self._asked = self._proposers  # as this request asks them
        self._constraint: Constraint | None = None  # of this request, while it forces drafts
        self._forced = False  # the current round is
        self.choice: Choice | None = None  # of the current round; None: nobody chose
        self._on, self._reason = self._at_rest()

    def _at_rest(self) -> tuple[bool, str]:
        if self._mode == "off":
            return False, "turned off by request"
        if self._resting is not None:
            return False, self._resting
        if not self._proposers:
            return False, "there is no proposer"
        if not self._controller.longest:
            return False, "draft length is 0"
        names = ", ".join(proposer.name for proposer in self._proposers)
        return True, f"up to {self._controller.longest} tokens a round from {names}"

    @property
    def mode(self) -> Mode:
        return self._mode

    @property
    def proposers(self) -> tuple[Proposer, ...]:
        return self._proposers

    @property
    def resting(self) -> str | None:
        """The reason that `rest` was given; None: it was not called."""
        return self._resting

    def rest(self, reason: str) -> None:
        """Draft nothing any more, whatever forces it; between requests only."""
        self._resting = reason
        self._on, self._reason = self._at_rest()

    def start(self, seq: Sequence, target: GraphSpec, sampler: Sampler) -> None:
        """Begin a request whose first token is committed; an earlier failure is forgiven.

        `sampler` chooses the tokens of proposers that draw theirs.

        Raises:
            ProposerError: a proposer failed and mode is "on".
        """
        self._vocab, self._max_verify = target.vocab, target.max_verify
        self._drafted.clear()
        self.choice = None
        self._on, self._reason = self._at_rest()
        self._constrain(sampler.constraint)
        if not self._on:
            return
        self._controller.start()
        for proposer in self._proposers:
            try:
                proposer.start(seq, sampler)
            except Exception as error:  # see _failed
                return self._failed(proposer, "start", error)

    def _constrain(self, constraint: Constraint | None) -> None:
        """Tokens that a grammar forces are drafted for nothing, also where no proposer pays."""
        resting = self._mode == "off" or self._resting is not None
        drafts = not resting and self._controller.longest > 0
        self._constraint = constraint if drafts else None
        self._asked = self._proposers
        if self._constraint is not None:
            on = self._constraint
            self._asked = tuple(
                Fitted(each, on) if each.is_lookup else each for each in self._proposers
            )

    def propose(self, seq: Sequence) -> Draft:
        """Tokens without alternative, or the controller's draft, its length within every bound;
        else an empty one.

        Raises:
            ProposerError: a proposer failed and mode is "on".
        """
        self.choice = None
        self._forced = False
        longest = min(self._controller.longest, seq.draft_limit, self._max_verify - 1)
        if self._constraint is not None:
            found = forced(self._constraint, seq, max(0, longest))
            if found is not None:
                self._forced = True
                draft, self.choice = found
                self._drafted[GRAMMAR] = self._drafted.get(GRAMMAR, 0) + len(draft.tokens)
                return draft
        if not self._on:
            return NO_DRAFT
        try:
            draft, self.choice = self._controller.draft(seq, self._max_verify, self._asked)
            k = len(draft.tokens)
            if k:
                self._check(draft.tokens, longest)
        except Exception as error:  # see _failed
            self._failed(self._controller.asking, "propose", error)
            return NO_DRAFT
        measuring = self.choice is not None and self.choice.why == "measure"
        if k and not measuring:
            self._drafted[draft.proposer] = self._drafted.get(draft.proposer, 0) + k
        return draft

    def observe(
        self, committed: Ids, n_accepted: int, round_ms: float = 0.0, draft_ms: float = 0.0
    ) -> None:
        """Tell every proposer, and the controller, how the round ended.

        Args:
            committed, n_accepted: as `Proposer.observe`.
            round_ms: milliseconds of the whole round.
            draft_ms: of it, in `propose`.

        Raises:
            ProposerError: a proposer failed and mode is "on".
        """
        if not self._on:
            return
        asking: Proposer | None = None
        try:
            for asking in self._proposers:
                asking.observe(committed, n_accepted)
            asking = None
            if self._forced:
                self._controller.passed(committed)
            else:
                self._controller.observe(committed, n_accepted, round_ms, draft_ms)
        except Exception as error:  # see _failed
            self._failed(asking, "observe", error)

    def _check(self, tokens: Ids, limit: int) -> None:
        """An id outside the vocabulary would read past the target's embedding table."""
        ids = tokens.tolist()
        if len(ids) > limit:
            raise ValueError(f"drafted {len(ids)} tokens where at most {limit} fit")
        if min(ids) < 0 or max(ids) >= self._vocab:
            bad = next(token for token in ids if not 0 <= token < self._vocab)
            raise ValueError(f"drafted id {bad}, expected 0..{self._vocab - 1}")

    def _failed(self, proposer: Proposer | None, verb: str, error: Exception) -> None:
        """Record a failure; plain decoding goes on, or raise when that is forbidden.

        Callers catch every Exception on purpose. A draft is a guess that the target checks, so
        no failure in making one can make the text wrong, and a runtime's own exceptions
        (MemoryError included) have no common base. KeyboardInterrupt is none and passes. All
        proposers rest: one that missed an `observe` may disagree with the others.
        """
        self._failures += 1
        self._on = False
        who = "the controller" if proposer is None else f"proposer {proposer.name}"
        failure = f"{who} failed in {verb}: {with_class(error)}"
        self._reason = f"{failure}; decoding plainly for the rest of this request"
        if self._mode == "on":
            raise ProposerError(
                f'{failure}; use speculation "auto" to go on without drafts'
            ) from error

    def state(self) -> SpeculationState:
        """As of the current request, or of the last one when none is running."""
        lead = max(self._drafted, key=self._drafted.__getitem__, default=None)
        on, reason = self._on, self._reason
        chosen = self._controller.state() if on else None
        if chosen is not None:
            on, reason = chosen
        forced_tokens = self._drafted.get(GRAMMAR)
        if forced_tokens:
            alone = "" if on else f"; else {reason.removeprefix('speculation off: ')}"
            on, reason = True, f"{forced_tokens} tokens had no alternative{alone or f'; {reason}'}"
        return SpeculationState(self._mode, on, reason, lead, self._failures)

    def close(self) -> None:
        """Close every proposer."""
        self._on, self._reason = False, "closed"
        for proposer in self._proposers:
            proposer.close()

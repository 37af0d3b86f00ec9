"""Proposers in priority order, and what happens when one of them fails.

A failing proposer never costs the user text: speculation ends for that request, plain decoding
goes on, and `state()` tells why. Under mode "on" it is a ProposerError instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from specedge.contract import GraphSpec, Ids
from specedge.controller import Controller
from specedge.errors import OptionError, ProposerError
from specedge.proposers.base import NO_DRAFT, Draft, Proposer
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
        self, proposers: Iterable[Proposer], controller: Controller, *, mode: Mode = "auto"
    ) -> None:
        """
        Args:
            proposers: in priority order; closed by `close`.
            controller: chooses K.
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
        self._vocab = self._max_verify = 0
        self._drafted: dict[str, int] = {}
        self._on, self._reason = self._at_rest()

    def _at_rest(self) -> tuple[bool, str]:
        if self._mode == "off":
            return False, "turned off by request"
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

    def start(self, seq: Sequence, target: GraphSpec, sampler: Sampler) -> None:
        """Begin a request whose first token is committed; an earlier failure is forgiven.

        `sampler` chooses the tokens of proposers that draw theirs.

        Raises:
            ProposerError: a proposer failed and mode is "on".
        """
        self._vocab, self._max_verify = target.vocab, target.max_verify
        self._drafted.clear()
        self._on, self._reason = self._at_rest()
        if not self._on:
            return
        for proposer in self._proposers:
            try:
                proposer.start(seq, sampler)
            except Exception as error:  # see _failed
                return self._failed(proposer, "start", error)

    def propose(self, seq: Sequence) -> Draft:
        """The first non-empty draft, its length within every bound; else an empty one.

        Raises:
            ProposerError: a proposer failed and mode is "on".
        """
        if not self._on:
            return NO_DRAFT
        limit = self._controller.draft_length(seq, self._max_verify)
        if limit == 0:
            return NO_DRAFT
        for proposer in self._proposers:
            try:
                draft = proposer.propose(seq, limit)
                if len(draft.tokens):
                    self._check(draft.tokens, limit)
            except Exception as error:  # see _failed
                self._failed(proposer, "propose", error)
                return NO_DRAFT
            if len(draft.tokens):
                self._drafted[draft.proposer] = self._drafted.get(draft.proposer, 0) + len(
                    draft.tokens
                )
                return draft
        return NO_DRAFT

    def observe(self, committed: Ids, n_accepted: int) -> None:
        """Tell every proposer how the round ended; arguments as `Proposer.observe`.

        Raises:
            ProposerError: a proposer failed and mode is "on".
        """
        if not self._on:
            return
        for proposer in self._proposers:
            try:
                proposer.observe(committed, n_accepted)
            except Exception as error:  # see _failed
                return self._failed(proposer, "observe", error)

    def _check(self, tokens: Ids, limit: int) -> None:
        """An id outside the vocabulary would read past the target's embedding table."""
        ids = tokens.tolist()
        if len(ids) > limit:
            raise ValueError(f"drafted {len(ids)} tokens where at most {limit} fit")
        if min(ids) < 0 or max(ids) >= self._vocab:
            bad = next(token for token in ids if not 0 <= token < self._vocab)
            raise ValueError(f"drafted id {bad}, expected 0..{self._vocab - 1}")

    def _failed(self, proposer: Proposer, verb: str, error: Exception) -> None:
        """Record a failure; plain decoding goes on, or raise when that is forbidden.

        Callers catch every Exception on purpose. A draft is a guess that the target checks, so
        no failure in making one can make the text wrong, and a runtime's own exceptions
        (MemoryError included) have no common base. KeyboardInterrupt is none and passes. All
        proposers rest: one that missed an `observe` may disagree with the others.
        """
        self._failures += 1
        self._on = False
        detail = " ".join(str(error).split())
        what = f"{type(error).__name__}: {detail}" if detail else type(error).__name__
        failure = f"proposer {proposer.name} failed in {verb}: {what}"
        self._reason = f"{failure}; decoding plainly for the rest of this request"
        if self._mode == "on":
            raise ProposerError(
                f'{failure}; use speculation "auto" to go on without drafts'
            ) from error

    def state(self) -> SpeculationState:
        """As of the current request, or of the last one when none is running."""
        lead = max(self._drafted, key=self._drafted.__getitem__, default=None)
        return SpeculationState(self._mode, self._on, self._reason, lead, self._failures)

    def close(self) -> None:
        """Close every proposer."""
        self._on, self._reason = False, "closed"
        for proposer in self._proposers:
            proposer.close()

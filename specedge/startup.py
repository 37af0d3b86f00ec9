"""Measure what calls cost while text streams: the start on a machine that was never probed.

A verification of K drafted tokens that are all wrong still gives the next token of the text, and
the same one as a plain step. So a call of N tokens is timed by drafting N - 1 tokens, whatever they
are: what a lookup offers, filled up by anything. Nothing is decoded twice, no prefill is paid, and
the text goes on meanwhile, a little slower: 20 rounds are wider than they need be.

A draft model is then fed the text, once, as it would be to draft; the last tokens of that call
show how often it would have been right, and a few rounds with K = 1 what a token of it costs.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping

import numpy as np

from specedge.engines.base import Engine
from specedge.policy import Choice, Prior
from specedge.probe.curves import CostCurves, Curve, Point
from specedge.probe.measuring import target_widths
from specedge.proposers.base import NO_DRAFT, PADDING, Draft, Proposer
from specedge.proposers.draft_model import DraftModelProposer
from specedge.sequence import Sequence

REPEATS = 4  # of each width; the first makes its buffers, and a median of four leaves it out
LEAST_SAID = 16  # tokens of output before the first wide round: a short answer never has one
LEAST_LEFT = 32  # tokens that the request may still commit, for a wide round to be worth it
LEAST_LEFT_DRAFT = 64  # the same for feeding a draft model
DRAFT_ROUNDS = 6
MOST_DRAFT_ROUNDS = 24  # with those whose time cannot be true
LONGEST_FEED_MS = 4000.0  # of a draft's backlog, by the target's costs and the models' sizes
JUDGED = 16  # tokens of the output that the draft is judged by

_FILLED = (4, 8, 16, 32, 64)  # widths of a draft's calls between two that were timed


class Startup:
    """Two stages: the target's calls, then the draft model's. Feed it every round's times."""

    def __init__(
        self,
        target: Engine,
        context: int,
        longest: int,
        draft: Engine | None = None,
        *,
        known: Curve | None = None,
        seed: int = 0,
    ) -> None:
        """
        Args:
            target: for sizes only; the loop calls it.
            context: T, rows of its slot.
            longest: largest K that will be asked for.
            draft: the draft model's engine, or None.
            known: the target's calls, from an earlier run: only the draft's are left to time.
        """
        widest = min(longest + 1, target.spec.max_verify, context)
        self._widths = target_widths("startup", widest, target.width_step)
        self._step = target.width_step
        self._draft_engine = draft
        self._size_ratio = (
            0.0 if draft is None else draft.spec.weight_bytes / max(1, target.spec.weight_bytes)
        )
        self._todo = [width for width in self._widths if width > 1] * REPEATS
        random.Random(seed).shuffle(self._todo)
        self._total = len(self._todo)
        self._ms: dict[int, list[float]] = {width: [] for width in self._widths}
        self._pasts: list[int] = []
        self._width = 1  # of the current round
        self._plain_next = True
        self._requests = 0
        self._untrue = 0  # wide calls whose time could not be
        self._target: Curve | None = known
        self._reading = 0  # tokens that the draft model reads in the current round
        self._read: tuple[int, float] | None = None  # tokens, ms
        self._drafted_after = 0  # the backlog of the current round's draft
        self._draft_rounds = 0
        self._drafts: dict[int, list[float]] = {1: [], 2: []}  # by backlog
        self._right = self._judged = 0
        self._spent_ms = 0.0
        self.fresh = False  # a stage has ended since `take`

    @property
    def done(self) -> bool:
        """Both stages have ended."""
        return self._target is not None and (self._draft_engine is None or self._drafts_done)

    @property
    def _drafts_done(self) -> bool:
        return sum(map(len, self._drafts.values())) >= DRAFT_ROUNDS

    @property
    def reason(self) -> str:
        """What is going on, for a person."""
        done = self._total - len(self._todo)
        return (
            f"measuring in the stream what calls cost here ({done} of {self._total} wide calls), "
            "as `specedge probe` never did; decoding plainly meanwhile"
        )

    @property
    def prior(self) -> Prior | None:
        """Of the draft model; None before it was judged."""
        if not self._judged:
            return None
        stands = (self._right + 0.5) / (self._judged + 1)
        return Prior((stands,), float(self._judged), measured=True)

    def start(self) -> None:
        """A request begins."""
        self._requests += 1

    def draft(
        self,
        seq: Sequence,
        limit: int,
        offered: Mapping[str, Draft],
        drafter: Proposer | None,
        backlog: int | None,
    ) -> tuple[Draft, Choice] | None:
        """A round that measures; None: the round may be used otherwise.

        Args:
            limit: largest K now, 1 or more.
            offered: drafts of lookups, by name.
            drafter, backlog: the draft model, and what it would have to read; None: it cannot.
        """
        left = seq.draft_limit + 1
        past = seq.n_cached
        if self._target is None:
            return self._wide(past, limit, left, offered, seq)
        if self.done or not isinstance(drafter, DraftModelProposer) or backlog is None:
            return None
        if self._read is None or backlog > JUDGED:  # a new prompt is read anew, and as one call
            enough = left >= LEAST_LEFT_DRAFT and min(backlog - 1, seq.n_generated) >= JUDGED
            if not enough or self._feed_ms(backlog) > LONGEST_FEED_MS:
                return None
            outcomes = drafter.agreement(seq, min(JUDGED, drafter.engine.spec.max_verify))
            self._right, self._judged = sum(outcomes), len(outcomes)
            self._reading = backlog - 1
            why = Choice(None, 0, "measure", 0.0, past, drafter=drafter.name)
            return NO_DRAFT, why
        if self._draft_rounds == MOST_DRAFT_ROUNDS:
            return None
        self._draft_rounds += 1
        self._reading, self._drafted_after = 0, backlog
        return drafter.propose(seq, 1), Choice(drafter.name, 1, "measure", 0.0, past)

    def _wide(
        self, past: int, limit: int, left: int, offered: Mapping[str, Draft], seq: Sequence
    ) -> tuple[Draft, Choice] | None:
        self._width = 1
        plain = self._plain_next or not self._may_widen(left, seq.n_generated)
        self._plain_next = not self._plain_next
        fits = next((width for width in self._todo if width - 1 <= limit), None)
        if plain or fits is None:
            return NO_DRAFT, Choice(None, 0, "measure", 0.0, past)
        self._width = fits
        self._pasts.append(past)
        k = fits - 1
        best = max(offered.values(), key=lambda draft: len(draft.tokens), default=NO_DRAFT)
        if len(best.tokens) >= k:
            return best.cut(k), Choice(best.proposer, k, "measure", 0.0, past)
        tokens = np.full(k, seq.tokens[-1])
        tokens[: len(best.tokens)] = best.tokens
        return Draft(tokens, PADDING), Choice(PADDING, k, "measure", 0.0, past)

    def _may_widen(self, left: int, said: int) -> bool:
        if said < LEAST_SAID or left < LEAST_LEFT or self._untrue > self._total:
            return False
        # A program that ends after one request must not pay, each time, for what it cannot finish.
        begun = len(self._todo) < self._total or self._requests > 1
        return begun or left >= LEAST_LEFT + 2 * self._total

    def observe(self, drafted: int, accepted: int, round_ms: float, draft_ms: float) -> None:
        """How a round of `draft`'s went; a time that cannot be true is left out."""
        call_ms = round_ms - draft_ms
        self._spent_ms += max(0.0, round_ms)
        if not 0 <= draft_ms < round_ms < float("inf"):
            self._untrue += self._width > 1
            return
        if self._target is None:
            self._observe_target(call_ms)
        elif self._reading:
            self._read, self._reading = (self._reading, draft_ms), 0
        elif drafted and draft_ms > 0 and self._drafted_after <= 2:
            self._drafts[self._drafted_after].append(draft_ms)
            self._judged += 1
            self._right += accepted
            self.fresh = self.done

    def _observe_target(self, call_ms: float) -> None:
        self._ms[self._width].append(call_ms)
        if self._width > 1:
            self._todo.remove(self._width)  # the first such, as `_wide` took it
        if not self._todo and self._ms[1]:
            past = round(statistics.mean(self._pasts))
            points = tuple(Point.of(width, past, times) for width, times in self._ms.items())
            self._target = Curve(role="target", width_step=self._step, points=points)
            self.fresh = True

    def _feed_ms(self, backlog: int) -> float:
        assert self._target is not None
        widest = self._target.widths[-1]
        return backlog / widest * self._target.cost_ms(widest, 0) * self._size_ratio

    def take(self) -> CostCurves:
        """What is known now, once a stage has ended."""
        assert self._target is not None, "no stage has ended"
        self.fresh = False
        return CostCurves(
            plan="startup",
            target=self._target,
            draft=self._draft_curve() if self.done and self._draft_engine is not None else None,
            passes=REPEATS,
            seconds=self._spent_ms / 1e3,
            converged=False,
        )

    def _draft_curve(self) -> Curve:
        """One and two tokens as they were timed; wider calls on the line to the long one."""
        assert self._target is not None
        assert self._read is not None
        assert self._draft_engine is not None
        past = self._target.pasts[0]
        one = self._drafts[1] or self._drafts[2]
        two = self._drafts[2] or one
        points = [Point.of(1, past, one), Point.of(2, past, two)]
        start = max(points[0].ms, points[1].ms)
        chunk = self._draft_engine.prefill_chunk
        read, read_ms = self._read
        a_token = max(
            0.0, (read_ms * min(1.0, chunk / read) - start) / max(1, min(read, chunk) - 2)
        )
        for width in sorted({*(w for w in _FILLED if w < chunk), chunk}):
            if width > 2:
                points.append(Point.of(width, past, [start + a_token * (width - 2)]))
        return Curve(role="draft", width_step=self._draft_engine.width_step, points=tuple(points))

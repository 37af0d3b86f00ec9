"""Chooses the tokens of one request, for the target and for whoever drafts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, overload

import numpy as np

from specedge.acceptance import (
    RoundDraws,
    Verdict,
    accept_chosen,
    accept_greedy_ids,
    block,
    coupled,
    race,
    rejection,
)
from specedge.acceptance.device import Question, can_ask
from specedge.contract import Ids
from specedge.errors import DeadEndError
from specedge.randomness import Randomness, Stream
from specedge.sampling.constraint import Constraint
from specedge.sampling.history import History
from specedge.sampling.law import Law
from specedge.sampling.params import RuleName, SamplingParams
from specedge.sampling.processors import Pipeline
from specedge.sampling.scratch import Scratch

if TYPE_CHECKING:
    from specedge.engines.base import Scored
    from specedge.proposers.base import Draft
    from specedge.sequence import Sequence as TokenSequence


class Sampler(Protocol):
    """What the loop and a proposer that draws its tokens are given."""

    @property
    def rule(self) -> RuleName: ...

    @property
    def constraint(self) -> Constraint | None:
        """On what comes next, whoever chooses it."""
        ...

    def choose(self, scored: Scored, drafted: Ids) -> tuple[int, Law | None]:
        """A draft model's next token, and the law that it was drawn from.

        Args:
            scored: one row, of the token after the committed ones and `drafted`.
            drafted: int64 [i], what was chosen in this round so far.

        Raises:
            SamplingError: the row is not finite.
            DeadEndError: nothing can follow `drafted`.
        """
        ...

    def accept(self, draft: Draft, scored: Scored) -> Verdict:
        """How many drafted tokens stand, and the next.

        Args:
            draft: K tokens; their laws, if they were drawn from any.
            scored: K + 1 rows of the target; row i scores the token after draft[:i].

        Raises:
            SamplingError: a row that was looked at is not finite.
        """
        ...


class GreedySampler:
    """The argmax that the graph has taken: logits are not looked at."""

    rule: RuleName = "greedy"
    constraint: Constraint | None = None

    def choose(self, scored: Scored, drafted: Ids) -> tuple[int, Law | None]:
        return scored.greedy_ids.item(0), None

    def accept(self, draft: Draft, scored: Scored) -> Verdict:
        return accept_greedy_ids(draft.tokens, scored.greedy_ids)


GREEDY = GreedySampler()


class ConstrainedGreedySampler:
    """The likeliest id that is allowed: the graph's argmax where that one is."""

    rule: RuleName = "greedy"

    def __init__(self, seq: TokenSequence, constraint: Constraint) -> None:
        self.constraint: Constraint | None = constraint
        self._on = constraint
        self._seq = seq

    def choose(self, scored: Scored, drafted: Ids) -> tuple[int, Law | None]:
        if len(drafted):
            self._on.push(drafted.item(-1))
        else:
            self._on.sync(self._seq.generated)
        return self._likeliest(scored, 0, len(drafted), "draft"), None

    def accept(self, draft: Draft, scored: Scored) -> Verdict:
        self._on.sync(self._seq.generated)
        tokens = draft.tokens

        def chosen(i: int) -> int:
            if i:
                self._on.push(tokens.item(i - 1))
            return self._likeliest(scored, i, i, "target")

        return accept_chosen(tokens, chosen)

    def _likeliest(self, scored: Scored, row: int, place: int, where: str) -> int:
        token = scored.greedy_ids.item(row)
        if self._on.allows(token):
            return token
        mask = self._on.mask()
        assert mask is not None, "something is not allowed"
        logits = np.where(mask, scored.logits[row], -np.inf)
        token = int(logits.argmax())
        if not np.isfinite(logits[token]):
            raise DeadEndError(
                f"structured output on the logits of the {where} at position "
                f"{self._seq.n_tokens + place}: expected a token that can be chosen, found none; "
                "use another grammar"
            )
        return token


def make_sampler(
    params: SamplingParams,
    seq: TokenSequence,
    *,
    vocab: int,
    end_ids: Collection[int],
    seed: int,
    sample: int = 0,
    scratch: Scratch | None = None,
    constraint: Constraint | None = None,
) -> Sampler:
    """The sampler of one sample of a request.

    Args:
        params: what the request asks for.
        seq: at its prompt; read in each round.
        vocab: V of target and draft.
        end_ids: what `params.min_tokens` holds back.
        seed: params.seed, or the one that was drawn.
        sample: 0..n - 1.
        scratch: buffers that outlive the request; None: its own.
        constraint: of structured output, at its beginning.
    """
    if params.rule == "greedy" and not params.edits:
        return GREEDY if constraint is None else ConstrainedGreedySampler(seq, constraint)
    pipeline = Pipeline(params, vocab, end_ids, constraint)
    randomness = Randomness(seed, sample)
    return ProcessedSampler(params, pipeline, seq, randomness, scratch or Scratch(), constraint)


class ProcessedSampler:
    """Logits go through processors, the same for target and draft, each row in the context of the
    drafted tokens before it; one of the rules decides."""

    def __init__(
        self,
        params: SamplingParams,
        pipeline: Pipeline,
        seq: TokenSequence,
        randomness: Randomness,
        scratch: Scratch,
        constraint: Constraint | None = None,
    ) -> None:
        self.rule: RuleName = params.rule
        self.constraint = constraint
        self._pipeline = pipeline
        self._seq = seq
        self._randomness = randomness
        self._history = History() if params.uses_history else None
        self._scratch = scratch
        # 1 / temperature, where nothing else decides
        self._plain = pipeline.plain_scale if params.rule == "rejection" else None
        self._round = -1  # committed tokens when the current round began

    def choose(self, scored: Scored, drafted: Ids) -> tuple[int, Law | None]:
        place, position = len(drafted), self._begin()
        history, constraint = self._history, self.constraint
        if constraint is not None:
            if place:
                constraint.push(drafted.item(-1))
            else:
                constraint.sync(self._seq.generated)
        if history is not None:
            if place:
                history.push(drafted.item(-1))
            else:
                history.sync(self._seq.tokens, self._seq.n_prompt)
        law = self._law(scored, 0, place, "draft")
        if self.rule == "coupled":
            return race(law, self._randomness, position + place), None
        if self.rule == "greedy":
            return law.likeliest, None
        # Drawing makes the weights, which outlive the engine's logits.
        return law.sample(self._randomness.uniform(Stream.DRAFT, position, place)), law

    def accept(self, draft: Draft, scored: Scored) -> Verdict:
        position = self._begin()
        tokens = draft.tokens
        scale, draws = self._plain, RoundDraws(self._randomness, position)
        if scored.decide is not None and scale is not None and can_ask(scale, draft.q):
            return scored.decide(Question(scale, tokens, draft.q, draws))
        if self._history is not None:
            self._history.sync(self._seq.tokens, self._seq.n_prompt)
        if self.constraint is not None:
            self.constraint.sync(self._seq.generated)
        p = _Rows(self, tokens, scored)
        if self.rule == "greedy":
            return accept_chosen(tokens, lambda i: p[i].likeliest)
        if self.rule == "coupled":
            return coupled(tokens, p, self._randomness, position)
        q = draft.q if draft.q is not None else tuple(map(Law.certain, tokens.tolist()))
        rule = rejection if self.rule == "rejection" else block
        return rule(tokens, p, q, draws)

    def _begin(self) -> int:
        """Committed tokens; at the first call of a round its buffers are free again."""
        committed = self._seq.n_tokens
        if committed != self._round:
            self._round = committed
            self._scratch.reset()
        return committed

    def _law(self, scored: Scored, row: int, place: int, where: str) -> Law:
        """Of a row that stands `place` tokens behind the committed ones."""
        seq = self._seq
        return self._pipeline.law(
            scored.logits[row],
            self._history,
            seq.n_generated + place,
            scratch=self._scratch,
            where=where,
            position=seq.n_tokens + place,
        )

    def target_law(self, scored: Scored, draft: Ids, row: int) -> Law:
        """Of the token after draft[:row]; to be asked for row 0, 1, 2, …"""
        if row and self._history is not None:
            self._history.push(draft.item(row - 1))
        if row and self.constraint is not None:
            self.constraint.push(draft.item(row - 1))
        return self._law(scored, row, row, "target")


class _Rows(Sequence[Law]):
    """The target's K + 1 laws, made when they are asked for, in order."""

    def __init__(self, sampler: ProcessedSampler, draft: Ids, scored: Scored) -> None:
        self._sampler = sampler
        self._draft = draft
        self._scored = scored
        self._made: list[Law] = []

    def __len__(self) -> int:
        return len(self._draft) + 1

    @overload
    def __getitem__(self, row: int) -> Law: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[Law]: ...
    def __getitem__(self, row: int | slice) -> Law | Sequence[Law]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        while len(self._made) <= row:
            law = self._sampler.target_law(self._scored, self._draft, len(self._made))
            self._made.append(law)
        return self._made[row]

    def __iter__(self) -> Iterator[Law]:
        return (self[i] for i in range(len(self)))

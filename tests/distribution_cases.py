"""Tiny models with known distributions, and the test that says whether tokens follow them.

A case is a target and a draft over 4 tokens, each a table of logits by the last two tokens, with
processors and draft lengths. The token after the prompt is certain, so that what is counted, the
`COUNTED` tokens behind it, comes from speculative rounds alone. What they should follow is the
product of the target's laws in plain autoregression, each made by the real `Pipeline` from the
tokens before it.

The test is Pearson's. A bias of total variation TV moves it by at least 4 n TV^2 (n draws; by
Cauchy and Schwarz, the sum of (p' - p)^2 / p is at least (sum of |p' - p|)^2), whichever outcomes
the bias is in. With 15 sampled cases and an alarm of 1 % over all of them, each has ALARM:

    draws     outcomes  bias    moves by  limit  caught with
    250,000   64        0.01    100       105    0.997
    20,000    27        0.03    72        56     0.995

Fewer outcomes make a bias easier to see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt

from specedge.contract import Ids, Logits
from specedge.controller import Controller
from specedge.engines.fake import FakeEngine, fake_spec
from specedge.loop import decode
from specedge.metrics import Metrics
from specedge.proposers import Draft, DraftModelProposer, Proposer
from specedge.sampling.history import History
from specedge.sampling.law import Floats, Law
from specedge.sampling.params import SamplingParams
from specedge.sampling.processors import Pipeline
from specedge.sampling.sampler import Sampler, make_sampler
from specedge.sampling.scratch import Scratch
from specedge.sequence import Sequence as TokenSequence
from specedge.speculator import Speculator

Tokens = tuple[int, ...]

VOCAB = 4
COUNTED = 3
PROMPT: Tokens = (0, 1)
START: Tokens = (*PROMPT, 2)  # the token after the prompt is certain
END_IDS = (3,)  # only to be held back: no text ends with it
CERTAIN = 1e4  # above every other logit; the others then weigh exp(-6000) or less, which is 0

CONTEXT = 24  # room for the longest draft behind the last counted token
LONGEST = 3

ALARM = 0.01 / 15
FEWEST = 8.0  # expected in a cell of its own


@dataclass(frozen=True, eq=False)
class Case:
    """Models, processors and draft lengths; `params.acceptance` is the rule.

    Args:
        tables: seed of both models' logits.
        drafts: who drafts: the draft model, a lookup, or nobody.
        draft_length: K of a round by the committed tokens, prompt included.
        distance: standard deviation of draft logits - target logits; theirs is 1.
    """

    name: str
    params: SamplingParams
    tables: int
    drafts: Literal["model", "lookup", "nobody"] = "model"
    draft_length: Callable[[Tokens], int] = lambda tokens: 3
    distance: float = 0.8

    @cached_property
    def _logits(self) -> tuple[Logits, Logits]:
        """Target's and draft's, float32 [V, V, V]: by the last token but one and the last."""
        rng = np.random.default_rng(self.tables)
        target = rng.standard_normal((VOCAB,) * 3)
        draft = target + self.distance * rng.standard_normal((VOCAB,) * 3)
        return target.astype(np.float32), draft.astype(np.float32)

    def scores(self, who: Literal["target", "draft"]) -> Callable[[Ids], Logits]:
        """int64 [n], the tokens so far → float32 [V]."""
        table = self._logits[0 if who == "target" else 1]
        first = np.where(np.arange(VOCAB) == START[-1], CERTAIN, 0).astype(np.float32)

        def row(tokens: Ids) -> Logits:
            n = len(tokens)
            return first if n <= len(PROMPT) else table[tokens.item(n - 2), tokens.item(n - 1)]

        return row

    def guess(self, tokens: Tokens) -> int:
        """What a lookup drafts after `tokens`."""
        return (tokens[-1] + 2 * tokens[-2] + 1) % VOCAB

    @cache  # noqa: B019  (cases live as long as the process)
    def law(self, who: Literal["target", "draft"], tokens: Tokens) -> Law:
        """Of the token after `tokens`, prompt included, as plain decoding would have it."""
        ids = np.array(tokens, np.int64)
        history = History()
        history.sync(ids, len(PROMPT))
        pipeline = Pipeline(self.params, VOCAB, END_IDS)
        return pipeline.law(
            self.scores(who)(ids),
            history,
            len(tokens) - len(PROMPT),
            scratch=Scratch(),
            where=who,
            position=len(tokens),
        )

    @cached_property
    def outcomes(self) -> Floats:
        """float64 [V^COUNTED]: probability of each outcome, in the order of `code`."""
        return np.array([self._joint(more) for more in product(range(VOCAB), repeat=COUNTED)])

    def _joint(self, more: Tokens) -> float:
        laws = (self.law("target", START + more[:i]) for i in range(COUNTED))
        return math.prod(law.probability(token) for law, token in zip(laws, more, strict=True))


def code(counted: Sequence[int]) -> int:
    """The outcome's number: COUNTED tokens as digits, the first the most significant."""
    number = 0
    for token in counted[:COUNTED]:
        number = VOCAB * number + token
    return number


def distance_from(law: Floats, counts: npt.NDArray[np.int64], alarm: float = ALARM) -> float:
    """Pearson's statistic in units of its limit: above 1, the counts do not follow the law.

    Outcomes expected less than FEWEST times share a cell. The limit is exceeded with probability
    `alarm` if they do follow it, by Wilson and Hilferty's approximation of chi-square.
    """
    if counts[law == 0].any():
        return math.inf
    expected = law * counts.sum()
    own = expected >= FEWEST
    observed = np.append(counts[own], counts[~own].sum())
    expected = np.append(expected[own], expected[~own].sum())
    if expected[-1] < FEWEST:  # too few even together: in with the rarest of the others
        rarest = int(expected[:-1].argmin())
        observed[rarest] += observed[-1]
        expected[rarest] += expected[-1]
        observed, expected = observed[:-1], expected[:-1]
    statistic = float(((observed - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    spread = 2 / (9 * freedom)
    normal = NormalDist().inv_cdf(1 - alarm)
    limit = freedom * (1 - spread + normal * math.sqrt(spread)) ** 3
    return statistic / limit


def follows(law: Floats, counts: npt.NDArray[np.int64]) -> bool:
    return distance_from(law, counts) <= 1


def biased(law: Floats, bias: float, rng: np.random.Generator) -> Floats:
    """The law with a total variation of `bias` to it that is the hardest to see: every outcome is
    off by the same share, up in about one half of the mass and down in the other."""
    up = np.zeros(len(law), np.bool_)
    mass = 0.0
    for outcome in rng.permutation(len(law)):
        if mass + law[outcome] <= 0.5:
            up[outcome] = True
            mass += law[outcome]
    moved = law * np.where(up, 1 + bias / mass, 1 - bias / (1 - mass))
    return moved / moved.sum()


class _Lookup:
    """Drafts what the case guesses."""

    name = "lookup"

    def __init__(self, case: Case) -> None:
        self._case = case

    def start(self, seq: TokenSequence, sampler: Sampler) -> None: ...

    def propose(self, seq: TokenSequence, limit: int) -> Draft:
        tokens = tuple(seq.tokens.tolist())
        for _ in range(limit):
            tokens += (self._case.guess(tokens),)
        return Draft(np.array(tokens[seq.n_tokens :], np.int64), self.name)

    def observe(self, committed: Ids, n_accepted: int) -> None: ...

    def close(self) -> None: ...


class _Lengths(Controller):
    """K as the case has it."""

    def __init__(self, case: Case) -> None:
        super().__init__(LONGEST)
        self._case = case

    def draft_length(self, seq: TokenSequence, max_verify: int) -> int:
        length = self._case.draft_length(tuple(seq.tokens.tolist()))
        assert length <= min(LONGEST, seq.draft_limit, max_verify - 1)
        return length


class RealLoop:
    """`specedge.loop.decode` on a case: engines, slots and proposers are made once, sequence and
    sampler anew for each sample."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case = case
        self.seed = seed
        spec = fake_spec(VOCAB, CONTEXT)
        self._target = FakeEngine(spec, scores=case.scores("target"))
        self._slot = self._target.new_slot()
        self._draft = FakeEngine(
            fake_spec(VOCAB, CONTEXT, role="draft"), scores=case.scores("draft")
        )
        proposers: dict[str, list[Proposer]] = {
            "model": [DraftModelProposer(self._draft)],
            "lookup": [_Lookup(case)],
            "nobody": [],
        }
        mode: Literal["on", "off"] = "off" if case.drafts == "nobody" else "on"
        self._speculator = Speculator(proposers[case.drafts], _Lengths(case), mode=mode)

    def outcome(self, sample: int) -> int:
        """Of one sample, by `code`."""
        seq = TokenSequence(PROMPT, context=CONTEXT, max_tokens=CONTEXT)
        sampler = make_sampler(
            self.case.params, seq, vocab=VOCAB, end_ids=END_IDS, seed=self.seed, sample=sample
        )
        rounds = decode(seq, self._target, self._slot, self._speculator, Metrics(), sampler=sampler)
        while seq.n_generated <= COUNTED:
            next(rounds)
        rounds.close()
        assert seq.tokens[len(PROMPT)] == START[-1], "a case must not ban the certain token"
        self._target.calls.clear()
        self._draft.calls.clear()
        return code(seq.generated[1:].tolist())

    def counts(self, n: int) -> npt.NDArray[np.int64]:
        """How often each outcome occurs in samples 0..n - 1: int64 [V^COUNTED]."""
        outcomes = [self.outcome(sample) for sample in range(n)]
        return np.bincount(outcomes, minlength=VOCAB**COUNTED)

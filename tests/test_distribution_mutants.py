"""Faults that speculative sampling is prone to, planted in the real code: the checks must fail.

Each is one thing wrong in a case where it shows; the same case with nothing wrong passes with the
same seed and number of samples. Biases are in total variation over the next 3 tokens (measured
with other samples, 1,000,000 and 20,000); the last column is Pearson's statistic in units of its
limit:

    fault                                     case               samples  bias  statistic
    residual drawn with the accept draw       rejection           50,000  0.22       422
    accept drawn with the draft's draw        rejection           50,000  0.22       263
    draws keyed by absolute position          block               50,000  0.06        25
    next token from p, not from the residual  rejection           50,000  0.22       149
    next token from p, not from the residual  block               50,000  0.21       116
    residual not normalised                   rejection           50,000  0.23       410
    bonus from q                              rejection, K = 1    50,000  0.66      1397
    bonus from q                              block, K = 2        50,000  0.10        55
    q from before the processors              rejection, top-k     3,000  0.10       6.5
    q from before the processors              block, top-k         3,000  0.12       8.9
    the target's rows one too early           rejection            3,000  0.56        78
    the target's rows one too late            block                3,000  0.58       249
    penalties without the drafted tokens      block, penalties     3,000  0.19       8.7
    noise without position                    coupled              3,000  0.62        87

The last six are in code that only the real loop runs. The others are counted in the vector loop,
and the real loop with the same fault must give the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from specedge.acceptance import BLOCK, REJECTION, RoundDraws
from specedge.acceptance.residual import residual
from specedge.acceptance.thresholds import Laws
from specedge.contract import Ids
from specedge.engines.base import Scored
from specedge.randomness import Randomness, Stream
from specedge.sampling.history import History
from specedge.sampling.law import Law
from specedge.sampling.params import SamplingParams
from specedge.sampling.sampler import ProcessedSampler
from tests.distribution_cases import Case, RealLoop, follows
from tests.vector_rounds import SampleDraws, VectorLoop, counts

Patch = Callable[[pytest.MonkeyPatch], None]

SEED = 35
VECTOR_SAMPLES = 50_000
REAL_SAMPLES = 3_000


def case(name: str, params: SamplingParams, k: int = 3) -> Case:
    """A draft that is often wrong, so that every path of a round is often taken."""
    return Case(name, params, tables=35, draft_length=lambda tokens: k, distance=1.5)


REJECTING = SamplingParams(acceptance="rejection", temperature=1.2)
BLOCKING = replace(REJECTING, acceptance="block")

REJECTION_3 = case("rejection", REJECTING)
REJECTION_1 = case("rejection, K = 1", REJECTING, k=1)
REJECTION_TOP = case("rejection, top-k", replace(REJECTING, top_k=2))
BLOCK_3 = case("block", BLOCKING)
BLOCK_2 = case("block, K = 2", BLOCKING, k=2)
BLOCK_TOP = case("block, top-k", replace(BLOCKING, top_k=2))
BLOCK_PENALTIES = case("block, penalties", replace(BLOCKING, frequency_penalty=1.5))
COUPLED_3 = case("coupled", replace(REJECTING, acceptance="coupled"))


def residual_with_the_accept_draw(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RoundDraws, "residual", RoundDraws.accept)


def accept_with_the_draft_draw(patch: pytest.MonkeyPatch) -> None:
    def accept(self: RoundDraws, index: int) -> float:
        return self.randomness.uniform(Stream.DRAFT, self.position, index)

    patch.setattr(RoundDraws, "accept", accept)


def absolute_positions(patch: pytest.MonkeyPatch) -> None:
    """A round's draw for place i is the draw of position + i, whichever round asks for it."""
    for kind in (Randomness, SampleDraws):
        uniform = kind.uniform

        def absolute(self, stream, position, index=0, uniform=uniform):
            return uniform(self, stream, position + index, 0)

        patch.setattr(kind, "uniform", absolute)


def q_before_processors(patch: pytest.MonkeyPatch) -> None:
    choose = ProcessedSampler.choose

    def raw(self: ProcessedSampler, scored: Scored, drafted: Ids) -> tuple[int, Law | None]:
        token, _ = choose(self, scored, drafted)
        return token, Law(None, scored.logits[0].copy())

    patch.setattr(ProcessedSampler, "choose", raw)


def next_token_from_p(patch: pytest.MonkeyPatch) -> None:
    for rule in (REJECTION, BLOCK):
        patch.setattr(type(rule), "next_law", lambda self, draft, p, q, n: p[n])


def residual_not_normalised(patch: pytest.MonkeyPatch) -> None:
    """A draw above the residual's mass runs past its end: the last id gets what is missing."""

    def next_law(self: object, draft: Ids, p: Laws, q: Laws, n: int) -> Law:
        if n == len(draft):
            return p[n]
        weights = residual(p[n], q[n]).weights / q[n].total
        weights[-1] += 1 - weights.sum()
        return Law.of(weights)

    patch.setattr(type(REJECTION), "next_law", next_law)


def bonus_from_q(patch: pytest.MonkeyPatch) -> None:
    for rule in (REJECTION, BLOCK):
        right = type(rule).next_law

        def next_law(self, draft, p, q, n, right=right):
            return q[-1] if 0 < n == len(draft) else right(self, draft, p, q, n)

        patch.setattr(type(rule), "next_law", next_law)


def rows_off_by(step: int) -> Patch:
    def plant(patch: pytest.MonkeyPatch) -> None:
        target_law = ProcessedSampler.target_law

        def moved(self: ProcessedSampler, scored: Scored, draft: Ids, row: int) -> Law:
            rows = np.clip(np.arange(len(scored.logits)) + step, 0, len(scored.logits) - 1)
            wrong = Scored(scored.greedy_ids, scored.logits[rows], scored.run_ms)
            return target_law(self, wrong, draft, row)

        patch.setattr(ProcessedSampler, "target_law", moved)

    return plant


def drafted_tokens_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(History, "push", lambda self, token: None)


def noise_without_position(patch: pytest.MonkeyPatch) -> None:
    uniforms = Randomness.uniforms

    def everywhere(self, stream, position, start, count):
        return uniforms(self, stream, 0, start, count)

    patch.setattr(Randomness, "uniforms", everywhere)


@dataclass(frozen=True)
class Fault:
    name: str
    plant: Patch
    case: Case


VECTOR_FAULTS = [
    Fault("residual with the accept draw", residual_with_the_accept_draw, REJECTION_3),
    Fault("accept with the draft draw", accept_with_the_draft_draw, REJECTION_3),
    Fault("absolute positions", absolute_positions, BLOCK_3),
    Fault("next token from p", next_token_from_p, REJECTION_3),
    Fault("next token from p", next_token_from_p, BLOCK_3),
    Fault("residual not normalised", residual_not_normalised, REJECTION_3),
    Fault("bonus from q", bonus_from_q, REJECTION_1),
    Fault("bonus from q", bonus_from_q, BLOCK_2),
]
REAL_FAULTS = [
    Fault("q before processors", q_before_processors, REJECTION_TOP),
    Fault("q before processors", q_before_processors, BLOCK_TOP),
    Fault("rows one too early", rows_off_by(-1), REJECTION_3),
    Fault("rows one too late", rows_off_by(1), BLOCK_3),
    Fault("penalties without the draft", drafted_tokens_not_counted, BLOCK_PENALTIES),
    Fault("noise without position", noise_without_position, COUPLED_3),
]


def cases_of(faults: list[Fault]) -> list[Case]:
    return list(dict.fromkeys(fault.case for fault in faults))


def named(thing: Fault | Case) -> str:
    return thing.name if isinstance(thing, Case) else f"{thing.name}, {thing.case.name}"


@pytest.mark.parametrize("fault", VECTOR_FAULTS, ids=named)
def test_a_fault_in_rules_or_keys_is_caught(fault, monkeypatch):
    fault.plant(monkeypatch)
    assert not follows(fault.case.outcomes, counts(fault.case, SEED, VECTOR_SAMPLES))


@pytest.mark.parametrize("fault", VECTOR_FAULTS, ids=named)
def test_the_real_loop_has_the_fault_that_is_counted_in_the_vector_loop(fault, monkeypatch):
    n = 200
    right = VectorLoop(fault.case, SEED, n).run().tolist()
    fault.plant(monkeypatch)
    real = RealLoop(fault.case, SEED)
    wrong = [real.outcome(sample) for sample in range(n)]
    assert wrong == VectorLoop(fault.case, SEED, n).run().tolist()
    assert wrong != right


@pytest.mark.parametrize("case", cases_of(VECTOR_FAULTS), ids=named)
def test_without_a_fault_the_vector_loop_passes(case):
    assert follows(case.outcomes, counts(case, SEED, VECTOR_SAMPLES))


@pytest.mark.parametrize("fault", REAL_FAULTS, ids=named)
def test_a_fault_in_the_sampler_is_caught(fault, monkeypatch):
    fault.plant(monkeypatch)
    assert not follows(fault.case.outcomes, RealLoop(fault.case, SEED).counts(REAL_SAMPLES))


@pytest.mark.parametrize("case", cases_of(REAL_FAULTS), ids=named)
def test_without_a_fault_the_real_loop_passes(case):
    assert follows(case.outcomes, RealLoop(case, SEED).counts(REAL_SAMPLES))

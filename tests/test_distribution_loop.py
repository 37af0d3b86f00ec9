"""The real scalar loop: 3 cases, 20,000 samples each, and sample by sample beside the vector loop.

Engines are tables; sequence, sampler, draft model, rules and randomness are the real ones, one
object for each sample as in a request. Each case leaves 3 tokens at every place, so a bias of 0.03
in total variation is caught with 99 %; see `distribution_cases`. Seeds were fixed with the cases.
"""

from __future__ import annotations

import numpy as np
import pytest

from specedge.sampling.params import SamplingParams
from tests.distribution_cases import VOCAB, Case, RealLoop, biased, follows
from tests.test_distribution_vector import CASES as VECTOR_CASES
from tests.vector_rounds import VectorLoop

SAMPLES = 20_000

CASES = [
    Case(
        "rejection, draft model, top-k",
        SamplingParams(acceptance="rejection", temperature=0.9, top_k=3),
        tables=21,
    ),
    Case(
        "block, draft model, penalties, top-k",
        SamplingParams(acceptance="block", temperature=1.0, frequency_penalty=0.5, top_k=3),
        tables=22,
    ),
    Case(
        "coupled, draft model, a banned token",
        SamplingParams(acceptance="coupled", temperature=1.0, banned_tokens=(1,)),
        tables=23,
        draft_length=lambda tokens: 2,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_next_three_tokens_follow_the_target(case):
    assert (case.outcomes > 0).sum() == 27
    assert follows(case.outcomes, RealLoop(case, seed=case.tables).counts(SAMPLES))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bias_of_three_percent_is_caught_99_times_in_100(case):
    rng = np.random.default_rng(3)
    wrong = biased(case.outcomes, 0.03, rng)
    assert abs(wrong - case.outcomes).sum() / 2 == pytest.approx(0.03)
    draws = rng.multinomial(SAMPLES, wrong, size=1000)
    assert sum(not follows(case.outcomes, counted) for counted in draws) >= 990


@pytest.mark.parametrize("case", [*VECTOR_CASES, *CASES], ids=lambda case: case.name)
def test_the_vector_loop_gives_the_tokens_of_the_real_one(case):
    n = 300
    real = RealLoop(case, seed=5)
    assert [real.outcome(sample) for sample in range(n)] == VectorLoop(case, 5, n).run().tolist()


@pytest.mark.parametrize("case", [*VECTOR_CASES, *CASES], ids=lambda case: case.name)
def test_the_law_to_compare_with_is_one(case):
    assert case.outcomes.shape == (VOCAB**3,)
    assert case.outcomes.sum() == pytest.approx(1, abs=1e-12)

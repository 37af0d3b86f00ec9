"""A law against sums and inverse distribution functions in plain numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specedge.sampling.law import WIDE, Law
from specedge.sampling.scratch import Scratch
from tests import oracle_rules as oracle

EDGES = [2.0**-53, 1e-300, 1e-9, 0.5, 1 - 1e-9, 1 - 2.0**-53]


def weights_of(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Integers: their sums are exact in any order."""
    weights = rng.integers(1, 50, n).astype(float)
    if kind == "zeros":
        weights *= rng.random(n) < 0.3
    elif kind == "zeros at the ends of blocks":
        weights[np.arange(n) % 256 > 200] = 0
        weights[np.arange(n) % 256 < 20] = 0
    elif kind == "blocks of zeros":
        weights *= rng.random(n // 256 + 1)[np.arange(n) // 256] < 0.4
    elif kind == "zeros at the end":
        weights[n // 2 + 1 :] = 0
    elif kind == "one":
        weights[:] = 0
    if not weights.any():
        weights[rng.integers(n)] = 3
    return weights


KINDS = [
    "positive",
    "zeros",
    "zeros at the ends of blocks",
    "blocks of zeros",
    "zeros at the end",
    "one",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 255, 256, 257, 512, 513, 1000, 3000])
def test_a_draw_is_the_inverse_of_the_cumulative_distribution(kind, n):
    rng = np.random.default_rng(n)
    for _ in range(3):
        weights = weights_of(kind, n, rng)
        dense, ids = Law.of(weights), np.sort(rng.choice(5000, n, replace=False))
        sparse = Law.of(weights, ids)
        for uniform in [*EDGES, *rng.random(12).tolist()]:
            place = oracle.inverse_cdf(weights.tolist(), uniform)
            assert dense.sample(uniform) == place
            assert sparse.sample(uniform) == ids[place]


@pytest.mark.parametrize("n", [3, 256, 300, 1100])
def test_a_draw_at_a_step_of_the_distribution_takes_the_id_above_it(n):
    rng = np.random.default_rng(n)
    weights = rng.multinomial(2**12, np.ones(n) / n).astype(float)
    law, steps = Law.of(weights), (weights.cumsum() / 2**12).tolist()
    for step in steps[:-1]:
        if 0 < step < 1:
            assert law.sample(step) == oracle.inverse_cdf(weights.tolist(), step)
            below = np.nextafter(step, 0)
            assert law.sample(below) == oracle.inverse_cdf(weights.tolist(), below)


@pytest.mark.parametrize("spread", [1.0, 12.0, 300.0])
def test_no_draw_takes_an_id_without_weight_however_sums_are_rounded(spread):
    rng = np.random.default_rng(int(spread))
    for _ in range(300):
        n = int(rng.integers(1, 1500))
        weights = np.exp(np.clip(rng.normal(size=n) * spread, -700, 600)) * (rng.random(n) < 0.5)
        weights[rng.integers(n)] = 1.0
        law = Law.of(weights)
        sums = law.sums / law.total
        near = np.concatenate([sums, np.nextafter(sums, 0), np.nextafter(sums, 1), EDGES])
        for uniform in near[(near > 0) & (near < 1)].tolist():
            assert weights[law.sample(uniform)] > 0


def test_draws_follow_the_weights_evenly():
    weights = np.random.default_rng(1).random(700)
    law, n = Law.of(weights), 20_000
    drawn = [law.sample((i + 0.5) / n) for i in range(n)]
    assert drawn == sorted(drawn)
    counts = np.bincount(drawn, minlength=700)
    assert np.abs(counts - n * weights / weights.sum()).max() <= 1


def test_probabilities_and_total_of_dense_weights():
    weights = np.array([0.5, 0.0, 3.0, 0.5])
    law = Law.of(weights)
    assert law.total == 4.0
    assert [law.probability(token) for token in range(4)] == [0.125, 0.0, 0.75, 0.125]
    assert law.probability(4) == law.probability(1000) == 0.0
    assert law.size == 4
    assert law.dense(6).tolist() == [0.125, 0.0, 0.75, 0.125, 0.0, 0.0]
    assert law.likeliest == 2


def test_an_id_that_is_not_among_them_has_probability_0():
    law = Law.of(np.array([1.0, 2.0, 1.0]), np.array([3, 10, 11]))
    assert [law.probability(token) for token in (0, 2, 3, 4, 9, 10, 11, 12, 99)] == [
        0, 0, 0.25, 0, 0, 0.5, 0.25, 0, 0,
    ]  # fmt: skip
    assert law.dense(12).nonzero()[0].tolist() == [3, 10, 11]
    assert law.likeliest == 10


def test_a_certain_token_is_always_drawn():
    law = Law.certain(7)
    assert [law.sample(uniform) for uniform in EDGES] == [7] * len(EDGES)
    assert law.probability(7) == 1.0
    assert law.probability(0) == 0.0


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("n", [1, 5, 256, 2000])
@pytest.mark.parametrize("known_top", [True, False])
def test_logits_and_a_scale_give_the_softmax(scale, n, known_top):
    logits = (np.random.default_rng(n).normal(size=n) * 5).astype(np.float32)
    logits[1::7] = -np.inf
    top = float(logits.max())
    law = Law(None, logits, scale, top=top if known_top else None)
    powers = [math.exp(scale * (value - top)) for value in logits.tolist()]
    whole = math.fsum(powers)
    np.testing.assert_allclose(law.dense(n), np.array(powers) / whole, rtol=1e-13, atol=0)
    assert law.total == pytest.approx(whole, rel=1e-13)
    for token in range(0, n, 13):
        assert law.probability(token) == pytest.approx(powers[token] / whole, rel=1e-13)


def test_weights_are_made_once_when_they_are_first_looked_at():
    made = []

    class Made(Scratch):
        def floats(self, n: int) -> np.ndarray:
            made.append(n)
            return np.empty(n)

    law = Law(None, np.zeros(9, np.float32), 1.0, buffers=Made())
    assert (law.size, law.likeliest, len(law.logits)) == (9, 0, 9)
    assert made == []
    assert law.probability(2) == pytest.approx(1 / 9)
    law.sample(0.5)
    assert law.total == 9
    assert made == [9]


def test_logits_of_weights_give_the_same_law():
    weights = np.array([0.25, 0.0, 2.0])
    again = Law(None, Law.of(weights).logits)
    np.testing.assert_allclose(again.dense(3), weights / 2.25, rtol=1e-15)


def test_sums_are_those_of_the_blocks():
    weights = np.arange(600.0)
    assert Law.of(weights).sums.tolist() == [
        weights[:256].sum(), weights[:512].sum(), weights.sum(),
    ]  # fmt: skip


def test_a_whole_vocabulary_has_single_weights_and_double_sums():
    logits = (np.random.default_rng(3).normal(size=WIDE + 905) * 4).astype(np.float32)
    law = Law(None, logits, 1.25)
    assert law.weights.dtype == np.float32
    powers = np.exp((logits.astype(np.float64) - logits.max()) * 1.25)
    np.testing.assert_allclose(law.weights, powers, rtol=2e-5, atol=1e-37)
    assert law.total == pytest.approx(math.fsum(law.weights.tolist()), rel=1e-14)
    assert law.dense(len(logits)).sum() == pytest.approx(1, rel=1e-13)
    assert Law(None, logits[:WIDE], 1.25).weights.dtype == np.float64
    assert Law(None, logits.astype(np.float64), 1.25).weights.dtype == np.float64


def test_logits_at_the_ends_of_float32_give_no_warning():
    logits = np.full(WIDE + 1, -np.finfo(np.float32).max, np.float32)
    logits[7], logits[9] = np.finfo(np.float32).max, -np.inf
    for scale in (1.0, 1e6):
        assert Law(None, logits, scale).probability(7) == 1.0

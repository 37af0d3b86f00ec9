"""The exponential race: its noise is iid, its winner follows p, and its text is the target's."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from specedge.acceptance import Verdict, coupled, race
from specedge.acceptance.coupling import arrival
from specedge.randomness import Randomness
from specedge.sampling.law import Law
from tests import oracle_rules as oracle
from tests.chi_square import p_value

SEED = 77


def survival(times: list[float], rate: float) -> float:
    """P(E_i > times[i] for all i) of the top-down construction for one group, integrated exactly.

    Given first arrival f at place w, which has density rate e^(-rate f) / g, E_w passes iff
    f > t_w and each other id with probability min(1, e^(f - t_i)): an exponential between any two
    neighbouring t.
    """
    group = len(times)
    edges = sorted({0.0, *times})
    parts = []
    for place in range(group):
        others = times[:place] + times[place + 1 :]
        for low, high in zip(edges, [*edges[1:], math.inf], strict=True):
            if low < times[place]:
                continue
            behind = [t for t in others if t > low]
            slope = rate - len(behind)
            whole = math.fsum(behind)
            last = math.exp(-slope * high - whole) if high < math.inf else 0.0
            parts.append(rate / group / slope * (math.exp(-slope * low - whole) - last))
    return math.fsum(parts)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 7])
def test_arrivals_of_a_group_are_independent_exponentials(group):
    rng = np.random.default_rng(group)
    for _ in range(300):
        times = rng.exponential(size=group) * (rng.random(group) < 0.8)  # 0: an id not asked about
        if rng.random() < 0.3:
            times[:] = times[0]
        joint = survival(times.tolist(), group)
        assert joint == pytest.approx(math.exp(-math.fsum(times)), abs=1e-12)


def test_arrivals_of_a_group_of_256_are_independent_exponentials():
    times = np.random.default_rng(0).exponential(size=oracle.GROUP) / 100
    joint = survival(times.tolist(), oracle.GROUP)
    assert joint == pytest.approx(math.exp(-math.fsum(times)), abs=1e-12)


def test_a_first_arrival_of_another_rate_would_not_do():
    assert survival([0.3, 0.5, 0.1], 2.999) != pytest.approx(math.exp(-0.9), abs=1e-6)


def test_the_oracles_arrivals_are_what_the_integral_is_about():
    rng = np.random.default_rng(4)
    drawn = np.array([oracle.arrivals(3, lambda _: rng.random(), 3) for _ in range(20_000)])
    for times in ([0.4, 0.0, 0.0], [0.0, 0.7, 0.2], [0.5, 0.1, 0.3]):
        passed = (drawn > times).all(axis=1).mean()
        assert passed == pytest.approx(survival(times, 3), abs=4 * 0.5 / 20_000**0.5)


@cache
def arrivals(position: int, vocab: int = 2000) -> list[float]:
    return oracle.arrivals(
        vocab, lambda index: oracle.uniform(SEED, 0, oracle.COUPLED, position, index)
    )


def softmax(logits: np.ndarray, scale: float) -> list[float]:
    values = (logits.astype(float) - float(logits.max())) * scale
    return np.exp(values).tolist()


@pytest.mark.parametrize("kind", ["flat", "normal", "peaked", "ties", "few left"])
def test_a_race_is_won_by_the_smallest_arrival_over_probability(kind):
    rng = np.random.default_rng(["flat", "normal", "peaked", "ties", "few left"].index(kind))
    randomness = Randomness(SEED)
    for number in range(500):
        position = number % 6
        vocab = int(rng.choice([1, 2, 5, 255, 256, 257, 700, 1024, 2000, rng.integers(1, 2001)]))
        logits = rng.normal(size=vocab).astype(np.float32)
        if kind == "flat":
            logits *= 0.01
        elif kind == "peaked":
            logits *= 30
        elif kind == "ties":
            logits = np.round(logits)
        elif kind == "few left":
            logits[rng.random(vocab) < 0.97] = -np.inf
            logits[rng.integers(vocab)] = 1.0
        scale = float(rng.choice([0.5, 1.0, 3.0]))
        chances = softmax(logits, scale)
        expected = oracle.winner(chances, arrivals(position)[:vocab])
        assert race(Law(None, logits, scale), randomness, position) == expected
        ids = np.isfinite(logits).nonzero()[0]
        assert race(Law(ids, logits[ids], scale), randomness, position) == expected
        assert race(Law.of(np.array(chances)), randomness, position) == expected
        some = np.unique(np.append(rng.choice(vocab, min(vocab, 40)), expected))
        # what a processor takes away, without the winner, changes nothing
        assert race(Law(some, logits[some], scale), randomness, position) == expected


def test_a_race_of_sparse_ids_far_apart():
    rng = np.random.default_rng(8)
    for number in range(200):
        ids = np.unique(rng.integers(0, 150_000, int(rng.integers(1, 40))))
        weights = rng.random(len(ids))
        position = number % 6

        def noise(index: int, position: int = position) -> float:
            return oracle.uniform(SEED, 0, oracle.COUPLED, position, index)

        best, token = math.inf, -1
        for chosen, weight in zip(ids.tolist(), weights.tolist(), strict=True):
            # oracle.arrivals for one id, so that 150,000 of them need not be made
            group = chosen // oracle.GROUP
            first = -math.log(noise(oracle.GROUPS_FROM + 2 * group)) / oracle.GROUP
            place = math.floor(oracle.GROUP * noise(oracle.GROUPS_FROM + 2 * group + 1))
            is_first = chosen == group * oracle.GROUP + place
            time = first if is_first else first - math.log(noise(chosen))
            if time / weight < best:
                best, token = time / weight, chosen
        assert race(Law.of(weights, ids), Randomness(SEED), position) == token


def test_every_arrival_is_the_oracles_to_nine_digits():
    rng = np.random.default_rng(6)
    randomness = Randomness(SEED)
    for position in range(6):
        times = arrivals(position)
        # the first of each group, at the place that is drawn, and others
        firsts = [min(range(at, at + 256), key=times.__getitem__) for at in range(0, 1792, 256)]
        for _ in range(60):
            pool = [*firsts, *rng.integers(0, 2000, 8).tolist()]
            one, other = np.sort(rng.choice(np.unique(pool), 2, replace=False)).tolist()
            even = times[other] / times[one]  # with weights 1 and this, both score the same
            ids = np.array([one, other])
            more, less = np.array([1.0, even * (1 + 1e-9)]), np.array([1.0, even * (1 - 1e-9)])
            assert race(Law.of(more, ids), randomness, position) == other
            assert race(Law.of(less, ids), randomness, position) == one


@pytest.mark.parametrize("position", range(6))
def test_the_arrival_of_one_id_is_the_one_that_races(position):
    times = arrivals(position)
    firsts = [min(range(at, at + 256), key=times.__getitem__) for at in range(0, 1792, 256)]
    for token in [*firsts, *range(0, 2000, 37)]:
        found = arrival(Randomness(SEED), position, token)
        assert found == pytest.approx(times[token], rel=1e-14)


def test_the_least_temperature_is_the_argmax():
    logits = np.random.default_rng(1).normal(size=600).astype(np.float32)
    for position in range(50):
        assert race(Law(None, logits, 1e200), Randomness(SEED), position) == logits.argmax()
    logits[[300, 40, 41]] = 9.0  # the noise is below their last digit: the lowest id
    for position in range(50):
        assert race(Law(None, logits, 1e200), Randomness(SEED), position) == 40


@pytest.mark.parametrize(
    ("vocab", "seed"),
    [
        (4, 0),  # 99 % power for a total-variation bias of 0.026
        (600, 1),  # of 0.055; three groups, the last of them partial
    ],
)
def test_a_race_follows_p(vocab, seed):
    p = np.random.default_rng(vocab).dirichlet(np.ones(vocab))
    law, randomness = Law.of(p), Randomness(seed)
    tokens = np.array([race(law, randomness, position) for position in range(20_000)])
    assert p_value(tokens, p) > 1e-4


def agreement(p: np.ndarray, q: np.ndarray) -> float:
    """P(both races are won by the same id): x wins both iff E_x is below E_y min(p_x / p_y,
    q_x / q_y) for all y."""
    return sum(
        1 / float(np.maximum(p / p[x], q / q[x]).sum()) for x in range(len(p)) if p[x] * q[x] > 0
    )


@pytest.mark.parametrize("closeness", [0.0, 0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("vocab", [2, 5, 300])
def test_a_draft_with_the_same_noise_agrees_as_often_as_theory_says(vocab, closeness):
    rng = np.random.default_rng([vocab, int(100 * closeness)])
    p = rng.dirichlet(np.ones(vocab))
    q = closeness * p + (1 - closeness) * rng.dirichlet(np.ones(vocab))
    distance = 0.5 * float(np.abs(p - q).sum())
    exact = agreement(p, q)
    assert exact >= (1 - distance) / (1 + distance) - 1e-12
    n, randomness = 2000, Randomness(3)
    target, draft = Law.of(p), Law.of(q)
    same = sum(race(target, randomness, t) == race(draft, randomness, t) for t in range(n))
    assert same / n == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / n) + 1e-9)


Text = tuple[int, ...]


def table(seed: int, vocab: int = 8) -> Callable[[Text], Law]:
    """A law for each two last tokens."""

    @cache
    def after(last: Text) -> Law:
        return Law.of(np.random.default_rng([seed, *last]).exponential(size=vocab) ** 3)

    return lambda text: after(text[-2:])


def rounds(n: int, draft_of: Callable[[Text, int], list[int]], seed: int) -> tuple[Text, int]:
    """n tokens of `table(1)` by rounds, and how many were accepted."""
    target, randomness = table(1), Randomness(SEED)
    schedule = np.random.default_rng(seed)
    text: Text = (0, 0)
    accepted = 0
    while len(text) < n:
        draft = draft_of(text, int(schedule.integers(0, 6)))
        p = [target((*text, *draft[:i])) for i in range(len(draft) + 1)]
        verdict = coupled(np.array(draft, np.int64), p, randomness, len(text))
        accepted += verdict.n_accepted
        text = (*text, *draft[: verdict.n_accepted], verdict.next_token)
    return text[:n], accepted


def test_any_draft_of_any_length_gives_the_same_text():
    plain, _ = rounds(120, lambda text, k: [], 0)
    assert len(set(plain)) > 4
    rng, randomness = np.random.default_rng(5), Randomness(SEED)
    draft_model = table(2)

    def at_random(text: Text, k: int) -> list[int]:
        return rng.integers(0, 8, k).tolist()

    def drawn(law_after: Callable[[Text], Law]) -> Callable[[Text, int], list[int]]:
        def draft(text: Text, k: int) -> list[int]:
            start = len(text)
            for _ in range(k):
                text = (*text, race(law_after(text), randomness, len(text)))
            return list(text[start:])

        return draft

    kept = {}
    for name, draft_of in {
        "random": at_random,
        "another model": drawn(draft_model),
        "the target": drawn(table(1)),
    }.items():
        for seed in range(6):
            text, kept[name] = rounds(120, draft_of, seed)
            assert text == plain
    assert 0 < kept["random"] < kept["another model"] < kept["the target"]


def test_seed_and_sample_give_other_texts():
    law = Law.of(np.ones(50))
    texts = {
        tuple(race(law, Randomness(seed, sample), position) for position in range(8))
        for seed in (0, 1, 2**64 - 1)
        for sample in (0, 1)
    }
    assert len(texts) == 6


def test_a_draft_that_is_all_the_targets_own_gains_one_more_token():
    law = Law.of(np.ones(30))
    own = [race(law, Randomness(SEED), 10 + i) for i in range(5)]
    got = coupled(np.array(own[:4], np.int64), [law] * 5, Randomness(SEED), 10)
    assert got == Verdict(4, own[4])

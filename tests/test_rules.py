"""Each rule against its oracle: the same draws must give the same verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import pytest

from specedge.acceptance import (
    RoundDraws,
    Verdict,
    accept_chosen,
    accept_greedy,
    accept_greedy_ids,
    block,
    coupled,
    race,
    rejection,
)
from specedge.randomness import Randomness
from specedge.sampling.law import Law
from tests import oracle, oracle_rules
from tests import rule_cases as make

RULES = {"rejection": (rejection, oracle_rules.rejection), "block": (block, oracle_rules.block)}
SEED = 20_230_211

noise = lru_cache(maxsize=None)(oracle_rules.uniform)


def draw(position: int):
    """The draws of a round, for the oracle."""
    return lambda stream, index: noise(SEED, 0, stream, position, index)


def times(vocab: int, position: int) -> list[float]:
    """E of all ids at a position, for the oracle."""
    return oracle_rules.arrivals(
        vocab, lambda index: noise(SEED, 0, oracle_rules.COUPLED, position, index)
    )


def laws(rows: Sequence[make.Row], rng: np.random.Generator, *forms: str) -> list[Law]:
    return [make.law(row, str(rng.choice(forms or make.FORMS)), rng) for row in rows]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("drafts", make.DRAFTS)
@pytest.mark.parametrize("kind", make.KINDS)
def test_a_verdict_is_the_one_of_the_paper(name, kind, drafts):
    rule, plain = RULES[name]
    seed = make.KINDS.index(kind) * 10 + make.DRAFTS.index(drafts)
    rng = np.random.default_rng(seed)
    forms = make.forms(kind)
    for number, case in enumerate(make.cases(kind, drafts, 150, seed)):
        got = rule(
            case.tokens,
            laws(case.p, rng, *forms),
            laws(case.q, rng, *forms),
            RoundDraws(Randomness(SEED), number),
        )
        assert got == plain(*case.plain, draw(number)), case


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("form", make.FORMS[1:])
def test_a_law_in_another_form_gives_the_same_verdict(name, form):
    rule, _ = RULES[name]
    rng = np.random.default_rng(7)
    for number, case in enumerate(make.cases("random", "drawn from q", 400, 8)):
        draws = RoundDraws(Randomness(SEED), number)
        dense = rule(case.tokens, laws(case.p, rng, "dense"), laws(case.q, rng, "dense"), draws)
        assert rule(case.tokens, laws(case.p, rng, form), laws(case.q, rng, form), draws) == dense
        assert (
            rule(case.tokens, laws(case.p, rng, "dense"), laws(case.q, rng, form), draws) == dense
        )
        assert (
            rule(case.tokens, laws(case.p, rng, form), laws(case.q, rng, "dense"), draws) == dense
        )


@pytest.mark.parametrize("name", RULES)
def test_laws_of_float32_logits_and_a_temperature_give_the_verdict_of_their_softmax(name):
    rule, plain = RULES[name]
    rng = np.random.default_rng(9)
    for number in range(600):
        k, vocab, scale = (
            int(rng.integers(0, 5)),
            int(rng.integers(1, 700)),
            float(rng.choice([1, 1.25, 4])),
        )
        logits = rng.normal(0, 3, (2 * k + 1, vocab)).astype(np.float32)
        logits[rng.random(logits.shape) < 0.1] = -np.inf
        logits[:, 0] = 1.0
        rows = [make.normalised(np.exp(row * scale, dtype=float)).tolist() for row in logits]
        draft = [int(rng.choice(vocab, p=row)) for row in rows[k + 1 :]]
        found = [Law(None, row, scale) for row in logits]
        got = rule(
            np.array(draft, np.int64),
            found[: k + 1],
            found[k + 1 :],
            RoundDraws(Randomness(SEED), number),
        )
        assert got == plain(draft, rows[: k + 1], rows[k + 1 :], draw(number))


@pytest.mark.parametrize("drafts", [*make.DRAFTS, "own"])
@pytest.mark.parametrize("kind", make.KINDS)
def test_coupled_takes_what_the_target_draws_itself(kind, drafts):
    seed = 500 + make.KINDS.index(kind)
    rng = np.random.default_rng(seed)
    forms = make.forms(kind)
    how = "anything" if drafts == "own" else drafts
    for number, case in enumerate(make.cases(kind, how, 120, seed)):
        draft, rows, _ = case.plain
        races = [times(len(row), number + i) for i, row in enumerate(rows)]
        if drafts == "own":  # agreement up to a place, or to the end
            own = [oracle_rules.winner(row, race) for row, race in zip(rows, races, strict=True)]
            n = int(rng.integers(0, len(draft) + 2))
            draft = [*own[:n], *draft[n:]][: len(draft)]
        got = coupled(
            np.array(draft, np.int64), laws(case.p, rng, *forms), Randomness(SEED), number
        )
        assert got == oracle_rules.coupled(draft, rows, races), case


@pytest.mark.parametrize("vocab", [1, 2, 5])
def test_greedy_is_the_argmax_of_each_row_however_it_is_asked(vocab):
    rng = np.random.default_rng(vocab)
    for _ in range(1500):
        k = int(rng.integers(0, 8))
        logits = rng.integers(0, 3, (k + 1, vocab)).astype(np.float32)  # ties
        draft = np.where(rng.random(k) < 0.7, logits[:k].argmax(axis=1), rng.integers(0, vocab, k))
        got = accept_greedy(draft, logits)
        assert [*draft[: got.n_accepted].tolist(), got.next_token] == oracle.greedy(draft, logits)
        chosen = np.array([oracle.argmax(row) for row in logits], np.int64)
        assert (
            accept_greedy_ids(draft, chosen)
            == accept_chosen(draft, chosen.tolist().__getitem__)
            == got
        )


class Watched(Sequence[Law]):
    """Rows that can be made, and which were."""

    def __init__(self, rows: list[Law]) -> None:
        self.rows = rows
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> Law:
        self.asked.append(row)
        return self.rows[row]

    def __iter__(self) -> Iterator[Law]:
        raise AssertionError("every row was asked for")


@pytest.mark.parametrize("name", ["rejection", "coupled"])
def test_rows_behind_the_first_refused_token_are_not_made(name):
    rng = np.random.default_rng(13)
    stopped_early = 0
    for number, case in enumerate(make.cases("random", "drawn from q", 400, 14)):
        p = Watched(laws(case.p, rng, "dense"))
        if name == "coupled":
            got = coupled(case.tokens, p, Randomness(SEED), number)
        else:
            q = laws(case.q, rng, "dense")
            got = rejection(case.tokens, p, q, RoundDraws(Randomness(SEED), number))
        assert set(p.asked) == set(range(got.n_accepted + 1))
        assert p.asked == sorted(p.asked)  # a lazy row sees the draft grow
        stopped_early += got.n_accepted + 1 < len(case.draft)
    assert stopped_early > 50


@pytest.mark.parametrize("name", RULES)
def test_a_lookup_is_the_same_as_a_certain_law(name):
    rule, plain = RULES[name]
    rng = np.random.default_rng(15)
    for number, case in enumerate(make.cases("one-hot q", "drawn from q", 600, 16)):
        q = [Law.certain(token) for token in case.draft]
        got = rule(case.tokens, laws(case.p, rng), q, RoundDraws(Randomness(SEED), number))
        assert got == plain(*case.plain, draw(number))


@pytest.mark.parametrize("name", RULES)
def test_p_equal_to_q_keeps_the_whole_draft(name):
    rule, _ = RULES[name]
    rng = np.random.default_rng(17)
    for number, case in enumerate(make.cases("p = q", "drawn from q", 500, 18)):
        q = laws(case.p[:-1], rng, "dense")
        got = rule(case.tokens, laws(case.p, rng, "dense"), q, RoundDraws(Randomness(SEED), number))
        assert got.n_accepted == len(case.draft)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("outside", ["outside p", "outside q"])
def test_a_token_that_p_or_q_cannot_give_is_never_kept(name, outside):
    rule, _ = RULES[name]
    rng = np.random.default_rng(19)
    for number, case in enumerate(make.cases("mixed", outside, 600, 20)):
        got = rule(
            case.tokens,
            laws(case.p, rng, "dense"),
            laws(case.q, rng, "dense"),
            RoundDraws(Randomness(SEED), number),
        )
        kept = range(got.n_accepted)
        assert all(case.p[i][case.draft[i]] > 0 and case.q[i][case.draft[i]] > 0 for i in kept)
        assert case.p[got.n_accepted][got.next_token] > 0


@pytest.mark.parametrize("name", RULES)
def test_a_refused_place_stays_refused_though_a_later_ratio_is_infinite(name):
    rule, _ = RULES[name]
    p = [np.array([1.0, 0.0]), np.array([0.5, 0.5]), np.array([0.5, 0.5])]
    q = [np.array([0.5, 0.5]), np.array([1.0, make.TINY])]
    for number in range(50):
        got = rule(
            np.array([1, 1]),
            [Law.of(row) for row in p],
            [Law.of(row) for row in q],
            RoundDraws(Randomness(SEED), number),
        )
        assert got == Verdict(0, 0)


@pytest.mark.parametrize("name", [*RULES, "coupled"])
def test_a_vocabulary_of_one_and_an_empty_draft(name):
    only, none = [Law.of(np.ones(1))] * 4, np.zeros(0, np.int64)
    two = [Law.of(np.array([0.25, 0.75]))]
    for number in range(40):
        randomness = Randomness(SEED)
        if name == "coupled":
            assert coupled(np.zeros(3, np.int64), only, randomness, number) == (3, 0)
            expected = race(two[0], randomness, number)
            assert coupled(none, two, randomness, number) == (0, expected)
        else:
            rule, _ = RULES[name]
            draws = RoundDraws(randomness, number)
            assert rule(np.zeros(3, np.int64), only, only[:3], draws) == (3, 0)
            bonus = noise(SEED, 0, oracle_rules.BONUS, number, 0)
            assert rule(none, two, [], draws) == (0, int(bonus >= 0.25))

"""The random number contract against Philox4x64-10 in Python integers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge import randomness
from specedge.acceptance import RoundDraws, block, coupled, race, rejection
from specedge.acceptance.coupling import FIRST_DRAW
from specedge.randomness import Randomness, Stream
from specedge.sampling.law import Law
from tests import oracle_rules as oracle

STREAMS = list(Stream)
WORDS = st.one_of(
    st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**32, 2**63, 2**64 - 2, 2**64 - 1])
)
INDEXES = st.one_of(
    st.integers(0, 40), st.integers(0, 2**34), st.sampled_from([2**32 - 1, 2**32, 2**32 + 5])
)


def expected(seed: int, sample: int, stream: int, position: int, start: int, n: int) -> list[float]:
    return [oracle.uniform(seed, sample, stream, position, start + i) for i in range(n)]


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        (
            [0] * 4,
            [0] * 2,
            "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b",
        ),
        (
            [2**64 - 1] * 4,
            [2**64 - 1] * 2,
            "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0",
        ),
        (
            [0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89],
            [0x452821E638D01377, 0xBE5466CF34E90C6C],
            "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6",
        ),
    ],
)
def test_the_oracle_gives_the_known_answers_of_the_paper(counter, key, words):
    assert oracle.philox(counter, key) == [int(word, 16) for word in words.split()]


@given(WORDS, WORDS, st.sampled_from(STREAMS), WORDS, INDEXES)
def test_a_draw_is_philox_at_its_arguments_bit_for_bit(seed, sample, stream, position, index):
    drawn = Randomness(seed, sample).uniform(stream, position, index)
    assert drawn == oracle.uniform(seed, sample, stream, position, index)


@given(WORDS, st.sampled_from(STREAMS), INDEXES, st.integers(0, 70))
def test_many_draws_are_the_single_ones_bit_for_bit(seed, stream, start, count):
    drawn = Randomness(seed, 3).uniforms(stream, 17, start, count)
    assert drawn.dtype == np.float64
    assert drawn.tolist() == expected(seed, 3, stream, 17, start, count)


@pytest.mark.parametrize("start", [0, 1, 2, 3, 255, 256, 2**32 - 2, 2**32 + 5])
@pytest.mark.parametrize("count", [0, 1, 4, 1200])
def test_many_draws_start_and_stop_anywhere_in_a_block(start, count):
    drawn = Randomness(2**64 - 1, 2).uniforms(Stream.COUPLED, 2**40, start, count)
    assert drawn.tolist() == expected(2**64 - 1, 2, 5, 2**40, start, count)


@pytest.mark.parametrize("word", [0, 2**12 - 1, 2**52, 2**64 - 2**12, 2**64 - 1])
def test_every_word_gives_a_draw_strictly_between_0_and_1(monkeypatch, word):
    words = np.full(4, word, np.uint64)
    monkeypatch.setattr(Randomness, "_words", lambda *_: words)
    monkeypatch.setattr(randomness, "_philox", lambda *_: (word,) * 4)
    noise = Randomness(0)
    single, several = noise.uniform(Stream.DRAFT, 0, 0), noise.uniforms(Stream.DRAFT, 0, 0, 4)
    for drawn in (single, *several.tolist()):
        assert 0 < drawn < 1
        assert drawn == ((word >> 12) + 0.5) * 2.0**-52


def test_a_draw_does_not_depend_on_what_was_drawn_before():
    asked = list(itertools.product(STREAMS, [0, 7, 2**33], [0, 1, 5, 2**32 + 1]))
    alone = [Randomness(9, 1).uniform(*arguments) for arguments in asked]
    shared = Randomness(9, 1)
    assert [shared.uniform(*arguments) for arguments in asked] == alone
    for i in np.random.default_rng(0).permutation(len(asked)).tolist():
        shared.uniforms(Stream.COUPLED, i, 3, 50)
        assert shared.uniform(*asked[i]) == alone[i]


def test_two_requests_do_not_disturb_each_other():
    one, other = Randomness(1), Randomness(2)
    mixed = [r.uniform(Stream.ACCEPT, i, 0) for i in range(20) for r in (one, other)]
    assert mixed[0::2] == [oracle.uniform(1, 0, oracle.ACCEPT, i, 0) for i in range(20)]
    assert mixed[1::2] == [oracle.uniform(2, 0, oracle.ACCEPT, i, 0) for i in range(20)]


def test_seed_and_sample_change_every_draw():
    asked = [(stream, position, i) for stream in STREAMS for position in range(5) for i in range(9)]
    drawn = {
        (seed, sample): [Randomness(seed, sample).uniform(*arguments) for arguments in asked]
        for seed in (0, 1, 2**64 - 1)
        for sample in (0, 1, 2**64 - 1)
    }
    values = [value for row in drawn.values() for value in row]
    assert len(set(values)) == len(values) == 9 * len(asked)


def test_different_arguments_never_share_a_word_of_the_generator():
    positions = [0, 1, 2, 3, 4, 5, 255, 256, 2**20, 2**32, 2**64 - 1]
    indexes = [*range(12), 255, 256, 2**20, *range(2**32 - 3, 2**32 + 9), 2**33]
    uses = list(itertools.product([0, 1], [0, 1], STREAMS, positions, indexes))
    assert len({oracle.place(*use) for use in uses}) == len(uses)


class Recorder(Randomness):
    """Keeps what was asked for, by word of the generator."""

    def __init__(self, seed: int, sample: int = 0) -> None:
        super().__init__(seed, sample)
        self.uses: dict[oracle.Place, set[tuple[int, int, int]]] = {}
        self.asked: set[tuple[int, int, int]] = set()

    def _use(self, stream, position, index):
        use = int(stream), position, index
        self.asked.add(use)
        self.uses.setdefault(oracle.place(self.seed, self.sample, *use), set()).add(use)

    def uniform(self, stream, position, index=0):
        self._use(stream, position, index)
        return super().uniform(stream, position, index)

    def uniforms(self, stream, position, start, count):
        for index in range(start, start + count):
            self._use(stream, position, index)
        return super().uniforms(stream, position, start, count)


def test_no_two_uses_by_the_rules_share_a_word_of_the_generator():
    noise = Recorder(5)
    rng = np.random.default_rng(5)
    laws = [Law.of(rng.random(600)) for _ in range(5)]
    for position in (1, 2, 3, 4, 5, 256, 600):
        draft = [law.sample(noise.uniform(Stream.DRAFT, position, i)) for i, law in
                 enumerate(laws[:4])]  # fmt: skip
        tokens = np.array(draft, np.int64)
        draws = RoundDraws(noise, position)
        rejection(tokens, laws, laws[:4], draws)  # p = q: all stands, the bonus is drawn
        rejection(tokens, laws[::-1], laws[:4], draws)
        block(tokens, laws[::-1], laws[:4], draws)
        block(tokens, laws, laws[:4], draws)
        own = np.array([race(laws[i], noise, position + i) for i in range(4)], np.int64)
        assert coupled(own, laws, noise, position).n_accepted == 4
    assert {stream for stream, _, _ in noise.asked} == set(STREAMS)
    assert all(len(purposes) == 1 for purposes in noise.uses.values())
    assert len(noise.uses) == len(noise.asked)
    # ids are below, the draws of groups at and above
    coupled_indexes = {index for stream, _, index in noise.asked if stream == Stream.COUPLED}
    assert set() < {i for i in coupled_indexes if i < FIRST_DRAW} <= set(range(768))
    assert {i - FIRST_DRAW for i in coupled_indexes if i >= FIRST_DRAW} == set(range(6))


def test_the_accept_draw_of_a_position_is_no_other_draw_of_any():
    draws = {
        (stream, position, index): Randomness(11).uniform(stream, position, index)
        for stream in STREAMS
        for position in range(60)
        for index in range(17)
    }
    assert len(set(draws.values())) == len(draws)


def test_a_round_draws_from_its_own_streams():
    draws = RoundDraws(Randomness(3, 4), 21)
    for i in range(6):
        assert draws.accept(i) == oracle.uniform(3, 4, oracle.ACCEPT, 21, i)
        assert draws.residual(i) == oracle.uniform(3, 4, oracle.RESIDUAL, 21, i)
        assert draws.bonus(i) == oracle.uniform(3, 4, oracle.BONUS, 21, i)


@pytest.mark.parametrize("along", ["index", "position"])
def test_draws_are_uniform_and_neighbours_are_not_alike(along):
    noise = Randomness(2026)
    n = 40_000
    if along == "index":
        drawn = noise.uniforms(Stream.COUPLED, 3, 0, n)
    else:
        drawn = np.array([noise.uniform(Stream.ACCEPT, position) for position in range(n)])
    counts = np.histogram(drawn, 64, (0, 1))[0]
    statistic = float(((counts - n / 64) ** 2).sum() / (n / 64))
    assert 20 < statistic < 130  # 63 degrees of freedom: outside once in 10^6
    pairs = np.corrcoef(drawn[:-1], drawn[1:])[0, 1]
    assert abs(pairs) < 5 / n**0.5

"""Counts of tokens, with hypothetical ones on top."""

from collections import Counter

import numpy as np
import pytest

from specedge.sampling.history import History


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def held(history):
    return dict(zip(history.ids.tolist(), history.output_counts.tolist(), strict=True))


def counted(tokens, n_prompt):
    output = Counter(tokens[n_prompt:])
    return {token: float(output[token]) for token in tokens}


def test_prompt_tokens_are_held_but_not_counted():
    history = History()
    history.sync(np.array([5, 5, 9, 7]), 3)
    assert held(history) == {5: 0, 9: 0, 7: 1}
    assert history.ids.dtype == np.int64
    assert history.output_counts.dtype == np.float64


def test_dropping_takes_back_every_pushed_token_and_no_other():
    history = History()
    history.sync(np.array([1, 2, 2]), 1)
    for token in (2, 8, 8, 1, 9):
        history.push(token)
    assert held(history) == {1: 1, 2: 3, 8: 2, 9: 1}
    history.drop()
    assert held(history) == {1: 0, 2: 2}
    history.push(9)
    assert held(history) == {1: 0, 2: 2, 9: 1}


@pytest.mark.parametrize("vocab", [2, 7, 1000])
def test_counts_are_those_of_the_text_however_it_grew(vocab, rng):
    history = History()
    tokens, n_prompt = [], 0
    for _ in range(600):
        case = rng.integers(0, 12)
        if case == 0:  # another request
            n_prompt = int(rng.integers(0, 5))
            tokens = rng.integers(0, vocab, n_prompt).tolist()
        elif case == 1 and len(tokens) > n_prompt:  # one that ended earlier
            del tokens[-1]
        tokens += rng.integers(0, vocab, rng.integers(0, 5)).tolist()
        history.sync(np.array(tokens, np.int64), n_prompt)
        assert held(history) == counted(tokens, n_prompt)
        drafted = rng.integers(0, vocab, rng.integers(0, 4)).tolist()
        for token in drafted:
            history.push(token)
        assert held(history) == counted(tokens + drafted, n_prompt)


def test_another_text_of_the_same_length_is_noticed():
    history = History()
    history.sync(np.array([1, 2, 3]), 1)
    history.sync(np.array([1, 4, 3]), 1)
    assert held(history) == {1: 0, 4: 1, 3: 1}


def test_the_same_text_with_a_longer_prompt_is_counted_again():
    history = History()
    history.sync(np.array([1, 2, 3]), 1)
    history.sync(np.array([1, 2, 3]), 2)
    assert held(history) == {1: 0, 2: 0, 3: 1}


def test_tokens_are_copied_from_the_sequence_that_lends_them():
    tokens = np.array([1, 2, 3])
    history = History()
    history.sync(tokens, 1)
    tokens[:] = 7
    history.sync(tokens, 1)
    assert held(history) == {7: 2}


def test_an_empty_text_has_no_ids():
    history = History()
    history.sync(np.array([], np.int64), 0)
    assert held(history) == {}

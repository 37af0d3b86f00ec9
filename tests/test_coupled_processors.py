"""Behind every processor the coupled text is the target's own, whatever was drafted."""

from __future__ import annotations

import numpy as np
import pytest

from specedge.acceptance import coupled, race
from specedge.randomness import Randomness
from specedge.sampling.params import SamplingParams
from tests import oracle_rules as oracle
from tests.processed import PROCESSORS, VOCAB, Model, Tokens

SEED = 41
LENGTH = 40


def plain(target: Model) -> Tokens:
    """One token at a time, each the winner of the whole race."""
    text: Tokens = ()
    while len(text) < LENGTH:

        def noise(index: int, position: int = len(text)) -> float:
            return oracle.uniform(SEED, 0, oracle.COUPLED, position, index)

        p = target.alone(text, ()).dense(VOCAB).tolist()
        text = (*text, oracle.winner(p, oracle.arrivals(VOCAB, noise)))
    return text


def rounds(target: Model, draft: Model, seed: int) -> tuple[Tokens, int]:
    """By rounds of random length, drafted with the same noise; and how many tokens stood."""
    rng, randomness = np.random.default_rng(seed), Randomness(SEED)
    text: Tokens = ()
    n_accepted = 0
    while len(text) < LENGTH:
        drafted: Tokens = ()
        for i in range(int(rng.integers(0, 6))):
            drafted = (*drafted, race(draft.law(text, drafted), randomness, len(text) + i))
        p = [target.law(text, drafted[:i]) for i in range(len(drafted) + 1)]
        verdict = coupled(np.array(drafted, np.int64), p, randomness, len(text))
        n_accepted += verdict.n_accepted
        text = (*text, *drafted[: verdict.n_accepted], verdict.next_token)
    return text[:LENGTH], n_accepted


@pytest.mark.parametrize("processors", PROCESSORS)
def test_behind_every_processor_rounds_give_the_plain_text(processors):
    params = SamplingParams(**{"temperature": 1.0, **PROCESSORS[processors]})
    target = Model(params, 5)
    text = plain(target)
    for seed in range(4):
        found, n_accepted = rounds(target, Model(params, 6), seed)
        assert found == text
        assert n_accepted > 0
        own, all_of_it = rounds(target, Model(params, 5), seed)
        assert own == text
        assert all_of_it > n_accepted

"""One seed, one text: with coupled acceptance SmolLM2 says the same with speculation off, with any
proposer and with any draft length. 6 prompts of 40 tokens; bench/coupled.py runs 50 of 100."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import equality_cases as cases
import real
from sampling_prompts import PROMPTS
from specedge.contract import Ids
from specedge.loading import load
from specedge.sampling.params import SamplingParams

pytestmark = pytest.mark.model

TOKENS = 40
ASKED = {
    "temperature 0.8": SamplingParams(temperature=0.8, seed=7),
    "temperature 1 with every processor": SamplingParams(
        temperature=1.0,
        top_k=200,
        top_p=0.95,
        min_p=0.01,
        repetition_penalty=1.1,
        frequency_penalty=0.2,
        presence_penalty=0.1,
        logit_bias=((260, 1.0),),
        banned_tokens=(0, 2),
        seed=2**64 - 1,
    ),
}
DRAFTED: tuple[tuple[cases.ProposerSet, int], ...] = (("ngram", 4), ("draft", 1), ("both", 7))


@pytest.fixture(scope="module")
def pair() -> Iterator[cases.Pair]:
    with cases.opened(real.bundle("smollm2-selfdraft"), context=512) as opened:
        yield opened


@pytest.fixture(scope="module")
def prompts() -> list[Ids]:
    with load(real.bundle("smollm2-selfdraft"), speculation="off") as model:
        return [model.encode([{"role": "user", "content": text}])[0] for text in PROMPTS[:6]]


@pytest.mark.parametrize("name", ASKED)
def test_the_text_of_a_seed_does_not_depend_on_speculation(
    pair: cases.Pair, prompts: list[Ids], name: str
) -> None:
    params = ASKED[name]
    accepted = {which: 0 for which, _ in DRAFTED}
    for ids in prompts:
        plain = cases.run(pair.target, ids, max_tokens=TOKENS, params=params)
        for which, k in DRAFTED:
            got = cases.run(pair.target, ids, k, pair.proposers(which), TOKENS, params)
            assert got.tokens == plain.tokens, (which, k)
            accepted[which] += got.metrics.accepted
    assert accepted["draft"] > 0
    assert accepted["both"] > 0


def test_int4_text_does_not_depend_on_it_either() -> None:
    bundle = real.bundle("smollm2")
    with load(bundle, speculation="off") as model:
        ids = model.encode([{"role": "user", "content": PROMPTS[0]}])[0]
    params = SamplingParams(temperature=0.7, top_p=0.9, seed=3)
    with cases.opened(bundle, context=512) as pair:
        assert pair.target.width_noise == 0
        plain = cases.run(pair.target, ids, max_tokens=TOKENS, params=params)
        drafted = cases.run(pair.target, ids, 4, pair.proposers("ngram"), TOKENS, params)
    assert drafted.metrics.proposed > 0
    assert drafted.tokens == plain.tokens


def test_other_seeds_and_samples_say_something_else(pair: cases.Pair, prompts: list[Ids]) -> None:
    said = {
        tuple(
            cases.run(
                pair.target,
                prompts[0],
                max_tokens=16,
                params=SamplingParams(temperature=1.0, seed=seed, acceptance="coupled"),
            ).tokens
        )
        for seed in range(4)
    }
    assert len(said) == 4


def test_samples_share_the_prompts_rows_and_repeat_as_a_request_of_their_own() -> None:
    asked = {"temperature": 1.0, "seed": 5, "max_tokens": 12}
    with load(real.bundle("smollm2"), speculation="auto") as model:
        several = model.generate("The weather today", n=3, **asked).samples
        assert several is not None
        assert len({tuple(sample.tokens) for sample in several}) == 3
        assert [sample.metrics.prefill_tokens for sample in several[1:]] == [1, 1]
        assert model.generate("The weather today", **asked).tokens == several[0].tokens
    with load(real.bundle("smollm2"), speculation="off") as plain:
        again = plain.generate("The weather today", n=3, **asked).samples
        assert again is not None
        assert [sample.tokens for sample in again] == [sample.tokens for sample in several]

"""Replays against real rounds: the real proposers, one round after another, every call priced."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.acceptance import Verdict
from specedge.engines.fake import FakeEngine, agreeing, fake_spec, hashed
from specedge.errors import ShapeError
from specedge.probe.curves import CostCurves, Curve, Point
from specedge.probe.replay import (
    Offers,
    Prices,
    calibrate,
    draft_offers,
    lookup_offers,
    places,
    replay,
)
from specedge.proposers import DraftModelProposer, NgramProposer
from specedge.sampling.sampler import GREEDY
from specedge.sequence import Sequence

VOCAB = 4
# Every call has a price of its own, so that a wrong width or a wrong past shows.
PASTS = tuple(range(0, 120, 8))


def curve(role, widths, cost) -> Curve:
    points = [
        Point(width=n, past=p, count=1, ms=cost(n, p), low_ms=cost(n, p), high_ms=cost(n, p))
        for n in widths
        for p in PASTS
    ]
    return Curve(role=role, width_step=1, points=tuple(points))


CURVES = CostCurves(
    plan="full",
    target=curve("target", (1, 2, 3, 5, 9, 16), lambda n, p: 10 + 3 * n**1.1 + 0.02 * p),
    draft=curve("draft", (1, 2, 8), lambda n, p: 2 + 0.7 * n**1.2 + 0.005 * p),
    passes=1,
    seconds=1.0,
    converged=True,
)
LOOKUPS_ONLY = CURVES.model_copy(update={"draft": None})


@dataclass
class Run:
    """What really happened."""

    rounds: list[tuple[int, int, int]] = field(default_factory=list)
    target_ms: float = 0.0
    draft_ms: float = 0.0


def really(prompt, output, k, proposer, draft_engine=None) -> Run:
    """A request that says `output`, round by round; the draft has read the prompt before."""
    run = Run()
    seq = Sequence(prompt, context=200, max_tokens=len(output))
    if draft_engine is not None:
        proposer.start(seq, GREEDY)
        proposer.propose(seq, 1)
    seq.commit(np.empty(0, np.int64), Verdict(0, output[0]))
    if draft_engine is not None:
        draft_engine.calls.clear()
    while not seq.done:
        t = seq.n_generated
        limit = min(k, seq.draft_limit)
        draft = proposer.propose(seq, limit).tokens if limit else np.empty(0, np.int64)
        accepted = 0
        while accepted < len(draft) and draft[accepted] == output[t + accepted]:
            accepted += 1
        run.target_ms += CURVES.target.cost_ms(1 + len(draft), seq.n_cached)
        seq.commit(draft, Verdict(accepted, output[t + accepted]))
        run.rounds.append((t, len(draft), accepted))
    if draft_engine is not None:
        run.draft_ms = sum(CURVES.draft.cost_ms(c.width, c.n_cached) for c in draft_engine.calls)
    return run


prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20)
texts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40)


@settings(deadline=None)
@given(prompts, texts, st.integers(1, 15), st.integers(1, 3), st.integers(0, 3))
def test_lookups_replay_as_they_run(prompt, output, k, shortest, extra):
    lookup = NgramProposer(shortest, shortest + extra)
    ran = really(prompt, output, k, lookup)
    got = replay(lookup_offers(prompt, output, lookup), k)
    assert list(got.rounds) == ran.rounds
    assert Prices(LOOKUPS_ONLY).rounds_ms(got, drafts=False) == pytest.approx(ran.target_ms)
    assert replay(lookup_offers(prompt, output, lookup, k), k).rounds == got.rounds


@settings(deadline=None)
@given(
    st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=20),
    st.integers(1, 40),
    st.integers(1, 15),
    st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    st.integers(0, 99),
)
def test_a_draft_model_replays_as_it_runs(prompt, n_output, k, probability, seed):
    rule = hashed(VOCAB, seed=seed)
    guess = agreeing(rule, probability, VOCAB)
    text, agrees = list(prompt), []
    for _ in range(n_output):
        agrees.append(guess(np.array(text)) == rule(np.array(text)))
        text.append(rule(np.array(text)))
    engine = FakeEngine(fake_spec(VOCAB, 200, role="draft"), guess)
    ran = really(prompt, text[len(prompt) :], k, DraftModelProposer(engine), engine)
    got = replay(draft_offers(len(prompt), agrees), k)
    assert list(got.rounds) == ran.rounds
    whole_ms = Prices(CURVES).rounds_ms(got, drafts=True)
    assert whole_ms == pytest.approx(ran.target_ms + ran.draft_ms)
    assert Prices(CURVES).rounds_ms(got, drafts=False) == pytest.approx(ran.target_ms)


@settings(deadline=None)
@given(prompts, st.integers(1, 4), st.integers(1, 15))
def test_a_short_lookup_begins_the_longest_one(tokens, shortest, k):
    seq = Sequence(tokens, context=64, max_tokens=40)
    lookup = NgramProposer(shortest, shortest + 2)
    assert lookup.propose(seq, k).tokens.tolist() == lookup.propose(seq, 15).tokens.tolist()[:k]


def test_a_loop_shorter_than_the_draft_is_replayed_as_it_runs():
    prompt, output = [1, 2, 3, 1, 2, 3], [1, 2, 3] * 8
    got = replay(lookup_offers(prompt, output, NgramProposer(2, 4), 7), 7)
    assert got.rounds == ((1, 7, 7), (9, 7, 7), (17, 6, 6))
    assert list(got.rounds) == really(prompt, output, 7, NgramProposer(2, 4)).rounds


def test_a_plain_text_is_a_call_for_each_token_but_the_first():
    offers = draft_offers(24, [True] * 3)
    t = CURVES.target.cost_ms
    assert Prices(CURVES).plain_ms(offers) == pytest.approx(t(1, 24) + t(1, 25))


def test_a_draft_that_stood_as_a_whole_leaves_two_tokens_to_feed():
    got = replay(draft_offers(24, [True] * 3 + [False] + [True] * 3), 2)
    assert got.rounds == ((1, 2, 2), (4, 2, 2))
    t, d = CURVES.target.cost_ms, CURVES.draft.cost_ms
    first = t(3, 24) + d(1, 24) + d(1, 25)
    second = t(3, 27) + d(2, 26) + d(1, 28)
    assert Prices(CURVES).rounds_ms(got, drafts=True) == pytest.approx(first + second)


def test_a_text_of_one_token_has_no_rounds():
    for offers in (draft_offers(5, [True]), lookup_offers([1, 1, 1], [1], NgramProposer(1, 2))):
        got = replay(offers, 3)
        assert got.rounds == ()
        assert got.tokens == 0
        assert Prices(CURVES).plain_ms(offers) == 0


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 15))
def test_rounds_commit_the_text_but_its_first_token(agrees, k):
    got = replay(draft_offers(3, agrees), k)
    assert got.tokens == len(agrees) - 1
    assert got.counts == Counter((drafted, accepted) for _, drafted, accepted in got.rounds)


def slow_places(rounds, longest):
    reached, stood = [0] * longest, [0] * longest
    for _, drafted, accepted in rounds:
        for place in range(drafted):
            reached[place] += 1
            if place >= accepted:
                break
            stood[place] += 1
    return tuple(reached), tuple(stood)


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 15))
def test_places_count_drafts_that_came_there_and_stood(agrees, k):
    got = replay(draft_offers(3, agrees), k)
    assert places([got, got], 15) == tuple(
        tuple(2 * count for count in counts) for counts in slow_places(got.rounds, 15)
    )


def test_a_calibration_holds_every_text_at_every_k():
    agrees = [[True, True, False] * 5, [False] * 9, [True], [True] * 20]
    offers = [draft_offers(10 + i, each) for i, each in enumerate(agrees)]
    got = calibrate("chat", "draft", offers, CURVES, drafts=True, max_draft=4)
    assert [each.k for each in got.by_k] == [1, 2, 3, 4]
    assert got.tokens == 14 + 8 + 0 + 19
    long = [offers[0], offers[1], offers[3]]  # the third has nothing to draft for
    for each in got.by_k:
        replays = [replay(text, each.k) for text in long]
        prices = Prices(CURVES)
        assert each.plain_ms == tuple(prices.plain_ms(text) for text in long)
        assert each.spec_ms == tuple(prices.rounds_ms(one, drafts=True) for one in replays)
        rounds = [one for each_replay in replays for one in each_replay.rounds]
        assert each.rounds == len(rounds)
        assert each.acceptance_rate == sum(a for _, _, a in rounds) / sum(d for _, d, _ in rounds)
        assert each.acceptance_length == got.tokens / len(rounds)
    assert (got.reached, got.stood) == slow_places(rounds, 4)
    assert got.past == 17  # the middles are 17, 15, 12 and 23


def test_k_goes_no_further_than_the_curves():
    target = curve("target", (1, 2, 3), lambda n, p: 10.0 + n)
    short = LOOKUPS_ONLY.model_copy(update={"target": target})
    got = calibrate("chat", "ngram", [draft_offers(4, [True] * 30)], short, drafts=False)
    assert [each.k for each in got.by_k] == [1, 2]
    only = short.model_copy(update={"target": curve("target", (1,), lambda n, p: 10.0)})
    got = calibrate("chat", "ngram", [draft_offers(4, [True] * 30)], only, drafts=False)
    assert got.by_k == got.reached == ()


def test_where_nothing_was_drafted_there_is_nothing_to_expect():
    offers = [lookup_offers([1, 2], [3, 4, 5, 6], NgramProposer(2, 4))]
    got = calibrate("chat", "ngram", offers, LOOKUPS_ONLY, drafts=False)
    assert got.by_k == ()
    assert got.tokens == 3
    assert not any(got.reached)
    assert calibrate("chat", "ngram", [], LOOKUPS_ONLY, drafts=False).by_k == ()


def test_what_cannot_be_replayed_is_refused():
    with pytest.raises(ShapeError, match="as many drafted as stood"):
        Offers(3, (0, 1), (0,))
    with pytest.raises(ShapeError, match="k: expected 1 or more, found 0"):
        replay(draft_offers(3, [True]), 0)
    with pytest.raises(ShapeError, match="no draft among these curves"):
        Prices(LOOKUPS_ONLY).rounds_ms(replay(draft_offers(3, [True] * 4), 2), drafts=True)


def test_sixty_texts_replay_quickly():
    rule = hashed(VOCAB, last=4)
    texts = []
    for i in range(60):
        text = np.random.default_rng(i).integers(0, 500, 300).tolist()
        for _ in range(48):
            text.append(rule(np.array(text)))
        texts.append((text[:300], text[300:]))
    began = time.process_time()
    lookup, prices = NgramProposer(), Prices(CURVES)
    offers = [lookup_offers(prompt, output, lookup) for prompt, output in texts]
    bits = [draft_offers(300, [token % 2 == 0 for token in output]) for _, output in texts]
    assert calibrate("a", "ngram", offers, CURVES, drafts=False, prices=prices).by_k
    assert calibrate("a", "draft", bits, CURVES, drafts=True, prices=prices).by_k
    assert time.process_time() - began < 2  # 0.3 s on two slow cores; room for a busy machine

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.acceptance import Verdict
from specedge.engines.fake import FakeEngine, fake_spec, hashed, scripted, table
from specedge.errors import OptionError
from specedge.proposers import DraftModelProposer, NgramProposer
from specedge.sampling.sampler import GREEDY
from specedge.sequence import NO_TOKENS, Sequence
from tests import oracle

VOCAB = 11
RULE = hashed(VOCAB)


def sequence(prompt, context=64, eos_ids=()) -> Sequence:
    return Sequence(prompt, context=context, max_tokens=1000, eos_ids=frozenset(eos_ids))


def draft_model(rule=RULE, context=64, chunk=8, faults=None) -> tuple[DraftModelProposer, list]:
    engine = FakeEngine(
        fake_spec(VOCAB, context, role="draft"), rule, prefill_chunk=chunk, faults=faults
    )
    return DraftModelProposer(engine), engine.calls


def continuation(rule, tokens, limit) -> list[int]:
    return oracle.plain(lambda t: rule(np.array(t)), tokens, 10_000, limit)[0]


def grow(seq: Sequence, *tokens: int) -> None:
    for token in tokens:
        seq.commit(NO_TOKENS, Verdict(0, token))


# n-gram lookup


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.integers(1, 15),
    st.integers(1, 4),
    st.integers(0, 4),
)
def test_lookup_drafts_what_a_naive_search_finds(tokens, limit, shortest, extra):
    got = NgramProposer(shortest, shortest + extra).propose(sequence(tokens), limit)
    assert got.tokens.tolist() == oracle.ngram(tokens, limit, shortest, shortest + extra)


def test_the_longest_match_wins_over_a_later_shorter_one():
    tokens = [1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3]
    assert NgramProposer(2, 4).propose(sequence(tokens), 1).tokens.tolist() == [7]
    assert NgramProposer(2, 2).propose(sequence(tokens), 1).tokens.tolist() == [8]


def test_a_match_shorter_than_ngram_min_is_none():
    assert len(NgramProposer(2, 4).propose(sequence([3, 1, 2, 3]), 4).tokens) == 0


def test_a_loop_is_drafted_as_a_loop():
    draft = NgramProposer(2, 3).propose(sequence([5, 1, 2, 3, 1, 2, 3, 1]), 8)
    assert draft.tokens.tolist() == [2, 3, 1, 2, 3, 1, 2, 3]
    assert draft.proposer == "ngram"


@pytest.mark.parametrize(("shortest", "longest"), [(0, 3), (4, 3)])
def test_impossible_ngram_sizes_are_refused(shortest, longest):
    with pytest.raises(OptionError, match="1 <= ngram_min <= ngram_max"):
        NgramProposer(shortest, longest)


# Draft model


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_draft_model_drafts_its_own_greedy_text(k):
    seq = sequence([1, 2, 3])
    proposer, calls = draft_model()
    proposer.start(seq, GREEDY)
    draft = proposer.propose(seq, k)
    assert draft.tokens.tolist() == continuation(RULE, [1, 2, 3], k)
    assert [call.width for call in calls] == [3] + [1] * (k - 1)
    assert draft.run_ms > 0


def test_start_runs_nothing():
    proposer, calls = draft_model()
    proposer.start(sequence([1, 2, 3]), GREEDY)
    assert calls == []


@pytest.mark.parametrize(
    ("accepted", "fed"),
    # Of three drafted tokens two were fed, so a full acceptance leaves a backlog of two.
    [(0, (3, 1)), (1, (4, 1)), (2, (5, 1)), (3, (5, 2))],
)
def test_only_what_is_missing_is_fed_after_a_round(accepted, fed):
    seq = sequence([1, 2, 3])
    proposer, calls = draft_model()
    proposer.start(seq, GREEDY)
    draft = proposer.propose(seq, 3).tokens.copy()
    refused = (int(draft[accepted]) + 1) % VOCAB if accepted < 3 else 5
    seq.commit(draft, Verdict(accepted, refused))
    calls.clear()
    again = proposer.propose(seq, 1)
    assert again.tokens.tolist() == continuation(RULE, seq.tokens.tolist(), 1)
    assert [(call.n_cached, call.width) for call in calls] == [fed]


def test_a_long_backlog_is_fed_in_chunks():
    seq = sequence([1, 2, 3])
    proposer, calls = draft_model(chunk=4)
    proposer.start(seq, GREEDY)
    proposer.propose(seq, 2)
    grow(seq, *[int(token) for token in np.arange(10) % VOCAB])
    calls.clear()
    draft = proposer.propose(seq, 2)
    assert draft.tokens.tolist() == continuation(RULE, seq.tokens.tolist(), 2)
    assert [call.width for call in calls] == [4, 4, 2, 1]


def test_the_common_prefix_of_a_resumed_conversation_is_not_fed_again():
    seq = sequence([1, 2, 3, 4])
    proposer, calls = draft_model()
    proposer.start(seq, GREEDY)
    grow(seq, *proposer.propose(seq, 3).tokens.tolist())
    turn = [*seq.tokens[:5].tolist(), 9, 9, 9]
    seq.resume(turn, max_tokens=10)
    grow(seq, 1)
    calls.clear()
    proposer.start(seq, GREEDY)
    draft = proposer.propose(seq, 1)
    assert draft.tokens.tolist() == continuation(RULE, [*turn, 1], 1)
    assert [(call.n_cached, call.width) for call in calls] == [(5, 4)]


@pytest.mark.parametrize("prompt", [[1, 2, 9, 4, 5], [8], [1, 2, 3], [1, 2, 3, 4, 5, 6, 7, 8]])
def test_rows_of_another_conversation_are_not_taken_for_this_one(prompt):
    seq = sequence([1, 2, 3, 4])
    proposer, _ = draft_model()
    proposer.start(seq, GREEDY)
    proposer.propose(seq, 3)
    seq.resume(prompt, max_tokens=10)
    proposer.start(seq, GREEDY)
    assert proposer.propose(seq, 3).tokens.tolist() == continuation(RULE, prompt, 3)


def test_a_draft_ends_with_its_own_context():
    seq = sequence([1, 2, 3], context=64)
    proposer, _ = draft_model(context=5)
    proposer.start(seq, GREEDY)
    assert proposer.propose(seq, 15).tokens.tolist() == continuation(RULE, [1, 2, 3], 3)
    grow(seq, 1, 2)
    assert len(proposer.propose(seq, 15).tokens) == 1
    grow(seq, 3)
    assert len(proposer.propose(seq, 15).tokens) == 0


def test_nothing_is_drafted_after_an_end_id():
    seq = sequence([1], eos_ids={3})
    proposer, calls = draft_model(table({1: 2, 2: 3, 3: 4}))
    proposer.start(seq, GREEDY)
    assert proposer.propose(seq, 8).tokens.tolist() == [2, 3]
    assert len(calls) == 2


@pytest.mark.parametrize("call", [0, 1, 2, 3])
def test_rows_that_a_failed_call_may_have_spoiled_are_fed_again(call):
    seq = sequence([1, 2, 3, 4, 5, 6])
    proposer, _ = draft_model(chunk=3, faults={call: RuntimeError("lost")})
    proposer.start(seq, GREEDY)
    with pytest.raises(RuntimeError, match="lost"):
        proposer.propose(seq, 3)
    proposer.start(seq, GREEDY)
    assert proposer.propose(seq, 3).tokens.tolist() == continuation(RULE, seq.tokens.tolist(), 3)


def test_rows_of_an_earlier_conversation_are_not_trusted_after_a_failed_call():
    seq = sequence([1, 2, 3, 4, 5, 6])
    proposer, _ = draft_model(faults={1: RuntimeError("lost")})
    proposer.start(seq, GREEDY)
    proposer.propose(seq, 1)
    seq.resume([1, 2, 9, 9], max_tokens=10)
    proposer.start(seq, GREEDY)
    with pytest.raises(RuntimeError, match="lost"):
        proposer.propose(seq, 1)
    seq.resume([1, 2, 3, 4, 5, 6], max_tokens=10)
    proposer.start(seq, GREEDY)
    assert proposer.propose(seq, 3).tokens.tolist() == continuation(RULE, seq.tokens.tolist(), 3)


def test_closing_frees_the_slot_and_the_engine():
    engine = FakeEngine(fake_spec(VOCAB, 8), scripted([1], 1))
    proposer = DraftModelProposer(engine)
    proposer.start(sequence([1]), GREEDY)
    proposer.close()
    with pytest.raises(Exception, match="closed"):
        engine.new_slot()

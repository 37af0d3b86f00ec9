from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.acceptance import Verdict
from specedge.errors import OptionError, PromptError, ShapeError
from specedge.sequence import NO_TOKENS, Sequence, common_prefix
from tests import oracle


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


def sequence(prompt=(1, 2, 3), context=16, max_tokens=100, eos_ids=()) -> Sequence:
    return Sequence(prompt, context=context, max_tokens=max_tokens, eos_ids=frozenset(eos_ids))


def test_nothing_is_cached_before_the_prefill_and_all_but_the_last_after_it():
    seq = sequence()
    assert (seq.n_tokens, seq.n_prompt, seq.n_cached) == (3, 3, 0)
    assert seq.pending().tolist() == [1, 2, 3]
    seq.commit(NO_TOKENS, Verdict(0, 7))
    assert (seq.n_tokens, seq.n_generated, seq.n_cached) == (4, 1, 3)
    assert seq.tokens.tolist() == [1, 2, 3, 7]
    assert seq.generated.tolist() == [7]


def test_the_call_of_a_round_gets_the_last_token_and_the_draft():
    seq = sequence()
    seq.commit(NO_TOKENS, Verdict(0, 7))
    assert seq.pending(ids(8, 9)).tolist() == [7, 8, 9]
    assert seq.pending().tolist() == [7]


def test_a_draft_that_is_pending_is_not_committed():
    seq = sequence()
    seq.commit(NO_TOKENS, Verdict(0, 7))
    seq.pending(ids(8, 9))
    assert seq.tokens.tolist() == [1, 2, 3, 7]
    assert seq.n_cached == 3


@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_a_round_commits_the_accepted_prefix_and_the_next_token(accepted):
    seq = sequence()
    seq.commit(NO_TOKENS, Verdict(0, 7))
    draft = ids(8, 9, 10)
    seq.pending(draft)
    kept = seq.commit(draft, Verdict(accepted, 5))
    assert kept.tolist() == [*[8, 9, 10][:accepted], 5]
    assert seq.tokens.tolist() == [1, 2, 3, 7, *kept]
    assert seq.n_cached == seq.n_tokens - 1


def test_tokens_after_an_end_id_are_never_kept():
    seq = sequence(eos_ids={9, 11})
    kept = seq.commit(ids(8, 9, 11), Verdict(3, 5))
    assert kept.tolist() == [8, 9]
    assert (seq.done, seq.finish_reason, seq.n_cached) == (True, "stop", 4)


def test_an_end_id_as_the_last_budgeted_token_is_a_stop():
    seq = sequence(max_tokens=1, eos_ids={9})
    seq.commit(NO_TOKENS, Verdict(0, 9))
    assert seq.finish_reason == "stop"


def test_the_output_budget_ends_the_request():
    seq = sequence(max_tokens=2)
    seq.commit(NO_TOKENS, Verdict(0, 7))
    assert not seq.done
    seq.commit(NO_TOKENS, Verdict(0, 7))
    assert (seq.finish_reason, seq.n_generated, seq.n_cached) == ("length", 2, 4)


def test_every_row_of_the_context_is_used_before_the_end():
    seq = sequence(context=5)
    written = []
    while not seq.done:
        written.append(seq.n_cached + len(seq.pending()))
        seq.commit(NO_TOKENS, Verdict(0, 7))
    assert written == [3, 4, 5]
    assert (seq.n_tokens, seq.finish_reason) == (6, "length")


def test_a_prompt_may_fill_the_whole_context():
    seq = sequence(prompt=range(16))
    seq.commit(NO_TOKENS, Verdict(0, 7))
    assert (seq.finish_reason, seq.n_generated, seq.n_cached) == ("length", 1, 16)


@pytest.mark.parametrize(
    ("context", "max_tokens", "limit"),
    [(16, 100, 12), (5, 100, 1), (4, 100, 0), (16, 4, 2), (16, 2, 0), (16, 1, 0)],
)
def test_a_draft_has_room_in_the_rows_and_in_the_budget(context, max_tokens, limit):
    seq = sequence(context=context, max_tokens=max_tokens)
    seq.commit(NO_TOKENS, Verdict(0, 7))
    assert seq.draft_limit == limit


def test_a_draft_wider_than_the_room_is_refused():
    seq = sequence(context=5)
    seq.commit(NO_TOKENS, Verdict(0, 7))
    with pytest.raises(ShapeError, match="at most 1 rows are free, found 2"):
        seq.pending(ids(1, 2))


@pytest.mark.parametrize(
    ("prompt", "options", "error", "message"),
    [
        ([], {}, PromptError, "expected at least 1 token"),
        ([1] * 17, {}, PromptError, "17 tokens do not fit the context of 16"),
        ([1], {"max_tokens": 0}, OptionError, "expected 1 or more, found 0"),
        ([[1]], {}, ShapeError, "expected \\[n\\] token ids"),
    ],
)
def test_a_request_that_cannot_run_is_refused(prompt, options, error, message):
    with pytest.raises(error, match=message):
        sequence(prompt=prompt, **options)


def test_a_refused_resume_changes_nothing():
    seq = sequence()
    seq.commit(NO_TOKENS, Verdict(0, 7))
    with pytest.raises(PromptError):
        seq.resume([1] * 17, max_tokens=5)
    with pytest.raises(OptionError):
        seq.resume([9], max_tokens=0)
    assert (seq.tokens.tolist(), seq.n_prompt, seq.n_cached) == ([1, 2, 3, 7], 3, 3)


@pytest.mark.parametrize(
    ("prompt", "cached"),
    [
        ([1, 2, 3, 7, 4], 3),  # everything that was cached
        ([1, 2, 3, 8, 4], 3),
        ([1, 2, 9, 9], 2),
        ([1, 2], 1),  # a row must be left to run
        ([1, 2, 3], 2),
        ([5], 0),
    ],
)
def test_resume_keeps_the_rows_of_the_common_prefix(prompt, cached):
    seq = sequence(max_tokens=1)
    seq.commit(NO_TOKENS, Verdict(0, 7))
    seq.resume(prompt, max_tokens=4)
    assert (seq.n_cached, seq.n_prompt, seq.n_generated) == (cached, len(prompt), 0)
    assert seq.tokens.tolist() == prompt
    assert not seq.done


def test_resume_does_not_trust_rows_that_were_never_written():
    seq = sequence()
    seq.resume([1, 2, 3, 4], max_tokens=4)
    assert seq.n_cached == 0


def test_resume_keeps_the_end_ids_unless_new_ones_are_given():
    seq = sequence(eos_ids={9})
    seq.resume([1], max_tokens=2)
    assert seq.eos_ids == {9}
    seq.resume([1], max_tokens=2, eos_ids=frozenset())
    seq.commit(NO_TOKENS, Verdict(0, 9))
    assert not seq.done


@pytest.mark.parametrize(("kept", "cached"), [(3, 2), (5, 4), (6, 5)])
def test_truncated_tokens_are_not_kept_for_reuse(kept, cached):
    seq = sequence()
    seq.commit(NO_TOKENS, Verdict(0, 7))
    seq.commit(ids(8), Verdict(1, 9))
    seq.truncate(kept)
    assert (seq.n_tokens, seq.n_cached, seq.finish_reason) == (kept, cached, "stop")
    seq.resume([1, 2, 3, 7, 8, 9, 10], max_tokens=1)
    assert seq.n_cached == cached


@pytest.mark.parametrize("kept", [2, 5])
def test_truncate_stays_within_the_output(kept):
    seq = sequence()
    seq.commit(NO_TOKENS, Verdict(0, 7))
    with pytest.raises(ShapeError, match=r"expected 3\.\.4 tokens"):
        seq.truncate(kept)


tokens = st.lists(st.integers(0, 2), max_size=12)


@settings(deadline=None)
@given(tokens, tokens)
def test_the_common_prefix_is_what_counting_gives(a, b):
    assert common_prefix(ids(*a), ids(*b)) == oracle.common_prefix(a, b)

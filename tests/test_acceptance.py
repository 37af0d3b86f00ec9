from __future__ import annotations

import numpy as np
import pytest

from specedge.acceptance import Verdict, accept_greedy, accept_greedy_ids
from specedge.errors import ShapeError
from tests import oracle


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


@pytest.mark.parametrize("k", [0, 1, 2, 4, 7, 15])
@pytest.mark.parametrize("seed", range(20))
def test_commits_exactly_what_plain_greedy_would(k, seed):
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((k + 1, 3), dtype=np.float32)
    draft = np.where(rng.random(k) < 0.8, logits[:k].argmax(axis=1), rng.integers(0, 3, k))
    got = accept_greedy(draft, logits)
    assert [*draft[: got.n_accepted], got.next_token] == oracle.greedy(draft, logits)


@pytest.mark.parametrize("seed", range(20))
def test_ids_and_logits_give_the_same_verdict(seed):
    rng = np.random.default_rng(seed)
    logits = rng.integers(0, 2, (6, 4)).astype(np.float32)  # ties everywhere
    draft = rng.integers(0, 2, 5)
    chosen = ids(*(oracle.argmax(row) for row in logits))
    assert accept_greedy(draft, logits) == accept_greedy_ids(draft, chosen)


def test_a_tie_goes_to_the_lowest_id():
    logits = np.array([[0, 5, 5], [7, 7, 7]], dtype=np.float32)
    assert accept_greedy(ids(2), logits) == Verdict(0, 1)
    assert accept_greedy(ids(1), logits) == Verdict(1, 0)


def test_an_agreement_after_the_first_refusal_does_not_count():
    assert accept_greedy_ids(ids(4, 9, 6), ids(4, 5, 6, 7)) == Verdict(1, 5)


def test_a_full_acceptance_adds_the_bonus_token():
    assert accept_greedy_ids(ids(4, 5), ids(4, 5, 6)) == Verdict(2, 6)


def test_no_draft_is_a_plain_step():
    assert accept_greedy_ids(ids(), ids(8)) == Verdict(0, 8)


@pytest.mark.parametrize("rows", [0, 1, 2, 4])
def test_a_wrong_number_of_rows_is_refused(rows):
    with pytest.raises(ShapeError, match=f"expected 3 scored rows, found {rows}"):
        accept_greedy(ids(1, 1), np.zeros((rows, 5), dtype=np.float32))
    with pytest.raises(ShapeError, match="expected 3 scored rows"):
        accept_greedy_ids(ids(1, 1), np.ones(rows, dtype=np.int64))


def test_logits_without_rows_are_refused():
    with pytest.raises(ShapeError, match=r"expected \[K \+ 1, V\]"):
        accept_greedy(ids(), np.zeros(5, dtype=np.float32))

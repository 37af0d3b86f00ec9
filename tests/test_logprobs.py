from __future__ import annotations

import numpy as np
import pytest

from specedge.logprobs import token_logprobs
from tests import oracle


@pytest.mark.parametrize("top", [0, 1, 3, 9, 20])
@pytest.mark.parametrize("seed", range(5))
def test_they_are_the_log_of_softmax(top, seed):
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((2, 9)).astype(np.float32) * 20
    got = token_logprobs(np.array([4, 7]), logits, top)
    for score, row, token in zip(got, logits, [4, 7], strict=True):
        expected = oracle.logprobs(row)
        assert score.token == token
        assert score.logprob == pytest.approx(expected[token], abs=1e-9)
        ranked = sorted(range(9), key=lambda i: (-row[i], i))[:top]
        assert [i for i, _ in score.top] == ranked
        assert [p for _, p in score.top] == pytest.approx([expected[i] for i in ranked])


def test_huge_logits_do_not_overflow():
    got = token_logprobs(np.array([0]), np.array([[3e38, 0, -3e38]], dtype=np.float32), 1)
    assert got[0].logprob == 0.0


def test_ties_are_listed_from_the_lowest_id():
    row = np.array([[1, 2, 2, 2, 0]], dtype=np.float32)
    assert [i for i, _ in token_logprobs(np.array([1]), row, 2)[0].top] == [1, 2]

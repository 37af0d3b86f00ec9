"""Speculation puts out the target's law to 1e-12: added up over all drafts, not sampled."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from specedge.acceptance import BLOCK, REJECTION
from specedge.sampling.law import Law
from specedge.sampling.params import SamplingParams
from tests import enumeration as every
from tests import rule_cases as make
from tests.processed import PROCESSORS, VOCAB, Model

CLOSE = {"rtol": 0, "atol": 1e-12}
KINDS = [kind for kind in make.KINDS if kind != "denormals"]


def tables(kind: str, vocab: int, seed: int) -> tuple[every.LawAfter, every.LawAfter]:
    """p and q with a random law for each context, in random forms."""

    @cache
    def pair(context: every.Tokens) -> tuple[Law, Law]:
        rng = np.random.default_rng([seed, len(context), *context])
        case = make.case(kind, "anything", 1, vocab, rng)
        forms = make.FORMS[:3] if kind == "p = q" else make.FORMS
        mine, its = (make.law(row[0], str(rng.choice(forms)), rng) for row in (case.p, case.q))
        return mine, its

    return (
        lambda committed, drafted: pair(committed + drafted)[0],
        lambda committed, drafted: pair(committed + drafted)[1],
    )


@pytest.mark.parametrize("name", every.RULES)
@pytest.mark.parametrize("k", [0, 1, 2, 3])
@pytest.mark.parametrize("vocab", [2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_round_and_what_the_target_adds_have_the_targets_law(name, k, vocab, kind):
    p, q = tables(kind, vocab, 100 * vocab + k)
    found = every.speculative(
        every.RULES[name], k + 1, vocab, p, q, lambda committed: 0 if committed else k
    )
    np.testing.assert_allclose(found, every.plain((), k + 1, vocab, p), **CLOSE)


@pytest.mark.parametrize("name", every.RULES)
@pytest.mark.parametrize("schedule", [[2] * 4, [3, 2, 1, 0], [1, 3, 0, 2]])
@pytest.mark.parametrize("kind", KINDS)
def test_rounds_after_rounds_have_the_targets_law(name, schedule, kind):
    vocab, n = 3, 4
    p, q = tables(kind, vocab, 31)
    found = every.speculative(every.RULES[name], n, vocab, p, q, schedule.__getitem__)
    np.testing.assert_allclose(found, every.plain((), n, vocab, p), **CLOSE)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("vocab", [2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_block_accepts_no_fewer_than_rejection(k, vocab, kind):
    for seed in range(3):
        p, q = tables(kind, vocab, 1000 + seed)
        most = every.expected_accepted(BLOCK, k, vocab, p, q)
        assert most >= every.expected_accepted(REJECTION, k, vocab, p, q) - 1e-12


def test_block_accepts_more_than_rejection_somewhere():
    p, q = tables("random", 3, 77)
    most = every.expected_accepted(BLOCK, 3, 3, p, q)
    assert most > every.expected_accepted(REJECTION, 3, 3, p, q) + 0.01


@pytest.mark.parametrize("name", every.RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_one_drafted_token_stands_as_often_as_p_and_q_overlap(name, kind):
    for seed in range(10):
        p, q = tables(kind, 4, 2000 + seed)
        distance = 0.5 * float(np.abs(p((), ()).dense(4) - q((), ()).dense(4)).sum())
        accepted = every.expected_accepted(every.RULES[name], 1, 4, p, q)
        assert accepted == pytest.approx(1 - distance, abs=1e-12)


@pytest.mark.parametrize("name", every.RULES)
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("processors", PROCESSORS)
def test_behind_every_processor_speculation_has_the_targets_law(name, k, processors):
    params = SamplingParams(**{"temperature": 1.0, **PROCESSORS[processors]})
    target, draft = Model(params, 1), Model(params, 2)
    found = every.speculative(
        every.RULES[name], k + 1, VOCAB, target.law, draft.law, lambda committed: k
    )
    np.testing.assert_allclose(found, every.plain((), k + 1, VOCAB, target.alone), **CLOSE)


@pytest.mark.parametrize("name", every.RULES)
@pytest.mark.parametrize("processors", PROCESSORS)
def test_behind_every_processor_lookups_have_the_targets_law(name, processors):
    params = SamplingParams(**{"temperature": 1.0, **PROCESSORS[processors]})
    target = Model(params, 3)

    def lookup(committed: every.Tokens, drafted: every.Tokens) -> Law:
        return Law.certain((sum(committed) + 3 * len(drafted)) % VOCAB)

    found = every.speculative(every.RULES[name], 4, VOCAB, target.law, lookup, lambda committed: 3)
    np.testing.assert_allclose(found, every.plain((), 4, VOCAB, target.alone), **CLOSE)


@pytest.mark.parametrize("processors", [name for name in PROCESSORS if name != "none"])
def test_every_processor_changes_the_law_that_is_compared(processors):
    params = SamplingParams(**{"temperature": 1.0, **PROCESSORS[processors]})
    with_it = every.plain((), 3, VOCAB, Model(params, 1).alone)
    without = every.plain((), 3, VOCAB, Model(SamplingParams(temperature=1.0), 1).alone)
    assert np.abs(with_it - without).sum() > 0.05

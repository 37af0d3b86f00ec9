"""The pipeline equals plain loops over float64."""

import itertools
import math

import numpy as np
import pytest

import oracle_processors as oracle
from specedge.errors import SamplingError
from specedge.sampling import nucleus
from specedge.sampling.history import History
from specedge.sampling.params import SamplingParams
from specedge.sampling.processors import Pipeline
from specedge.sampling.scratch import Scratch

SCRATCH = Scratch()


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def law_of(row, params, prompt=(), output=(), pushed=(), end_ids=(), scratch=SCRATCH):
    """Of the pipeline, whose scratch has been used before."""
    scratch.reset()
    history = None
    if params.uses_history:
        history = History()
        history.sync(np.array([*prompt, *output], np.int64), len(prompt))
        for token in pushed:
            history.push(token)
    pipeline = Pipeline(params, len(row), end_ids)
    n_generated = len(output) + len(pushed)
    where = {"where": "target", "position": len(prompt) + n_generated}
    return pipeline.law(row, history, n_generated, scratch=scratch, **where)


def rows_of(vocab, rng):
    """Logits of every kind that a model may give."""
    yield rng.normal(0, 3, vocab)
    yield rng.integers(-2, 3, vocab)  # ties everywhere
    yield np.full(vocab, rng.choice([-7.5, 0, 1e4]))
    peaked = rng.normal(0, 2.5, vocab)
    peaked[rng.integers(0, vocab, 4)] = [20, 19, 19, 16]
    yield peaked
    holes = rng.normal(0, 3, vocab)
    holes[rng.random(vocab) < 0.7] = -np.inf
    holes[rng.integers(vocab)] = 1
    yield holes
    yield rng.choice([-3e38, -1e-40, 0.0, -0.0, 1e-40, 3e38], vocab)


def check(row, params, **text):
    row = row.astype(np.float32)
    before = row.copy()
    law = law_of(row, params, **text)
    output = [*text.get("output", ()), *text.get("pushed", ())]
    told = {"prompt": text.get("prompt", ()), "output": output, "end_ids": text.get("end_ids", ())}
    np.testing.assert_array_equal(row, before)
    single = law.weights.dtype == np.float32  # many logits, see `Law`
    rtol, atol = (2e-5, 1e-37) if single else (1e-12, 1e-300)
    wanted = oracle.probabilities(row, params, **told)
    np.testing.assert_allclose(law.dense(len(row)), wanted, rtol=rtol, atol=atol)
    if law.ids is not None and params.temperature:
        assert law.ids.dtype == np.int64
        assert law.ids.tolist() == oracle.support(row, params, **told)


NARROWING = [
    {"temperature": t, "top_k": k, "top_p": p, "min_p": m}
    for t, k, p, m in itertools.product(
        [1e-6, 0.7, 1.0, 100.0],
        [0, 1, 3, 50, 10**6],
        [1e-9, 0.5, 0.95, 0.999999, 1.0],
        [0, 1e-3, 1],
    )
]


@pytest.mark.parametrize("vocab", [1, 2, 3, 5, 257, 1000])
def test_any_combination_of_top_k_top_p_and_min_p_keeps_what_plain_loops_keep(vocab, rng):
    cases = (
        NARROWING if vocab < 100 else [NARROWING[i] for i in rng.integers(0, len(NARROWING), 60)]
    )
    for case in cases:
        for row in rows_of(vocab, rng):
            check(row, SamplingParams(**case))


@pytest.mark.parametrize("vocab", [4097, 20_011])
@pytest.mark.parametrize(
    "case",
    [
        {"top_k": 1},
        {"top_k": 40},
        {"top_k": 3000},
        {"top_p": 0.5},
        {"top_p": 0.95},
        {"top_p": 0.999, "min_p": 1e-4},
        {"min_p": 0.05},
        {"top_k": 200, "top_p": 0.9, "min_p": 0.01},
    ],
    ids=str,
)
def test_short_cuts_of_large_vocabularies_keep_what_plain_loops_keep(case, vocab, rng):
    for temperature in [0.3, 1.0, 1.6]:
        for row in rows_of(vocab, rng):
            check(row, SamplingParams(temperature=temperature, **case))


@pytest.mark.parametrize("way", [nucleus._few, nucleus._rough_sum, nucleus._fine_sum])
def test_each_short_cut_of_top_p_is_exact_where_it_decides(way, rng):
    scratch, decided = Scratch(), 0
    for vocab in [2, 5, 257, 1000, 5000]:
        for row in [row for _ in range(12) for row in rows_of(vocab, rng)]:
            row = row.astype(np.float32)
            top_p = rng.choice([0.01, 0.5, 0.9, 0.99])
            scale = rng.choice([0.01, 0.7, 1, 3, 1e5])
            top = float(row.max())
            ids = way(row, top, scale, top_p, math.log((1 - top_p) / vocab), scratch)
            if ids is not None:
                decided += 1
                wanted = SamplingParams(temperature=1 / scale, top_p=top_p)
                assert ids.tolist() == oracle.support(row, wanted)
    assert decided > 100


def test_a_sum_that_meets_top_p_exactly_is_not_left_to_rounding():
    for vocab, top_p in [(20, 0.95), (10_000, 0.25), (20_000, 0.95)]:
        law = law_of(np.zeros(vocab, np.float32), SamplingParams(temperature=1, top_p=top_p))
        assert law.ids.tolist() == list(range(round(vocab * top_p)))


def test_what_was_not_looked_at_counts_where_it_decides():
    row = np.full(5000, -16.6)  # 3e-4 of the weight together, and just too little to be looked at
    row[7], row[9] = 0, math.log(1 / 0.95 - 1 - 1e-4)
    check(row, SamplingParams(temperature=1, top_p=0.95))
    assert law_of(row.astype(np.float32), SamplingParams(temperature=1, top_p=0.95)).size == 2


EDITS = {
    "repetition_penalty": [1.3, 0.6],
    "frequency_penalty": [0.4, -1.5],
    "presence_penalty": [0.9, -2.0],
    "logit_bias": [((0, 2.5), (4, -100.0))],
    "banned_tokens": [(1, 3)],
    "min_tokens": [4],
}


def edits():
    for names in itertools.product([False, True], repeat=len(EDITS)):
        chosen = [name for name, wanted in zip(EDITS, names, strict=True) if wanted]
        for values in itertools.product(*(EDITS[name] for name in chosen)):
            yield dict(zip(chosen, values, strict=True))


@pytest.mark.parametrize("vocab", [6, 300])
@pytest.mark.parametrize(
    "rest", [{}, {"temperature": 0.8}, {"temperature": 1.2, "top_k": 4, "top_p": 0.9}], ids=str
)
def test_any_combination_of_edits_is_that_of_plain_loops(rest, vocab, rng):
    for edit in edits():
        row = rng.normal(0, 3, vocab) if rng.random() < 0.5 else rng.integers(-2, 3, vocab)
        text = {
            name: rng.integers(0, min(vocab, 40), rng.integers(0, most)).tolist()
            for name, most in [("prompt", 30), ("output", 6), ("pushed", 4)]
        }
        check(row, SamplingParams(**edit, **rest), **text, end_ids=(2, 5))


def test_edited_is_the_row_itself_where_nothing_edits():
    row = np.zeros(9, np.float32)
    pipeline = Pipeline(SamplingParams(min_tokens=2), 9, end_ids=[3])
    assert pipeline.edited(row, None, 2, SCRATCH) is row
    assert pipeline.edited(row, None, 1, SCRATCH).tolist() == [0, 0, 0, -np.inf, 0, 0, 0, 0, 0]


def test_end_ids_that_no_row_has_are_left_out():
    params = SamplingParams(temperature=1, min_tokens=2)
    assert law_of(np.zeros(3, np.float32), params, end_ids=[1, 99]).dense(3)[1] == 0


def test_a_law_of_the_whole_vocabulary_makes_no_exponential():
    row = np.zeros(9, np.float32)
    assert law_of(row, SamplingParams(temperature=0.5)).logits is row


@pytest.mark.parametrize("case", [{"top_p": 0.9}, {"top_k": 20, "repetition_penalty": 1.2}, {}])
def test_a_row_gives_the_same_law_whatever_was_processed_before(case, rng):
    params = SamplingParams(temperature=0.9, **case)
    rows = [row.astype(np.float32) for row in rows_of(6000, rng)]
    text = {"prompt": [1, 2], "output": [3]}
    fresh = [law_of(row, params, **text, scratch=Scratch()) for row in rows]
    block = np.stack(rows)  # a view of a wider call's logits
    for i in [5, 2, 0, 3, 1, 4, 0]:
        law = law_of(block[i], params, **text)
        assert (law.ids is None) == (fresh[i].ids is None)
        assert law.ids is None or law.ids.tolist() == fresh[i].ids.tolist()
        np.testing.assert_array_equal(law.weights, fresh[i].weights)


def test_laws_of_one_round_do_not_share_buffers(rng):
    rows = rng.normal(0, 1, (3, 5000)).astype(np.float32)
    pipeline = Pipeline(SamplingParams(temperature=1, logit_bias=((1, 1.0),)), 5000)
    where = {"scratch": Scratch(), "where": "target"}
    laws = [pipeline.law(row, None, i, **where, position=i) for i, row in enumerate(rows)]
    for row, law in zip(rows, laws, strict=True):
        alone = pipeline.law(row, None, 0, scratch=Scratch(), where="target", position=0)
        np.testing.assert_array_equal(law.weights, alone.weights)


@pytest.mark.parametrize("n", [10, 10_000])
def test_buffers_are_handed_out_once_until_the_reset(n):
    scratch = Scratch()
    for wanted in [2, 2, 4]:
        buffers = [scratch.floats(n) for _ in range(wanted)] + [scratch.singles(n)]
        assert [b.dtype for b in buffers] == [np.float64] * wanted + [np.float32]
        assert not any(np.shares_memory(a, b) for a, b in itertools.combinations(buffers, 2))
        scratch.reset()
    again = scratch.floats(n)
    assert n == 10 or any(again is buffer for buffer in buffers)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("case", [{}, {"banned_tokens": (2,)}])
def test_logits_that_are_not_finite_are_an_error_that_names_them(value, temperature, case):
    row = np.array([0, 1, value, 1], np.float32)
    told = rf"logits of the target at position 0: .* {value} for token 2; export"
    with pytest.raises(SamplingError, match=f"^{told}"):
        law_of(row, SamplingParams(temperature=temperature, **case))


def test_an_overflow_names_the_processor_that_made_it():
    row = np.array([0, 3e38], np.float32)
    params = SamplingParams(temperature=1, repetition_penalty=0.1, logit_bias=((0, 1.0),))
    told = "repetition_penalty on the logits of the target at position 1: .* inf for token 1; use"
    with pytest.raises(SamplingError, match=f"^{told}"):
        law_of(row, params, prompt=[1])


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_row_of_which_nothing_is_left_is_an_error(temperature):
    row = np.array([0, -np.inf, 1], np.float32)
    banned = SamplingParams(temperature=temperature, banned_tokens=(0,), min_tokens=1)
    with pytest.raises(SamplingError, match=r"^min_tokens on .* found all 3 at -inf; leave one"):
        law_of(row, banned, end_ids=[2])
    row[:] = -np.inf
    with pytest.raises(SamplingError, match=r"^logits of the target .* found all 3 at -inf; exp"):
        law_of(row, SamplingParams(temperature=temperature))


def test_an_error_leaves_the_pipeline_as_it_was():
    params, row = SamplingParams(temperature=1, top_p=0.9), np.arange(9, dtype=np.float32)
    with pytest.raises(SamplingError):
        law_of(np.full(9, np.nan, np.float32), params)
    check(row, params)


def test_temperature_0_takes_the_lowest_of_equal_ids():
    law = law_of(np.array([1, 2, 2, 2], np.float32), SamplingParams(banned_tokens=(1,)))
    assert law.dense(4).tolist() == [0, 0, 1, 0]

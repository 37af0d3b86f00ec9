"""Where two texts part and what explains it: every number against arithmetic by hand."""

from __future__ import annotations

import numpy as np
import pytest

from specedge.engines.fake import FakeEngine, fake_spec
from specedge.gates import parting
from specedge.gates.parting import Parting, find, first_difference
from specedge.sampling.params import SamplingParams
from uneven import UnevenEngine, raising

PROMPT = [3, 1, 2]
VOCAB = 8


def near_tie(margin: float, at: int):
    """Token 5, then 6 a little behind it where the text has `at` tokens; 4 by 2.0 elsewhere."""

    def scores(tokens: np.ndarray) -> np.ndarray:
        row = np.zeros(VOCAB, np.float32)
        row[4] = 2.0
        if len(tokens) == at:
            row[5], row[6] = 3.0, 3.0 - margin
        return row

    return scores


def engine(margin: float = 0.01, at: int = 5, **given) -> FakeEngine:
    kind = UnevenEngine if "bend" in given else FakeEngine
    return kind(fake_spec(VOCAB, given.pop("context", 64)), scores=near_tie(margin, at), **given)


PLAIN, OTHER = [4, 4, 5, 4, 4], [4, 4, 6, 4, 4]  # they part where 5 tokens lie behind


def test_equal_outputs_do_not_part_and_nothing_is_run():
    fake = engine()
    assert find(fake, PROMPT, PLAIN, list(PLAIN)) is None
    assert fake.calls == []


@pytest.mark.parametrize(
    ("ours", "theirs", "place"),
    [
        ([], [], None),
        ([1, 2], [1, 2], None),
        ([1, 2], [1, 3], 1),
        ([1, 2, 3], [1, 2], 2),
        ([], [7], 0),
    ],
)
def test_the_first_difference_is_a_token_or_an_end(ours, theirs, place):
    assert first_difference(ours, theirs) == place


def test_noise_above_the_margin_explains_a_near_tie():
    uneven = engine(margin=0.01, bend=raising(6, 0.02))
    found = find(uneven, PROMPT, PLAIN, OTHER)
    assert found is not None
    assert (found.position, found.plain_token, found.other_token) == (2, 5, 6)
    assert found.margin == pytest.approx(0.01, rel=1e-4)
    assert found.noise == pytest.approx(0.02, rel=1e-4)
    assert found.within


def test_a_margin_above_the_noise_is_not_explained():
    found = find(engine(margin=0.05, bend=raising(6, 0.02)), PROMPT, PLAIN, OTHER)
    assert found is not None
    assert found.margin == pytest.approx(0.05, rel=1e-4)
    assert not found.within


def test_an_engine_without_noise_explains_nothing_even_an_exact_tie():
    found = find(engine(margin=0.0), PROMPT, PLAIN, OTHER)
    assert found == Parting(2, 5, 6, margin=0.0, noise=0.0, within=False)


def test_a_token_far_below_the_best_is_not_explained_by_the_runner_up_being_close():
    wrong = [4, 4, 0]  # 5 and 6 are nearly tied; this one is 3.0 below
    found = find(engine(margin=0.01, bend=raising(6, 0.02)), PROMPT, PLAIN, wrong)
    assert found is not None
    assert found.margin == pytest.approx(3.0)
    assert not found.within


@pytest.mark.parametrize(("plain", "other"), [([4, 4], [4, 4, 5]), ([4, 4, 5], [4, 4])])
def test_one_that_ends_earlier_parts_there_and_noise_is_no_excuse(plain, other):
    found = find(engine(margin=0.01, bend=raising(6, 0.02)), PROMPT, plain, other)
    assert found is not None
    assert found.position == 2
    assert {found.plain_token, found.other_token} == {5, None}
    assert found.margin == pytest.approx(0.01, rel=1e-4)  # of the two best there
    assert not found.within


def test_noise_of_one_width_alone_is_found():
    def bend(width, place, row):
        if width == 7:
            row[6] += np.float32(0.02)

    found = find(engine(bend=bend), PROMPT, PLAIN, OTHER)
    assert found is not None
    assert found.noise == pytest.approx(0.02, rel=1e-4)


@pytest.mark.parametrize("where", ["first", "last"])
def test_noise_of_one_place_in_a_call_is_found_at_the_row_itself(where):
    def bend(width, place, row):
        at_place = place == (0 if where == "first" else width - 1)
        if width == 16 and at_place and row[5] > 2.5:  # the row of the near tie alone
            row[6] += np.float32(0.02)

    long = [4] * 30
    found = find(engine(at=33, bend=bend), PROMPT, [*long, 5, *[4] * 20], [*long, 6])
    assert found is not None
    assert found.position == 30
    assert found.noise == pytest.approx(0.02, rel=1e-4)


def test_noise_of_other_rows_of_the_text_counts_too():
    def bend(width, place, row):
        if width > 1 and row[5] < 2.5:  # every row but that of the near tie
            row[4] += np.float32(0.25)

    found = find(engine(bend=bend), PROMPT, PLAIN, OTHER)
    assert found is not None
    assert found.noise == pytest.approx(0.25)


def test_noise_that_lies_in_keys_and_values_is_found():
    """Rows that wide calls have written are read by every later one."""

    class Remembering(FakeEngine):
        wide_rows: frozenset[int] = frozenset()

        def forward(self, slot, tokens, n_cached, rows):
            stop = n_cached + len(tokens)
            before = {row for row in self.wide_rows if row < n_cached}
            mine = set(range(n_cached, stop)) if len(tokens) > 1 else set()
            scored = super().forward(slot, tokens, n_cached, rows)
            self.wide_rows = frozenset(before | mine)
            # only the sum over earlier calls' rows differs, not the row's own call
            scored.logits[:, 6] += np.float32(1e-3 * len(before))
            return scored

    spec = fake_spec(VOCAB, 64)
    long = [4] * 20
    fake = Remembering(spec, scores=near_tie(0.005, 23), prefill_chunk=1)
    found = find(fake, PROMPT, [*long, 5], [*long, 6])
    assert found is not None
    assert found.noise > 0.015
    assert found.within


def test_penalties_of_the_request_are_in_margin_and_noise():
    params = SamplingParams(repetition_penalty=2.0, logit_bias=((6, 1.0),))
    uneven = engine(margin=0.2, bend=raising(5, 0.04))
    # by hand: 5 was said, so 3.0 / 2; 6 is biased, 2.8 + 1.0
    found = find(uneven, PROMPT, [4, 5, 6], [4, 5, 5], params=params)
    assert found is not None
    assert found.margin == pytest.approx(3.8 - 1.5, rel=1e-5)
    assert found.noise == pytest.approx(0.04 / 2, rel=1e-3)
    bare = find(uneven, PROMPT, [4, 5, 6], [4, 5, 5])
    assert bare is not None
    assert bare.margin == pytest.approx(2.8 - 3.0, rel=1e-4)


def test_a_frequency_penalty_counts_the_output_and_not_the_prompt():
    params = SamplingParams(frequency_penalty=0.5)
    found = find(engine(margin=0.2), [3, 5, 2], [4, 5, 6], [4, 5, 5], params=params)
    assert found is not None
    assert found.margin == pytest.approx(2.8 - (3.0 - 0.5), rel=1e-4)


@pytest.mark.parametrize("context", [5, 6, 9])
def test_a_parting_at_the_end_of_the_context_is_measured(context):
    fake = engine(bend=raising(6, 0.02), context=context)
    found = find(fake, PROMPT, PLAIN[: context - 2], OTHER[: context - 2])
    assert found is not None
    assert found.noise == pytest.approx(0.02, rel=1e-4)


def test_the_first_token_of_all_can_be_where_they_part():
    found = find(engine(at=3, bend=raising(6, 0.02)), PROMPT, [5], [6])
    assert found is not None
    assert found.position == 0
    assert found.within


def test_slots_are_given_back_also_when_the_engine_fails():
    fake = engine(faults={2: RuntimeError("broken")})
    with pytest.raises(RuntimeError):
        find(fake, PROMPT, PLAIN, OTHER)
    assert fake._slots == []
    find(fake, PROMPT, PLAIN, OTHER)
    assert fake._slots == []


def test_calls_are_as_wide_as_a_verification_can_be_and_as_a_prefill_is():
    fake = engine(prefill_chunk=24)
    find(fake, PROMPT, [*PLAIN, *[4] * 40], OTHER)
    assert {call.width for call in fake.calls} == {*range(1, 17), 24}


def test_a_long_text_is_decoded_once_and_run_in_wide_calls_over_a_window_only():
    fake = FakeEngine(fake_spec(VOCAB, 400), scores=near_tie(0.01, 303))
    find(fake, PROMPT, [*[4] * 300, 5], [*[4] * 300, 6])
    widths = [call.width for call in fake.calls]
    assert 301 <= widths.count(1) <= 301 + 3 * parting.ROWS
    assert len([width for width in widths[1:] if width > 1]) < 5 * parting.ROWS


def test_noise_that_is_known_already_is_not_measured_again_where_it_explains():
    uneven = engine(margin=0.01, bend=raising(6, 0.02))
    found = find(uneven, PROMPT, PLAIN, OTHER, noise=0.03)
    assert found is not None
    assert (found.noise, found.within) == (0.03, True)
    assert {call.width for call in uneven.calls[1:]} == {1}
    more = find(uneven, PROMPT, PLAIN, OTHER, noise=0.005)
    assert more is not None
    assert more.noise == pytest.approx(0.02, rel=1e-4)


def test_more_noise_can_explain_a_parting_but_never_an_end():
    outside = Parting.judged(2, 5, 6, margin=-0.3, noise=0.1)
    assert not outside.within
    assert outside.against(0.4) == Parting(2, 5, 6, -0.3, 0.4, within=True)
    assert outside.against(0.05) == outside
    assert not Parting.judged(2, 5, None, margin=0.0, noise=0.1).against(9.0).within


def test_the_margin_is_that_of_plain_decoding_after_a_prefill_of_the_whole_prompt():
    """Wide calls differ here, and one of them is the prefill."""

    class Prefilled(FakeEngine):
        def forward(self, slot, tokens, n_cached, rows):
            scored = super().forward(slot, tokens, n_cached, rows)
            scored.logits[:, 6] += np.float32(0.5 if self.calls[0].width == 3 else 0.0)
            return scored

    fake = Prefilled(fake_spec(VOCAB, 64), scores=near_tie(0.01, 5))
    found = find(fake, PROMPT, PLAIN, OTHER)
    assert found is not None
    assert found.margin == pytest.approx(0.01 - 0.5, rel=1e-4)


@pytest.mark.parametrize("exact", [True, False])
def test_an_exact_engine_has_no_noise_and_a_narrow_one_of_int4_weights_has(tiny_exports, exact):
    from specedge.engines import registry
    from tiny_exports import read_spec

    target = tiny_exports.checkpoint("llama")
    folder = tiny_exports.bundle(target, target, precision="int4", context=64)
    spec = read_spec(folder)
    with_kernels = registry.create("cpu", folder, spec, threads=1, exact=exact)
    found = find(with_kernels, [5, 9, 11, 7, 5, 9], [8, 3, 4], [8, 3, 5])
    assert found is not None
    assert (found.noise == 0) == exact
    assert not found.within or not exact
    with_kernels.close()

"""Costs found in the stream, in fake time: exact, paid once, and never a different text."""

from __future__ import annotations

import numpy as np
import pytest

from specedge.engines.fake import agreeing, hashed
from specedge.probe.curves import CostCurves
from specedge.proposers.base import PADDING
from specedge.sampling.params import SamplingParams
from specedge.startup import (
    DRAFT_ROUNDS,
    JUDGED,
    LEAST_LEFT,
    LEAST_SAID,
    LONGEST_FEED_MS,
    REPEATS,
)
from tests.timed import CHEAP, DEAR, DRAFT, Desk, Ran, install, steps

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]
SCATTERED = hashed(997, last=None)  # hardly ever the same two tokens again


@pytest.fixture
def clock(monkeypatch):
    return install(monkeypatch)


def scattered(clock, probability: float | None = None, **given) -> Desk:
    """A text without matches, and a draft model that agrees as often."""
    draft = None if probability is None else agreeing(SCATTERED, probability, 997)
    return Desk(clock, rule=SCATTERED, draft_rule=draft, vocab=997, **given)


def costs_of(curve) -> dict[int, float]:
    return {point.width: point.ms for point in curve.points}


def measuring(ran: Ran) -> list[int]:
    """Widths of the rounds that measured."""
    return [
        done.drafted + 1
        for done in ran.rounds
        if done.choice is not None and done.choice.why == "measure"
    ]


@pytest.mark.parametrize("table", [CHEAP, DEAR])
def test_the_target_curve_is_what_calls_cost(clock, table):
    desk = scattered(clock, cost=steps(table))
    desk.run(PROMPT, 100)
    (found,) = desk.measured
    assert found.draft is None
    assert costs_of(found.target) == pytest.approx(table)
    assert {point.count for point in found.target.points if point.width > 1} == {REPEATS}


def test_a_first_call_of_a_width_that_is_slow_does_not_count(clock):
    seen: set[int] = set()

    def cost(width: int, past: int) -> float:
        first = width not in seen
        seen.add(width)
        return CHEAP.get(width, 100.0) * (30 if first else 1)

    desk = scattered(clock, cost=cost)
    desk.run(PROMPT, 100)
    assert costs_of(desk.measured[0].target) == pytest.approx(CHEAP)


@pytest.mark.parametrize(
    ("longest", "step", "widths"),
    [
        (1, 1, {1, 2}),
        (4, 1, {1, 2, 3, 5}),
        (15, 1, {1, 2, 3, 5, 9, 16}),
        (15, 4, {1, 4, 8, 12, 16}),
        (4, 4, {1, 4, 5}),
    ],
)
def test_widths_go_up_to_the_longest_draft(clock, longest, step, widths):
    desk = scattered(clock, longest=longest, step=step)
    ran = desk.run(PROMPT, 100)
    assert set(desk.measured[0].target.widths) == widths
    assert max(done.drafted for done in ran.rounds) == longest


@pytest.mark.parametrize("probability", [0.0, 0.5, 0.8])
def test_the_draft_curve_is_what_its_calls_cost(clock, probability):
    desk = scattered(clock, probability)
    ran = desk.run(PROMPT, 200)
    found = desk.measured[-1].draft
    assert found is not None
    costs = costs_of(found)
    assert costs[1] == pytest.approx(DRAFT[1])
    if sum(done.accepted for done in ran.rounds if done.proposer == "draft") > 1:
        assert costs[2] == pytest.approx(DRAFT[2])
    assert set(costs) == {1, 2, 4, 8, 16, 32, 64}


@pytest.mark.parametrize("a_token", [0.1, 0.5, 3.0])
@pytest.mark.parametrize("prompt", [8, 150])
def test_a_long_call_of_the_draft_is_priced_by_the_one_that_read_the_text(clock, a_token, prompt):
    def cost(width: int, past: int) -> float:
        return 2.0 + a_token * (width - 1)

    desk = scattered(clock, 0.5, draft_cost=cost)
    desk.run(list(range(prompt)), 200)
    found = desk.measured[-1].draft
    assert found is not None
    for width, ms in costs_of(found).items():
        assert ms == pytest.approx(cost(width, 0), rel=0.25)


def test_the_draft_is_judged_by_the_text_that_it_reads(clock):
    for probability, low, high in [(0.0, 0.0, 0.15), (1.0, 0.85, 1.0)]:
        desk = scattered(clock, probability)
        startup = desk.adaptive._startup
        desk.run(PROMPT, 200)
        assert startup is not None
        assert startup.prior is not None
        assert startup.prior.weight == JUDGED + DRAFT_ROUNDS
        assert low <= startup.prior.stands[0] <= high


SAMPLED = SamplingParams(temperature=1.0, seed=3)


def soft(ids: np.ndarray) -> np.ndarray:
    """Distributions that depend on the last two tokens."""
    seed = int(ids[-1]) * 31 + (int(ids[-2]) if len(ids) > 1 else 0)
    return np.random.default_rng(seed).normal(0, 2, 32).astype(np.float32)


@pytest.mark.parametrize("rule", [hashed(31, last=1), hashed(31, last=3), hashed(31)])
@pytest.mark.parametrize("probability", [0.0, 0.6, 1.0])
def test_a_greedy_text_is_the_plain_text(clock, rule, probability):
    desk = Desk(clock, rule=rule, draft_rule=agreeing(rule, probability, 31))
    ran = desk.run(PROMPT, 400)
    assert ran.tokens == desk.oracle(PROMPT, 400)
    assert desk.measured[-1].draft is not None


def test_a_seeded_sample_is_the_plain_sample(clock):
    desk = Desk(clock, scores=soft, draft_scores=soft)
    plain = desk.plain(PROMPT, 220, sampling=SAMPLED)
    assert desk.run(PROMPT, 220, sampling=SAMPLED).tokens == plain.tokens
    assert desk.measured[-1].draft is not None


def bound_ms(table: dict[int, float], read: int, draft: dict[int, float] | None) -> float:
    """Most that measuring may cost over plain decoding."""
    wide = REPEATS * sum(ms - table[1] for width, ms in table.items() if width > 1)
    if draft is None:
        return wide
    feed = steps(draft)
    drafting = DRAFT_ROUNDS * (feed(2, 0) + table[2] - table[1])
    return wide + drafting + sum(feed(min(64, read - at), 0) for at in range(0, read, 64))


@pytest.mark.parametrize("table", [CHEAP, DEAR])
@pytest.mark.parametrize("probability", [None, 0.0, 0.9])
def test_measuring_costs_no_more_than_its_wide_calls_and_one_reading(clock, table, probability):
    desk = scattered(clock, probability, cost=steps(table))
    ran = desk.run(PROMPT, 240)
    plain = desk.plain(PROMPT, 240)
    assert ran.tokens == plain.tokens
    measured = [i for i, kind in enumerate(ran.kinds) if kind == "measure"]
    spent = sum(ran.rounds[i].ms for i in measured)
    tokens = sum(len(ran.rounds[i].tokens) for i in measured)
    draft = None if probability is None else DRAFT
    assert spent - tokens * table[1] <= bound_ms(table, 120, draft) + 1e-6
    # not a word of it once it is known
    assert measured == list(range(len(measured)))
    assert len(measured) <= LEAST_SAID + 2 * REPEATS * (len(table) - 1) + DRAFT_ROUNDS + 1


@pytest.mark.parametrize("tokens", [8, LEAST_LEFT - 1])
def test_a_short_output_is_not_widened(clock, tokens):
    desk = scattered(clock, 0.5)
    for _ in range(5):
        ran = desk.run(PROMPT, tokens)
        assert {done.drafted for done in ran.rounds} == {0}
    assert desk.draft is not None
    assert not desk.draft.calls
    assert not desk.measured


def test_neither_end_of_an_output_is_widened(clock):
    desk = scattered(clock, 0.5)
    desk.run(PROMPT, 60)
    ran = desk.run(PROMPT, 60)
    assert max(measuring(ran)) > 1
    assert {done.drafted for done in ran.rounds[: LEAST_SAID - 1]} == {0}
    assert {done.drafted for done in ran.rounds[-(LEAST_LEFT - 2) :]} == {0}


def test_one_request_that_cannot_finish_does_not_begin(clock):
    """Else a command that is run once for each prompt would pay for it each time."""
    enough = LEAST_SAID + LEAST_LEFT + 2 * REPEATS * 5
    for tokens, begins in [(enough - 1, False), (enough, True)]:
        desk = scattered(clock)
        ran = desk.run(PROMPT, tokens)
        assert (max(measuring(ran)) > 1) == begins
        assert bool(desk.measured) == begins


def test_the_next_request_goes_on_where_the_last_one_stopped(clock):
    desk = scattered(clock, 0.5)
    widths: list[int] = []
    for request in range(30):
        if desk.measured:
            break
        widths += measuring(desk.run([*PROMPT, request], 100, stop_after=25))
    wide = [width for width in widths if width > 2]
    assert len(wide) == REPEATS * 4
    assert not {width for width in CHEAP if width > 2 and wide.count(width) != REPEATS}


def test_a_draft_that_reads_a_new_prompt_is_not_timed_as_if_it_read_two_tokens(clock):
    """The request ends between the reading and the timed rounds; the next prompt is long."""
    desk = scattered(clock, 0.0)
    first = desk.run(PROMPT, 200, stop_after=57)
    assert sum(done.draft_ms > 0 for done in first.rounds) >= 2
    assert all(found.draft is None for found in desk.measured)
    prompt = np.random.default_rng(0).integers(0, 997, 200).tolist()
    desk.run(prompt, 200)
    found = desk.measured[-1].draft
    assert found is not None
    assert costs_of(found)[1] == pytest.approx(DRAFT[1])
    assert costs_of(found)[2] == pytest.approx(DRAFT[2], rel=0.3)


def test_a_draft_that_catches_up_with_a_few_tokens_is_not_timed_by_that(clock):
    desk = scattered(clock, 0.0)
    first = desk.run(PROMPT, 200, stop_after=57)
    assert all(found.draft is None for found in desk.measured)
    desk.run([*PROMPT, *first.tokens, 1, 2, 3, 4, 5, 6], 200)
    found = desk.measured[-1].draft
    assert found is not None
    assert costs_of(found)[1] == pytest.approx(DRAFT[1])
    assert costs_of(found)[2] == pytest.approx(DRAFT[2])


def test_a_reading_whose_time_cannot_be_true_is_not_taken_from_the_next_round(clock):
    odd = False

    def cost(width: int, past: int) -> float:
        return -5.0 if odd and width > 20 else 2.0 + 0.5 * (width - 1)

    desk = scattered(clock, 0.0, draft_cost=cost)
    desk.run(PROMPT, 200, stop_after=57)
    odd = True
    prompt = np.random.default_rng(0).integers(0, 997, 200).tolist()
    desk.run(prompt, 200)
    found = desk.measured[-1].draft
    assert found is not None
    assert costs_of(found)[64] == pytest.approx(33.5, rel=0.25)


def test_a_long_prompt_of_a_short_output_is_not_fed_to_a_half_measured_draft(clock):
    desk = scattered(clock, 0.0)
    desk.run(PROMPT, 200, stop_after=57)
    assert desk.draft is not None
    calls = len(desk.draft.calls)
    prompt = np.random.default_rng(0).integers(0, 997, 200).tolist()
    desk.run(prompt, 8)
    assert len(desk.draft.calls) == calls


def test_a_draft_is_not_judged_by_the_prompt(clock):
    """The prompt is what the user wrote; how the draft does on it says little of the answer."""
    desk = scattered(clock, 1.0, cost=steps(CHEAP))
    desk.run(PROMPT, 100)  # the target's calls are known; too few tokens are left for the draft
    startup = desk.adaptive._startup
    assert startup is not None
    assert desk.adaptive.policy is not None
    assert startup.prior is None
    prompt = np.random.default_rng(0).integers(0, 997, 100).tolist()
    ran = desk.run(prompt, 120)
    assert startup.prior is not None
    assert startup.prior.stands[0] > 0.9
    reading = next(i for i, done in enumerate(ran.rounds) if done.draft_ms > 0)
    assert reading + 1 >= JUDGED


@pytest.mark.parametrize("budget", [1, 2, 3, 33, 34, 47])
def test_a_budget_that_ends_in_the_middle_is_kept(clock, budget):
    desk = Desk(clock, draft_rule=agreeing(hashed(31, last=1), 0.7, 31))
    for request in range(4):
        prompt = [*PROMPT, request]
        ran = desk.run(prompt, budget)
        assert ran.tokens == desk.oracle(prompt, budget)
        assert ran.reason == "length"


@pytest.mark.parametrize("context", [2, 8, 9, 10, 17, 24, 40, 64, 100])
def test_a_context_that_ends_in_the_middle_is_kept(clock, context):
    rule = hashed(31, last=2)
    desk = Desk(
        clock,
        rule=rule,
        draft_rule=agreeing(rule, 0.7, 31),
        context=context,
        longest=min(15, context - 1),
    )
    prompt = PROMPT[: context - 1]
    for _ in range(2):
        assert desk.run(prompt, 400).tokens == desk.oracle(prompt, 400)


def test_an_end_of_text_in_the_middle_is_kept(clock):
    rule = hashed(31, last=3)
    for stop in range(0, 200, 13):
        desk = Desk(clock, rule=rule, draft_rule=agreeing(rule, 0.7, 31))
        text = desk.oracle(PROMPT, 200)
        eos = frozenset({text[stop]})
        ran = desk.run(PROMPT, 200, eos=eos)
        assert (ran.tokens, ran.reason) == (desk.oracle(PROMPT, 200, eos), "stop")
        assert desk.run(PROMPT[::-1], 200).tokens == desk.oracle(PROMPT[::-1], 200)


def test_a_context_of_the_draft_that_has_ended_leaves_lookups(clock):
    rule = hashed(31, last=1)
    desk = Desk(clock, rule=rule, draft_rule=agreeing(rule, 0.5, 31), draft_context=20)
    ran = desk.run(PROMPT, 300)
    assert ran.tokens == desk.oracle(PROMPT, 300)
    assert desk.draft is not None
    assert not desk.draft.calls
    assert ran.kinds.count("measure") <= LEAST_SAID + 2 * REPEATS * 5
    assert "pays" in ran.kinds
    assert ran.state.proposer == "ngram"
    assert ran.state.on


def test_a_backlog_that_would_take_too_long_to_read_is_left(clock):
    desk = scattered(clock, 0.5)
    startup = desk.adaptive._startup
    assert startup is not None
    startup._size_ratio = LONGEST_FEED_MS  # a draft as slow as that
    ran = desk.run(PROMPT, 300)
    assert desk.draft is not None
    assert not desk.draft.calls
    assert desk.adaptive.policy is not None
    assert not {"measure"} & set(ran.kinds[60:])


def test_a_draft_that_fails_in_its_first_reading_costs_the_request_only_speculation(clock):
    desk = scattered(clock, 0.5, faults={0: RuntimeError("gone")})
    ran = desk.run(PROMPT, 200)
    assert ran.tokens == desk.plain(PROMPT, 200).tokens
    assert (ran.state.on, ran.state.failures) == (False, 1)
    assert "proposer draft failed in propose: RuntimeError: gone" in ran.state.reason
    again = desk.run(PROMPT[::-1], 200)
    assert again.state.failures == 1
    assert desk.measured[-1].draft is not None


@pytest.mark.parametrize(
    "names", [("draft",), ("ngram",), ("ngram", "draft"), ("draft", "ngram"), ()]
)
def test_any_set_of_proposers_will_do(clock, names):
    rule = hashed(31, last=2)
    desk = Desk(clock, rule=rule, draft_rule=agreeing(rule, 0.7, 31), proposers=names)
    ran = desk.run(PROMPT, 300)
    assert ran.tokens == desk.oracle(PROMPT, 300)
    drafted = {done.proposer for done in ran.rounds} - {None, PADDING}
    assert drafted <= set(names)
    if not names:
        assert not ran.state.on
        assert "no proposer" in ran.state.reason
        assert not desk.measured
    else:
        assert (desk.measured[-1].draft is not None) == ("draft" in names)


@pytest.mark.parametrize("odd", [0.0, -5.0])
@pytest.mark.parametrize("every", [3, 5, 7])
def test_a_clock_that_stands_still_or_goes_back_for_some_rounds_is_not_believed(clock, odd, every):
    calls = 0

    def cost(width: int, past: int) -> float:
        nonlocal calls
        calls += 1
        return odd if calls % every == 0 else steps(CHEAP)(width, past)

    desk = scattered(clock, 0.5, cost=cost)
    ran = desk.run(PROMPT, 300)
    assert ran.tokens == desk.plain(PROMPT, 300).tokens
    assert costs_of(desk.measured[-1].target) == pytest.approx(CHEAP)


def test_a_clock_that_goes_back_in_every_wide_round_is_not_asked_for_ever(clock):
    desk = scattered(clock, 0.5, cost=lambda width, past: 20.0 if width == 1 else -5.0)
    ran = desk.run(PROMPT, 300)
    assert ran.tokens == desk.plain(PROMPT, 300).tokens
    assert not desk.measured
    assert sum(done.drafted > 0 for done in ran.rounds) <= 2 * 20 + 1
    assert {done.drafted for done in ran.rounds[100:]} == {0}


def test_a_clock_that_stands_still_in_every_draft_is_not_asked_for_ever(clock):
    desk = scattered(clock, 0.0, draft_cost=lambda width, past: 0.0 if width < 3 else 5.0)
    ran = desk.run(PROMPT, 300)
    assert ran.tokens == desk.plain(PROMPT, 300).tokens
    assert {done.drafted for done in ran.rounds[100:]} == {0}


def test_a_plain_time_that_comes_late_still_ends_the_stage(clock):
    plain = 0

    def cost(width: int, past: int) -> float:
        nonlocal plain
        plain += width == 1
        return -1.0 if width == 1 and plain < 40 else CHEAP.get(width, 90.0)

    desk = scattered(clock, cost=cost)
    desk.run(PROMPT, 300)
    assert costs_of(desk.measured[-1].target) == pytest.approx(CHEAP)


def test_what_is_going_on_is_said(clock):
    desk = scattered(clock)
    ran = desk.run(PROMPT, 100, stop_after=25)
    assert not ran.state.on
    assert "(5 of 20 wide calls)" in ran.state.reason
    assert "\n" not in ran.state.reason


def test_padding_counts_as_nobodys_guess(clock):
    desk = scattered(clock)
    ran = desk.run(PROMPT, 100, stop_after=50)
    assert {done.proposer for done in ran.rounds} == {None, PADDING}
    assert (ran.metrics.proposed, ran.metrics.proposers) == (0, {})
    assert ran.state.proposer is None


def test_curves_are_told_in_order_and_none_twice(clock):
    desk = scattered(clock, 0.5)
    for request in range(3):
        desk.run([*PROMPT, request], 200)
    assert [isinstance(found, CostCurves) for found in desk.measured] == [True] * len(desk.measured)
    assert [found.draft is not None for found in desk.measured][-1:] == [True]
    assert len(desk.measured) <= 2

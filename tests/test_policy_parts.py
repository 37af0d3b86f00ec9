"""Survival, pace, account and arm, each against plain arithmetic."""

from __future__ import annotations

from math import exp
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.errors import OptionError, ShapeError
from specedge.policy import Account, Pace, Prior, Survival
from specedge.policy.arm import FIRST_REST, LONGEST_REST, WINDOW, Arm


def taught(outcomes, longest=8, prior=None):
    survival = Survival(longest, prior or Prior())
    for i, (drafted, accepted) in enumerate(outcomes):
        survival.learn(drafted, accepted, i)
    return survival


def test_a_prior_is_believed_before_the_first_round():
    survival = Survival(4, Prior((0.5, 0.8), 1000))
    assert survival.mean == pytest.approx([1, 1.5, 1.9, 2.22, 2.476], abs=2e-2)


@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_learns_the_expected_tokens_of_every_k_from_one_k(p):
    dice = Random(1)
    outcomes = []
    for _ in range(400):
        accepted = 0
        while accepted < 4 and dice.random() < p:
            accepted += 1
        outcomes.append((4, accepted))
    survival = taught(outcomes)
    for k in range(9):
        assert survival.mean[k] == pytest.approx(sum(p**i for i in range(k + 1)), rel=0.15)


def test_a_short_draft_says_nothing_bad_about_places_it_did_not_reach():
    survival = taught([(2, 2)] * 50)
    assert min(survival.place) > 0.9


def test_a_draft_that_falls_teaches_only_up_to_where_it_fell():
    survival = taught([(4, 1)] * 60, prior=Prior((0.5, 0.5, 0.9, 0.9), 8))
    assert survival.place[0] > 0.9
    assert survival.place[1] < 0.1
    assert survival.place[2] > 0.3, "never reached"


def test_a_prior_too_low_at_places_not_reached_gives_way_to_what_comes_before():
    survival = taught([(2, 2)] * 100, prior=Prior((0.5, 0.5, 0.3), 16))
    assert survival.place[2] > 0.6


def test_a_change_is_followed_within_12_rounds_after_any_length_of_evidence():
    survival = taught([(4, 4)] * 500)
    for i in range(12):
        survival.learn(4, 0, 2500 + i)
    assert survival.mean[4] < 1.5


def test_the_estimate_is_steady_while_nothing_changes():
    dice, survival, seen = Random(2), Survival(1, Prior()), []
    for i in range(3000):
        survival.learn(1, int(dice.random() < 0.6), i)
        seen.append(survival.mean[1])
    assert all(1.4 < mean < 1.8 for mean in seen[200:])


def test_doubt_brings_back_the_uncertainty_of_the_start():
    survival = taught([(4, 0)] * 100)
    narrow = survival.high_of(1) - survival.low_of(1)
    survival.doubt()
    assert survival.high_of(1) - survival.low_of(1) > 2 * narrow
    assert survival.mean == Survival(8, Prior()).mean


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 8), st.integers(0, 300)), max_size=80))
def test_estimates_stay_ordered_and_possible(rounds):
    survival, now = Survival(8, Prior()), 0
    for drafted, accepted, later in rounds:
        now += later
        survival.learn(drafted, min(drafted, accepted), now)
        for k in range(1, 9):
            assert survival.low_of(k) <= survival.mean[k] <= survival.high_of(k) + 1e-12
            assert 1 <= survival.mean[k] <= survival.high_of(k) <= k + 1
            assert survival.mean[k] >= survival.mean[k - 1]


@pytest.mark.parametrize(("drafted", "accepted"), [(0, 0), (9, 1), (3, 4), (3, -1)])
def test_an_impossible_outcome_is_refused(drafted, accepted):
    with pytest.raises(ShapeError, match="accepted"):
        Survival(8, Prior()).learn(drafted, accepted, 0)


@pytest.mark.parametrize("given", [{"stands": ()}, {"stands": (1.1,)}, {"weight": 0}])
def test_an_impossible_prior_is_refused(given):
    with pytest.raises(OptionError):
        Prior(**given)


def test_a_slower_machine_is_pace_and_not_bias():
    pace = Pace(8)
    for _ in range(4):
        pace.observe(1, 1.0)
        pace.observe(5, 1.0)
    for _ in range(12):
        pace.observe(5, 2.0)
    assert pace.wants_plain, "only a plain step can tell"
    for _ in range(2):
        pace.observe(1, 2.0)
    assert pace.factor == pytest.approx(2.0, rel=0.1)
    assert pace.share[5] == pytest.approx(1.0, abs=0.15)


def test_a_curve_that_is_wrong_at_one_width_is_bias_and_not_pace():
    pace = Pace(8)
    for _ in range(30):
        pace.observe(5, 1.5)
        if pace.wants_plain:
            pace.observe(1, 1.0)
    for _ in range(5):
        pace.observe(1, 1.0)
    assert pace.factor == pytest.approx(1.0, abs=0.05)
    assert pace.share[5] == pytest.approx(1.5, rel=0.1)


def test_one_spike_moves_the_pace_little():
    pace = Pace(8)
    pace.observe(1, 1.0)
    pace.observe(1, 50.0)
    pace.observe(1, 1.0)
    assert pace.factor < 1.3


@pytest.mark.parametrize("ratio", [0.0, -1.0, float("inf"), float("nan")])
def test_times_that_cannot_be_are_not_learned_from(ratio):
    pace = Pace(2)
    pace.observe(1, ratio)
    pace.draft(ratio)
    assert pace.factor == 1.0
    assert pace.share == [exp(0.0)] * 3


def test_the_account_starts_at_nothing_and_earns_its_share():
    account = Account(0.015)
    assert account.balance_ms == 0
    account.plain_round(1000)
    assert account.balance_ms == pytest.approx(15)
    account.round(spent_ms=30, plain_ms=20, step_ms=20)
    assert account.excess_ms == 10
    assert account.balance_ms == pytest.approx(0.015 * 1020 - 10)


def test_gains_are_kept_up_to_a_bound():
    account = Account(0.0, keep_steps=5)
    for _ in range(100):
        account.round(spent_ms=10, plain_ms=20, step_ms=20)
    assert account.balance_ms == 100


def test_what_was_lent_stays_open_until_it_is_won_back():
    account = Account()
    assert account.may_grant()
    account.grant(50)
    account.round(spent_ms=70, plain_ms=20, step_ms=20)
    assert not account.may_grant()
    assert account.granted_ms == 50
    account.round(spent_ms=20, plain_ms=80, step_ms=20)
    assert account.may_grant()
    assert account.granted_ms == 0


def arm():
    return Arm("ngram", True, 4, Prior())


def test_rests_get_longer_up_to_a_bound():
    tried, lengths, now = arm(), [], 0
    for _ in range(8):
        tried.rest(now)
        lengths.append(tried.rest_until - now)
        now = tried.rest_until
        tried.wake()
    assert lengths[0] == FIRST_REST
    assert lengths == sorted(lengths)
    assert lengths[-1] == LONGEST_REST


def test_a_stretch_that_pays_makes_the_next_rest_short_again():
    tried = arm()
    for _ in range(5):
        tried.rest(0)
        tried.wake()
    tried.turn(True)
    for i in range(40):
        tried.observe(2, 2, 10.0, 20.0, i)
    tried.rest(100)
    assert tried.rest_until == 100 + FIRST_REST


def test_a_window_of_measured_loss_ends_in_a_rest_whatever_is_accepted():
    tried = arm()
    tried.turn(True)
    for i in range(WINDOW):
        assert not tried.resting
        tried.observe(4, 4, 110.0, 100.0, i)
    assert tried.resting
    assert tried.measured_loss
    assert not tried.on

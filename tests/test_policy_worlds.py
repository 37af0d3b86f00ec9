"""Whole runs in simulated worlds, against plain decoding and the best choice in hindsight."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import World, best_fixed, curves, phases, simulate, steady
from specedge.policy import Account, Prior
from specedge.policy.policy import CREDIT_STEPS, HEARD_STEPS

STEEP = curves(slope=0.25, draft=0.3)  # int4 on a CPU
FLAT = curves(slope=0.05, draft=0.15)  # float32, or a GPU
LOOKUP = Prior((0.55, 0.6, 0.65), 32, measured=True)
DRAFT = Prior((0.8, 0.8), 32, measured=True)
STEP_MS = 20.0


def worst_excess_steps(trace, share=0.015):
    """The most that time ever was over plain and the exploration bound, in plain steps."""
    spent = plain = worst = 0.0
    for round_ in trace.rounds:
        spent += round_.ms
        plain += round_.plain_ms
        worst = max(worst, (spent - (1 + share) * plain) / STEP_MS)
    return worst


def window(trace, start, stop):
    """Speed over plain between two tokens of the text."""
    rounds = [r for r in trace.rounds if start <= r.now < stop]
    return sum(r.plain_ms for r in rounds) / sum(r.ms for r in rounds)


@pytest.mark.parametrize("costs", [STEEP, FLAT], ids=["steep", "flat"])
@pytest.mark.parametrize("p", [0.3, 0.5, 0.8, 0.95, 1.0])
def test_a_lookup_that_pays_gets_all_but_3_percent_of_hindsight_once_it_has_earned_a_start(
    costs, p
):
    world = World(costs, lookup=steady(p))
    *_, best = best_fixed(world)
    trace = simulate(world, world.policy())
    started = next(i for i, r in enumerate(trace.rounds) if r.choice.why == "pays")
    assert started <= (60 if p > 0.4 else 100), "plain tokens earn what the first draft risks"
    assert trace.ms - started * STEP_MS <= best.ms / 0.97


@pytest.mark.parametrize("costs", [STEEP, FLAT], ids=["steep", "flat"])
@pytest.mark.parametrize("p", [0.75, 0.8, 0.9, 1.0])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_calibrated_draft_that_pays_gets_all_but_3_percent_of_hindsight(costs, p, noise):
    world = World(costs, draft=steady(p), noise=noise)
    *_, best = best_fixed(world)
    assert simulate(world, world.policy(draft=DRAFT)).speed >= 0.97 * best.speed


@pytest.mark.parametrize("costs", [STEEP, FLAT], ids=["steep", "flat"])
@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_proposers_that_never_agree_cost_under_2_percent(costs, calibrated, noise):
    world = World(costs, lookup=steady(0.0), draft=steady(0.0), noise=noise)
    policy = world.policy(LOOKUP, DRAFT) if calibrated else world.policy()
    trace = simulate(world, policy)
    assert trace.speed >= 0.98
    assert any(r.choice.k for r in trace.rounds), "never tried: nothing was shown"
    assert len({r.choice.why for r in trace.rounds}) > 1


def test_without_a_calibration_the_first_token_spent_was_earned_before():
    world = World(STEEP, lookup=steady(0.0), draft=steady(0.0))
    assert worst_excess_steps(simulate(world, world.policy())) <= 0


probabilities = st.floats(0, 1)


@st.composite
def worlds(draw):
    def proposer():
        if draw(st.booleans()):
            return None
        parts = draw(
            st.lists(st.tuples(st.integers(20, 400), probabilities), min_size=1, max_size=4)
        )
        return phases(*parts)

    most = draw(st.integers(1, 20))
    costs = curves(draw(st.floats(0.01, 1.0)), draw(st.floats(0.05, 1.0)), STEP_MS)
    return World(
        costs,
        lookup=proposer(),
        draft=proposer(),
        matches=draw(probabilities),
        long=draw(probabilities),
        tokens=draw(st.integers(50, 800)),
        prompt=draw(st.integers(1, 300)),
        output=draw(st.sampled_from([1, 2, 8, 60, 400])),
        room=lambda now: now * 7 % most,
        shadow=draw(st.booleans()),
        max_draft=draw(st.integers(1, 15)),
        seed=draw(st.integers(0, 1000)),
    )


priors = st.one_of(st.none(), st.builds(Prior, st.tuples(probabilities), st.floats(1, 50)))
measured = st.builds(Prior, st.tuples(probabilities), st.floats(1, 50), st.just(True))


@given(worlds(), priors, priors)
@settings(max_examples=60, deadline=None)
def test_the_exploration_bound_holds_at_every_moment(world, lookup, draft):
    """Without a calibration: beyond it only what evidence vouched for, which is not exploration.

    That is a backlog that earlier gains pay for, and one step for a lookup that was heard to pay.
    """
    trace = simulate(world, world.policy(lookup, draft))
    vouched = max((r.feed_ms for r in trace.rounds), default=0.0) / STEP_MS
    tried = [r for r in trace.rounds if r.choice.why == "pays" and r.feed_ms]
    # Costs are looked up for 64 rows at once, so they are off by 0.4 % at most.
    rounding = 0.02 + 0.01 * sum(r.ms for r in trace.rounds if r.choice.k) / STEP_MS
    heard = HEARD_STEPS if world.shadow and world.lookup else 0.0
    bound = heard + (vouched if tried else 0.0) + min(rounding, 1.0)
    assert worst_excess_steps(trace) <= bound


@given(worlds(), measured, measured)
@settings(max_examples=40, deadline=None)
def test_a_wrong_calibration_costs_no_more_than_its_credit_and_one_backlog(world, lookup, draft):
    trace = simulate(world, world.policy(lookup, draft))
    vouched = max((r.feed_ms for r in trace.rounds), default=0.0) / STEP_MS
    assert worst_excess_steps(trace) <= vouched + 1.05 * CREDIT_STEPS + 1.0


@given(worlds(), priors, measured)
@settings(max_examples=40, deadline=None)
def test_k_is_never_above_the_clamp(world, lookup, draft):
    for round_ in simulate(world, world.policy(lookup, draft)).rounds:
        choice = round_.choice
        assert 0 <= choice.k <= max(0, round_.limit)
        assert (choice.k == 0) == (choice.proposer is None)
        assert choice.reason
        assert "\n" not in choice.reason


@given(worlds())
@settings(max_examples=10, deadline=None)
def test_the_same_inputs_give_the_same_choices(world):
    first, second = (simulate(world, world.policy()) for _ in range(2))
    assert [(r.choice.proposer, r.choice.k) for r in first.rounds] == [
        (r.choice.proposer, r.choice.k) for r in second.rounds
    ]


def lag(trace, start, drafting):
    """Rounds after token `start` until 8 of 10 running rounds draft, or do not."""
    rounds = [r for r in trace.rounds if r.now >= start]
    for i in range(len(rounds) - 10):
        if sum((r.choice.k > 0) == drafting for r in rounds[i : i + 10]) >= 8:
            return i
    return len(rounds)


@pytest.mark.parametrize("seed", range(5))
def test_follows_a_lookup_from_chat_to_editing_and_back_within_32_rounds(seed):
    stands = phases((1000, 0.1), (1000, 0.9), (1000, 0.1))
    world = World(STEEP, lookup=stands, tokens=3000, noise=0.05, seed=seed)
    trace = simulate(world, world.policy(LOOKUP))
    assert lag(trace, 1000, drafting=True) <= 32
    assert lag(trace, 2000, drafting=False) <= 32
    assert window(trace, 1100, 2000) > 1.5
    assert window(trace, 2100, 3000) > 0.98


@pytest.mark.parametrize("seed", range(5))
def test_leaves_a_draft_that_stops_paying_within_32_rounds(seed):
    world = World(FLAT, draft=phases((1000, 0.9), (1000, 0.0)), tokens=2000, seed=seed)
    trace = simulate(world, world.policy(draft=DRAFT))
    assert lag(trace, 1000, drafting=False) <= 32


@pytest.mark.parametrize("seed", range(5))
def test_comes_back_to_a_draft_that_pays_again(seed):
    """Nothing is heard of a draft model that rests, so it takes as long as the back-off."""
    stands = phases((500, 0.9), (1500, 0.0), (4000, 0.9))
    world = World(FLAT, draft=stands, tokens=6000, seed=seed)
    trace = simulate(world, world.policy(draft=DRAFT))
    assert window(trace, 500, 2000) > 0.95
    assert window(trace, 4500, 6000) > 1.5


@pytest.mark.parametrize("p", [0.2, 0.25, 0.3, 0.35])  # around where it begins to pay
@pytest.mark.parametrize("seed", range(3))
def test_does_not_flap_under_noise_where_it_makes_no_difference(p, seed):
    world = World(STEEP, lookup=steady(p), noise=0.1, seed=seed)
    policy = world.policy(LOOKUP)
    trace = simulate(world, policy)
    assert sum(arm.switches for arm in policy.arms) <= len(trace.rounds) / 80
    assert trace.speed >= 0.98


@pytest.mark.parametrize("p", [0.4, 0.6, 0.9])
@pytest.mark.parametrize("factor", [1.5, 2.0, 4.0])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_throttling_alone_does_not_switch_it_off(p, factor, noise):
    def slowdown(now):
        return factor if 1000 <= now < 2000 else 1.0

    world = World(FLAT, lookup=steady(p), slowdown=slowdown, noise=noise, tokens=3000)
    policy = world.policy(LOOKUP)
    trace = simulate(world, policy)
    late = [r.choice for r in trace.rounds if r.now > 900]
    plain = [choice for choice in late if choice.k == 0]
    assert {choice.why for choice in plain} <= {"pace", "no room"}
    assert len(plain) <= len(late) / 20
    assert sum(arm.switches for arm in policy.arms) <= 1


def test_a_curve_that_promises_too_much_is_found_out():
    """Calls of more than one token really take 1.6 times what was measured."""
    world = World(STEEP, lookup=steady(0.55), truth=lambda n: 1.6 if n > 1 else 1.0)
    assert best_fixed(world)[0] is None
    trace = simulate(world, world.policy(LOOKUP))
    assert trace.speed >= 0.98
    assert window(trace, 2000, 4000) >= 0.99


def test_outputs_of_8_tokens_never_pay_for_a_prefill():
    world = World(FLAT, draft=steady(1.0), prompt=400, output=8, tokens=800)
    trace = simulate(world, world.policy(draft=DRAFT))
    assert all(r.choice.proposer is None for r in trace.rounds)
    assert {r.choice.why for r in trace.rounds} == {"deferred", "no room"}
    assert trace.speed == pytest.approx(1.0)


def test_a_long_output_does_pay_for_it():
    world = World(FLAT, draft=steady(1.0), prompt=400, output=400, tokens=400)
    trace = simulate(world, world.policy(draft=DRAFT))
    assert trace.rounds[0].choice.proposer == "draft"
    assert trace.speed > 1.5


def test_an_account_of_nothing_never_drafts_on_trial():
    world = World(FLAT, lookup=steady(0.9), draft=steady(0.9), tokens=500, shadow=False)
    trace = simulate(world, world.policy(account=Account(0.0)))
    assert all(r.choice.k == 0 for r in trace.rounds)

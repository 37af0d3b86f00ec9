"""Lookups and a draft model against each other, and starts without any prior."""

from __future__ import annotations

import pytest

from simulator import World, best_fixed, curves, simulate, steady
from specedge.policy import Policy, Prior

STEEP = curves(slope=0.25, draft=0.3)  # int4 on a CPU
FLAT = curves(slope=0.05, draft=0.15)  # float32, or a GPU
BOTH = pytest.mark.parametrize("costs", [STEEP, FLAT], ids=["steep", "flat"])


def calibrated(p):
    return Prior((p,), 32, measured=True)


def compared(world, lookup, draft):
    """Speed of the policy over that of the best fixed proposer and K."""
    *_, best = best_fixed(world)
    policy = world.policy(calibrated(lookup), calibrated(draft))
    return simulate(world, policy).speed / best.speed


@BOTH
@pytest.mark.parametrize("p", [0.75, 0.9, 1.0])
@pytest.mark.parametrize("matches", [0.2, 0.4, 0.7, 1.0])
def test_in_competition_all_but_3_percent_of_the_best_fixed_choice_is_reached(costs, p, matches):
    """Matches at random; the mean of three texts, none of them under 0.95."""
    ratios = [
        compared(
            World(costs, lookup=steady(0.6), draft=steady(p), matches=matches, seed=seed), 0.6, p
        )
        for seed in range(3)
    ]
    assert sum(ratios) / 3 >= 0.97
    assert min(ratios) >= 0.95


@BOTH
@pytest.mark.parametrize("p", [0.75, 0.9])
def test_so_it_is_where_matches_come_in_stretches(costs, p):
    ratios = [
        compared(
            World(costs, lookup=steady(0.6), draft=steady(p), matches=0.4, spell=40, seed=seed),
            0.6,
            p,
        )
        for seed in range(2)
    ]
    assert sum(ratios) / 2 >= 0.97


@pytest.mark.parametrize("seed", range(2))
def test_taking_turns_beats_every_fixed_choice_where_each_has_its_stretches(seed):
    """Lookups gain 4 where they match, the draft 1.7 where they do not."""
    world = World(FLAT, lookup=steady(0.9), draft=steady(0.75), matches=0.5, spell=40, seed=seed)
    assert compared(world, 0.9, 0.75) >= 1.1


@pytest.mark.parametrize("seed", range(3))
def test_a_lookup_that_rarely_matches_drafts_further_when_it_does(seed):
    """K = 4 is best for its own rounds, K = 8 or 15 for all rounds together."""
    world = World(STEEP, lookup=steady(0.9), matches=0.15, seed=seed)
    *_, best = best_fixed(world)
    trace = simulate(world, world.policy(calibrated(0.9)))
    assert trace.speed >= 0.97 * best.speed
    used = [r.choice.k for r in trace.rounds if r.choice.k and r.now > 500 and r.limit > 8]
    assert sum(used) / len(used) > 6


def test_a_draft_is_left_out_where_being_fed_after_lookups_costs_more_than_it_wins():
    world = World(STEEP, lookup=steady(0.6), draft=steady(0.75), matches=0.4)
    trace = simulate(world, world.policy(calibrated(0.6), calibrated(0.75)))
    late = [r.choice for r in trace.rounds if r.now > 1000]
    assert sum(choice.proposer == "draft" for choice in late) < 0.05 * len(late)
    assert any(choice.why == "outbid" and "fed" in choice.reason for choice in late)


class Started:
    """A policy, and when it first heard of a token that stood and first drafted."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.observe = policy, policy.observe
        self.heard: int | None = None
        self.drafted: int | None = None

    def choose(self, *given):
        choice = self.policy.choose(*given)
        if choice.k and self.drafted is None:
            self.drafted = self.policy.now
        return choice

    def hear(self, name, match, drafted, accepted):
        if accepted and self.heard is None:
            self.heard = self.policy.now
        self.policy.hear(name, match, drafted, accepted)


@BOTH
@pytest.mark.parametrize("matches", [0.4, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_without_a_prior_a_copying_text_starts_a_lookup_within_12_tokens_of_what_it_heard(
    costs, matches, seed
):
    world = World(costs, lookup=steady(0.95), matches=matches, tokens=200, seed=seed)
    started = Started(world.policy())
    simulate(world, started)
    assert started.drafted is not None
    heard = started.heard if started.heard is not None else started.drafted
    assert started.drafted - heard <= 12


@BOTH
@pytest.mark.parametrize("p", [0.0, 0.05, 0.1, 0.2])
@pytest.mark.parametrize("tokens", [100, 800])
def test_without_a_prior_text_that_is_not_copied_costs_under_1_5_percent(costs, p, tokens):
    speeds = []
    for seed in range(4):
        world = World(costs, lookup=steady(p), tokens=tokens, seed=seed)
        speeds.append(simulate(world, world.policy()).speed)
    assert sum(speeds) / 4 >= 0.985


def test_nothing_is_lent_to_a_lookup_of_which_nothing_was_heard():
    """The default prior alone would promise a gain here."""
    world = World(FLAT, lookup=steady(0.0), shadow=False, tokens=40)
    trace = simulate(world, world.policy())
    assert trace.rounds[0].choice.why == "account"
    first = next(r for r in trace.rounds if r.choice.k)
    assert first.now >= 0.05 / 0.015 - 1, "plain tokens earn what the first draft risks"


def ramp(now):
    return 1.0 + min(1.0, max(0.0, (now - 1000) / 500))


@BOTH
@pytest.mark.parametrize(
    "slowdown",
    [lambda now: 1.5 if now >= 1000 else 1.0, lambda now: 2.0 if now >= 1000 else 1.0, ramp],
    ids=["1.5", "2", "ramp to 2"],
)
@pytest.mark.parametrize("draft", [None, steady(0.9)], ids=["lookup", "lookup and draft"])
def test_a_machine_that_gets_slower_at_everything_goes_on_drafting(costs, slowdown, draft):
    world = World(
        costs, lookup=steady(0.8), draft=draft, slowdown=slowdown, noise=0.05, tokens=2500
    )
    policy = world.policy(calibrated(0.8), calibrated(0.9))
    late = [r.choice for r in simulate(world, policy).rounds if r.now >= 1000]
    assert sum(choice.k == 0 for choice in late) <= len(late) / 12
    assert not any(arm.measured_loss for arm in policy.arms)


@pytest.mark.parametrize("seed", range(3))
def test_wide_calls_that_alone_get_slower_end_it_within_64_rounds(seed):
    """Another process takes a core: a plain step is bound by memory and does not notice."""

    class Squeezed(World):
        pressed = False

    world = Squeezed(STEEP, lookup=steady(0.6), noise=0.03, tokens=3000, seed=seed)
    world.truth = lambda n: 1.6 if n > 1 and world.pressed else 1.0

    def slowdown(now):
        world.pressed = now >= 1000
        return 1.0

    world.slowdown = slowdown
    trace = simulate(world, world.policy(calibrated(0.6)))
    after = [r for r in trace.rounds if r.now >= 1000]
    quiet = after[64:]
    assert sum(r.choice.k > 0 for r in quiet) <= 0.1 * len(quiet)
    assert sum(r.plain_ms for r in quiet) / sum(r.ms for r in quiet) >= 0.98
    assert any(r.choice.k for r in trace.rounds if r.now < 1000)


def test_a_draft_model_can_be_weighed_once_its_costs_are_known():
    """First without one, then with it: the account goes on, curves of one past do."""
    known = curves(slope=0.25, draft=None)
    one_past = known.model_copy(
        update={
            "target": known.target.model_copy(
                update={"points": tuple(p for p in known.target.points if p.past == 0)}
            )
        }
    )
    world = World(one_past, lookup=steady(0.5), tokens=300)
    first = world.policy()
    simulate(world, first)
    world = World(STEEP, lookup=steady(0.5), draft=steady(0.9), tokens=1000)
    second = world.policy(draft=calibrated(0.9), account=first.account)
    trace = simulate(world, second)
    assert any(r.choice.proposer == "draft" for r in trace.rounds)

"""Priors out of a probe's counts, and what a policy makes of them on mixed loads."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import World, curves, phases, simulate
from specedge.policy import Policy, Prior
from specedge.policy.priors import MOST_WEIGHT, ONE_CLASS, candidates, prior
from specedge.probe.findings import Finding, Findings, Steadiness

STEEP = curves(slope=0.25, draft=0.3)


def finding(workload, reached, stood, proposer="ngram", verdict="open"):
    return Finding(
        workload=workload,
        proposer=proposer,
        tokens=1000,
        reached=tuple(reached),
        stood=tuple(stood),
        expected=(),
        best_k=0,
        measured=None,
        verdict=verdict,
        reason="because",
    )


def findings(*found, proposers=("ngram",)):
    return Findings(
        margin=1.03,
        prompts_from="built in",
        findings=tuple(found),
        proposers=proposers,
        reason="because",
        texts_equal=0,
        texts_compared=0,
        energy=None,
        steadiness=Steadiness(drift=1.0),
        seconds=1.0,
        complete=True,
    )


def counted(p, drafts, seed, places=8):
    """reached, stood of that many drafts whose tokens each stand with probability p."""
    dice = Random(seed)
    reached, stood = [0] * places, [0] * places
    for _ in range(drafts):
        for place in range(places):
            reached[place] += 1
            if dice.random() >= p:
                break
            stood[place] += 1
    return reached, stood


def test_without_findings_everybody_begins_with_the_default():
    found = candidates(None, ["ngram", "draft"])
    assert [(each.name, each.cost) for each in found] == [("ngram", "lookup"), ("draft", "draft")]
    assert all(each.prior == Prior() for each in found)


def test_who_is_ruled_out_on_every_class_is_left_out_and_who_was_not_looked_at_stays():
    chat = finding("chat", [100], [1], verdict="does not pay")
    found = candidates(findings(chat, proposers=()), ["ngram", "draft"])
    assert [each.name for each in found] == ["draft"]
    assert found[0].prior == Prior()


def test_who_pays_on_one_class_only_stays():
    found = candidates(
        findings(
            finding("chat", [100], [1], verdict="does not pay"),
            finding("code editing", [100], [90], verdict="pays"),
        ),
        ["ngram"],
    )
    assert [each.name for each in found] == ["ngram"]
    assert found[0].prior.measured


def test_the_mean_is_that_of_the_classes_however_many_drafts_each_had():
    fitted = prior([finding("a", [1000, 800], [800, 640]), finding("b", [100, 40], [40, 20])])
    assert fitted.stands[0] == pytest.approx((0.8 + 0.4) / 2, abs=0.01)
    assert fitted.stands[1] == pytest.approx((0.8 + 0.5) / 2, abs=0.01)


def test_classes_that_agree_make_a_strong_prior_and_those_that_do_not_a_weak_one():
    alike = prior([finding(str(i), *counted(0.6, 200, i)) for i in range(5)])
    apart = prior([finding(str(p), *counted(p, 200, 1)) for p in (0.05, 0.1, 0.5, 0.9)])
    assert alike.weight >= 24
    assert apart.weight <= 3
    assert alike.measured
    assert apart.measured


@pytest.mark.parametrize("weight", [4.0, 12.0])
def test_the_weight_is_found_again_that_classes_were_drawn_with(weight):
    dice = Random(3)
    classes = []
    for i in range(400):
        p = dice.betavariate(weight * 0.6, weight * 0.4)
        classes.append(finding(str(i), *counted(p, 100, i)))
    assert prior(classes).weight == pytest.approx(weight, rel=0.2)


def test_few_drafts_of_each_class_are_not_taken_for_classes_that_differ():
    weights = [
        prior([finding(str(i), *counted(0.6, 12, 100 * seed + i)) for i in range(5)]).weight
        for seed in range(15)
    ]
    assert sorted(weights)[7] >= 24


def test_one_class_tells_little_of_others():
    assert prior([finding("chat", [1000], [600])]).weight == ONE_CLASS


def test_a_few_drafts_are_no_calibration():
    assert prior([finding("chat", [5], [5]), finding("code", [2], [2])]) == Prior()
    assert prior([finding("chat", [0, 0], [0, 0]), finding("code", [], [])]) == Prior()


def test_a_place_that_one_draft_reached_is_believed_to_be_like_the_one_before():
    fitted = prior([finding("chat", [100, 50, 1], [50, 40, 0])])
    assert fitted.stands[2] > 0.5


counts = st.lists(st.tuples(st.integers(0, 300), st.floats(0, 1)), max_size=6)


@given(st.lists(counts, max_size=6))
def test_every_prior_is_possible(classes):
    found = []
    for i, places in enumerate(classes):
        reached, stood = [], []
        for n, share in places:
            reached.append(min(n, stood[-1]) if stood else n)
            stood.append(int(reached[-1] * share))
        found.append(finding(str(i), reached, stood))
    fitted = prior(found)
    assert all(0 <= p <= 1 for p in fitted.stands)
    assert 2 <= fitted.weight <= MOST_WEIGHT


MIXED = findings(
    finding("chat", *counted(0.15, 300, 1)),
    finding("code editing", *counted(0.9, 300, 2)),
    finding("summarising", *counted(0.4, 300, 3)),
    finding("chat", *counted(0.75, 300, 4), proposer="draft"),
    finding("code editing", *counted(0.9, 300, 5), proposer="draft"),
    finding("summarising", *counted(0.75, 300, 6), proposer="draft"),
    proposers=("ngram", "draft"),
)


def follows(trace, start, wanted):
    """Rounds after token `start` until 8 of 10 running rounds are as wanted."""
    rounds = [r for r in trace.rounds if r.now >= start]
    for i in range(len(rounds) - 10):
        if sum(wanted(r.choice) for r in rounds[i : i + 10]) >= 8:
            return i
    return len(rounds)


@pytest.mark.parametrize("names", [("ngram",), ("ngram", "draft")])
@pytest.mark.parametrize("seed", range(4))
def test_follows_from_chat_to_editing_and_back_within_32_rounds(names, seed):
    """Chat (lookups rarely stand), editing (they mostly do), chat: by priors over all classes."""
    world = World(
        STEEP,
        lookup=phases((600, 0.1), (600, 0.9), (600, 0.1)),
        draft=phases((1800, 0.7)) if "draft" in names else None,
        tokens=1800,
        output=600,
        noise=0.05,
        seed=seed,
    )
    policy = Policy(world.costs, candidates(MIXED, names), world.max_draft)
    trace = simulate(world, policy)

    def looks_up(choice):
        return choice.proposer == "ngram"

    assert follows(trace, 600, looks_up) <= 32
    assert follows(trace, 1200, lambda choice: not looks_up(choice)) <= 32
    assert trace.speed > 1.15

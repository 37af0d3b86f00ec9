"""Single choices, their reasons, and what a policy refuses."""

from __future__ import annotations

import pytest

from simulator import curves
from specedge.errors import OptionError
from specedge.policy import Candidate, Policy, Prior

COSTS = curves(slope=0.25, draft=0.3)
GOOD = Prior((0.9, 0.9), 64, measured=True)
BAD = Prior((0.1, 0.1), 64, measured=True)


def policy(lookup=None, draft=None, costs=COSTS, max_draft=15, **given):
    candidates = [Candidate("ngram", "lookup", lookup)] if lookup else []
    candidates += [Candidate("draft", "draft", draft)] if draft else []
    return Policy(costs, candidates, max_draft, **given)


def choose(chooser, past=100, room=15, match=None, backlog=1, left=400):
    return chooser.choose(past, room, {"ngram": match}, backlog, left)


def play(chooser, choice, accepted):
    """A round that took what the curves say."""
    ms = choice.draft_ms + COSTS.target.cost_ms(choice.k + 1, choice.past)
    chooser.observe(choice, accepted, accepted + 1, ms, choice.draft_ms)


def by_hand(k, p, lookup):
    """Tokens per plain step of COSTS, backlog of one token."""
    width = next(n for n in (1, 2, 3, 5, 9, 16) if n > k)
    return sum(p**i for i in range(k + 1)) / (1 + 0.25 * (width - 1) + (0 if lookup else 0.3 * k))


@pytest.mark.parametrize("p", [0.5, 0.7, 0.9, 0.97])
@pytest.mark.parametrize("lookup", [True, False])
def test_takes_the_k_of_most_expected_tokens_per_second(p, lookup):
    prior = Prior((p,) * 15, 1e6, measured=True)
    chooser = policy(lookup=prior) if lookup else policy(draft=prior)
    choice = choose(chooser, past=0, match=6)
    best = max(range(16), key=lambda k: by_hand(k, p, lookup))
    if by_hand(best, p, lookup) < 1.03:
        assert choice.k == 0
        assert "speculation off" in choice.reason
    else:
        assert choice.k == best
        assert choice.gain == pytest.approx(by_hand(best, p, lookup), rel=2e-3)
        expected = 1000 * choice.gain / COSTS.target.cost_ms(1, 32)
        assert choice.expected_tokens_per_s == pytest.approx(expected)


def test_the_reason_for_off_names_cost_acceptance_and_the_best_that_there_was():
    prior = Prior((0.41,) * 15, 1e6, measured=True)
    reason = choose(policy(draft=prior), past=0).reason
    assert reason.startswith(
        "speculation off: 1 drafted token costs 55% of a target step and 41% are accepted; "
        "best K=1 gives 0.91x"
    )


def test_a_lookup_without_a_match_leaves_the_round_to_the_draft():
    chooser = policy(lookup=Prior((0.99,) * 15, 64, measured=True), draft=GOOD)
    assert choose(chooser, match=6).proposer == "ngram"
    for _ in range(80):
        plain_or_draft = choose(chooser, match=None)
        play(chooser, plain_or_draft, min(4, plain_or_draft.k))
    assert plain_or_draft.proposer == "draft", "once matches are known to be rare"
    assert choose(chooser, match=6).proposer == "ngram"
    assert choose(chooser, match=None, backlog=None).why == "no draft"


def test_short_matches_are_judged_apart_from_long_ones():
    chooser = policy(lookup=GOOD)
    for _ in range(40):
        chooser.hear("ngram", 2, 4, 0)
    assert choose(chooser, match=2).k == 0
    assert choose(chooser, match=6).k > 0


@pytest.mark.parametrize(
    ("given", "most"),
    [({"room": 4}, 4), ({"room": 0}, 0), ({"left": 3}, 2), ({"left": 1}, 0), ({"room": -1}, 0)],
)
def test_k_is_cut_to_what_fits(given, most):
    choice = choose(policy(lookup=Prior((1.0,) * 15, 64, measured=True)), match=6, **given)
    assert choice.k == most


def test_k_is_cut_to_the_widths_that_were_measured():
    assert policy(lookup=GOOD, max_draft=100).max_draft == 15


def test_a_backlog_is_charged_to_what_is_left_of_the_output():
    chooser = policy(draft=GOOD)
    assert choose(chooser, past=300, backlog=300, left=12).why == "deferred"
    assert "fed" in choose(chooser, past=300, backlog=300, left=12).reason
    assert choose(chooser, past=300, backlog=300, left=400).proposer == "draft"
    assert choose(chooser, past=300, backlog=1, left=12).proposer == "draft"


def test_a_draft_whose_calls_take_longer_than_measured_is_left():
    chooser = policy(draft=Prior((0.85,) * 15, 64, measured=True))
    for _ in range(120):
        choice = choose(chooser, match=None)
        draft_ms = 2.5 * choice.draft_ms
        target_ms = COSTS.target.cost_ms(choice.k + 1, 100)
        chooser.observe(choice, choice.k, choice.k + 1, target_ms + draft_ms, draft_ms)
        chooser.observe(choose(chooser, room=0), 0, 1, COSTS.target.cost_ms(1, 100))
    assert chooser.pace.share[0] == pytest.approx(2.5, rel=0.1)


def test_a_proposer_that_drafts_less_than_asked_is_judged_by_what_it_drafted():
    chooser = policy(lookup=GOOD)
    choice = choose(chooser, match=6)
    chooser.observe(choice, 1, 2, COSTS.target.cost_ms(2, 100), drafted=1)
    assert chooser.arms[1].survival.place[1] == pytest.approx(0.9, abs=0.02)


def test_a_text_that_ends_inside_the_draft_is_no_refusal():
    chooser = policy(lookup=GOOD)
    before = chooser.arms[1].survival.mean[4]
    choice = choose(chooser, match=6)
    chooser.observe(choice, 2, 2, COSTS.target.cost_ms(choice.k + 1, 100))
    assert chooser.arms[1].survival.mean[4] >= before


@pytest.mark.parametrize("ms", [-5.0, 0.0, float("nan"), float("inf")])
def test_a_clock_that_goes_backwards_does_no_harm(ms):
    chooser = policy(lookup=GOOD, draft=GOOD)
    for _ in range(50):
        choice = choose(chooser, match=6)
        chooser.observe(choice, choice.k, choice.k + 1, ms, draft_ms=0.0)
    assert choose(chooser, match=6).k > 0
    assert chooser.pace.factor == 1.0


def test_off_then_on_again_when_it_is_heard_to_pay():
    chooser = policy(lookup=BAD)
    assert choose(chooser, match=6).k == 0
    for _ in range(20):
        chooser.hear("ngram", 6, 4, 4)
    assert choose(chooser, match=6).k > 0


def test_without_proposers_every_round_is_plain():
    assert choose(policy()).why == "no draft"
    assert choose(policy(lookup=GOOD, max_draft=0), match=6).why == "no room"


def test_what_cannot_be_weighed_is_refused():
    with pytest.raises(OptionError, match="max_draft"):
        policy(max_draft=-1)
    with pytest.raises(OptionError, match="margin"):
        policy(margin=0.9)
    with pytest.raises(OptionError, match="measured costs"):
        policy(draft=GOOD, costs=curves(draft=None))
    with pytest.raises(OptionError, match="different names"):
        Policy(COSTS, [Candidate("a", "lookup"), Candidate("a", "lookup")], 4)

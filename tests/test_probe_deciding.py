from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.probe.curves import CostCurves, Curve, Point
from specedge.probe.deciding import Live, choose_live, decide, find, rules_out
from specedge.probe.findings import Estimate, Expected
from specedge.probe.replay import Calibration, Prices, calibrate, draft_offers, replay

MARGIN = 1.03
STEP_MS, DRAFT_MS = 20.0, 4.0
T = {1: 20.0, 2: 22.4, 3: 24.8, 5: 30.0, 9: 50.0}


def curve(role, costs) -> Curve:
    points = [Point(width=n, past=0, count=1, ms=ms, low_ms=ms, high_ms=ms) for n, ms in costs]
    return Curve(role=role, width_step=1, points=tuple(points))


CURVES = CostCurves(
    plan="full",
    target=curve("target", T.items()),
    draft=curve("draft", [(1, DRAFT_MS), (2, DRAFT_MS)]),
    passes=1,
    seconds=1.0,
    converged=True,
)

PRICES = Prices(CURVES)


def calibration(workload, proposer, stands, n=24, seed=0, max_draft=8) -> Calibration:
    """`n` texts of which each token agrees with a probability that differs a little by text."""
    rng = Random(seed)
    texts = []
    for _ in range(n):
        p = min(1.0, max(0.0, rng.gauss(stands, 0.03))) if 0 < stands < 1 else stands
        texts.append(draft_offers(50, [rng.random() < p for _ in range(48)]))
    drafts = proposer == "draft"
    return calibrate(
        workload, proposer, texts, CURVES, drafts=drafts, max_draft=max_draft, prices=PRICES
    )


def estimate(gain, low=None, high=None, prompts=24) -> Estimate:
    return Estimate(gain=gain, low=low, high=high, prompts=prompts)


def expected(k, gain, low=None, high=None) -> Expected:
    return Expected(
        k=k, estimate=estimate(gain, low, high), acceptance_rate=0.5, acceptance_length=1.5
    )


NEVER = calibrate(
    "chat", "ngram", [draft_offers(9, [True, True], 0)] * 12, CURVES, drafts=False
)  # nothing on offer


# Findings


@given(st.floats(0, 1), st.integers(1, 30), st.sampled_from(["ngram", "draft"]), st.integers(0, 9))
@settings(deadline=None, max_examples=25)
def test_a_finding_says_of_every_k_what_a_slow_count_says(stands, n, proposer, seed):
    rng = Random(seed)
    texts = [draft_offers(50, [rng.random() < stands for _ in range(12)]) for _ in range(n)]
    drafts = proposer == "draft"
    found = find(
        CURVES, calibrate("chat", proposer, texts, CURVES, drafts=drafts, max_draft=8), MARGIN
    )
    assert [each.k for each in found.expected] == list(range(1, 9))
    gains = {}
    for each in found.expected:
        plain_ms = spec_ms = drafted = accepted = rounds = 0
        for text in texts:
            plain_ms += 11 * STEP_MS
            for _, k, stood in replay(text, each.k).rounds:
                width = min(w for w in T if w >= k + 1)
                spec_ms += T[width] + (k * DRAFT_MS if drafts else 0)
                drafted, accepted, rounds = drafted + k, accepted + stood, rounds + 1
        gains[each.k] = plain_ms / spec_ms
        assert each.estimate.gain == pytest.approx(gains[each.k])
        assert each.estimate.prompts == n
        assert each.acceptance_rate == pytest.approx(accepted / drafted)
        assert each.acceptance_length == pytest.approx(11 * n / rounds)
    top = max(gains.values())
    if top <= 1 - 1e-9:
        assert found.best_k == 0
    elif top > 1 + 1e-9:
        assert gains[found.best_k] == pytest.approx(top)
        assert not any(gains[k] > top - 1e-9 for k in range(1, found.best_k))


def test_equal_gains_go_to_the_smaller_k():
    # K = 3 and K = 4 cost the same call; where nothing ever stands past place 2, they tie.
    bits = [True] + ([True] * 2 + [False]) * 8
    texts = [draft_offers(50, bits, longest=2)] * 12
    found = find(CURVES, calibrate("chat", "ngram", texts, CURVES, drafts=False), MARGIN)
    gains = {each.k: each.estimate.gain for each in found.expected}
    assert gains[2] == gains[3] == max(gains.values())
    assert found.best_k == 2


def test_a_hopeless_draft_is_ruled_out_without_a_live_run():
    found = find(CURVES, calibration("chat", "draft", 0.1), MARGIN)
    assert found.verdict == "does not pay"
    assert found.best_k == 0
    assert found.best is None
    assert found.measured is None
    assert choose_live(found) is None


def test_a_promising_draft_stays_open_until_it_ran():
    found = find(CURVES, calibration("chat", "draft", 0.9), MARGIN)
    assert found.best.estimate.low > MARGIN
    assert found.verdict == "open"
    assert choose_live(found) == found.best_k > 1


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(1.05, 1.3, "pays"), (0.8, 1.0, "does not pay"), (0.9, 1.2, "open"), (None, None, "open")],
)
@pytest.mark.parametrize("stands", [0.1, 0.9])
def test_live_pairs_decide_whatever_was_expected(low, high, verdict, stands):
    live = Live("chat", "draft", 2, estimate(1.0, low, high))
    found = find(CURVES, calibration("chat", "draft", stands), MARGIN, live)
    assert found.verdict == verdict
    assert found.best_k == 2
    assert found.measured == live.estimate
    assert found.best.k == 2


def test_too_few_prompts_rule_nothing_out():
    found = find(CURVES, calibration("chat", "draft", 0.0, n=11), MARGIN)
    assert found.expected[0].estimate.gain < 0.9
    assert found.verdict == "open"
    assert choose_live(found) == 1
    assert find(CURVES, calibration("chat", "draft", 0.0, n=12), MARGIN).verdict == "does not pay"


def test_one_k_that_might_pay_keeps_a_proposer_in():
    hopeless = [expected(1, 0.9, 0.8, 1.0), expected(2, 0.8, 0.7, 1.02)]
    assert rules_out(hopeless, MARGIN)
    assert not rules_out([*hopeless, expected(3, 0.7, 0.4, 1.03)], MARGIN)
    assert not rules_out([expected(3, 0.7, 0.4, 1.5), *hopeless], MARGIN)
    assert not rules_out([*hopeless, expected(3, 0.7)], MARGIN)
    assert not rules_out([], MARGIN)


def test_a_best_k_that_gains_the_margin_is_ruled_out_less_often_than_its_tail():
    """Of 200: a rate of 0.05 gives 19 or fewer in 99.7 of 100 cases, 0.16 in less than 1."""
    truth = calibration("chat", "draft", 0.55, n=1500, seed=1, max_draft=4)
    margin = max(each.estimate.gain for each in find(CURVES, truth, MARGIN).expected)
    wrong = 0
    for seed in range(200):
        probe = calibration("chat", "draft", 0.55, n=12, seed=seed + 2, max_draft=4)
        wrong += find(CURVES, probe, margin).verdict == "does not pay"
    assert wrong <= 19


def test_where_nothing_was_drafted_nothing_is_decided():
    found = find(CURVES, NEVER, MARGIN)
    assert (found.verdict, found.best_k, found.expected) == ("open", 0, ())
    assert choose_live(found) is None
    assert found.reason == "nothing could be drafted in 12 tokens of its texts"


# Reasons


def test_a_finding_gives_its_reason_in_one_sentence():
    draft = calibration("chat", "draft", 0.41)
    found = find(CURVES, draft, MARGIN)
    first = found.expected[0]
    low, high = first.estimate.low, first.estimate.high
    assert found.reason == (
        f"1 drafted token costs 32% of a target step and {first.acceptance_rate:.0%} are accepted; "
        f"best K=1 would give {first.estimate.gain:.2f}x ({low:.2f} to {high:.2f}, 24 prompts)"
    )
    live = find(CURVES, draft, MARGIN, Live("chat", "draft", 4, estimate(0.8, 0.7, 0.9, 12)))
    fourth = live.expected[3]
    assert live.reason == (
        f"4 drafted tokens cost 130% of a target step and {fourth.acceptance_rate:.0%} are "
        "accepted; best K=4 gives 0.80x (0.70 to 0.90, 12 paired runs)"
    )
    lookup = find(CURVES, calibration("chat", "ngram", 0.01, n=1), MARGIN)
    assert lookup.reason.startswith("1 looked-up token costs 12% of a target step and ")
    assert lookup.reason.endswith("x (1 prompt)")


def pair(workload, proposer, gain, low, high, k=2):
    return Live(workload, proposer, k, estimate(gain, low, high))


def test_the_decision_names_who_pays_where_and_who_does_not():
    given_calibrations = [
        calibration("code editing", "ngram", 0.9),
        calibration("chat", "ngram", 0.2),
        calibration("writing", "ngram", 0.5),
        calibration("code editing", "draft", 0.3),
        calibration("chat", "draft", 0.0),
        calibration("writing", "draft", 0.0),
    ]
    got = decide(
        CURVES,
        given_calibrations,
        MARGIN,
        live=[
            pair("code editing", "ngram", 2.31, 2.02, 2.60),
            pair("chat", "ngram", 0.97, 0.92, 1.01),
            pair("writing", "ngram", 1.05, 0.98, 1.12),
            pair("code editing", "draft", 0.93, 0.90, 0.96),
        ],
        workloads=["chat", "code editing", "writing"],
        proposers=["draft", "ngram"],
    )
    assert got.proposers == ("ngram",)
    assert got.reason == (
        "speculation on: draft ruled out, at best 0.93x (0.90 to 0.96) for code editing; ngram "
        "pays for code editing (2.31x, 2.02 to 2.60), not for chat (0.97x), open for writing "
        "(1.05x)"
    )
    assert [(each.workload, each.proposer) for each in got.findings] == [
        (workload, proposer)
        for workload in ("chat", "code editing", "writing")
        for proposer in ("draft", "ngram")
    ]


def test_one_class_that_is_open_keeps_a_proposer():
    hopeless = [calibration(name, "draft", 0.0) for name in ("a", "b")]
    assert decide(CURVES, hopeless, MARGIN).proposers == ()
    open_too = [*hopeless, calibration("c", "draft", 0.9)]
    got = decide(CURVES, open_too, MARGIN)
    assert got.proposers == ("draft",)
    assert got.reason.startswith(
        "speculation on trial: draft not for a (0.76x) and b (0.76x), open"
    )


def test_a_class_that_was_never_reached_keeps_a_proposer():
    hopeless = [calibration("a", "draft", 0.0)]
    got = decide(CURVES, hopeless, MARGIN, workloads=["a", "b"], proposers=["draft", "ngram"])
    assert got.proposers == ("draft", "ngram")
    assert got.reason == (
        "speculation on trial: draft not for a (0.76x), open for b (not measured); ngram open for "
        "a (not measured) and b (not measured)"
    )


def test_a_lookup_that_never_matched_stays_and_says_so():
    got = decide(CURVES, [NEVER], MARGIN)
    assert got.proposers == ("ngram",)
    assert got.reason == "speculation on trial: ngram open for chat (nothing drafted)"


def test_off_gives_the_reason_of_the_best_class():
    chat, code = calibration("chat", "draft", 0.0), calibration("code", "draft", 0.2)
    alone = decide(CURVES, [chat], MARGIN)
    assert alone.reason == f"speculation off: {alone.findings[0].reason}"
    both = decide(CURVES, [chat, code], MARGIN)
    assert both.reason == (
        f"speculation off: {both.findings[1].reason} for code, the best of 2 workloads"
    )
    lookup = calibration("chat", "ngram", 0.0)
    two = decide(CURVES, [chat, lookup], MARGIN)
    assert two.proposers == ()
    assert two.reason == (
        "speculation off: draft ruled out, at best 0.76x (0.76 to 0.76) for chat; ngram ruled out, "
        "at best 0.89x (0.89 to 0.89) for chat"
    )
    assert decide(CURVES, [], MARGIN).reason == "speculation off: there is no proposer"

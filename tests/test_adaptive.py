"""The policy in the loop, in fake time: fast where drafting pays, and hardly ever slower."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specedge.adaptive import DROWSY, NAP
from specedge.contract import Ids
from specedge.controller import Controller
from specedge.engines.fake import agreeing, hashed
from specedge.errors import ProposerError
from specedge.policy import Candidate
from specedge.proposers import Draft, DraftModelProposer, NgramProposer
from specedge.proposers.base import PADDING
from specedge.sampling.params import SamplingParams
from specedge.sampling.sampler import Sampler
from specedge.sequence import NO_TOKENS, Sequence
from specedge.speculator import Speculator
from tests.timed import CHEAP, DEAR, DRAFT, Clock, Cost, Desk, Ran, install, known, steps

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]
SCATTERED = hashed(997, last=None)
COPYING = hashed(31, last=1)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return install(monkeypatch)


def desk_of(
    clock: Clock, table: dict[int, float], rule=SCATTERED, draft=None, **given: object
) -> Desk:
    """Costs known; `draft` is how often the draft model agrees."""
    vocab = 997 if rule is SCATTERED else 32
    drafting = None if draft is None else agreeing(rule, draft, vocab - 1)
    costs = known(table, None if draft is None else DRAFT)
    return Desk(
        clock,
        rule=rule,
        cost=steps(table),
        draft_rule=drafting,
        vocab=vocab,
        costs=costs,
        **given,  # type: ignore[arg-type]
    )


def speed(ran: Ran) -> float:
    """Tokens per millisecond after the first."""
    return (len(ran.tokens) - 1) / ran.ms


def best_fixed(clock: Clock, table: dict[int, float], name: str, tokens: int, **given) -> float:
    """Fastest K of one proposer."""
    speeds = []
    for k in range(1, 16):
        desk = desk_of(clock, table, controller=Controller(k), proposers=[name], **given)
        speeds.append(speed(desk.run(PROMPT, tokens)))
    return max(speeds)


def test_a_text_that_copies_itself_is_nearly_as_fast_as_at_the_best_fixed_length(clock):
    desk = desk_of(clock, CHEAP, COPYING)
    ran = desk.run(PROMPT, 450)
    best = best_fixed(clock, CHEAP, "ngram", 450, rule=COPYING)
    assert best > 3 / CHEAP[1]
    assert speed(ran) >= 0.9 * best  # the first matches of a first request are on trial
    again = desk.run(PROMPT[::-1], 450)
    assert speed(again) >= 0.95 * best  # the first draft of a new text is short
    assert ran.state.on
    assert ran.state.proposer == "ngram"
    assert ran.state.reason.startswith("ngram: 15 looked-up tokens cost ")


def test_the_state_is_that_of_the_current_request(clock):
    desk = desk_of(clock, CHEAP, COPYING)
    assert desk.run(PROMPT, 300).state.on
    short = desk.run(PROMPT[:2], 2).state
    assert (short.on, short.proposer) == (False, None)
    assert short.reason == "plain step: no room for a draft"
    assert desk.run(PROMPT, 300).state.on


def test_a_draft_that_always_agrees_is_nearly_as_fast_as_at_the_best_fixed_length(clock):
    desk = desk_of(clock, CHEAP, draft=1.0)
    desk.run(PROMPT, 450)
    ran = desk.run(PROMPT[::-1], 450)
    best = best_fixed(clock, CHEAP, "draft", 450, draft=1.0)
    assert best > 2 / CHEAP[1]
    assert speed(ran) >= 0.97 * best
    assert (ran.state.on, ran.state.proposer) == (True, "draft")


def excess(ran: Ran, step_ms: float) -> list[tuple[float, float]]:
    """After each round: time over plain, and plain time."""
    spent = accumulate(done.ms for done in ran.rounds)
    plain = accumulate(len(done.tokens) * step_ms for done in ran.rounds)
    return [(ms - whole, whole) for ms, whole in zip(spent, plain, strict=True)]


@pytest.mark.parametrize("table", [CHEAP, DEAR])
@pytest.mark.parametrize(
    ("rule", "draft"),
    [(SCATTERED, None), (SCATTERED, 0.0), (SCATTERED, 0.2), (hashed(31, last=None), None)],
)
def test_a_text_that_does_not_repeat_itself_loses_no_more_than_the_account(
    clock, table, rule, draft
):
    """At every moment of two requests, prompts' reading by the draft included."""
    desk = desk_of(clock, table, rule, draft)
    spent = plain = 0.0
    for prompt in (PROMPT, PROMPT[::-1]):
        ran = desk.run(prompt, 450)
        for over, whole in excess(ran, table[1]):
            assert spent + over <= 0.015 * (plain + whole) + 1e-6
        over, whole = excess(ran, table[1])[-1]
        spent, plain = spent + over, plain + whole


def test_a_draft_that_is_always_wrong_stops(clock):
    """And is tried again, ever more rarely."""
    desk = desk_of(clock, CHEAP, draft=0.0, proposers=["draft"])
    wasted = 0
    for request in range(8):
        ran = desk.run([*PROMPT, request], 450)
        wasted += sum(done.drafted > 0 for done in ran.rounds)
        assert not ran.state.on
        assert ran.state.reason.startswith(("speculation off: ", "plain step: "))
        assert "\n" not in ran.state.reason
    assert 0 < wasted <= 0.02 * 8 * 450


def test_short_outputs_are_not_worth_a_prompts_reading(clock):
    desk = desk_of(clock, CHEAP, draft=0.9)
    prompt = np.random.default_rng(0).integers(0, 996, 400).tolist()
    ran = desk.run(prompt, 8)
    assert desk.draft is not None
    assert not desk.draft.calls
    assert {done.drafted for done in ran.rounds} == {0}


def test_nothing_is_asked_before_the_first_token_is_out(clock):
    desk = desk_of(clock, CHEAP, draft=0.9)
    ran = desk.run(PROMPT, 50, stop_after=0)
    assert len(ran.tokens) == 1
    assert desk.draft is not None
    assert not desk.draft.calls


@pytest.mark.parametrize("longest", [1, 3, 15])
def test_no_draft_is_longer_than_allowed(clock, longest):
    desk = desk_of(clock, CHEAP, COPYING, draft=1.0, longest=longest)
    ran = desk.run(PROMPT, 300)
    assert max(done.drafted for done in ran.rounds) == longest


class Stub:
    """Drafts the same tokens for ever; counts who asked."""

    def __init__(self, name="stub", tokens=(), fails="", **fixed) -> None:
        self.name = name
        self.tokens = np.array(tokens, dtype=np.int64)
        self.fails = fails
        self.verbs: list[str] = []
        self.__dict__ |= fixed

    def _enter(self, verb: str) -> None:
        self.verbs.append(verb)
        if verb == self.fails:
            raise RuntimeError("gone")

    def start(self, seq: Sequence, sampler: Sampler) -> None:
        self._enter("start")

    def backlog(self, seq: Sequence) -> int | None:
        self._enter("backlog")
        return 1

    def propose(self, seq: Sequence, limit: int) -> Draft:
        self._enter("propose")
        tokens = self.tokens[:limit]
        return Draft(tokens, self.name, match=2) if len(tokens) else Draft(NO_TOKENS, "")

    def observe(self, committed: Ids, n_accepted: int) -> None:
        self._enter("observe")

    def close(self) -> None:
        self._enter("close")


def with_stubs(clock: Clock, *stubs: Stub, mode="auto", drafts=False, **given) -> Desk:
    desk = desk_of(clock, CHEAP, COPYING, 0.5 if drafts else None, **given)
    adaptive = desk.adaptive
    adaptive._candidates |= {
        stub.name: Candidate(stub.name, "lookup" if getattr(stub, "is_lookup", 1) else "draft")
        for stub in stubs
    }
    adaptive._policy = adaptive._policy_of(desk.costs or known(CHEAP))
    desk.speculator = Speculator([*desk.chosen, *stubs], adaptive, mode=mode)
    return desk


def test_a_lookup_of_ones_own_takes_part(clock):
    stub = Stub(tokens=[COPYING(np.array([5]))] * 3, is_lookup=True)
    desk = with_stubs(clock, stub)
    ran = desk.run(PROMPT, 200)
    assert ran.tokens == desk.oracle(PROMPT, 200)
    assert stub.verbs.count("propose") >= 20
    assert "backlog" not in stub.verbs


def test_what_lookups_would_have_brought_meanwhile_counts_once_costs_are_known(clock):
    """Also for the second policy, made when the draft's costs are known."""
    desk = Desk(clock, rule=COPYING, draft_rule=agreeing(COPYING, 0.5, 31))
    desk.run(PROMPT, 300, stop_after=0)
    assert desk.adaptive.policy is None
    known_rounds = []
    for _ in range(2):
        before = len(desk.measured)
        for stop in range(1, 200):
            ran = desk.run(PROMPT, 400, stop_after=stop)
            if len(desk.measured) > before:
                break
        assert desk.adaptive.policy is not None
        lookups = [arm for arm in desk.adaptive.policy.arms if arm.is_lookup]
        known_rounds.append(max(arm.survival.rounds for arm in lookups))
        assert max(arm.survival.place[0] for arm in lookups) > 0.7
    assert ran.tokens == desk.oracle(PROMPT, 400)[: len(ran.tokens)]
    assert known_rounds[0] > 4
    assert known_rounds[1] > 4


def test_measuring_a_draft_is_not_called_drafting(clock):
    desk = Desk(clock, rule=COPYING, draft_rule=agreeing(COPYING, 0.0, 31))
    desk.run(PROMPT, 230)
    for _ in range(5):
        desk.run(PROMPT, 60)  # lookups draft
    ran = desk.run(PROMPT, 150, stop_after=12)
    assert (ran.rounds[-1].proposer, ran.kinds[-1]) == ("draft", "measure")
    assert ran.state.on
    assert ran.state.reason.startswith("ngram: ")


def test_what_a_round_teaches_is_what_was_drafted(clock, monkeypatch):
    """Fewer tokens than K where the proposer had no more."""
    desk = with_stubs(clock, Stub(tokens=[3, 3], is_lookup=True), proposers=[])
    desk.target.rule = lambda tokens: 3
    taught = []
    policy = desk.adaptive.policy
    assert policy is not None
    learn = policy.observe

    def observe(choice, accepted, committed, round_ms, draft_ms, drafted):
        taught.append((choice.k, drafted, accepted, committed, round_ms, draft_ms))
        learn(choice, accepted, committed, round_ms, draft_ms, drafted)

    monkeypatch.setattr(policy, "observe", observe)
    ran = desk.run(PROMPT, 300)
    assert [each[1:] for each in taught] == [
        (done.drafted, done.accepted, len(done.tokens), done.ms, done.draft_ms)
        for done in ran.rounds
    ]
    assert any(k > drafted for k, drafted, *_ in taught if drafted)


def test_what_lookups_did_bring_before_the_draft_was_measured_is_not_forgotten(clock):
    desk = Desk(clock, rule=COPYING, draft_rule=agreeing(COPYING, 0.5, 31))
    desk.run(PROMPT, 230)  # wide rounds leave too few tokens for the draft
    assert [found.draft for found in desk.measured] == [None]
    for _ in range(20):
        desk.run(PROMPT, 60)
    first = desk.adaptive.policy
    assert first is not None
    while len(desk.measured) < 2:
        desk.run(PROMPT, 120, stop_after=22)
    assert desk.adaptive.policy is not None
    assert desk.adaptive.policy.account is first.account
    lookups = [arm for arm in desk.adaptive.policy.arms if arm.is_lookup]
    assert max(arm.survival.rounds for arm in lookups) > 40


def test_a_lookup_that_takes_time_and_drafts_little_is_filled_up_in_the_start(clock):
    """Its time is not the call's, and its tokens are used as far as they go."""
    desk = Desk(clock, rule=COPYING, proposers=["ngram"], cost=steps(DEAR))

    class Slow(Stub):
        def propose(self, seq: Sequence, limit: int) -> Draft:
            clock.spend(3.0)
            token = COPYING(seq.tokens)
            return Draft(np.array([token]), self.name, match=2)

    desk.adaptive._candidates = {"stub": Candidate("stub", "lookup")}
    desk.speculator = Speculator([Slow(is_lookup=True)], desk.adaptive)
    ran = desk.run(PROMPT, 300)
    assert ran.tokens == desk.oracle(PROMPT, 300)
    found = {point.width: point.ms for point in desk.measured[0].target.points}
    assert found == pytest.approx(DEAR)
    padded = [done.accepted for done in ran.rounds if done.proposer == PADDING]
    assert min(padded) >= 1


def test_a_graph_that_scores_few_rows_caps_what_is_drafted(clock):
    desk = Desk(clock, rule=COPYING, max_verify=4, longest=15)
    for _ in range(2):
        ran = desk.run(PROMPT, 300)
        assert max(done.drafted for done in ran.rounds) == 3
        assert ran.state.failures == 0


def test_a_proposer_that_does_not_say_whether_it_is_a_lookup_fails_by_name(clock):
    desk = with_stubs(clock, Stub("mine", [1]))
    ran = desk.run(PROMPT, 50)
    assert ran.tokens == desk.oracle(PROMPT, 50)
    assert (ran.state.on, ran.state.failures) == (False, 1)
    assert "proposer mine failed in propose: AttributeError" in ran.state.reason
    assert "is_lookup" in ran.state.reason


def test_a_proposer_that_is_no_candidate_is_not_asked(clock):
    stub = Stub("stranger", [1], is_lookup=True)
    desk = desk_of(clock, CHEAP, COPYING)
    desk.speculator = Speculator([*desk.chosen, stub], desk.adaptive)
    desk.run(PROMPT, 50)
    assert "propose" not in stub.verbs


@pytest.mark.parametrize(
    ("verb", "is_lookup"), [("start", True), ("propose", True), ("observe", True)]
)
def test_whoever_fails_is_blamed(clock, verb, is_lookup):
    desk = with_stubs(clock, Stub("bad", [1], verb, is_lookup=is_lookup), drafts=True)
    ran = desk.run(PROMPT, 60)
    assert ran.tokens == desk.oracle(PROMPT, 60)
    assert f"proposer bad failed in {verb}: RuntimeError: gone" in ran.state.reason


def test_a_draft_model_whose_backlog_cannot_be_told_is_blamed(clock):
    desk = desk_of(clock, CHEAP, COPYING, proposers=[])
    stub = Stub("bad", [1], "backlog", is_lookup=False)
    desk.costs = known(CHEAP, DRAFT)
    desk.adaptive._candidates["bad"] = Candidate("bad", "draft")
    desk.speculator = Speculator([stub], desk.adaptive)
    ran = desk.run(PROMPT, 60)
    assert "proposer bad failed in propose: RuntimeError: gone" in ran.state.reason


def test_off_asks_nobody(clock):
    stub = Stub(tokens=[1], is_lookup=True)
    desk = with_stubs(clock, stub, mode="off")
    ran = desk.run(PROMPT, 60)
    assert stub.verbs == []
    assert {done.drafted for done in ran.rounds} == {0}
    assert ran.state.reason == "turned off by request"


def test_on_drafts_a_fixed_length_in_priority_order(clock):
    for order in (["ngram", "draft"], ["draft", "ngram"]):
        desk = desk_of(
            *(clock, DEAR, COPYING, 0.0),
            controller=Controller(4),
            proposers=order,
            mode="on",
        )
        ran = desk.run(PROMPT, 200)
        assert ran.tokens == desk.oracle(PROMPT, 200)
        assert {done.drafted for done in ran.rounds[:-6]} == {4}
        assert ran.rounds[-20].proposer == order[0]
        assert all(done.choice is None for done in ran.rounds)
        assert ran.state.on


def test_on_is_an_error_where_a_proposer_fails(clock):
    stub = Stub("bad", [1], "propose", is_lookup=True)
    desk = desk_of(clock, CHEAP, COPYING)
    desk.speculator = Speculator([stub], Controller(4), mode="on")
    with pytest.raises(ProposerError, match="proposer bad failed in propose"):
        desk.run(PROMPT, 60)


def test_an_engine_that_fails_in_a_round_leaves_the_next_request_sound(clock):
    for fault in range(1, 60, 3):
        desk = Desk(clock, rule=COPYING, draft_rule=agreeing(COPYING, 0.7, 31))
        desk.target._faults[fault] = RuntimeError("gone")
        with pytest.raises(RuntimeError):
            desk.run(PROMPT, 300)
        ran = desk.run(PROMPT, 300)
        assert ran.tokens == desk.oracle(PROMPT, 300)
        assert desk.measured
        found = {point.width: point.ms for point in desk.measured[-1].target.points}
        assert found == pytest.approx(CHEAP)


def test_a_machine_that_slows_down_is_not_taken_for_a_loss(clock):
    slow = 1.0

    def cost(width: int, past: int) -> float:
        return slow * steps(CHEAP)(width, past)

    desk = desk_of(clock, CHEAP, COPYING)
    desk.target._cost = cost
    desk.run(PROMPT, 400)
    slow = 3.0
    desk.run(PROMPT, 400)
    ran = desk.run(PROMPT[::-1], 400)
    assert ran.state.on
    assert sum(done.drafted >= 8 for done in ran.rounds) > 0.6 * len(ran.rounds)


ms = st.floats(0.5, 60)
tables = st.tuples(ms, ms, ms, ms, ms, ms).map(
    lambda found: dict(zip(CHEAP, accumulate(found, max), strict=True))
)
drafts = st.tuples(ms, ms, ms).map(
    lambda found: dict(zip(DRAFT, sorted(each / 10 for each in found), strict=True))
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_costs_and_no_clock_change_the_text_or_widen_a_round_past_the_clamp(data):
    with pytest.MonkeyPatch.context() as patch:
        clock = install(patch)
        draw = data.draw
        table, table_draft = draw(tables), draw(drafts)
        jitter = draw(st.lists(st.floats(-1.5, 4), min_size=7, max_size=7))
        odd = draw(st.booleans())
        calls = 0

        def jittered(cost: Cost) -> Cost:
            def shown(width: int, past: int) -> float:
                nonlocal calls
                calls += 1
                return cost(width, past) * (jitter[calls % 7] if odd else 1.0)

            return shown

        last = draw(st.sampled_from([1, 2, 3, None]))
        rule = hashed(13, last=last, seed=draw(st.integers(0, 99)))
        context = draw(st.integers(2, 200))
        max_verify = draw(st.integers(2, 16))
        longest = draw(st.integers(1, min(max_verify, context) - 1)) if context > 2 else 1
        desk = Desk(
            clock,
            rule=rule,
            cost=jittered(steps(table)),
            draft_rule=agreeing(rule, draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])), 13),
            draft_cost=jittered(steps(table_draft)),
            vocab=16,
            context=context,
            draft_context=draw(st.integers(2, context)),
            max_verify=max_verify,
            longest=longest,
            step=draw(st.sampled_from([1, 2, 4])),
            proposers=draw(
                st.sampled_from([["ngram"], ["draft"], ["ngram", "draft"], ["draft", "ngram"]])
            ),
            costs=draw(st.sampled_from([None, known(table, table_draft)])),
        )
        for _ in range(draw(st.integers(1, 3))):
            prompt = draw(st.lists(st.integers(0, 12), min_size=1, max_size=min(context, 20)))
            budget = draw(st.integers(1, 250))
            eos = frozenset(draw(st.sets(st.integers(0, 15), max_size=1)))
            ran = desk.run(prompt, budget, eos=eos)
            assert ran.tokens == desk.oracle(prompt, budget, eos)
            assert ran.state.failures == 0
            n = len(prompt) + 1
            for done in ran.rounds:
                left = budget - (n - len(prompt))
                assert done.drafted <= min(longest, max_verify - 1, context - n, left - 1)
                n += len(done.tokens)


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**40),
    table=tables,
    temperature=st.sampled_from([0.4, 1.0, 2.0]),
    start=st.booleans(),
)
def test_a_seeded_sample_does_not_depend_on_what_the_policy_makes_of_it(
    seed, table, temperature, start
):
    def soft(ids: Ids) -> np.ndarray:
        return np.random.default_rng(int(ids[-2:].sum())).normal(0, 2, 16).astype(np.float32)

    with pytest.MonkeyPatch.context() as patch:
        desk = Desk(
            install(patch),
            scores=soft,
            draft_scores=soft,
            cost=steps(table),
            vocab=16,
            context=200,
            costs=None if start else known(table, DRAFT),
        )
        sampling = SamplingParams(temperature=temperature, seed=seed)
        plain = desk.plain([1, 2, 3], 190, sampling=sampling)
        assert desk.run([1, 2, 3], 190, sampling=sampling).tokens == plain.tokens


def test_padding_is_nobodys_name():
    assert PADDING not in (DraftModelProposer.name, NgramProposer.name, "")


def test_rounds_with_nothing_to_weigh_are_cut_short_and_their_tokens_counted(clock, monkeypatch):
    desk = desk_of(clock, CHEAP)
    policy = desk.adaptive.policy
    assert policy is not None
    weighed, choose = [], policy.choose

    def counting(*given: object):
        weighed.append(policy.now)
        return choose(*given)

    monkeypatch.setattr(policy, "choose", counting)
    ran = desk.run(PROMPT, 300)
    assert ran.tokens == desk.oracle(PROMPT, 300)
    assert not ran.metrics.proposed
    assert len(weighed) <= DROWSY + len(ran.rounds) / (NAP + 1) + 3
    # every token is heard of at last, those of the rounds before it
    assert weighed == sorted(set(weighed))
    assert weighed[-1] >= len(ran.rounds) - 2 * NAP
    desk.run(PROMPT, 40)
    assert policy.account.plain_ms > 320 * CHEAP[1]


def test_a_draft_that_comes_while_nothing_is_weighed_is_used_at_once(clock):
    """Twenty tokens that were never there before, then the first of them again."""
    fresh = list(range(100, 160))
    desk = desk_of(clock, CHEAP)
    desk.run(PROMPT, 60)

    def rule(tokens: Ids) -> int:
        place = len(tokens) - len(PROMPT)
        return fresh[place % len(fresh)]

    desk.target.rule = rule
    ran = desk.run(PROMPT, 200)
    drafted = next(number for number, done in enumerate(ran.rounds, 1) if done.drafted)
    assert drafted <= len(fresh) + 2
    assert ran.tokens == [fresh[i % len(fresh)] for i in range(200)]

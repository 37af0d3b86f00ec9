from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.controller import Controller
from specedge.engines.fake import FakeEngine, Rule, agreeing, fake_spec, hashed, table
from specedge.errors import EngineError, ProposerError
from specedge.loop import Round, decode
from specedge.metrics import Metrics
from specedge.proposers import Draft, DraftModelProposer, NgramProposer
from specedge.sampling.sampler import Sampler
from specedge.sequence import Sequence
from specedge.speculator import Speculator
from tests import oracle


class Guesser:
    """Drafts from a list of lists of ids, in turn; the empty list is no proposal."""

    name = "guesser"

    def __init__(self, guesses: list[list[int]]) -> None:
        self.guesses = guesses
        self.limits: list[int] = []
        self.heard: list[tuple[list[int], int]] = []
        self.started = 0

    def start(self, seq: Sequence, sampler: Sampler) -> None:
        self.started += 1

    def propose(self, seq: Sequence, limit: int) -> Draft:
        guess = self.guesses[len(self.limits) % len(self.guesses)] if self.guesses else []
        self.limits.append(limit)
        return Draft(np.array(guess[:limit], dtype=np.int64), self.name)

    def observe(self, committed: np.ndarray, n_accepted: int) -> None:
        self.heard.append((committed.tolist(), n_accepted))

    def close(self) -> None: ...


@dataclass
class Bench:
    """A target, its slot and a way to run requests in it."""

    rule: Rule
    vocab: int = 8
    context: int = 64
    chunk: int = 64
    faults: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        spec = fake_spec(self.vocab, self.context)
        self.target = FakeEngine(spec, self.rule, prefill_chunk=self.chunk, faults=self.faults)
        self.slot = self.target.new_slot()

    def sequence(self, prompt, max_tokens=1000, eos_ids=()) -> Sequence:
        eos = frozenset(eos_ids)
        return Sequence(prompt, context=self.context, max_tokens=max_tokens, eos_ids=eos)

    def decode(self, seq, proposers=(), k=4, mode="auto", **options):
        speculator = Speculator(proposers, Controller(k), mode=mode)
        return decode(seq, self.target, self.slot, speculator, Metrics(), **options)

    def plain(self, prompt, max_tokens=1000, eos_ids=()) -> tuple[list[int], str]:
        return oracle.plain(self.on_list, prompt, self.context, max_tokens, eos_ids)

    def on_list(self, tokens: list[int]) -> int:
        return self.rule(np.array(tokens, dtype=np.int64))

    def draft_model(self, probability: float, context: int | None = None, faults=None):
        spec = fake_spec(self.vocab, context or self.context, role="draft")
        rule = agreeing(self.rule, probability, self.vocab)
        return DraftModelProposer(
            FakeEngine(spec, rule, prefill_chunk=self.chunk, faults=faults or {})
        )


def tokens_of(rounds: list[Round]) -> list[int]:
    return [token for each in rounds for token in each.tokens]


# The property: whatever is proposed and whatever happened before, the text is plain greedy's.


@st.composite
def proposer_makers(draw, vocab: int, context: int):
    """0 to 3 functions that each make a proposer for a Bench."""
    token = st.integers(0, vocab - 1)
    kinds = {
        "ngram": st.builds(
            lambda a, b: lambda _: NgramProposer(a, a + b), *[st.integers(1, 3)] * 2
        ),
        "draft": st.builds(
            lambda p, c: lambda bench: bench.draft_model(p, c),
            st.sampled_from([0.0, 0.5, 0.8, 0.95, 1.0]),
            st.integers(1, context),
        ),
        "guesser": st.builds(
            lambda guesses: lambda _: Guesser(guesses),
            st.lists(st.lists(token, max_size=15), min_size=1, max_size=6),
        ),
    }
    names = draw(st.lists(st.sampled_from(sorted(kinds)), max_size=3, unique=True))
    return [draw(kinds[name]) for name in names]


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_every_turn_is_what_plain_greedy_would_say(data):
    draw = data.draw
    vocab = draw(st.integers(2, 6), label="vocab")
    context = draw(st.integers(1, 60), label="context")
    rule = hashed(vocab, last=draw(st.sampled_from([1, 2, 3, None])), seed=draw(st.integers(0, 99)))
    bench = Bench(rule, vocab, context, chunk=draw(st.integers(1, 20), label="chunk"))
    proposers = [make(bench) for make in draw(proposer_makers(vocab, context))]
    k = draw(st.integers(0, 15), label="k")
    speculator = Speculator(proposers, Controller(k))
    fresh = st.lists(st.integers(0, vocab - 1), min_size=1, max_size=context)
    eos = st.sets(st.integers(0, vocab + 3), max_size=1)  # often an id that never comes
    budget = st.integers(1, context + 5)
    seq: Sequence | None = None
    for _ in range(draw(st.integers(1, 4), label="turns")):
        shared = seq.tokens[: draw(st.integers(0, seq.n_tokens))].tolist() if seq else []
        prompt = [*shared, *draw(fresh)][:context]
        eos_ids, max_tokens = draw(eos), draw(budget)
        if seq is None:
            seq = bench.sequence(prompt, max_tokens, eos_ids)
        else:
            seq.resume(prompt, max_tokens=max_tokens, eos_ids=eos_ids)
        expected, reason = bench.plain(prompt, max_tokens, eos_ids)
        leave = draw(st.sampled_from(["at the end", "early", "by a stop string"]))
        rounds_left = draw(st.integers(1, 8)) if leave != "at the end" else None
        said: list[int] = []
        bench.target.calls.clear()
        rounds = decode(seq, bench.target, bench.slot, speculator, Metrics())
        for each in rounds:
            said += each.tokens
            assert each.drafted <= k
            assert seq.n_cached == seq.n_tokens - 1
            if rounds_left is not None:
                rounds_left -= 1
                if rounds_left == 0 and leave == "early":
                    rounds.close()
                elif rounds_left == 0:
                    seq.truncate(seq.n_prompt + draw(st.integers(0, len(said))))
        assert said == expected[: len(said)]
        if leave == "at the end":
            assert (said, seq.finish_reason) == (expected, reason)
        assert seq.tokens.tolist() == [*prompt, *said[: seq.n_generated]]
        assert all(call.n_cached + call.width <= context for call in bench.target.calls)
        assert speculator.state().failures == 0


# The same, case by case.


@pytest.mark.parametrize("k", [0, 1, 2, 4, 7, 15])
@pytest.mark.parametrize("length", [1, 2, 9, 10, 11, 39, 40])
def test_the_context_is_filled_to_its_last_slot(k, length):
    bench = Bench(hashed(8, last=2), context=40, chunk=10)
    prompt = [token % 8 for token in range(length)]
    seq = bench.sequence(prompt)
    rounds = list(bench.decode(seq, [NgramProposer(1, 3), bench.draft_model(0.9)], k))
    assert tokens_of(rounds) == bench.plain(prompt)[0]
    assert (seq.n_tokens, seq.finish_reason) == (41, "length")
    assert max(call.n_cached + call.width for call in bench.target.calls) == 40


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 6, 7, 20])
def test_a_draft_never_passes_the_output_budget(max_tokens):
    bench = Bench(hashed(8))
    guesser = Guesser([[1] * 15])
    seq = bench.sequence([1, 2], max_tokens=max_tokens)
    rounds = list(bench.decode(seq, [guesser], 15))
    assert tokens_of(rounds) == bench.plain([1, 2], max_tokens)[0]
    assert all(limit <= max_tokens - 2 for limit in guesser.limits)


def test_a_draft_never_passes_the_planned_width():
    bench = Bench(hashed(8))
    bench.target.spec = fake_spec(8, 64, max_verify=3)
    guesser = Guesser([[1] * 15])
    list(bench.decode(bench.sequence([1]), [guesser], 15))
    assert max(guesser.limits) == 2
    assert max(call.width for call in bench.target.calls) == 3


def test_plain_decoding_goes_on_past_the_drafts_own_context():
    bench = Bench(hashed(8))
    seq = bench.sequence([1, 2, 3])
    rounds = list(bench.decode(seq, [bench.draft_model(1.0, context=20)], 4))
    assert tokens_of(rounds) == bench.plain([1, 2, 3])[0]
    drafted = [each.drafted for each in rounds]
    assert max(drafted[:4]) == 4
    assert set(drafted[10:]) == {0}


def test_tokens_after_an_end_id_are_never_yielded():
    bench = Bench(table({1: 2, 2: 3, 3: 4, 4: 5, 5: 6}))
    seq = bench.sequence([1], eos_ids={5})
    rounds = list(bench.decode(seq, [Guesser([[3, 4, 5, 6, 7]])], 5))
    assert [each.tokens for each in rounds] == [[2], [3, 4, 5]]
    assert (rounds[1].drafted, rounds[1].accepted) == (5, 3)
    assert seq.finish_reason == "stop"


# Order of events.


def test_the_first_token_leaves_before_any_drafting():
    bench = Bench(hashed(8))
    guesser = Guesser([[1]])
    rounds = bench.decode(bench.sequence([1, 2, 3]), [guesser])
    first = next(rounds)
    assert (len(first.tokens), first.proposer, first.drafted) == (1, None, 0)
    assert guesser.started == 0
    next(rounds)
    assert guesser.started == 1


def test_no_proposer_is_started_for_a_request_of_one_token():
    guesser = Guesser([[1]])
    bench = Bench(hashed(8))
    assert len(list(bench.decode(bench.sequence([1], max_tokens=1), [guesser]))) == 1
    assert guesser.started == 0


def test_the_first_proposer_with_a_draft_wins_and_all_hear_the_outcome():
    bench = Bench(table({1: 2, 2: 3, 3: 4, 4: 5}))
    silent, winner, never = Guesser([]), Guesser([[3, 7]]), Guesser([[3, 4]])
    winner.name = "winner"
    rounds = bench.decode(bench.sequence([1]), [silent, winner, never], 2)
    next(rounds)
    second = next(rounds)
    assert (second.tokens, second.proposer, second.accepted) == ([3, 4], "winner", 1)
    assert never.limits == []
    assert silent.heard == winner.heard == never.heard == [([3, 4], 1)]


def test_only_rows_that_are_not_cached_are_run_on_resume():
    bench = Bench(hashed(8), chunk=4)
    seq = bench.sequence([1, 2, 3, 4, 5], max_tokens=4)
    said = tokens_of(list(bench.decode(seq)))
    bench.target.calls.clear()
    turn = [1, 2, 3, 4, 5, *said, 6, 7]
    seq.resume(turn, max_tokens=1)
    assert tokens_of(list(bench.decode(seq))) == bench.plain(turn, 1)[0]
    assert [(call.n_cached, call.width) for call in bench.target.calls] == [(8, 3)]


# What goes wrong.


@pytest.mark.parametrize("fault", [RuntimeError("lost"), MemoryError(), KeyboardInterrupt(), "nan"])
@pytest.mark.parametrize("call", [0, 1, 2, 4])
def test_a_sequence_whose_target_failed_can_be_resumed(fault, call):
    bench = Bench(hashed(8), chunk=3, faults={call: fault})
    prompt = [1, 2, 3, 4, 5]
    seq = bench.sequence(prompt)
    error = EngineError if fault == "nan" else type(fault)
    said: list[int] = []
    rounds = bench.decode(seq, [bench.draft_model(0.8)])
    with pytest.raises(error):
        said.extend(token for each in rounds for token in each.tokens)
    expected = bench.plain(prompt)[0]
    assert said == expected[: len(said)]
    assert seq.tokens.tolist() == [*prompt, *said]
    turn = [*prompt, *expected[:10]]
    seq.resume(turn, max_tokens=20)
    assert tokens_of(list(bench.decode(seq, [bench.draft_model(0.8)]))) == bench.plain(turn, 20)[0]


def test_a_closed_stream_leaves_a_sequence_that_can_be_resumed():
    bench = Bench(hashed(8))
    seq = bench.sequence([1, 2, 3])
    proposer = bench.draft_model(0.8)
    rounds = bench.decode(seq, [proposer])
    said = next(rounds).tokens + next(rounds).tokens
    rounds.close()
    assert seq.tokens.tolist() == [1, 2, 3, *said]
    assert seq.n_cached == seq.n_tokens - 1
    turn = [1, 2, 3, *said, 4]
    seq.resume(turn, max_tokens=20)
    assert tokens_of(list(bench.decode(seq, [proposer]))) == bench.plain(turn, 20)[0]


@pytest.mark.parametrize("fault", [RuntimeError("lost"), MemoryError(), "nan"])
@pytest.mark.parametrize("call", range(12))
def test_a_draft_that_fails_in_mid_stream_changes_no_token(fault, call):
    bench = Bench(hashed(8), chunk=4)
    draft = bench.draft_model(0.8, faults={call: fault})
    speculator = Speculator([NgramProposer(6, 6), draft], Controller(3))
    for turn in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 7]):  # the second finds a draft that works
        seq = bench.sequence(turn)
        rounds = list(decode(seq, bench.target, bench.slot, speculator, Metrics()))
        assert tokens_of(rounds) == bench.plain(turn)[0]
    assert speculator.state().failures == 1
    assert speculator.state().on


@pytest.mark.parametrize("call", [0, 3, 7])
def test_a_sequence_whose_forced_proposer_failed_can_be_resumed(call):
    bench = Bench(hashed(8))
    seq = bench.sequence([1, 2, 3])
    draft = bench.draft_model(0.8, faults={call: MemoryError()})
    rounds = bench.decode(seq, [draft], mode="on")
    said: list[int] = []
    with pytest.raises(ProposerError, match="proposer draft failed in propose: MemoryError"):
        said.extend(token for each in rounds for token in each.tokens)
    assert seq.tokens.tolist() == [1, 2, 3, *said]
    turn = [1, 2, 3, *said, 5]
    seq.resume(turn, max_tokens=20)
    assert tokens_of(list(bench.decode(seq, [draft], mode="on"))) == bench.plain(turn, 20)[0]


# Log-probabilities.


@pytest.mark.parametrize("k", [1, 4, 15])
@pytest.mark.parametrize("top", [0, 1, 5])
def test_logprobs_are_the_same_with_and_without_speculation(k, top):
    bench = Bench(hashed(8))
    plain = list(bench.decode(bench.sequence([1, 2]), logprobs=top))
    fast = list(bench.decode(bench.sequence([1, 2]), [bench.draft_model(0.8)], k, logprobs=top))
    assert len(fast) < len(plain)
    scored = [score for each in fast for score in each.logprobs]
    assert scored == [score for each in plain for score in each.logprobs]
    assert [score.token for score in scored] == tokens_of(fast)
    assert {len(score.top) for score in scored} == {top}


def test_logprobs_are_left_out_unless_asked_for():
    bench = Bench(hashed(8))
    rounds = list(bench.decode(bench.sequence([1]), [Guesser([[1, 2]])]))
    assert {each.logprobs for each in rounds} == {None}

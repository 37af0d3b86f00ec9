"""What a probe does with engines, on engines and a clock that are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from specedge.engines.fake import FakeEngine, Rule, agreeing, fake_spec, hashed
from specedge.errors import EngineError, ProbeError
from specedge.probe.measuring import Watch
from specedge.probe.pairs import STEPS, Rig

VOCAB = 13
EOS = VOCAB  # outside what rules say, unless a test says it

Cost = Callable[[int, int], float]


@dataclass
class Seconds:
    """A clock that goes on only when an engine works, and a meter of 10 W."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now

    def joules(self) -> float | None:
        return 10 * self.now


class Timed(FakeEngine):
    """A call of `width` tokens after `past` rows takes cost(width, past) milliseconds."""

    def __init__(
        self,
        clock: Seconds,
        rule: Rule,
        cost: Cost,
        *,
        role: str = "target",
        context: int = 64,
        max_verify: int = 8,
        **given: object,
    ) -> None:
        spec = fake_spec(VOCAB + 1, context, role=role, max_verify=max_verify)  # type: ignore[arg-type]
        super().__init__(spec, rule, prefill_chunk=16, **given)  # type: ignore[arg-type]
        self._clock, self._cost = clock, cost

    def forward(self, slot, tokens, n_cached, rows):
        scored = super().forward(slot, tokens, n_cached, rows)
        self._clock.now += self._cost(len(tokens), n_cached) / 1e3
        return scored

    @property
    def open_slots(self) -> int:
        return len(self._slots)


def target_ms(width: int, past: int) -> float:
    return 8.0 + 2.0 * width + past / 64


def draft_ms(width: int, past: int) -> float:
    return 1.0 + width / 8


REPEATING = hashed(VOCAB, last=1)


@dataclass
class Bench:
    """Engines and a rig over them."""

    rule: Rule = REPEATING
    draft_rule: Rule | None = None
    context: int = 64
    draft_context: int = 64
    tokens: int = 20
    draft_rows: int = 8
    eos: int = EOS
    clock: Seconds = field(default_factory=Seconds)
    faults: dict[int, BaseException] | None = None

    def __post_init__(self) -> None:
        self.target = Timed(
            self.clock, self.rule, target_ms, context=self.context, faults=self.faults
        )
        self.draft: Timed | None = None
        if self.draft_rule is not None:
            self.draft = Timed(
                self.clock,
                self.draft_rule,
                draft_ms,
                role="draft",
                context=self.draft_context,
                max_verify=self.draft_rows,
            )

    def rig(self) -> Rig:
        return Rig(
            self.target,
            self.draft,
            Watch(self.clock),
            eos_ids=frozenset({self.eos}),
            tokens=self.tokens,
            ngrams=(2, 4),
            meter=self.clock,
        )


def plain_oracle(rule: Rule, prompt: list[int], most: int, context: int, eos: int) -> list[int]:
    """One token at a time from the whole text."""
    text = list(prompt)
    while len(text) - len(prompt) < most and len(text) <= context:
        text.append(rule(np.array(text)))
        if text[-1] == eos:
            break
    return text[len(prompt) :]


def prompt_of(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, length)


@pytest.mark.parametrize("length", [1, 5, 17, 40, 62, 63, 64])
def test_both_runs_give_the_plain_text_of_a_prompt_of_any_length(length):
    bench = Bench(draft_rule=agreeing(REPEATING, 0.7, VOCAB))
    prompt = prompt_of(length)
    wanted = plain_oracle(REPEATING, prompt.tolist(), 20, 64, EOS)
    with bench.rig() as rig:
        for _ in range(2):
            rig.prefill(prompt)
            assert rig.plain().output.tolist() == wanted
            assert rig.speculative("ngram", 3).output.tolist() == wanted
            assert rig.speculative("draft", 3).output.tolist() == wanted
            assert rig.plain().output.tolist() == wanted


def test_a_plain_run_takes_its_steps_after_the_first_token():
    bench = Bench()
    prompt = prompt_of(9)
    with bench.rig() as rig:
        rig.prefill(prompt)
        run = rig.plain()
    assert run.ms == pytest.approx(sum(target_ms(1, 9 + i) for i in range(19)))


def test_the_prompt_is_read_once_for_all_runs_after_it():
    bench = Bench(draft_rule=REPEATING)
    with bench.rig() as rig:
        rig.prefill(prompt_of(40))
        rig.read()
        target_calls, draft_calls = len(bench.target.calls), len(bench.draft.calls)
        rig.plain()
        rig.speculative("draft", 4)
        rig.speculative("ngram", 4)
    assert {call.n_cached >= 39 for call in bench.target.calls[target_calls:]} == {True}
    assert {call.n_cached >= 40 for call in bench.draft.calls[draft_calls:]} == {True}
    assert max(call.width for call in bench.target.calls[target_calls:]) == 5


def test_reading_the_prompt_is_not_part_of_a_drafted_run():
    bench = Bench(draft_rule=REPEATING, tokens=11)
    with bench.rig() as rig:
        rig.prefill(prompt_of(40))
        run = rig.speculative("draft", 4)
    # Rounds of 5 tokens after the first; the second one feeds the last drafted token as well.
    rounds = [(1, 41), (2, 46)]
    drafting = sum(draft_ms(fed, 0) + 3 * draft_ms(1, 0) for fed, _ in rounds)
    assert run.ms == pytest.approx(sum(target_ms(5, past - 1) for _, past in rounds) + drafting)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("length", [1, 6, 33, 55, 62, 63])
def test_agreement_is_what_drafting_one_token_at_a_time_gives(share, rows, length):
    rule = agreeing(REPEATING, share, VOCAB, seed=3)
    bench = Bench(draft_rule=rule, draft_rows=rows)
    prompt = prompt_of(length)
    with bench.rig() as rig:
        rig.prefill(prompt)
        output = rig.plain().output
        once = rig.agreement(output)
        rig.speculative("draft", 3)
        again = rig.agreement(output)
    text = [*prompt.tolist(), *output.tolist()]
    wanted = [rule(np.array(text[:n])) == text[n] for n in range(length, len(text))]
    # Neither the first token nor the one that the last row gives is ever drafted.
    drafted = range(1, min(len(output), 64 - length))
    assert [once[i] for i in drafted] == [wanted[i] for i in drafted]
    assert again == once
    assert not once[0]
    assert len(once) == len(output)


def test_past_its_context_a_draft_agrees_on_nothing():
    bench = Bench(draft_rule=REPEATING, draft_context=30)
    with bench.rig() as rig:
        rig.prefill(prompt_of(20))
        agreed = rig.agreement(rig.plain().output)
        assert rig.speculative("draft", 4).output.tolist() == rig.plain().output.tolist()
    assert all(agreed[1:9])
    assert not any(agreed[11:])


@pytest.mark.parametrize("length", [30, 31, 32, 50])
def test_a_prompt_longer_than_the_drafts_context_is_run_without_it(length):
    bench = Bench(draft_rule=REPEATING, draft_context=30)
    with bench.rig() as rig:
        rig.prefill(prompt_of(length))
        run = rig.plain()
        assert not any(rig.agreement(run.output)[2:])
        assert rig.speculative("draft", 4).output.tolist() == run.output.tolist()


@pytest.mark.parametrize("length", [1, 7])
def test_a_text_that_ends_at_once_takes_no_time(length):
    bench = Bench(rule=lambda tokens: EOS, draft_rule=REPEATING)
    with bench.rig() as rig:
        rig.prefill(prompt_of(length))
        run = rig.plain()
        assert (run.output.tolist(), run.ms) == ([EOS], 0.0)
        assert rig.speculative("draft", 2).ms == 0.0
        assert rig.agreement(run.output) == [False]
        assert rig.plain_use.per_token is None


def test_a_plain_step_is_timed_at_the_same_rows_before_and_after():
    bench = Bench(context=64)
    with bench.rig() as rig:
        first = rig.step_ms()
        rig.prefill(prompt_of(10))
        wanted = rig.plain().output.tolist()
        calls = len(bench.target.calls)
        assert rig.step_ms() == pytest.approx(first)
        assert {(call.width, call.n_cached) for call in bench.target.calls[calls:]} == {(1, 63)}
        assert len(bench.target.calls) == calls + 1 + STEPS
        rig.prefill(prompt_of(10))
        assert rig.plain().output.tolist() == wanted
    assert first == pytest.approx(target_ms(1, 63))


def test_energy_is_that_of_the_timed_runs():
    bench = Bench(draft_rule=REPEATING)
    with bench.rig() as rig:
        rig.prefill(prompt_of(9))
        plain, drafted = rig.plain(), rig.speculative("draft", 3)
        assert rig.plain_use.per_token == pytest.approx(plain.ms / 1e3 * 10 / 19)
        assert rig.spec_use.per_token == pytest.approx(drafted.ms / 1e3 * 10 / 19)


@pytest.mark.parametrize("readings", [[None, 1.0], [1.0, None], [5.0, 4.0], [None, None]])
def test_a_meter_that_fails_or_begins_anew_counts_nothing(readings):
    bench = Bench()
    left = list(readings)
    bench.clock.joules = lambda: left.pop(0)  # type: ignore[method-assign]
    with bench.rig() as rig:
        rig.prefill(prompt_of(9))
        rig.plain()
        assert rig.plain_use.per_token is None


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), EngineError("broken"), MemoryError()], ids=lambda e: type(e)
)
@pytest.mark.parametrize("call", [0, 3])
def test_whatever_happens_slots_are_given_back_and_engines_stay_open(error, call):
    bench = Bench(draft_rule=REPEATING, faults={call: error})

    def used() -> None:
        with bench.rig() as rig:
            rig.prefill(prompt_of(20))
            rig.read()
            rig.plain()

    with pytest.raises(type(error)):
        used()
    assert (bench.target.open_slots, bench.draft.open_slots) == (0, 0)
    used()
    assert (bench.target.open_slots, bench.draft.open_slots) == (0, 0)


def test_a_slot_that_was_lent_is_not_given_back():
    bench = Bench()
    slot = bench.target.new_slot()
    rig = Rig(
        bench.target,
        None,
        Watch(bench.clock),
        eos_ids=frozenset(),
        tokens=4,
        ngrams=(2, 4),
        slot=slot,
    )
    with rig:
        rig.prefill(prompt_of(3))
    assert bench.target.open_slots == 1


@pytest.mark.parametrize("step_s", [0.0, -1.0, float("nan")])
def test_a_clock_that_stands_still_or_goes_back_is_not_believed(step_s):
    bench = Bench()
    ticks = iter(range(100))
    with bench.rig() as rig:
        rig._watch = Watch(lambda: 100.0 + next(ticks) * step_s)
        rig.prefill(prompt_of(3))
        with pytest.raises(ProbeError, match="clock"):
            rig.plain()

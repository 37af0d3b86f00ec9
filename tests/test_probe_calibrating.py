"""What a probe does with engines, on engines and a clock that are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from specedge.engines.fake import FakeEngine, Rule, agreeing, fake_spec, hashed
from specedge.errors import EngineError, ProbeError, PromptError
from specedge.probe.calibrating import Calibrated, calibrate
from specedge.probe.classes import Check
from specedge.probe.curves import CostCurves, Curve, Point
from specedge.probe.deciding import Live
from specedge.probe.intervals import ratio_interval
from specedge.probe.measuring import Watch
from specedge.probe.pairs import STEPS, STEPS_MS, Pair, Rig, Run
from specedge.workloads import Workload, WorkloadPrompt

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
        rig.read()
        assert len(bench.draft.calls) == draft_calls
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
        timed = len(bench.target.calls) - calls - 1
        assert timed >= STEPS
        assert (timed - 1) * first < STEPS_MS <= timed * first
        rig.prefill(prompt_of(10))
        assert rig.plain().output.tolist() == wanted
    assert first == pytest.approx(target_ms(1, 63))


def test_rows_that_a_timed_step_wrote_over_are_read_again():
    rule = hashed(VOCAB)
    bench = Bench(rule=rule, context=200)
    prompt = prompt_of(150)
    with bench.rig() as rig:
        rig.prefill(prompt)
        rig.step_ms()
        rig.prefill(prompt)
        wanted = plain_oracle(rule, prompt.tolist(), 20, 200, EOS)
        assert rig.plain().output.tolist() == wanted


def test_an_output_is_not_changed_by_later_runs():
    bench = Bench()
    with bench.rig() as rig:
        rig.prefill(prompt_of(9))
        output = rig.plain().output
        before = output.tolist()
        rig.prefill(prompt_of(9, seed=5))
        assert rig.plain().output.tolist() != before
        assert output.tolist() == before


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


@pytest.mark.parametrize("step_s", [0.0, -1.0, float("nan")])
def test_a_clock_that_stands_still_or_goes_back_is_not_believed(step_s):
    bench = Bench()
    ticks = iter(range(100))
    with bench.rig() as rig:
        rig._watch = Watch(lambda: 100.0 + next(ticks) * step_s)
        rig.prefill(prompt_of(3))
        with pytest.raises(ProbeError, match="clock"):
            rig.plain()


# The whole half of the probe


def curves_of(bench: Bench, widest: int = 8) -> CostCurves:
    """Exact: costs are straight lines over the past."""

    def curve(role: str, cost: Cost, widths: range) -> Curve:
        points = (
            Point(width=n, past=past, count=1, ms=ms, low_ms=ms, high_ms=ms)
            for n in widths
            for past in (0, 64)
            for ms in [cost(n, past)]
        )
        return Curve(role=role, width_step=1, points=tuple(points))  # type: ignore[arg-type]

    return CostCurves(
        plan="full",
        target=curve("target", target_ms, range(1, widest + 1)),
        draft=None if bench.draft is None else curve("draft", draft_ms, range(1, 17)),
        passes=3,
        seconds=0.0,
        converged=True,
    )


TIMES = ("ms", "low_ms", "high_ms")
LOOPS, NOISE = 0, 1  # first token of the prompts of a class, which its text follows from
_wild = hashed(VOCAB)


def by_class(tokens: np.ndarray) -> int:
    return REPEATING(tokens) if tokens[0] == LOOPS else _wild(tokens)


def workload(name: str, kind: int, count: int = 12, length: int = 9) -> Workload:
    prompts = []
    for number in range(count):
        ids = [kind, *prompt_of(length - 1, seed=100 * kind + number).tolist()]
        prompts.append(WorkloadPrompt(None, " ".join(map(str, ids)), f"{name} {number}"))
    return Workload(name, tuple(prompts), "built in")


def encode(prompt: WorkloadPrompt) -> np.ndarray:
    assert prompt.text is not None
    return np.array([int(word) for word in prompt.text.split()])


def calibrated(bench: Bench, *workloads: Workload, **given: object) -> Calibrated:
    names = ("ngram",) if bench.draft is None else ("draft", "ngram")
    options = {
        "proposers": names,
        "eos_ids": frozenset({bench.eos}),
        "ngrams": (1, 4),
        "margin": 1.03,
        "max_draft": 7,
        "budget_s": 600.0,
        "tokens": bench.tokens,
        "clock": bench.clock,
    }
    loaded = workloads or (workload("loops", LOOPS), workload("noise", NOISE))
    curves = given.pop("curves", None) or curves_of(bench)
    return calibrate(bench.target, bench.draft, curves, loaded, encode, **options | given)  # type: ignore[arg-type]


def both(share: float = 0.8, **given: object) -> Bench:
    return Bench(rule=by_class, draft_rule=agreeing(by_class, share, VOCAB), **given)  # type: ignore[arg-type]


def verdicts(found: Calibrated) -> dict[tuple[str, str], str]:
    return {(each.workload, each.proposer): each.verdict for each in found.findings.findings}


def test_what_pays_is_told_from_what_does_not_by_class_and_proposer():
    bench = both(0.9)
    found = calibrated(bench)
    assert verdicts(found) == {
        ("loops", "draft"): "pays",
        ("loops", "ngram"): "pays",
        ("noise", "draft"): "pays",
        ("noise", "ngram"): "does not pay",
    }
    assert found.findings.proposers == ("draft", "ngram")
    assert found.findings.complete
    assert found.findings.steadiness.drift == pytest.approx(1.0)
    assert (bench.target.open_slots, bench.draft.open_slots) == (0, 0)


@pytest.mark.parametrize("share", [0.6, 0.9, 1.0])
def test_pairs_measure_what_the_replay_expects_where_the_curves_are_true(share):
    found = calibrated(both(share))
    measured = [each for each in found.findings.findings if each.measured is not None]
    assert len(measured) >= 2
    for each in measured:
        assert each.best is not None
        assert each.measured.prompts == each.best.estimate.prompts == 12
        assert each.measured.gain == pytest.approx(each.best.estimate.gain)


def test_live_texts_are_compared_with_the_plain_ones_and_counted():
    found = calibrated(both())
    assert found.findings.texts_compared == len(found.pairs) >= 24
    assert found.findings.texts_equal == found.findings.texts_compared


def test_a_live_text_that_differs_is_counted_and_its_time_scaled_to_as_many_tokens(monkeypatch):
    bench = both(1.0)
    inner = bench.target.forward

    def forward(slot, tokens, n_cached, rows):
        scored = inner(slot, tokens, n_cached, rows)
        if rows > 1:  # a verification: now and then a near-tie falls otherwise, and ends the text
            scored.greedy_ids[n_cached % 7 == 0 :] = EOS
        return scored

    bench.target.forward = forward  # type: ignore[method-assign]
    spy = Spy(monkeypatch)
    found = calibrated(bench)
    assert found.findings.texts_equal < found.findings.texts_compared
    assert {pair.tokens for pair in found.pairs} == {19}
    assert all(pair.plain_ms > 19 * 10.0 for pair in found.pairs)
    runs = [run for run in spy.runs if len(run.output) > 1]
    assert any(len(run.output) < 20 for run in runs)
    scaled = [run.ms * 19 / (len(run.output) - 1) for run in runs]
    assert [pair.spec_ms for pair in found.pairs] == pytest.approx(scaled)


class Spy:
    """Writes down what a rig is asked for, and its speculative runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.runs: list[Run] = []
        for name in ("prefill", "read", "plain", "speculative", "agreement"):
            real = getattr(Rig, name)

            def spied(rig, *given, name=name, real=real):
                self.asked.append(given[0] if name == "speculative" else name)
                found = real(rig, *given)
                if name == "speculative":
                    self.runs.append(found)
                return found

            monkeypatch.setattr(Rig, name, spied)

    def visits(self) -> list[list[str]]:
        """What was run of each prompt, in order."""
        found: list[list[str]] = []
        for asked in self.asked:
            if asked == "prefill":
                found.append([])
            elif asked not in ("read", "agreement"):
                found[-1].append(asked)
        return found


def test_pairs_begin_with_either_run_in_turn(monkeypatch):
    spy = Spy(monkeypatch)
    calibrated(Bench(rule=by_class), workload("loops", LOOPS, 15))
    visits = spy.visits()
    assert visits[:4] == [["plain"]] * 4
    assert visits[4:] == [["plain", "ngram"], ["ngram", "plain"]] * 6


def test_a_draft_has_read_the_prompt_before_either_run_of_a_pair(monkeypatch):
    spy = Spy(monkeypatch)
    calibrated(both(0.9), workload("noise", NOISE))
    runs = [asked for asked in spy.asked if asked != "agreement"]
    drafted = [place for place, asked in enumerate(runs) if asked == "draft"]
    assert len(drafted) == 12
    for place in drafted:
        start = max(i for i in range(place) if runs[i] == "prefill")
        assert runs[start + 1] == "read"


def test_classes_take_turns_and_surveyed_prompts_come_again_at_the_end():
    found = calibrated(Bench(rule=REPEATING), workload("a", LOOPS), workload("b", NOISE))
    order = [(pair.workload, pair.prompt) for pair in found.pairs]
    numbers = [*range(4, 12), *range(4)]
    assert order == [(name, number) for number in numbers for name in "ab"]
    began = [pair.began_s for pair in found.pairs]
    assert began == sorted(set(began))
    assert 0 < began[0] < began[-1] < found.findings.seconds


def test_the_second_proposer_waits_until_every_class_is_through_with_its_first():
    found = calibrated(both(0.95), workload("a", LOOPS), workload("b", LOOPS, length=12))
    firsts = {name: next(p.proposer for p in found.pairs if p.workload == name) for name in "ab"}
    first = [pair.proposer == firsts[pair.workload] for pair in found.pairs]
    assert first == sorted(first, reverse=True)
    assert not all(first)


def test_the_more_promising_proposer_is_checked_first():
    found = calibrated(both(1.0), workload("noise", NOISE), proposers=("ngram", "draft"))
    assert {pair.proposer for pair in found.pairs} == {"draft"}
    lame = calibrated(both(0.3), workload("loops", LOOPS), proposers=("draft", "ngram"))
    assert lame.pairs[0].proposer == "ngram"


def test_who_has_no_chance_is_ruled_out_without_a_live_run(monkeypatch):
    spy = Spy(monkeypatch)
    found = calibrated(both(0.0), workload("noise", NOISE, 20))
    assert set(verdicts(found).values()) == {"does not pay"}
    assert found.findings.proposers == ()
    assert found.pairs == ()
    assert spy.visits() == [["plain"]] * 12


@pytest.mark.parametrize(("passes", "pace"), [(2, 1.0), (3, 1.5), (3, 0.6)])
def test_costs_that_are_not_credible_rule_nobody_out_without_pairs(passes, pace):
    """One or two calls a point, or a T(1) that is not the one that is seen now."""
    bench = both(0.0)
    true = curves_of(bench)
    slower = [
        each.model_copy(update={name: pace * getattr(each, name) for name in TIMES})
        for each in true.target.points
    ]
    target = Curve(role="target", width_step=1, points=tuple(slower))
    curves = true.model_copy(update={"passes": passes, "target": target})
    found = calibrated(bench, workload("noise", NOISE, 20), curves=curves)
    assert found.pairs
    assert all(each.measured for each in found.findings.findings)


@pytest.mark.parametrize(
    ("count", "pairs", "looks"), [(12, 12, 1), (17, 12, 1), (18, 18, 2), (23, 18, 2), (40, 24, 3)]
)
def test_an_open_check_is_looked_at_as_often_as_prompts_allow(count, pairs, looks):
    # Some runs are slow, whichever they are: the interval is wide and stays open.
    bench = Bench(rule=by_class)
    curves = curves_of(bench)
    slow, dice = 1.0, np.random.default_rng(7)

    def wild(width: int, past: int) -> float:
        nonlocal slow
        slow = 1 + 40 * dice.random() ** 4 if past == 8 else slow  # a run begins
        return target_ms(width, past) * slow

    bench.target._cost = wild
    found = calibrated(bench, workload("loops", LOOPS, count), curves=curves)
    (finding,) = found.findings.findings
    assert len(found.pairs) == pairs
    assert (finding.measured.prompts, finding.measured.looks) == (pairs, looks)
    assert finding.verdict == "open"


def test_a_check_ends_at_the_first_look_that_decides():
    found = calibrated(Bench(rule=by_class), workload("loops", LOOPS, 40))
    (finding,) = found.findings.findings
    assert len(found.pairs) == 12
    assert (finding.measured.looks, finding.verdict) == (1, "pays")


def pair(number: int) -> Pair:
    """Gains of 0.5 and 2 in turn."""
    plain_ms, spec_ms = (100.0, 200.0) if number % 2 else (200.0, 100.0)
    return Pair("loops", "ngram", 3, number, plain_ms, spec_ms, 19, float(number))


@pytest.mark.parametrize(
    ("count", "looks"), [(1, 1), (11, 1), (12, 1), (13, 2), (18, 2), (23, 3), (24, 3)]
)
def test_pairs_after_the_last_look_are_a_look_of_their_own(count, looks):
    check = Check("loops", "ngram", 3, (12, 18, 24))
    for number in range(count):
        assert not check.over
        check.add(pair(number), 1.03)
    assert check.over == (count == 24)
    pairs = [pair(number) for number in range(count)]
    times = [each.plain_ms for each in pairs], [each.spec_ms for each in pairs]
    wanted = ratio_interval(*times, looks=looks, planned_looks=3)
    assert check.live == Live("loops", "ngram", 3, wanted)


@pytest.mark.parametrize(("count", "planned"), [(12, 1), (20, 2), (30, 3)])
def test_the_interval_allows_for_all_looks_that_were_planned(count, planned):
    found = calibrated(Bench(rule=by_class), workload("loops", LOOPS, count))
    (finding,) = found.findings.findings
    times = [each.plain_ms for each in found.pairs], [each.spec_ms for each in found.pairs]
    assert finding.measured == ratio_interval(*times, looks=1, planned_looks=planned)


def test_who_is_neither_promising_nor_ruled_out_is_measured_once_the_replay_knows_enough():
    found = calibrated(both(0.3), workload("noise", NOISE), proposers=("draft",))
    (finding,) = found.findings.findings
    assert finding.best.estimate.gain < 1.0 < finding.best.estimate.high
    assert finding.measured.prompts == 12


def test_texts_without_a_step_tell_nothing_that_could_start_a_check():
    def rule(tokens: np.ndarray) -> int:
        return EOS if tokens[:9].tolist() == ends else by_class(tokens)

    prompts = workload("noise", NOISE)
    ends = encode(prompts.prompts[6]).tolist()
    bench = Bench(rule=rule, draft_rule=agreeing(by_class, 0.0, VOCAB))
    found = calibrated(bench, prompts, proposers=("draft",))
    assert found.pairs == ()
    assert verdicts(found) == {("noise", "draft"): "open"}


def test_a_budget_that_ends_before_a_checks_first_pair_leaves_it_out():
    told: list[float] = []
    calibrated(both(0.9), report=told.append)
    surveyed_s = told[7] * 600
    found = calibrated(both(0.9), budget_s=surveyed_s + 0.3)
    assert not found.findings.complete
    assert found.pairs == ()
    assert {each.tokens for each in found.findings.findings} == {4 * 19}


def test_the_budget_is_kept_on_a_machine_that_is_slower_than_its_curves():
    bench = both(0.9)
    curves = curves_of(bench)
    bench.target._cost = lambda n, past: 4 * target_ms(n, past)
    found = calibrated(bench, curves=curves, budget_s=12.0)
    assert not found.findings.complete
    assert 10.0 < found.findings.seconds <= 12.0


@pytest.mark.parametrize("budget_s", [0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0])
def test_the_budget_is_kept_and_what_there_is_by_then_is_kept_too(budget_s):
    whole = calibrated(both()).findings.seconds
    told: list[float] = []
    found = calibrated(both(), budget_s=budget_s, report=told.append).findings
    assert found.seconds <= max(budget_s, 0.5)  # T(1) is taken twice whatever the budget
    assert found.complete == (found.seconds == pytest.approx(whole))
    assert found.complete or found.seconds > budget_s - 1.0
    assert told == sorted(told)
    assert all(0 < share <= 1 for share in told)
    known = {name: 0 for name in ("loops", "noise")}
    known |= {each.workload: each.tokens // 19 for each in found.findings}
    if max(known.values()) <= 8:
        assert max(known.values()) - min(known.values()) <= 1
    if max(known.values()) < 12:
        assert {each.verdict for each in found.findings} <= {"open"}
        assert set(found.proposers) == {"draft", "ngram"}


@pytest.mark.parametrize("call", [0, 5, 30, 100, 400, 700])
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), EngineError("broken")], ids=["^C", "engine"]
)
def test_an_interrupt_or_a_failing_engine_leaves_both_engines_usable(error, call):
    bench = both(faults={call: error})
    with pytest.raises(type(error)):
        calibrated(bench)
    assert (bench.target.open_slots, bench.draft.open_slots) == (0, 0)
    assert calibrated(bench).findings.complete


def test_texts_that_end_at_once_leave_everything_open():
    bench = Bench(rule=lambda tokens: EOS, draft_rule=REPEATING)
    found = calibrated(bench, workload("short", LOOPS))
    assert set(verdicts(found).values()) == {"open"}
    assert (found.pairs, found.findings.complete) == ((), True)
    assert found.findings.findings[0].tokens == 0


def test_some_texts_that_end_at_once_are_no_pairs():
    def rule(tokens: np.ndarray) -> int:
        return EOS if tokens[1] % 3 == 0 else REPEATING(tokens)

    found = calibrated(Bench(rule=rule), workload("loops", LOOPS, 20))
    short = [i for i in range(20) if prompt_of(8, seed=i)[0] % 3 == 0]
    assert short
    assert not {pair.prompt for pair in found.pairs} & set(short)
    assert len({pair.prompt for pair in found.pairs}) == len(found.pairs)


@pytest.mark.parametrize("length", [1, 2, 55, 62, 63])
def test_prompts_of_one_token_and_prompts_that_nearly_fill_the_context_are_run(length):
    one = workload("loops", LOOPS, 3, length=length)
    found = calibrated(both(0.9), one)
    assert found.findings.complete
    assert found.left_out == ()
    assert {each.tokens for each in found.findings.findings} == {3 * (min(20, 65 - length) - 1)}
    assert found.findings.texts_equal == found.findings.texts_compared


def test_a_prompt_without_room_for_an_answer_is_left_out_and_named():
    long = workload("long", NOISE, 2, length=64)
    found = calibrated(both(), workload("loops", LOOPS), long)
    assert len(found.left_out) == 2
    assert "long 0" in found.left_out[0]
    assert {each.workload for each in found.findings.findings} == {"loops"}
    with pytest.raises(PromptError, match="long 0"):
        calibrated(both(), long)


def test_a_class_that_was_not_reached_rules_nobody_out():
    long = workload("long", NOISE, 2, length=64)
    found = calibrated(both(0.0), workload("noise", NOISE), long)
    assert set(verdicts(found).values()) == {"does not pay"}
    assert found.findings.proposers == ("draft", "ngram")


def test_a_class_of_one_prompt_is_measured_once_and_stays_open():
    found = calibrated(Bench(rule=by_class), workload("loops", LOOPS, 1))
    (finding,) = found.findings.findings
    assert (finding.verdict, finding.measured.prompts, finding.measured.low) == ("open", 1, None)
    assert [pair.prompt for pair in found.pairs] == [0]


@pytest.mark.parametrize("max_draft", [1, 2, 5, 99])
def test_no_draft_is_longer_than_asked_for_or_than_the_curves_know(max_draft):
    bench = both(1.0)
    found = calibrated(bench, max_draft=max_draft)
    assert max(call.rows for call in bench.target.calls) <= min(max_draft, 7) + 1
    assert {pair.k for pair in found.pairs} <= set(range(1, min(max_draft, 7) + 1))
    assert found.pairs


@pytest.mark.parametrize(("max_draft", "widest"), [(0, 8), (7, 1)])
def test_where_no_draft_is_possible_nothing_is_run(max_draft, widest):
    bench = both(1.0)
    found = calibrated(bench, max_draft=max_draft, curves=curves_of(bench, widest))
    assert found.findings.complete
    assert found.findings.findings == ()
    assert {call.width for call in bench.target.calls} == {1}


def test_a_clock_that_goes_back_is_a_probe_error_and_slots_are_given_back():
    bench = both()
    ticks = 0

    def clock() -> float:
        nonlocal ticks
        ticks += 1
        return bench.clock.now - (50.0 if ticks > 60 else 0.0)

    with pytest.raises(ProbeError, match="went back"):
        calibrated(bench, clock=clock)
    assert (bench.target.open_slots, bench.draft.open_slots) == (0, 0)


def test_a_machine_that_slows_down_is_seen():
    bench = Bench(rule=by_class)
    curves_first = curves_of(bench)
    bench.target._cost = lambda n, past: target_ms(n, past) * (1.5 if bench.clock.now > 102 else 1)
    assert curves_first.target.cost_ms(1, 0) == 10.0
    assert calibrated(bench).findings.steadiness.drift == pytest.approx(1.5)


def test_energy_of_a_token_is_told_for_both_ways_of_decoding():
    bench = both(1.0)
    found = calibrated(bench, workload("noise", NOISE), meter=bench.clock)
    plain_ms = sum(pair.plain_ms for pair in found.pairs) / sum(pair.tokens for pair in found.pairs)
    spec_ms = sum(pair.spec_ms for pair in found.pairs) / sum(pair.tokens for pair in found.pairs)
    assert found.plain_joules == pytest.approx(plain_ms / 1e3 * 10, rel=0.01)
    assert found.spec_joules == pytest.approx(spec_ms / 1e3 * 10)
    unmetered = calibrated(both(1.0))
    assert (unmetered.plain_joules, unmetered.spec_joules) == (None, None)

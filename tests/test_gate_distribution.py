"""Gate "distribution": it passes what is sound, and fails faults that are planted in the real code.

The desk is a tiny bundle whose fake engines score 8 letters by the last two tokens; the draft's
scores are the target's with noise. The biases of the faults are far above what a few hundred texts
show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from real import PROMPTS as PROMPTS_OF_MODEL
from specedge import opening
from specedge.acceptance import BLOCK, REJECTION, RoundDraws, race
from specedge.contract import Ids, Logits
from specedge.desk import PLAIN, Desk, Way
from specedge.engines.fake import FakeEngine, fake_spec
from specedge.errors import EngineError
from specedge.gates import coupled, distribution
from specedge.gates.chi_square import Fit
from specedge.gates.drawing import WINDOW
from specedge.gates.findings import Case, Gate
from specedge.gates.places import Looked, choose, look, ranked
from specedge.gates.prompts import Asked
from specedge.gates.remembered import RARE, Memory, RememberedEngine
from specedge.gates.sampled import case, settings_of
from specedge.proposers import NgramProposer
from specedge.randomness import Randomness, Stream
from specedge.sampling import sampler
from specedge.sampling.law import Law
from specedge.sampling.sampler import GREEDY, ProcessedSampler
from specedge.sequence import Sequence as TokenSequence
from tiny import write_bundle

Patch = Callable[[pytest.MonkeyPatch], None]

FIRST, LETTERS = 68, 8  # ids of letters of the tiny tokenizer, one behind the other
PROMPTS = [
    Asked("chat 1", "chat", "defghdefghdefgh"),
    Asked("chat 2", "chat", "efefefgh"),
    Asked("code 1", "code", "fghihgfghi"),
]
ROUNDS = 600


def scores(draft: bool) -> Callable[[Ids], Logits]:
    """By the last two tokens; no other id than the letters is ever likely."""
    rng = np.random.default_rng(11)
    tables = 1.3 * rng.standard_normal((LETTERS,) * 3)
    if draft:
        tables = tables + rng.standard_normal(tables.shape)

    def row(tokens: Ids) -> Logits:
        out = np.full(VOCAB, -30, np.float32)
        out[FIRST : FIRST + LETTERS] = tables[tokens[-2] % LETTERS, tokens[-1] % LETTERS]
        return out

    return row


VOCAB = 272


@contextmanager
def opened(folder: Path, patch: pytest.MonkeyPatch, **given: Any) -> Iterator[Desk]:
    """A desk whose engines score as above."""

    def create(name: str, path: Path, spec: Any, *, context: int, **_: Any) -> FakeEngine:
        return FakeEngine(spec, scores=scores(spec.role == "draft"), context=context)

    folder.mkdir()
    patch.setattr(opening.registry, "create", create)
    with Desk(write_bundle(folder, **({"draft": True} | given)), engine="fake") as desk:
        yield desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    with opened(tmp_path / "scored", monkeypatch) as desk:
        assert desk.model.target.spec.vocab == VOCAB
        yield desk


def run(desk: Desk, prompts: Sequence[Asked] = PROMPTS, **given: Any) -> Gate:
    usual: dict[str, Any] = {"rounds": ROUNDS, "report": lambda stage, share: None}
    return distribution.check(desk, prompts, **(usual | given))


def failed(gate: Gate, start: str = "") -> list[str]:
    return [
        case.name for case in gate.cases if case.outcome == "failed" and case.name.startswith(start)
    ]


def named(gate: Gate, name: str) -> Case:
    return next(case for case in gate.cases if case.name == name)


class TestSound:
    def test_a_sound_bundle_passes_and_says_what_it_would_have_caught(self, desk):
        said: list[tuple[str, float]] = []
        gate = run(desk, report=lambda stage, share: said.append((stage, share)))
        assert gate.outcome == "passed"
        others = [case.outcome for case in gate.cases if case.name != "coupled, auto"]
        assert set(others) == {"passed"}  # an adaptive way may find that nothing pays
        shares = [share for _, share in said]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0
        found = named(gate, "rejection, draft K=3, temperature 1")
        figures = found.figures
        assert figures["texts"] == ROUNDS
        assert figures["drafted_rounds"] > figures["refused_rounds"] > 0
        assert 0.2 < figures["acceptance_rate"] < 0.9
        # one token of the target in each round, and what was accepted
        assert 1 < figures["acceptance_length"] <= 1 + 3 * figures["acceptance_rate"]
        assert [test["position"] for test in figures["positions"]][:2] == [1, 2]
        for test in figures["positions"]:
            assert 0.01 < test["smallest_shift"] < test["smallest_bias"] < 0.6
        assert "would be caught with 99%" in found.said
        assert "refused some of it" in found.said

    def test_every_proposer_and_both_rules_are_looked_at(self, desk):
        names = [case.name for case in run(desk, rounds=200).cases]
        for start in (
            "plain",
            *(f"{rule}, {who}" for rule in ("rejection", "block") for who in ("ngram", "draft")),
        ):
            assert any(name.startswith(start) for name in names), start
        assert "rejection, draft K=1..3, temperature 0.7, top-p 0.9" in names
        ways = [way.name for way in desk.ways(coupled.KS) if way != PLAIN]
        assert [f"coupled, {way}" for way in ways] == names[-len(ways) :]

    def test_it_says_the_same_again(self, desk):
        first, second = run(desk, rounds=200), run(desk, rounds=200)
        assert [case.said for case in first.cases] == [case.said for case in second.cases]

    def test_its_figures_are_json_ready(self, desk):
        import json

        gate = run(desk, rounds=100, coupled_texts=1)
        json.dumps([dict(case.figures) for case in gate.cases] + [dict(gate.figures)])


def accept_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RoundDraws, "accept", lambda self, index: 0.0)


def residual_not_subtracted(patch: pytest.MonkeyPatch) -> None:
    for rule in (REJECTION, BLOCK):
        patch.setattr(type(rule), "next_law", lambda self, draft, p, q, n: p[n])


def q_without_the_temperature(patch: pytest.MonkeyPatch) -> None:
    choose = ProcessedSampler.choose

    def raw(self, scored, drafted):
        token, _ = choose(self, scored, drafted)
        return token, Law(None, scored.logits[0].copy(), 1.6)

    patch.setattr(ProcessedSampler, "choose", raw)


def accepted_with_the_draw_of_the_draft(patch: pytest.MonkeyPatch) -> None:
    def accept(self, index):
        return self.randomness.uniform(Stream.DRAFT, self.position, index)

    patch.setattr(RoundDraws, "accept", accept)


def bonus_from_the_draft(patch: pytest.MonkeyPatch) -> None:
    for rule in (REJECTION, BLOCK):
        right = type(rule).next_law

        def next_law(self, draft, p, q, n, right=right):
            return q[-1] if 0 < n == len(draft) else right(self, draft, p, q, n)

        patch.setattr(type(rule), "next_law", next_law)


FAULTS: list[tuple[Patch, set[str]]] = [
    (accept_everything, {"rejection, ngram", "block, ngram", "rejection, draft", "block, draft"}),
    (
        residual_not_subtracted,
        {"rejection, ngram", "block, ngram", "rejection, draft", "block, draft"},
    ),
    (q_without_the_temperature, {"rejection, draft", "block, draft"}),
    (accepted_with_the_draw_of_the_draft, {"rejection, draft", "block, draft"}),
    (bonus_from_the_draft, {"rejection, ngram", "block, ngram", "rejection, draft"}),
]


class TestPlanted:
    @pytest.mark.parametrize(("fault", "where"), FAULTS, ids=lambda x: getattr(x, "__name__", ""))
    def test_a_biased_rule_fails_and_plain_sampling_does_not(self, desk, monkeypatch, fault, where):
        fault(monkeypatch)
        gate = run(desk, coupled_texts=1)
        assert gate.outcome == "failed"
        names = failed(gate)
        assert {kind for kind in where if any(name.startswith(kind) for name in names)} == where
        assert not failed(gate, "plain")
        assert not failed(gate, "coupled")
        said = named(gate, names[0]).said
        assert said.startswith("position ")
        assert "expected" in said
        assert "found" in said
        assert f"{len(names)} of {len(gate.cases)} cases failed" in gate.said

    def test_a_coupled_text_that_depends_on_the_draft_fails(self, desk, monkeypatch):
        right = sampler.coupled

        def trusting(draft, p, randomness, position):
            verdict = right(draft, p, randomness, position)
            if len(draft) > 1 and verdict.n_accepted == 0:
                return type(verdict)(1, right(draft[:1], p, randomness, position).next_token)
            return verdict

        monkeypatch.setattr(sampler, "coupled", trusting)
        gate = run(desk, rounds=200)
        assert failed(gate, "coupled, draft K=3") == ["coupled, draft K=3"]
        assert not failed(gate, "rejection")
        said = named(gate, "coupled, draft K=3").said
        assert "seed 5, token " in said or "seed 6, token " in said
        assert "as in plain sampling" in said

    def test_an_engine_that_breaks_fails_its_case_and_the_gate_goes_on(self, desk, monkeypatch):
        draft = desk.speculator(Way("on", ("draft",), 3)).proposers[0].engine

        def broken(slot, tokens, n_cached, rows):
            raise EngineError("fake: out of order")

        monkeypatch.setattr(draft, "forward", broken)
        gate = run(desk, rounds=200, coupled_texts=1)
        assert gate.outcome == "failed"
        assert not failed(gate, "rejection, ngram")
        assert "out of order" in named(gate, "coupled, draft K=3").said
        assert any("out of order" in named(gate, name).said for name in failed(gate, "rejection"))


class TestNothingToSay:
    def test_a_lookup_that_never_drafts_is_named_and_does_not_count(self, tmp_path, monkeypatch):
        with opened(tmp_path / "scored", monkeypatch, draft=False) as desk:
            monkeypatch.setattr(NgramProposer, "_match", lambda self: None)
            gate = run(desk)
        assert gate.outcome == "skipped"
        assert named(gate, "ngram K=3").outcome == "skipped"
        assert "nowhere" in named(gate, "ngram K=3").said
        assert "nothing was drafted" in named(gate, "coupled, ngram K=3").said

    def test_drafts_that_are_too_seldom_are_no_test(self, desk):
        setting = settings_of(NgramProposer(), 3)[0]
        setting.drawn.texts, setting.drawn.rounds, setting.drawn.drafted = 900, 1000, 49
        setting.drawn.fits[0] = Fit(900, 5.0, 5, 5000.0)
        said = case(desk, setting, 1e-4)
        assert said.outcome == "skipped"
        assert said.said == "something was drafted in 49 of 1,000 rounds: no test"
        setting.drawn.drafted = 51
        assert case(desk, setting, 1e-4).outcome == "passed"

    def test_too_few_texts_are_no_test(self, desk):
        gate = run(desk, rounds=20, coupled_texts=1)
        few = named(gate, "rejection, draft K=3, temperature 1")
        assert few.outcome == "skipped"
        assert "too few" in few.said

    def test_the_plain_fake_engine_passes(self, tmp_path):
        with Desk(write_bundle(tmp_path, draft=True), engine="fake") as desk:
            gate = run(desk, [Asked("chat 1", "chat", "hello world")], rounds=100)
        assert gate.outcome == "passed"


class TestPlaces:
    def test_a_lookup_drafts_at_each_chosen_place(self, desk):
        looked = look(desk, PROMPTS, 3)
        places = choose(looked, NgramProposer(), 3, window=WINDOW, context=256, most=3)
        assert places
        for place in places:
            seq = TokenSequence(place.stem, context=256, max_tokens=8)
            lookup = NgramProposer()
            lookup.start(seq, GREEDY)
            assert len(lookup.propose(seq, 3).tokens) == 3

    def test_a_place_is_where_the_plain_text_passes(self, desk):
        place = choose(
            look(desk, PROMPTS, 1), NgramProposer(), 2, window=WINDOW, context=256, most=1
        )[0]
        name, at = place.name.split(", token ")
        prompt = next(asked.prompt for asked in PROMPTS if asked.name == name)
        ids = desk.model.encode(prompt)[0]
        answer = desk.ask(PLAIN, prompt, max_tokens=40, temperature=0.0).tokens
        assert place.stem.tolist() == [*ids, *answer[: int(at) - 1]]

    def test_a_draft_that_may_stand_or_fall_is_better_than_any_other(self):
        a, b, c, d = 1, 2, 3, 4  # the text says "a b c" over and over; so does the lookup
        sure, split = ((a, 0.97), (d, 0.03)), ((d, 0.5), (d + 1, 0.5))
        likely = [split] * 9
        likely[5] = ((c, 0.6), (d, 0.2))  # less to be had here, but c is what is drafted
        ids = np.array([a, b, c] * 5)
        text = Looked("chat 1", ids, 6, (*likely[:7], sure, sure))
        assert text.worth(2, 3) > text.worth(5, 3)
        (place,) = choose([text], NgramProposer(), 3, window=3, context=64, most=1)
        assert place.name == "chat 1, token 6"

    def test_classes_take_turns_and_prompts_without_room_are_left_out(self, desk):
        long = Asked("chat 3", "chat", "d" * 255)
        order = ranked(desk, [*PROMPTS, long], 20)
        assert [asked.name for asked in order] == ["chat 2", "code 1", "chat 1"]


class TestWidthNoise:
    """Where logits depend on the width of a call, a close race may go either way."""

    SEED = 7

    @pytest.fixture
    def altered(self, desk):
        """A plain answer in which the runner-up of the fifth race stands for its winner, and by how
        much of a logit that race was won."""
        trial = coupled.trials(desk, PROMPTS, self.SEED, 1, 24)[0]
        assert trial.options["temperature"] == 0.6
        ids = desk.model.encode(trial.asked.prompt)[0]
        ids = np.append(ids, trial.tokens[:4])
        row, scale, mine = scores(False)(ids), 1 / 0.6, trial.tokens[4]
        randomness = Randomness(self.SEED)
        assert race(Law(None, row, scale), randomness, len(ids)) == mine

        def winner(bonus: float, token: int) -> int:
            changed = row.astype(np.float64)
            changed[token] += bonus
            return race(Law(None, changed, scale), randomness, len(ids))

        other = winner(-100, mine)
        low, high = 0.0, 100.0
        while high - low > 1e-6:
            middle = (low + high) / 2
            low, high = (middle, high) if winner(middle, other) == mine else (low, middle)
        tokens = [*trial.tokens]
        tokens[4] = other
        return replace(trial, tokens=tuple(tokens)), high

    def case(self, desk, trial):
        way, found = Way("on", ("draft",), 3), coupled.Compared()
        coupled.compare(desk, way, trial, found)
        return coupled.case(desk, way, found)

    def test_a_race_closer_than_the_noise_is_excused(self, desk, monkeypatch, altered):
        trial, margin = altered
        monkeypatch.setattr(FakeEngine, "width_noise", 0.501 * margin)
        said = self.case(desk, trial)
        assert said.outcome == "passed"
        assert said.figures["widest_excused_margin"] == pytest.approx(margin, rel=1e-3)
        assert "1 parted within the width noise" in said.said

    def test_a_clearer_race_is_not(self, desk, monkeypatch, altered):
        trial, margin = altered
        monkeypatch.setattr(FakeEngine, "width_noise", 0.499 * margin)
        said = self.case(desk, trial)
        assert said.outcome == "failed"
        assert f"{margin:.2g} of a logit apart" in said.said

    def test_nothing_is_excused_where_there_is_no_noise(self, desk, altered):
        said = self.case(desk, altered[0])
        assert said.outcome == "failed"
        assert "token 5: expected" in said.said

    def test_nothing_is_narrowed_where_there_is_noise(self, desk, monkeypatch):
        assert len(coupled.trials(desk, PROMPTS, 1, 3, 8)) == 3
        kinds = [trial.options["top_p"] for trial in coupled.trials(desk, PROMPTS, 1, 3, 8)]
        monkeypatch.setattr(FakeEngine, "width_noise", 1e-3)
        noisy = [trial.options["top_p"] for trial in coupled.trials(desk, PROMPTS, 1, 3, 8)]
        assert noisy == [1.0] * 3 != kinds


class TestMemory:
    @pytest.fixture
    def engine(self):
        return FakeEngine(fake_spec(VOCAB, 64), scores=scores(False))

    def test_rows_are_the_engines_own_and_computed_once(self, engine):
        stem = np.arange(FIRST, FIRST + 5)
        memory = Memory(engine, stem)
        plain = scores(False)
        first = np.argsort(-plain(stem))[:2].tolist()
        for token in first + first:
            likely = memory.likely((token,))
            assert likely == (token,)
            assert np.array_equal(memory.row(likely), plain(np.append(stem, token)))
        assert len(engine.calls) == 1 + 2
        memory.close()

    def test_behind_a_rare_token_its_likely_part_stands_in(self, engine):
        memory = Memory(engine, np.arange(FIRST, FIRST + 5))
        token = int(memory.row(()).argmax())
        rare = 0  # -30: e^-30 of the likeliest
        assert memory.likely((token, rare, token)) == (token,)
        assert memory.row((token, rare, token)) is memory.row((token,))
        assert 0 < RARE < 0.02

    def test_the_last_token_of_the_stem_is_what_comes_first(self, engine):
        stem = np.arange(FIRST, FIRST + 5)
        remembered = RememberedEngine(Memory(engine, stem), 32)
        slot = remembered.new_slot()
        assert remembered.forward(slot, stem[:-1], 0, 1).greedy_ids.tolist() == [stem[-1]]
        scored = remembered.forward(slot, stem[-1:], 4, 1)
        assert np.array_equal(scored.logits[0], scores(False)(stem))

    def test_the_next_call_overwrites_the_logits(self, engine):
        stem = np.arange(FIRST, FIRST + 5)
        remembered = RememberedEngine(Memory(engine, stem), 32)
        slot = remembered.new_slot()
        first = remembered.forward(slot, stem[:-1], 0, 1).logits
        second = remembered.forward(slot, stem[-1:], 4, 1).logits
        assert np.shares_memory(first, second)


@pytest.mark.model
def test_smollm2_passes_with_its_own_copy_as_the_draft(selfdraft):
    asked = [Asked("repetition 1", "repetition", PROMPTS_OF_MODEL["repetition"])]
    with Desk(selfdraft, context=256, proposers=["draft"], verify=False) as desk:
        gate = run(desk, asked, rounds=160, coupled_texts=1, coupled_tokens=8)
    assert gate.outcome == "passed"
    assert not failed(gate)
    assert named(gate, "rejection, draft K=3, temperature 1").outcome == "passed"

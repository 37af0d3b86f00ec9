"""Structured output in requests: the same with drafts as without; refused where it cannot be."""

from __future__ import annotations

import itertools
import json
import re

import numpy as np
import pytest

import tiny
from constrained import Tabled
from specedge.controller import Controller
from specedge.desk import Desk
from specedge.engines.fake import FakeEngine, fake_spec
from specedge.errors import DeadEndError, OptionError, SamplingError
from specedge.guidance.drafting import GRAMMAR
from specedge.loop import decode
from specedge.metrics import Metrics
from specedge.proposers import Draft, DraftModelProposer, NgramProposer
from specedge.sampling.params import SamplingParams
from specedge.sampling.processors import Pipeline
from specedge.sampling.sampler import make_sampler
from specedge.sampling.scratch import Scratch
from specedge.sequence import Sequence
from specedge.speculator import Speculator
from tests.distribution_cases import (
    COUNTED,
    PROMPT,
    VOCAB,
    Case,
    RealLoop,
    code,
    follows,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "tags": {"type": "array", "items": {"enum": ["hello", "help", "é"]}, "maxItems": 3},
        "size": {"type": "integer", "minimum": 1, "maximum": 40},
    },
    "required": ["name", "tags", "size"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tiny.write_bundle(
        tmp_path_factory.mktemp("structured"),
        draft=True,
        rule={"rule": "hashed", "last": 2},
        speculation={"draft_length": 4, "proposers": ["ngram", "draft"]},
    )
    with Desk(folder, engine="fake") as opened:
        yield opened


FORMS = [
    {"json_schema": SCHEMA},
    {"regex": "(hello|help) [a-c]{1,8}( END)?"},
    {"grammar": 'start: "(" start ")" | "let " WORD\nWORD: /[a-z]{1,9}/'},
]
CHOICES = [
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.5, "frequency_penalty": 0.5},
    {"temperature": 1.3, "seed": 5},
    {"temperature": 0.9, "seed": 6, "top_k": 40, "min_p": 0.001, "presence_penalty": 0.3},
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: next(iter(form)))
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_drafts_do_not_change_a_constrained_output(desk, form, choice):
    for prompt in ("hello", "help me", "héllo (", "a b c a b c a b"):
        plain, *others = (
            desk.ask(way, prompt, max_tokens=90, **form, **choice) for way in desk.ways((1, 3, 7))
        )
        assert {result.finish_reason for result in (plain, *others)} <= {"stop", "length"}
        for result in others:
            assert result.tokens == plain.tokens
            assert result.text == plain.text


@pytest.mark.parametrize("acceptance", ["rejection", "block"])
@pytest.mark.parametrize("form", FORMS[:2], ids=lambda form: next(iter(form)))
def test_rules_that_draw_their_own_tokens_keep_to_the_form(desk, form, acceptance):
    finished = 0
    for way in desk.ways((1, 3, 7)):
        for seed in range(6):
            result = desk.ask(
                way,
                "a b a b",
                max_tokens=120,
                temperature=1.0,
                seed=seed,
                acceptance=acceptance,
                **form,
            )
            if result.finish_reason != "stop":
                continue
            finished += 1
            if "regex" in form:
                assert re.fullmatch(form["regex"], result.text)
            else:
                assert set(json.loads(result.text)) == {"name", "tags", "size"}
    assert finished > 20


def test_tokens_without_alternative_come_for_nothing(desk):
    plain, auto = (
        desk.ask(way, "hello", max_tokens=90, json_schema=SCHEMA) for way in desk.ways()[:2]
    )
    share = auto.metrics.proposers[GRAMMAR]
    assert share.accepted == share.proposed > 5
    assert auto.metrics.rounds < plain.metrics.rounds
    assert GRAMMAR not in plain.metrics.proposers
    assert auto.speculation.on
    assert f"{share.proposed} tokens had no alternative" in auto.speculation.reason
    assert not plain.speculation.on


def test_forced_tokens_are_drafted_where_no_proposer_is_there(tmp_path):
    folder = tiny.write_bundle(tmp_path)
    model, target = tiny.open_model(folder, "whatever", proposers=())
    with model:
        result = model.generate("x", regex="hello wo(END|hell)", max_tokens=40)
        assert result.finish_reason == "stop"
        assert result.metrics.proposers[GRAMMAR].accepted > 0
        assert target.calls
    with tiny.open_model(folder, "whatever", mode="off")[0] as model:
        off = model.generate("x", regex="hello wo(END|hell)", max_tokens=40)
    assert off.tokens == result.tokens
    assert not off.metrics.proposers


def test_a_forced_draft_is_no_longer_than_there_is_room(tmp_path):
    folder = tiny.write_bundle(tmp_path, context=24, max_verify=4)
    with tiny.open_model(folder, "x", proposers=(), draft_length=9)[0] as model:
        for most in range(1, 12):
            result = model.generate("x", regex="a{40}", max_tokens=most)
            assert result.text == "a" * most
            assert result.finish_reason == "length"
        assert model.generate("x", regex="a{40}").text == "a" * 24


def test_explained_rounds_say_what_was_forced(desk):
    result = desk.ask(desk.ways()[1], "hello", max_tokens=60, json_schema=SCHEMA, explain=True)
    said = [report for report in result.rounds if report.why == "forced"]
    assert said
    assert all(report.proposer == GRAMMAR for report in said)
    assert all(report.accepted == report.drafted for report in said)
    assert "can only be these" in said[0].reason


def test_samples_of_one_request_each_begin_at_the_beginning(desk):
    result = desk.ask(
        desk.ways()[1], "hello", n=3, regex="(hello|help) [a-c]{4}", temperature=1.5, seed=1
    )
    assert len(result.samples) == 3
    assert all(sample.text[:3] == "hel" for sample in result.samples)


def test_logprobs_and_stop_strings_go_with_a_form(desk):
    result = desk.ask(
        desk.ways()[1], "hello", regex="abcEND[a-z]{3}", stop="EN", logprobs=2, max_tokens=20
    )
    assert result.text == "abc"
    assert result.finish_reason == "stop_string"
    assert len(result.logprobs) == len(result.tokens)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"regex": "a", "ignore_eos": True}, "ignore_eos: excludes regex"),
        ({"regex": "a", "min_tokens": 3}, "min_tokens: 3 excludes regex"),
        ({"regex": "["}, "regex: "),
        ({"regex": "a", "json_schema": {}}, "json_schema: excludes regex"),
        ({"json_schma": {}}, "did you mean json_schema"),
    ],
)
def test_what_cannot_be_honoured_is_refused_before_anything_runs(desk, options, said):
    with pytest.raises(OptionError, match=said):
        desk.ask(desk.ways()[0], "hello", **options)


def test_banning_all_that_the_form_allows_is_one_clear_error(desk):
    a = desk.model.tokenizer.encode("a").item(0)
    with pytest.raises(SamplingError, match="structured output on the logits of the target"):
        desk.ask(desk.ways()[0], "hello", regex="a", banned_tokens=[a])
    assert desk.ask(desk.ways()[0], "hello", regex="a").text == "a"


# Distribution: the constrained law of the target, whatever drafts, and a fault that is caught.


def allowed(output: tuple[int, ...]) -> frozenset[int]:
    """Two or three ids, by what was said; the certain first token always."""
    if len(output) == 0:
        return frozenset({2})
    banned = (output[-1] + len(output)) % VOCAB
    return frozenset(range(VOCAB)) - {banned}


class Constrained(RealLoop):
    """The real loop with a constraint; `careless` forgets drafted tokens."""

    def __init__(self, case: Case, seed: int, careless: bool = False) -> None:
        super().__init__(case, seed)
        self._careless = careless

    def outcome(self, sample: int) -> int:
        seq = Sequence(PROMPT, context=24, max_tokens=24)
        constraint = Tabled(allowed, VOCAB)
        if self._careless:
            constraint.push = lambda token: None
        sampler = make_sampler(
            self.case.params,
            seq,
            vocab=VOCAB,
            end_ids=(),
            seed=self.seed,
            sample=sample,
            constraint=constraint,
        )
        rounds = decode(seq, self._target, self._slot, self._speculator, Metrics(), sampler=sampler)
        while seq.n_generated <= COUNTED:
            next(rounds)
        rounds.close()
        self._target.calls.clear()
        self._draft.calls.clear()
        return code(seq.generated[1:].tolist())


def constrained_outcomes(case: Case) -> np.ndarray:
    """Plain autoregression: the law of each place with what is not allowed left out."""
    out = []
    for more in itertools.product(range(VOCAB), repeat=COUNTED):
        mass = 1.0
        for n, token in enumerate(more):
            tokens = (*PROMPT, 2, *more[:n])
            row = case.scores("target")(np.array(tokens)).copy()
            ids = sorted(allowed(tokens[len(PROMPT) :]))
            row[[i for i in range(VOCAB) if i not in ids]] = -np.inf
            law = Pipeline(case.params, VOCAB).law(
                row, None, n, scratch=Scratch(), where="target", position=len(tokens)
            )
            mass *= law.probability(token)
        out.append(mass)
    return np.array(out)


CASES = [
    Case("rejection", SamplingParams(acceptance="rejection", temperature=1.0), tables=51),
    Case("block", SamplingParams(acceptance="block", temperature=1.1, top_p=0.95), tables=52),
    Case("coupled", SamplingParams(acceptance="coupled", temperature=1.0), tables=53),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_constrained_tokens_follow_the_constrained_law_of_the_target(case):
    """10,000 samples; a bias of 0.045 in total variation is caught with 99 %: it moves Pearson's
    statistic by 4 n TV^2 = 81, as 0.03 does with 20,000 samples."""
    law = constrained_outcomes(case)
    assert law.sum() == pytest.approx(1)
    assert (law > 0).sum() <= 27
    assert follows(law, Constrained(case, seed=9).counts(10_000))


@pytest.mark.parametrize("case", CASES[:2], ids=lambda case: case.name)
def test_a_mask_that_does_not_follow_drafted_tokens_is_caught(case):
    law = constrained_outcomes(case)
    assert not follows(law, Constrained(case, seed=9, careless=True).counts(1_000))


@pytest.mark.parametrize("acceptance", ["rejection", "block", "coupled"])
def test_a_draft_ends_where_nothing_can_follow_it(desk, acceptance):
    """Behind a c, the form and the ban together leave nothing: a draft may try it and the target
    need not."""
    banned = [desk.model.encode(letter)[0].item() for letter in "xy"]
    ended = 0
    for seed in range(30):
        for way in desk.ways((3, 7)):
            try:
                result = desk.ask(
                    way,
                    "hello",
                    regex="([ab]|c[xy]q){3}",
                    banned_tokens=banned,
                    seed=seed,
                    temperature=1.0,
                    acceptance=acceptance,
                )
            except DeadEndError:  # the target's own; of a draft it would be a ProposerError
                pass
            else:
                ended += 1
                assert result.speculation.failures == 0
    assert ended > 20


class Wrong:
    """A lookup that drafts what the form does not allow."""

    name = "wrong"
    is_lookup = True
    asked = 0

    def start(self, seq, sampler): ...

    def propose(self, seq, limit):
        self.asked += 1
        return Draft(np.full(limit, 3, np.int64), self.name)

    def observe(self, committed, n_accepted): ...

    def close(self): ...


def test_a_lookup_is_cut_before_it_costs_a_call():
    spec = fake_spec(8, 32)
    target = FakeEngine(spec)
    seq = Sequence([1], context=32, max_tokens=8)
    constraint = Tabled(lambda output: frozenset({0, 1, 2}), 8)
    sampler = make_sampler(
        SamplingParams(temperature=0.0), seq, vocab=8, end_ids=(), seed=1, constraint=constraint
    )
    wrong = Wrong()
    rounds = decode(
        seq,
        target,
        target.new_slot(),
        Speculator([wrong], Controller(4), mode="on"),
        Metrics(),
        sampler=sampler,
    )
    assert {token for done in rounds for token in done.tokens} <= {0, 1, 2}
    assert wrong.asked
    assert {call.width for call in target.calls} == {1}


def test_a_draft_model_only_drafts_what_the_form_allows():
    target, draft = FakeEngine(fake_spec(8, 32)), FakeEngine(fake_spec(8, 32, role="draft"))
    seq = Sequence([1], context=32, max_tokens=12)
    constraint = Tabled(lambda output: frozenset({len(output) % 3, 5}), 8)
    sampler = make_sampler(
        SamplingParams(temperature=0.0), seq, vocab=8, end_ids=(), seed=1, constraint=constraint
    )
    speculator = Speculator([NgramProposer(), DraftModelProposer(draft)], Controller(3), mode="on")
    seen: list[int] = []
    speculator_propose = speculator.propose

    def watched(seq):
        drafted = speculator_propose(seq)
        n = seq.n_generated
        for place, token in enumerate(drafted.tokens.tolist()):
            assert token in {(n + place) % 3, 5}
            seen.append(token)
        return drafted

    speculator.propose = watched
    for _ in decode(seq, target, target.new_slot(), speculator, Metrics(), sampler=sampler):
        pass
    assert seq.done
    assert seen

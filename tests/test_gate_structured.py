"""The gate "structured": passed where output is sound, failed by every planted fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import real
from specedge.desk import AUTO, PLAIN, Desk, Way
from specedge.errors import EngineError, OptionError
from specedge.gates import constrained, structured
from specedge.gates.findings import Case, Gate
from specedge.gates.schemas import Entry, entries
from specedge.guidance.constraint import GrammarConstraint
from specedge.result import Result
from tiny import byte_tokenizer, write_bundle
from uneven import UnevenEngine, raising

ID = byte_tokenizer().get_vocab()
WAYS = [AUTO, Way("on", ("ngram",), 3), Way("on", ("ngram",), 7), Way("on", ("draft",), 3)]
PAIR = Entry(
    "pair",
    ("object",),
    "Name a letter and its place.",
    28,
    "json_schema",
    {
        "type": "object",
        "properties": {"letter": {"enum": list("abc")}, "place": {"enum": [1, 2, 3]}},
        "required": ["letter", "place"],
        "additionalProperties": False,
    },
)
WORD = Entry("word", ("pattern",), "Say something.", 8, "regex", "[a-y]{8}")


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Iterator[Desk]:
    folder = write_bundle(
        tmp_path_factory.mktemp("structured"),
        draft=True,
        rule={"rule": "hashed", "last": 2},
        context=400,
        speculation={"draft_length": 4, "proposers": ["ngram", "draft"]},
    )
    with Desk(folder, engine="fake") as opened:
        yield opened


def gate(desk: Desk, *chosen: Entry, **given) -> Gate:
    told: list[tuple[str, float]] = []
    found = structured.check(
        desk, report=lambda *said: told.append(said), chosen=chosen or None, **given
    )
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    if "install" not in {case.name for case in found.cases}:
        assert [stage for stage, _ in told] == [*(case.name for case in found.cases), "structured"]
        assert shares[-1] == 1
    return found


def only(found: Gate) -> Case:
    (case,) = found.cases
    return case


def spoil(monkeypatch: pytest.MonkeyPatch, way: Way, **changes) -> None:
    """Results of one way come out changed."""
    sound = Desk.ask

    def ask(self: Desk, asked: Way, *args, **options) -> Result:
        result = sound(self, asked, *args, **options)
        return replace(result, **changes) if asked == way else result

    monkeypatch.setattr(Desk, "ask", ask)


def test_every_constraint_holds_under_a_model_that_talks_nonsense(desk):
    found = gate(desk)
    assert found.outcome == "passed"
    assert [case.name for case in found.cases] == [entry.name for entry in entries()]
    assert {case.outcome for case in found.cases} == {"passed"}
    figures, n = found.figures, len(entries())
    assert figures["constraints"] == n
    assert figures["schemas"] + figures["patterns"] + figures["grammars"] == n
    assert figures["outputs"] == figures["parsed"] == (n + structured.SAMPLED) * (1 + len(WAYS))
    assert figures["compared"] == figures["equal"] == (n + structured.SAMPLED) * len(WAYS)
    assert 0 < figures["forced_accepted"] <= figures["forced_proposed"]
    assert 0 < figures["forced_share"] < 1
    assert f"{figures['parsed']:,} of {figures['outputs']:,} outputs" in found.said
    json.dumps(found.figures)


def test_the_figures_of_the_gate_are_those_of_its_cases(desk):
    found = gate(desk, most=5, sampled=2)
    for name in ("outputs", "parsed", "compared", "equal", "tokens", "forced_accepted"):
        assert found.figures[name] == sum(case.figures[name] for case in found.cases)
    assert sorted(case.figures["outputs"] for case in found.cases) == [5, 5, 5, 10, 10]


@pytest.mark.parametrize("way", [PLAIN, *WAYS], ids=lambda way: way.name)
def test_an_output_that_does_not_parse_fails_whichever_way_made_it(desk, monkeypatch, way):
    spoil(monkeypatch, way, text='{"letter": "d", "place": 1}')
    found = gate(desk, PAIR, sampled=0)
    assert only(found).outcome == found.outcome == "failed"
    assert only(found).said.startswith(f"{way.name}: $.letter: 'd' is not one of")
    assert "4 of 5 outputs" in found.said
    assert "failed: 'pair'" in found.said


def test_an_output_that_was_cut_fails(desk, monkeypatch):
    spoil(monkeypatch, WAYS[1], finish_reason="length")
    said = only(gate(desk, PAIR, sampled=0)).said
    assert said.startswith("ngram K=3: expected to end by itself, found 'length' after ")


def test_other_tokens_fail_with_way_position_tokens_and_margin(desk, monkeypatch):
    plain = gate(desk, WORD, sampled=0)
    assert plain.outcome == "passed"
    tokens = desk.ask(PLAIN, "x", **WORD.options).tokens
    spoil(monkeypatch, WAYS[3], tokens=[*tokens[:2], ID["z"], *tokens[3:]])
    spoil(monkeypatch, PLAIN, tokens=tokens)
    for way in WAYS[:3]:
        spoil(monkeypatch, way, tokens=tokens)
    found = gate(desk, WORD, sampled=0)
    said = only(found).said
    expected = byte_tokenizer().decode([tokens[2]])
    assert said.startswith(
        f"draft K=3: position 2: expected {tokens[2]} {expected!r}, found {ID['z']} 'z', margin "
    )
    assert "width noise 0" in said
    assert "3 of 4 with speculation" in found.said


def test_an_output_that_ends_early_fails(desk, monkeypatch):
    spoil(monkeypatch, WAYS[0], tokens=[])
    said = only(gate(desk, WORD, sampled=0)).said
    assert said.startswith("auto: position 0: expected ")
    assert ", found no token, margin" in said


def test_a_sampled_output_is_held_against_the_plain_one_of_its_seed(desk, monkeypatch):
    sound = Desk.ask

    def ask(self, way, *args, **options):
        if way == WAYS[2] and "seed" in options:
            options["seed"] += 100
        return sound(self, way, *args, **options)

    monkeypatch.setattr(Desk, "ask", ask)
    found = gate(desk, WORD, sampled=1)
    assert only(found).said.startswith("ngram K=7, seed 1: position ")
    assert "7 of 8 with speculation" in found.said


def test_a_mask_that_does_not_follow_the_draft_fails(desk, monkeypatch):
    sound = GrammarConstraint.allows
    monkeypatch.setattr(
        GrammarConstraint,
        "allows",
        lambda self, token: self._n_drafted > 0 or sound(self, token),
    )
    found = gate(desk, PAIR, WORD, sampled=0)
    assert found.outcome == "failed"
    assert found.figures["parsed"] < found.figures["outputs"]


def test_a_grammar_that_does_not_rewind_fails(desk, monkeypatch):
    monkeypatch.setattr(GrammarConstraint, "_back", lambda self, n: None)
    assert gate(desk, PAIR, WORD, sampled=0).outcome == "failed"


def test_a_request_that_fails_fails_its_case_and_the_others_still_run(desk, monkeypatch):
    sound = Desk.ask

    def ask(self, way, *args, **options):
        if way == AUTO and "regex" in options:
            raise EngineError("the engine\nbroke")
        return sound(self, way, *args, **options)

    monkeypatch.setattr(Desk, "ask", ask)
    word, pair = gate(desk, WORD, PAIR, sampled=0).cases
    assert (word.outcome, word.said) == ("failed", "auto: the engine broke")
    assert pair.outcome == "passed"


def uneven(desk: Desk, monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    """Calls of more than one token like one letter better than they should."""
    given = {"bend": raising(ID["m"], by), "noise": by}
    target = UnevenEngine(desk.bundle.manifest.target, desk.model.target.rule, **given)
    monkeypatch.setattr(desk.model, "_target", target)
    monkeypatch.setattr(desk.model, "_slot", target.new_slot())


def test_what_the_width_of_calls_explains_passes_and_is_counted(desk, monkeypatch):
    uneven(desk, monkeypatch, 6.0)
    found = gate(desk, WORD, sampled=1)
    assert only(found).outcome == "passed"
    assert found.figures["within_noise"] > 0
    assert found.figures["compared"] == 4  # not the sampled ones
    assert found.figures["outputs"] == found.figures["parsed"] == 10
    assert f"{found.figures['within_noise']} part within the noise of widths" in found.said
    assert "sampled output is checked for its form" in found.notes[-1]


def test_a_parting_is_measured_once_where_ways_part_alike(desk, monkeypatch):
    uneven(desk, monkeypatch, 6.0)
    sound, measured = constrained.find, []

    def find(*given):
        measured.append(given[3][:9])
        return sound(*given)

    monkeypatch.setattr(constrained, "find", find)
    found = gate(desk, WORD, sampled=0)
    assert len(measured) < found.figures["within_noise"]


def test_without_the_extra_the_gate_fails_and_says_what_to_install(desk, monkeypatch):
    monkeypatch.setattr(structured, "find_spec", lambda name: None if name == "jsonschema" else 1)
    found = gate(desk)
    assert found.outcome == "failed"
    assert only(found).said == "needs jsonschema; pip install 'specedge[guidance]'"


def test_a_constraint_that_may_not_fit_the_context_is_left_out(desk):
    huge = replace(WORD, name="huge", longest=399)
    word, left_out = gate(desk, WORD, huge, sampled=0).cases
    assert word.outcome == "passed"
    assert left_out.outcome == "skipped"
    assert left_out.said.startswith("may need 400 tokens, the context has room for 3")


@pytest.mark.parametrize(("name", "value"), [("most", 0), ("sampled", -1)])
def test_a_count_out_of_range_is_refused(desk, name, value):
    with pytest.raises(OptionError, match=f"{name}: expected"):
        gate(desk, **{name: value})


def test_few_constraints_still_cover_most_features():
    whole = {feature for entry in entries() for feature in entry.covers}
    few = structured.spread(entries(), 24)
    assert len(few) == 24
    assert few == [entry for entry in entries() if entry in few]
    assert len({entry.kind for entry in structured.spread(entries(), 3)}) == 3
    assert len({feature for entry in few for feature in entry.covers}) > 0.8 * len(whole)
    assert structured.spread(entries(), None) == list(entries())


def test_ways_are_auto_the_first_lookup_and_the_draft(desk):
    assert structured.ways_of(desk) == WAYS


def test_draft_lengths_shrink_to_what_the_graph_verifies(tmp_path: Path):
    with Desk(write_bundle(tmp_path / "narrow", max_verify=4), engine="fake") as narrow:
        assert structured.ways_of(narrow) == [AUTO, Way("on", ("ngram",), 3)]


def test_a_model_without_a_chat_template_is_asked_in_plain_text(tmp_path: Path):
    with Desk(write_bundle(tmp_path / "plain", template=None), engine="fake") as plain:
        assert gate(plain, PAIR, sampled=1).outcome == "passed"


@pytest.mark.model
def test_a_real_model_keeps_to_the_form_with_every_proposer():
    with Desk(real.bundle("smollm2-selfdraft")) as desk:
        chosen = [entry for entry in entries() if entry.name in ("person", "hex colour")]
        found = gate(desk, *chosen, sampled=1)
    assert found.outcome == "passed"
    assert found.figures["equal"] == 12
    assert found.figures["forced_share"] > 0.2

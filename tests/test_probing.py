"""A probe from the bundle's folder to its record, and what a run makes of that."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

import specedge
from probe_desk import Desk, bundle, dear, install, prompts
from specedge import opening
from specedge.bundle import Bundle
from specedge.errors import BundleError, EngineError, OptionError, PromptError
from specedge.memory import plan
from specedge.probe import probing
from specedge.probe.probing import Probed, probe
from specedge.probe.record import NO_RECORD, Record
from tiny import byte_tokenizer, edit_manifest, write_bundle

pytestmark = pytest.mark.usefixtures("private_cache", "desk")


@pytest.fixture
def desk(monkeypatch) -> Desk:
    return install(monkeypatch)


@pytest.fixture
def pair(tmp_path) -> Path:
    return bundle(tmp_path / "pair")


@pytest.fixture
def two(tmp_path) -> Path:
    """Two classes of one prompt each."""
    return prompts(
        tmp_path / "two.jsonl",
        {"prompt": "hello", "class": "greeting"},
        {"prompt": "say it again", "class": "asking"},
    )


@pytest.fixture
def twelve(tmp_path) -> Path:
    """One class, as many prompts as an interval needs."""
    return prompts(tmp_path / "twelve.jsonl", *({"prompt": f"call {n}"} for n in range(12)))


@pytest.fixture
def ask(desk, two):
    """`probe` in the desk's time, on two prompts unless told otherwise."""

    def ask(path: Path, **given: object) -> Probed:
        usual = {"engine": "fake", "clock": desk.clock, "prompts": two}
        return probe(path, **(usual | given))  # type: ignore[arg-type]

    return ask


def load(path: Path, **given: object) -> specedge.Model:
    return specedge.load(path, engine="fake", **given)  # type: ignore[arg-type]


def says(path: Path, **given: object) -> str:
    with load(path, **given) as model:
        return model.generate("abc", max_tokens=5).text


# What is measured when


def test_a_probe_measures_once_and_then_shows_what_it_stored(pair, ask, desk):
    first = ask(pair)
    assert (first.measured, first.reason) == (True, NO_RECORD)
    assert first.record.curves.draft is not None
    assert first.record.findings is not None
    calls = desk.calls
    second = ask(pair)
    assert (second.measured, second.record, second.path) == (False, first.record, first.path)
    assert desk.calls == calls
    third = ask(pair, again=True)
    assert (third.measured, third.reason, third.path) == (True, "asked for", first.path)
    fourth = ask(pair, context=64)
    assert fourth.reason == "target context 256 -> 64, draft context 256 -> 64"
    assert ask(pair).record == third.record


def test_other_prompts_are_tried_at_the_costs_that_are_known(pair, ask, desk, twelve):
    first = ask(pair)
    desk.cost = dear
    second = ask(pair, prompts=twelve)
    assert (second.measured, second.reason) == (True, "other prompts than before")
    assert second.record.curves == first.record.curves
    assert second.record.findings.workloads == ("user",)
    assert not ask(pair, prompts=twelve).measured
    assert ask(pair, prompts=twelve, again=True).record.curves != first.record.curves


def test_the_same_file_with_other_words_is_other_prompts(pair, ask, two):
    ask(pair)
    prompts(two, {"prompt": "hello!", "class": "greeting"}, {"prompt": "no", "class": "asking"})
    assert ask(pair).reason == "other prompts than before"


def test_a_class_is_tried_alone_and_then_with_the_others(pair, ask):
    alone = ask(pair, classes=["asking"])
    assert alone.record.findings.workloads == ("asking",)
    whole = ask(pair)
    assert (whole.measured, whole.reason) == (
        True,
        "workloads that were not tried before: greeting",
    )
    assert whole.record.findings.workloads == ("greeting", "asking")
    assert whole.record.curves == alone.record.curves
    assert ask(pair, classes=["asking"]).record == whole.record


def test_a_class_that_time_left_nothing_for_is_not_tried_again_unasked(pair, ask):
    first = ask(pair, budget_s=1e-9)
    assert first.measured
    assert (first.record.findings.complete, first.record.findings.findings) == (False, ())
    spent = first.record.curves.seconds + first.record.findings.seconds
    assert not ask(pair, budget_s=spent).measured
    assert "the budget is larger now" in ask(pair, budget_s=2 * spent).reason


def test_costs_that_a_run_kept_are_measured_in_full(pair, ask, monkeypatch):
    first = ask(pair)
    costs = first.record.curves.model_copy(update={"plan": "startup"})
    probing.store(specedge.bundle.Bundle.open(pair), Record.of(first.record.fingerprint, costs))
    again = ask(pair)
    assert again.reason == f"{first.path}: holds only the costs that a run measured in its stream"
    assert (again.record.curves.plan, again.record.findings is None) == ("full", False)


def test_a_damaged_record_is_measured_again_and_replaced(pair, ask):
    path = ask(pair).path
    path.write_bytes(path.read_bytes()[:200])
    again = ask(pair)
    assert again.reason == f"{path}: not valid JSON, perhaps cut short"
    assert again.path == path
    assert not ask(pair).measured


# What is opened


def test_engines_are_opened_as_a_run_opens_them_and_closed_in_the_end(tmp_path, pair, ask, desk):
    ask(pair, threads=3, context=99, exact=True)
    common = {"options": None, "threads": 3, "context": 99, "takes_turns": True}
    asked = {engine.spec.role: options for engine, options in desk.opened}
    assert asked == {"target": common | {"exact": True}, "draft": common | {"exact": False}}
    ask(pair, exact=False)
    asked = {engine.spec.role: options for engine, options in desk.opened}
    assert (asked["target"]["exact"], asked["draft"]["exact"]) == (False, False)
    assert len(desk.opened) == 4
    for engine, _ in desk.opened:
        with pytest.raises(EngineError, match="closed"):
            engine.new_slot()
    ask(bundle(tmp_path / "alone", draft=False))
    assert desk.opened[-1][1]["takes_turns"] is False


def test_a_draft_that_cannot_be_opened_is_left_out_with_a_note(pair, ask, monkeypatch):
    create = opening.registry.create

    def failing(name, folder, spec, **options):
        if spec.role == "draft":
            raise EngineError("its graph\ndoes not load")
        return create(name, folder, spec, **options)

    monkeypatch.setattr(opening.registry, "create", failing)
    probed = ask(pair)
    assert probed.notes == ("the draft model was left out: its graph does not load",)
    assert probed.record.curves.draft is None
    assert {finding.proposer for finding in probed.record.findings.findings} == {"ngram"}
    with load(pair) as model:  # which leaves it out too
        assert any(note.startswith("the probe says: ") for note in model.notes)
    monkeypatch.setattr(opening.registry, "create", create)
    again = ask(pair)
    assert again.measured
    assert again.reason.endswith("made while the draft model did not load")
    assert again.record.curves.draft is not None
    assert not ask(pair).measured


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"context": 0}, "context: expected 1..256"),
        ({"context": 257}, "context: expected 1..256"),
        ({"threads": 0}, "threads: expected 1..1024"),
        ({"budget_s": 0.0}, "budget: expected more than 0"),
        ({"budget_s": -1.0}, "budget: expected more than 0"),
        ({"budget_s": float("nan")}, "budget: expected more than 0 .*, found nan"),
        ({"budget_s": float("inf")}, "budget: expected more than 0 .*, found inf"),
        ({"classes": ["chat"]}, "class: no workload 'chat'; there are greeting, asking"),
        ({"memory": "much"}, "memory"),
    ],
)
def test_an_argument_out_of_range_is_refused_before_anything_is_opened(
    pair, ask, desk, given, said
):
    with pytest.raises(OptionError, match=said):
        ask(pair, **given)
    assert not desk.opened
    assert not (pair / "probes").exists()


def test_a_damaged_bundle_is_not_measured(pair, ask):
    edit_manifest(pair, contract=9)
    with pytest.raises(BundleError):
        ask(pair)


def test_too_little_memory_is_one_clear_error(pair, ask, monkeypatch):
    def none_left(*args, **options):
        raise MemoryError

    monkeypatch.setattr(probing, "measure", none_left)
    with pytest.raises(EngineError, match="choose a smaller context"):
        ask(pair)


# Odd bundles and prompts


def test_a_bundle_without_a_draft_has_lookups_only(tmp_path, ask):
    found = ask(bundle(tmp_path / "alone", draft=False)).record
    assert found.curves.draft is None
    assert {finding.proposer for finding in found.findings.findings} == {"ngram"}


@pytest.mark.parametrize(
    "given",
    [{"speculation": {"proposers": []}}, {"speculation": {"proposers": ["draft"]}, "draft": False}],
)
def test_a_bundle_that_nobody_drafts_for_says_so_and_is_measured_once(tmp_path, ask, given):
    path = bundle(tmp_path / "nobody", **given)
    findings = ask(path).record.findings
    assert findings.reason == "speculation off: there is no proposer"
    assert (findings.proposers, findings.findings, findings.complete) == ((), (), True)
    assert not ask(path).measured
    assert says(path) == "defgh"


def test_a_bundle_that_verifies_one_token_is_measured_once(tmp_path, ask):
    path = bundle(tmp_path / "one", max_verify=1)
    probed = ask(path)
    assert "does not ask a probe: a call verifies 1 token at most" in probed.notes[0]
    findings = probed.record.findings
    assert all(not finding.expected for finding in findings.findings)
    assert not ask(path).measured
    assert says(path) == "defgh"


@pytest.mark.parametrize("names", [["ngrams"], ["ngram", "ngram"]])
def test_proposers_that_a_run_would_refuse_are_not_probed(tmp_path, ask, desk, names):
    path = bundle(tmp_path / "odd", speculation={"proposers": names})
    for refused in (ask, load):
        with pytest.raises(OptionError, match=r"^proposers: "):
            refused(path)
    assert not desk.opened


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ({"draft_length": 0}, "draft_length is 0"),
        ({"mode": "off"}, 'speculation is "off"'),
        ({"mode": "on"}, 'speculation is "on"'),
        ({"mode": "off", "draft_length": 0}, 'speculation is "off" and draft_length is 0'),
    ],
)
def test_a_bundle_whose_runs_do_not_ask_is_probed_with_a_note(tmp_path, ask, given, note):
    path = bundle(tmp_path / "deaf", speculation=given)
    said = (f"by default a run of this bundle does not ask a probe: {note}",)
    for probed in (ask(path), ask(path)):
        assert probed.notes == said
        assert probed.record.findings.speculates
    with load(path) as model:
        assert model.generate("abc", max_tokens=5).text == "defgh"
        assert not any("probe" in each for each in model.notes)
    with load(path, speculation="auto", draft_length=2) as model:
        assert any("the probe says: " in each for each in model.notes)


def test_a_bundle_without_a_template_is_given_plain_text(tmp_path, ask, two, desk):
    path = bundle(tmp_path / "raw", template=None)
    assert ask(path).record.findings.complete
    prompts(two, {"messages": [{"role": "user", "content": "hello"}]})
    opened = desk.calls
    with pytest.raises(PromptError, match=r'two\.jsonl, line 1: "messages" need a chat template'):
        ask(path)
    assert desk.calls == opened


def test_prompts_that_do_not_fit_are_left_out_by_file_and_line(pair, ask, two, desk):
    prompts(
        two, {"prompt": "hello"}, {"prompt": "x" * 400}, "", {"prompt": "y" * 300, "class": "b"}
    )
    probed = ask(pair)
    assert [line.partition(":")[0] for line in probed.left_out] == [
        "two.jsonl, line 2",
        "two.jsonl, line 4",
    ]
    assert "the context of 256 leaves 255 beside 1" in probed.left_out[0]
    assert probed.record.findings.workloads == ("user", "b")
    assert {finding.workload for finding in probed.record.findings.findings} == {"user"}
    assert not ask(pair).measured


def test_a_context_too_small_for_every_prompt_is_an_error_before_anything_is_measured(
    pair, ask, desk
):
    with pytest.raises(PromptError, match=r"prompts fits: two\.jsonl, line 1: ") as error:
        ask(pair, context=8)
    assert "\n" not in str(error.value)
    assert desk.calls == 0
    assert not (pair / "probes").exists()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "two.jsonl: it holds no prompt"),
        ([{"prompt": "ok"}, {"prompt": ""}], 'two.jsonl, line 2: "prompt" is empty'),
        ([{"prompt": "ok"}, "no json"], "two.jsonl, line 2: invalid JSON"),
        ([{"prompt": "ok"}, {"prompt": "a <tool> b"}], "two.jsonl, line 2: .*no token '<tool>'"),
    ],
)
def test_a_file_of_prompts_that_cannot_be_used_is_one_line_with_its_place(
    tmp_path, ask, two, desk, lines, said
):
    path = bundle(tmp_path / "pair")
    narrow(path)
    prompts(two, *lines)
    with pytest.raises(PromptError, match=said) as error:
        ask(path)
    assert "\n" not in str(error.value)
    assert desk.calls == 0


def narrow(path: Path) -> None:
    """A model that does not know the tokenizer's last token, <tool>."""
    said = json.loads((path / "specedge.json").read_text())
    for role in ("target", "draft"):
        said[role]["vocab"] = byte_tokenizer().get_vocab()["<tool>"]
    edit_manifest(path, **said)


def test_prompts_are_read_once_so_that_a_pipe_will_do(pair, ask, tmp_path):
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    text = '{"prompt": "hello"}\n'
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    try:
        assert ask(pair, prompts=pipe).measured
    finally:
        writer.join()


def test_class_names_may_be_of_any_script(pair, ask, two):
    prompts(two, {"prompt": "hé", "class": "Übersetzen 翻訳"}, {"prompt": "ho", "class": "שיחה 🙂"})
    findings = ask(pair, classes=["שיחה 🙂"]).record.findings
    assert {finding.workload for finding in findings.findings} == {"שיחה 🙂"}
    assert "Übersetzen 翻訳" in ask(pair).record.findings.reason


def test_one_prompt_of_a_class_decides_nothing(pair, ask):
    findings = ask(pair).record.findings
    assert {finding.verdict for finding in findings.findings} == {"open"}
    for finding in findings.findings:
        for each in finding.expected:
            assert (each.estimate.prompts, each.estimate.low, each.estimate.high) == (1, None, None)


# What a run makes of it


def test_a_run_says_what_the_probe_decided(pair, ask, twelve):
    findings = ask(pair, prompts=twelve).record.findings
    assert findings.reason.startswith("speculation on: ")
    with load(pair) as model:
        result = model.generate("abc", max_tokens=40)
    said = "the probe says: ngram pays on 1 of 1 workloads, draft pays on 1 of 1 workloads"
    assert said in result.speculation.reason
    assert result.text == ("abcdefghijklmnopqrstuvwxyz" * 2)[3:43]
    assert result.speculation.on


@pytest.mark.parametrize("asked", [None, ["ngram"], ["ngram", "draft"]])
def test_a_bundle_that_leaves_its_draft_out_has_its_probe_heard(tmp_path, ask, asked):
    pair = write_bundle(tmp_path / "pair", draft=True, speculation={"proposers": ["ngram"]})
    probed = ask(pair)
    assert probed.record.curves.draft is None
    with load(pair, proposers=asked) as model:
        heard = any(note.startswith("the probe says: ") for note in model.notes)
    assert heard == ("draft" not in (asked or []))  # of a draft it knows nothing


def test_a_run_of_lookups_hears_a_probe_whose_draft_did_not_fit(pair, ask):
    target = Bundle.open(pair).manifest.target
    sizes = {"context": target.context, "max_verify": target.max_verify}
    alone = plan(target, None, **sizes, budget=None).total
    probed = ask(pair, memory=alone)
    assert probed.record.curves.draft is None
    with load(pair, memory=alone, proposers=["ngram"]) as model:
        assert any(note.startswith("the probe says: ") for note in model.notes)


def test_what_no_class_gains_from_is_ruled_out_and_its_draft_is_not_opened(pair, ask, twelve, desk):
    desk.cost = dear
    findings = ask(pair, prompts=twelve).record.findings
    assert findings.proposers == ()
    assert findings.reason.startswith("speculation off: ")
    assert {finding.verdict for finding in findings.findings} == {"does not pay"}
    desk.opened.clear()
    with load(pair) as model:
        assert model.generate("abc", max_tokens=5).text == "defgh"
        assert f"the probe says: {findings.reason}" in model.notes
    assert set(desk.roles()) == {"target"}
    assert desk.opened[-1][1]["takes_turns"] is False
    with load(pair, speculation="on") as model:  # who insists gets it
        assert model.generate("abc", max_tokens=5).text == "defgh"
    assert "draft" in desk.roles()


def test_a_ruled_out_draft_stays_so_whatever_a_run_asks_for(pair, ask, twelve, desk):
    desk.cost = dear
    ask(pair, prompts=twelve)
    desk.opened.clear()
    assert says(pair, proposers=["draft"]) == "defgh"
    assert set(desk.roles()) == {"target"}


def test_a_run_never_writes_over_what_a_probe_decided(pair, ask, twelve, monkeypatch):
    path = ask(pair).path
    before = path.read_bytes()
    says(pair)
    with load(pair) as model:
        model.generate("abc", max_tokens=150)
    assert path.read_bytes() == before


def test_settings_that_were_not_probed_are_not_served_by_the_record(pair, ask):
    ask(pair)
    with load(pair, context=64) as model:
        assert any("does not count here: target context 256 -> 64" in note for note in model.notes)


@pytest.mark.parametrize("cut", [0, 1, 97, 970, 1940, -98, -3])
def test_a_run_goes_on_without_a_record_that_was_cut_short(pair, ask, cut):
    path = ask(pair).path
    path.write_bytes(path.read_bytes()[:cut])
    with load(pair) as model:
        (note,) = (note for note in model.notes if "probe" in note)
        assert note.endswith(f"{path}: not valid JSON, perhaps cut short")
        assert model.generate("abc", max_tokens=5).text == "defgh"


def unknown_proposers(said: dict) -> None:
    said["findings"]["proposers"] = ["oracle"]
    said["findings"]["findings"][0]["proposer"] = "oracle"


def enormous(said: dict) -> None:
    finding = said["findings"]["findings"][0]
    finding["best_k"] = finding["tokens"] = (1 << 53) - 1
    finding["reached"] = finding["stood"] = [(1 << 53) - 1] * 20_000


def backwards(said: dict) -> None:
    finding = said["findings"]["findings"][0]
    finding["reached"], finding["stood"] = [0, 9, 1, 8], [0, 9, 1, 8]
    for each in finding["expected"]:
        each["estimate"] |= {"low": 9.0, "high": 0.1, "looks": 1 << 40}


@pytest.mark.parametrize("spoil", [unknown_proposers, enormous, backwards])
def test_findings_that_are_odd_and_in_bounds_do_not_stop_anything(pair, ask, twelve, spoil):
    path = ask(pair, prompts=twelve).path
    said = json.loads(path.read_text())
    spoil(said)
    path.write_text(json.dumps(said))
    assert not ask(pair, prompts=twelve).measured
    with load(pair) as model:
        text = model.generate("abc", max_tokens=60).text
    assert text == ("abcdefghijklmnopqrstuvwxyz" * 3)[3:63]


@pytest.mark.model
def test_sixteen_tokens_of_smollm2_cost_more_than_one_and_are_measured_once(smollm2, tmp_path, two):
    folder = tmp_path / "smollm2"
    folder.mkdir()
    for entry in smollm2.iterdir():  # its own probes folder, and links to everything else
        if entry.name != "probes":
            os.symlink(entry, folder / entry.name)
    first = probe(folder, budget_s=3.0, context=512, prompts=two)
    target = first.record.curves.target
    assert target.cost_ms(16, 128) > 1.2 * target.cost_ms(1, 128)
    assert first.measured
    again = probe(folder, budget_s=3.0, context=512, prompts=two)
    assert (again.measured, again.record) == (False, first.record)


def test_a_run_that_began_before_the_probe_does_not_write_over_it(pair, ask):
    with load(pair) as model:
        probed = ask(pair)
        before = probed.path.read_bytes()
        model.generate("abc", max_tokens=200)
        model.generate("xyz", max_tokens=200)
    assert probed.path.read_bytes() == before


# What stays beside what is new


def test_a_class_tried_again_alone_keeps_the_findings_of_the_others(pair, ask):
    whole = ask(pair)
    alone = ask(pair, classes=["asking"], again=True)
    assert alone.measured
    kept = [each for each in whole.record.findings.findings if each.workload == "greeting"]
    assert kept
    assert [each for each in alone.record.findings.findings if each.workload == "greeting"] == kept
    assert set(alone.record.findings.workloads) == {"greeting", "asking"}
    assert not ask(pair).measured


def test_a_class_tried_alone_rules_nobody_out_for_the_others(pair, ask, desk, tmp_path):
    desk.cost = dear
    lines = [{"prompt": f"call {n}", "class": "one"} for n in range(12)]
    file = prompts(tmp_path / "more.jsonl", *lines, {"prompt": "hello", "class": "two"})
    alone = ask(pair, prompts=file, classes=["one"]).record.findings
    assert {each.verdict for each in alone.findings} == {"does not pay"}
    assert alone.proposers == ("ngram", "draft")
    file = prompts(tmp_path / "one.jsonl", *lines)
    assert ask(pair, prompts=file).record.findings.proposers == ()


def test_findings_on_prompts_of_ones_own_stay_until_others_are_asked_for(pair, ask, twelve):
    first = ask(pair, prompts=twelve)
    assert ask(pair, prompts=None).record == first.record
    assert ask(pair, prompts=None, classes=["chat"], budget_s=1.0).measured


def test_a_draft_that_fails_in_the_middle_leaves_a_probe_of_lookups(pair, ask, monkeypatch):
    def fail(self, seq, rows):
        raise EngineError("fake: out of luck")

    monkeypatch.setattr("specedge.proposers.draft_model.DraftModelProposer.agreement", fail)
    probed = ask(pair)
    assert "the draft model was left out: proposer draft failed: fake: out of luck" in probed.notes
    assert {each.proposer for each in probed.record.findings.findings} == {"ngram"}


def test_a_probe_without_time_keeps_what_was_found_before(pair, ask, twelve):
    found = ask(pair, prompts=twelve).record.findings
    again = ask(pair, prompts=twelve, again=True, budget_s=1e-9).record.findings
    assert (again.findings, again.proposers) == (found.findings, found.proposers)
    assert not again.complete

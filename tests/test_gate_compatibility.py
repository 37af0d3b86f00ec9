"""The compatibility gate: a sound bundle passes, every planted fault fails its own check."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers

from specedge.contract import MANIFEST
from specedge.desk import Desk
from specedge.engines.base import Scored
from specedge.engines.fake import FakeEngine
from specedge.gates import compatibility
from specedge.gates.findings import Case, Gate
from specedge.tokenizer import Tokenizer
from tiny import ASK, EOS, TEMPLATE, byte_tokenizer, record, space_tokenizer, write_bundle

Edit = Callable[[dict[str, Any]], None]
VOCAB = byte_tokenizer().get_vocab_size()


def gate(folder: Path, **opening: Any) -> Gate:
    with Desk(folder, **({"engine": "fake", "verify": False} | opening)) as desk:
        return compatibility.check(desk, [], report=lambda stage, share: None)


def case(found: Gate, name: str) -> Case:
    return next(each for each in found.cases if each.name == name)


def failed(found: Gate) -> list[str]:
    return [each.name for each in found.cases if each.outcome == "failed"]


def edit(folder: Path, change: Edit) -> None:
    """Change the manifest, and list the files as they are now."""
    said = json.loads((folder / MANIFEST).read_text())
    change(said)
    for name in said["files"]:
        said["files"][name] = record((folder / name).read_bytes()).model_dump()
    (folder / MANIFEST).write_text(json.dumps(said))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "tiny", draft=True)


@pytest.mark.parametrize("inner", [byte_tokenizer, space_tokenizer])
@pytest.mark.parametrize("adds_bos", [True, False])
def test_a_sound_bundle_passes_every_check(tmp_path, inner, adds_bos):
    found = gate(write_bundle(tmp_path / "tiny", inner=inner(), draft=True, adds_bos=adds_bos))
    assert [each.name for each in found.cases] == list(compatibility.CHECKS)
    assert {each.outcome for each in found.cases} == {"passed"}, failed(found)
    assert found.outcome == "passed"
    assert found.said == "10 of 10 checks hold"


def test_what_a_bundle_does_not_have_is_skipped_with_the_reason(tmp_path):
    found = gate(write_bundle(tmp_path / "tiny", template=None))
    assert found.outcome == "passed"
    for name, reason in (
        ("chat template", "no chat template: plain prompts only"),
        ("draft vocabulary", "no draft model in the bundle"),
    ):
        assert (case(found, name).outcome, case(found, name).said) == ("skipped", reason)
    assert found.said == "8 of 8 checks hold (does not apply: chat template, draft vocabulary)"


def test_the_sample_conversation_is_rendered_and_read_whole(folder):
    found = case(gate(folder), "chat template")
    assert found.figures["messages"] == 4
    assert found.said.startswith("4 messages make ")


CHANGES: dict[str, tuple[str, Edit, str]] = {
    "an end id of an ordinary token": (
        "special tokens",
        lambda said: said["tokenizer"].update(eos_ids=[EOS, 40]),
        "id 40 is .*, which the tokenizer does not call special",
    ),
    "an end id outside the vocabulary": (
        "special tokens",
        lambda said: said["tokenizer"].update(eos_ids=[VOCAB]),
        f"end-of-text id {VOCAB}, expected 0..{VOCAB - 1}",
    ),
    "no end id": (
        "special tokens",
        lambda said: said["tokenizer"].update(eos_ids=[]),
        "no text would ever end",
    ),
    "a begin id outside the vocabulary": (
        "special tokens",
        lambda said: said["tokenizer"].update(bos_id=VOCAB + 7),
        "begin-of-text id",
    ),
    "a begin id that is not given": (
        "special tokens",
        lambda said: said["tokenizer"].update(bos_id=None, adds_bos=True),
        "bos_id",
    ),
    "another hash of the vocabulary": (
        "vocabulary",
        lambda said: said["tokenizer"].update(vocabulary_hash="0" * 64),
        "expected 0000",
    ),
    "another size of the vocabulary": (
        "vocabulary",
        lambda said: said["tokenizer"].update(vocab=VOCAB - 1),
        f"the tokenizer has {VOCAB - 1} ids, the target {VOCAB}",
    ),
    "a draft of another vocabulary": (
        "draft vocabulary",
        lambda said: said["draft"].update(vocab=VOCAB + 1),
        f"the draft has {VOCAB + 1} ids, the target {VOCAB}",
    ),
    "no record of the comparison": (
        "draft vocabulary",
        lambda said: said.update(pairing=None),
        "not recorded",
    ),
    "tokenizers that differ": (
        "draft vocabulary",
        lambda said: said["pairing"].update(usable=False, first_difference=12),
        "first at id 12",
    ),
    "a comparison of another tokenizer": (
        "draft vocabulary",
        lambda said: said["pairing"].update(compared_ids=VOCAB - 3),
        f"{VOCAB - 3} tokens were compared, the tokenizer has {VOCAB}",
    ),
    "an embedding shorter than the vocabulary": (
        "draft vocabulary",
        lambda said: said["pairing"].update(draft_padded_to=VOCAB - 1),
        f"and {VOCAB - 1} rows, expected {VOCAB} or more",
    ),
    "weights too narrow for their precision": (
        "precision",
        lambda said: said["target"].update(parameters=2),
        "2.00 bytes a parameter, expected 4 to 4 of fp32",
    ),
    "weights too wide for their precision": (
        "precision",
        lambda said: said["draft"].update(precision="int4", parameters=0),
        "expected 0.5 to 4 of int4",
    ),
    "weights of another size than the graph says": (
        "precision",
        lambda said: said["draft"].update(weight_bytes=5),
        "4 bytes are listed, the draft says 5",
    ),
}


@pytest.mark.parametrize("fault", CHANGES)
def test_a_manifest_that_was_altered_fails_the_check_of_that_part(folder, fault):
    name, change, said = CHANGES[fault]
    if "too wide" in fault:  # rotary tables of a context may lie beside them
        spare = b"\0" * (2 * 4 * (256 + 7) * 8 + 4)
        (folder / "draft" / "weights.bin").write_bytes(spare)
        edit(folder, lambda manifest: manifest["draft"].update(weight_bytes=len(spare)))
    edit(folder, change)
    found = gate(folder)
    assert failed(found) == [name]
    assert found.outcome == "failed"
    assert re.search(said, case(found, name).said), case(found, name).said
    assert found.said.endswith(f"{name}: {case(found, name).said}")


def test_an_end_id_of_the_checkpoint_that_the_manifest_lacks_fails(folder):
    (folder / "generation.json").write_text(json.dumps({"eos_token_id": [EOS, ASK]}))
    found = gate(folder)
    assert failed(found) == ["special tokens"]
    assert f"ends a text by id {ASK}, the manifest only by [{EOS}]" in found.said


def test_a_byte_that_was_changed_is_found_though_sizes_are_the_same(folder):
    (folder / "draft" / "weights.bin").write_bytes(b"\0\1\2\4")
    found = gate(folder)
    assert failed(found) == ["files"]
    assert "draft/weights.bin: sha256" in found.said


def test_a_file_that_is_gone_since_the_bundle_was_opened_is_one_line(folder):
    with Desk(folder, engine="fake") as desk:
        (folder / "target" / "weights.bin").unlink()
        found = compatibility.check(desk, [], report=lambda stage, share: None)
    assert "files" in failed(found)
    assert "target/weights.bin: cannot be read: No such file" in found.said


def test_a_manifest_that_changes_while_it_is_open_is_found(folder):
    with Desk(folder, engine="fake") as desk:
        edit(folder, lambda said: said.update(name="other"))
        assert "changed since it was opened" in compatibility.files(desk).faults[0]


def retokenize(folder: Path, change: Edit) -> None:
    """Alter `tokenizer.json`, and list it again."""
    file = folder / "tokenizer.json"
    said = json.loads(file.read_text())
    change(said)
    file.write_text(json.dumps(said))
    edit(folder, lambda manifest: None)


def test_two_tokens_that_changed_places_fail_the_vocabulary(folder):
    def swap(said):
        vocab = said["model"]["vocab"]
        vocab["a"], vocab["b"] = vocab["b"], vocab["a"]

    retokenize(folder, swap)
    assert failed(gate(folder)) == ["vocabulary"]


def test_a_library_that_reads_other_tokens_than_the_file_has_fails(folder, monkeypatch):
    right = Tokenizer.token
    monkeypatch.setattr(
        Tokenizer, "token", lambda self, id_: "?" if id_ == 77 else right(self, id_)
    )
    found = gate(folder)
    assert failed(found)[0] == "vocabulary"
    assert "id 77 is" in found.said


def test_a_special_token_that_falls_to_pieces_fails(folder, monkeypatch):
    right = Tokenizer.encode

    def encode(self, text, **given):
        return right(self, text if text != "<ask>" else "<as k>", **given)

    monkeypatch.setattr(Tokenizer, "encode", encode)
    found = gate(folder)
    assert failed(found) == ["special tokens"]
    assert "'<ask>' (id 3) is read as [" in found.said


def test_a_tokenizer_that_loses_capitals_fails_text_and_template(tmp_path):
    inner = byte_tokenizer()
    inner.normalizer = normalizers.Lowercase()
    found = gate(write_bundle(tmp_path / "tiny", inner=inner))
    assert failed(found) == ["text", "chat template"]
    assert "comes back decoded as 'the quick" in case(found, "text").said


def test_a_stream_that_loses_bytes_fails_text(folder, monkeypatch):
    from specedge.tokenizer import ByteDecoder

    monkeypatch.setattr(ByteDecoder, "pieces", lambda self, ids: "".join(map(self.piece, ids[1:])))
    found = gate(folder)
    assert failed(found) == ["text"]
    assert "comes back streamed as" in found.said


def test_tokens_past_the_target_are_a_note_and_a_template_that_needs_them_fails(folder):
    """As of a checkpoint whose embedding is shorter than its tokenizer."""

    def change(said):
        for part in (said["target"], said["draft"], said["tokenizer"]):
            part["vocab"] = ASK

    edit(folder, change)
    found = gate(folder)
    assert {"text", "chat template"} <= set(failed(found))
    assert any("tokens have no row in the target" in note for note in found.notes)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ messages[0].content }}<ask>", "is not in what it renders"),
        ("{{ messages | map(attribute='content') | join | upper }}", "is not in what it renders"),
        ("{% for m in messages %}", "chat template, line 1"),
        ("{{ raise_exception('never') }}", "never"),
        ("{% if false %}x{% endif %}", "made an empty prompt"),
    ],
)
def test_a_template_that_loses_what_was_said_fails(tmp_path, template, said):
    found = gate(write_bundle(tmp_path / "tiny", template=template))
    assert failed(found) == ["chat template"]
    assert said in found.said


def test_a_template_that_refuses_a_system_message_passes_with_a_note(tmp_path):
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    found = gate(write_bundle(tmp_path / "tiny", template=refusing + TEMPLATE))
    assert found.outcome == "passed"
    assert case(found, "chat template").figures["messages"] == 3
    assert any("a system message is refused: chat template: no system" in n for n in found.notes)


def test_a_template_whose_turns_do_not_end_is_noted(tmp_path):
    endless = "{% for m in messages %}<ask>{{ m.content }}{% endfor %}"
    found = gate(write_bundle(tmp_path / "tiny", template=endless))
    assert found.outcome == "passed"
    assert any("by none of the end-of-text ids" in note for note in found.notes)


@pytest.mark.parametrize("begins", ["", "<bos>"])
def test_a_conversation_without_the_token_that_plain_prompts_begin_with_is_noted(tmp_path, begins):
    found = gate(write_bundle(tmp_path / "tiny", template=begins + TEMPLATE, adds_bos=True))
    assert found.outcome == "passed"
    noted = any("begin with the begin-of-text token" in note for note in found.notes)
    assert noted == (begins == "")


def test_a_draft_of_a_shorter_context_passes_with_a_note(folder):
    edit(folder, lambda said: said["draft"].update(context=100))
    found = gate(folder)
    assert found.outcome == "passed"
    assert case(found, "contexts").said == "target 256 tokens, draft 100"
    assert any("past 100 tokens the draft rests" in note for note in found.notes)


def test_notes_of_the_export_about_the_pair_are_passed_on(folder):
    edit(folder, lambda said: said["pairing"].update(notes=["the chat templates differ"]))
    assert "draft vocabulary: the chat templates differ" in gate(folder).notes


def test_a_draft_that_is_not_open_is_noted(folder):
    found = gate(folder, proposers=["ngram"])
    assert found.outcome == "passed"
    assert "draft vocabulary: the draft is not open here" in found.notes


@pytest.mark.parametrize(
    ("described", "opening", "said"),
    [
        ({"target": "onnxruntime 1.32, cuda, 2 threads"}, {}, "asked for fake"),
        ({"draft": "fake, elsewhere"}, {}, "draft: runs on fake, elsewhere, the target on fake"),
        (
            {"target": "fake, 8 threads", "draft": "fake, 8 threads"},
            {"threads": 2},
            "asked for 2 threads",
        ),
    ],
)
def test_an_engine_that_fell_back_fails(folder, monkeypatch, described, opening, said):
    monkeypatch.setattr(
        FakeEngine,
        "description",
        property(lambda self: described.get(self.spec.role, "fake")),
    )
    found = gate(folder, **opening)
    assert "engine" in failed(found)
    assert said in case(found, "engine").said


def test_a_runtime_that_uses_another_provider_than_it_says_fails(folder, monkeypatch):
    monkeypatch.setattr(FakeEngine, "providers", ("CPUExecutionProvider",), raising=False)
    found = gate(folder)
    assert failed(found) == ["engine"]
    assert "its runtime uses CPUExecutionProvider, expected fake" in found.said


def test_width_noise_of_an_engine_that_should_be_exact_is_noted(folder, monkeypatch):
    monkeypatch.setattr(FakeEngine, "width_noise", 0.25)
    found = gate(folder)
    assert found.outcome == "passed"
    assert any("exact calls were asked for and cannot be had" in note for note in found.notes)
    assert not any("cannot be had" in note for note in gate(folder, exact=False).notes)


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("fault", ["argmax", "vocab", "nan"])
def test_rows_that_break_the_contract_fail(folder, monkeypatch, role, fault):
    right = FakeEngine.forward

    def forward(self, slot, tokens, n_cached, rows):
        scored = right(self, slot, tokens, n_cached, rows)
        if self.spec.role == role and rows == 16:
            if fault == "argmax":
                scored.greedy_ids[3] = (scored.greedy_ids[3] + 1) % VOCAB
            elif fault == "vocab":
                return Scored(scored.greedy_ids, scored.logits[:, :-1], scored.run_ms)
            else:
                scored.logits[7, 5] = float("nan")
        return scored

    monkeypatch.setattr(FakeEngine, "forward", forward)
    found = gate(folder)
    assert failed(found) == ["verification"]
    assert case(found, "verification").said.startswith(f"{role}: ")


def test_slots_of_the_check_are_given_back(folder):
    with Desk(folder, engine="fake") as desk:
        before = len(desk.model.target._slots)
        compatibility.verification(desk)
        assert len(desk.model.target._slots) == before


def test_real_bundles_of_every_precision_pass_and_the_graph_is_looked_at(tiny_exports):
    target = tiny_exports.checkpoint("llama")
    for precision in ("fp32", "int8", "int4"):
        made = tiny_exports.bundle(target, target, precision=precision, context=64)
        found = gate(made, engine="cpu", threads=1)
        assert found.outcome == "passed", found.said
        assert case(found, "engine").said.endswith("cpu, 1 threads")


@pytest.mark.parametrize(("precision", "claimed"), [("fp32", "int4"), ("int4", "fp32")])
def test_a_graph_of_another_precision_than_the_manifest_says_fails(
    tiny_exports, tmp_path, precision, claimed
):
    target = tiny_exports.checkpoint("llama")
    made = tiny_exports.bundle(target, target, precision=precision, context=64)
    copied = tmp_path / "copy"
    shutil.copytree(made, copied)
    edit(copied, lambda said: said["target"].update(precision=claimed))
    found = gate(copied, engine="cpu", threads=1)
    assert failed(found) == ["precision"]
    faults = case(found, "precision").figures["faults"]
    assert any("quantised layers" in fault for fault in faults)


@pytest.mark.model
def test_smollm2_and_its_draft_fit_together(selfdraft):
    found = gate(selfdraft, engine="auto", context=512)
    assert found.outcome == "passed", found.said
    assert case(found, "special tokens").said.endswith("a text ends by '<|im_end|>' (2)")

"""`specedge run --json-schema | --regex | --grammar`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import alphabet, runner
from tests.test_import_budget import loaded_after
from tiny import write_bundle

SCHEMA = {
    "type": "object",
    "properties": {"stadt": {"enum": ["Köln", "Ulm"]}, "n": {"type": "integer", "maximum": 9}},
    "required": ["stadt", "n"],
    "additionalProperties": False,
}


@pytest.fixture
def said(capfd, monkeypatch):
    return runner(capfd, monkeypatch)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "abc", rule=alphabet())


def run(bundle: Path, *args: object) -> tuple[str, ...]:
    return ("run", str(bundle), "hello", *map(str, args), "--engine", "fake", "--no-stats")


def test_a_schema_file_makes_the_output_that_json(said, bundle, tmp_path):
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA, ensure_ascii=False), encoding="utf-8")
    code, out, err = said(*run(bundle, "--json-schema", file))
    assert (code, err) == (0, "")
    assert json.loads(out)["stadt"] in ("Köln", "Ulm")
    assert said(*run(bundle, "--json-schema", file, "--speculation", "off"))[1] == out


def test_a_pattern_and_a_grammar_do_the_same(said, bundle, tmp_path):
    assert said(*run(bundle, "--regex", "wo[r]ld"))[1] == "world\n"
    file = tmp_path / "answer.lark"
    file.write_text('start: "yes" | "no"', encoding="utf-8")
    assert said(*run(bundle, "--grammar", file))[1] in ("yes\n", "no\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--regex", "["), "error: regex: "),
        (("--regex", "a", "--ignore-eos"), "error: ignore_eos: excludes regex"),
        (("--json-schema", "missing.json"), "error: missing.json: cannot be read"),
        (("--grammar", "missing.lark"), "error: missing.lark: cannot be read"),
    ],
)
def test_what_cannot_be_honoured_is_one_line(said, bundle, args, message):
    code, out, err = said(*run(bundle, *args))
    assert (code, out) == (1, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_files_that_hold_no_schema_are_refused(said, bundle, tmp_path):
    file = tmp_path / "schema.json"
    for content, message in [
        (b"", "not valid JSON"),
        (b"[1]", "expected an object"),
        (b'{"type": "strin"}', "strin"),
        (b"\xff", "invalid UTF-8"),
    ]:
        file.write_bytes(content)
        code, out, err = said(*run(bundle, "--json-schema", file))
        assert (code, out) == (1, "")
        assert message in err
        assert str(file) in err
        assert err.count("\n") == 1


def test_llguidance_is_loaded_when_it_is_asked_for(tiny_bundle):
    load = f"import specedge\nmodel = specedge.load({str(tiny_bundle)!r}, engine='fake')\n"
    assert "llguidance" not in loaded_after(load + "model.generate('hi', max_tokens=4)")
    assert "llguidance" in loaded_after(load + "model.generate('hi', regex='a')")

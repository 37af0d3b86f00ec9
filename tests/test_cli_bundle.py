"""`export`, `inspect` and the outcome of the whole command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import specedge.export
from commands import runner
from specedge.bundle import Bundle
from specedge.cli._next import after_export
from specedge.errors import ExportError, SpecedgeError
from tiny import edit_manifest, write_bundle

CONFIG = 'name = "app"\n[target]\nsource = "model"\n'


@pytest.fixture
def said(capfd, monkeypatch):
    return runner(capfd, monkeypatch)


@pytest.fixture
def exported(monkeypatch, tmp_path):
    """Replaces the exporter by one that writes a tiny bundle; gives what it was called with."""
    calls = []

    def build(config, output, **options):
        progress = options["progress"]
        progress.stage("target: int4", 10, "B")
        progress.advance(10)
        progress.note("licence: Apache-2.0")
        calls.append((config, output, options))
        return write_bundle(output)

    monkeypatch.setattr(specedge.export, "build", build, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("app.toml").write_text(CONFIG)
    return calls


def test_export_passes_on_what_was_asked_and_prints_the_folder(said, exported):
    options = ["--set", "export.max_verify=8", "--context", "512", "--memory-budget", "2GiB"]
    code, out, err = said("export", "app.toml", "-o", "out", *options, "--force")
    ((config, output, passed),) = exported
    assert (code, out) == (0, "out\n")
    assert output == Path("out")
    assert (config.export.max_verify, config.export.context) == (8, 512)
    assert config.export.memory_budget == 2 << 30
    assert passed["force"] is True
    assert passed["drop_incompatible_draft"] is False
    assert "s  target: int4\n" in err
    assert "note: licence: Apache-2.0" in err
    assert "memory plan" in err
    assert "next: specedge run out" in err


RUN = 'next: specedge run {0} "..."  or  specedge chat {0}'
BUILD = (
    "{1}: specedge build {0} --backend tensorrt-rtx  or, on the machine that will run it,  "
    "--backend tensorrt"
)
STANDARD = {"lowering": "standard"}
BF16 = STANDARD | {"precision": "bf16", "kv_dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("target", "draft", "lines"),
    [
        ({}, None, [RUN]),
        ({}, {}, [RUN]),
        (STANDARD, STANDARD, [RUN, BUILD]),
        (BF16, None, [BUILD]),
        (STANDARD, BF16, [BUILD]),
    ],
)
def test_what_is_said_to_come_next_is_what_the_bundle_can_do(tmp_path, target, draft, lines):
    bundle = write_bundle(tmp_path / "a b", draft=draft is not None)
    said = json.loads((bundle / "specedge.json").read_text())
    changes = {"target": target} | ({} if draft is None else {"draft": draft})
    edit_manifest(bundle, **{role: said[role] | each for role, each in changes.items()})
    first = "for TensorRT" if RUN in lines else "next"
    assert after_export(Bundle.open(bundle), Path("a b")) == [
        line.format("'a b'", first) for line in lines
    ]


def test_a_bundle_in_the_way_may_be_replaced_or_left(said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("app.toml").write_text(CONFIG)
    write_bundle(tmp_path / "bundles" / "app")
    code, _, err = said("export", "app.toml")
    assert code == 1
    assert "a bundle is there already; pass --force to replace it, or -o to write another" in err


def test_export_goes_to_bundles_by_name_unless_told(said, exported):
    said("export", "app.toml", "--drop-incompatible-draft")
    assert exported[0][1] == Path("bundles/app")
    assert exported[0][2]["drop_incompatible_draft"] is True


def test_a_misspelt_key_is_one_line_before_anything_is_built(said, exported):
    code, _, err = said("export", "app.toml", "--set", "export.contxt=3")
    assert (code, exported) == (1, [])
    assert err.startswith("error: --set export.contxt: [export] unknown key 'contxt'; did you mean")


def test_every_finding_in_a_config_is_an_error_line(said, exported):
    Path("app.toml").write_text(CONFIG + "[export]\ncontext = 1\nblock_size = 7\n")
    code, _, err = said("export", "app.toml")
    assert code == 1
    assert [line[:16] for line in err.splitlines()] == ["error: app.toml:"] * 2


def test_a_library_that_is_missing_names_the_extra(said, exported, monkeypatch):
    def build(*args, **options):
        raise ModuleNotFoundError("No module named 'gguf'", name="gguf")

    monkeypatch.setattr(specedge.export, "build", build)
    code, _, err = said("export", "app.toml")
    assert code == 1
    assert 'exporting needs gguf, which is not installed; pip install "specedge[export]"' in err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ExportError("no space"), 1, "error: no space\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (RuntimeError("odd\nthing"), 1, "error: unexpected RuntimeError: odd thing; SPECEDGE_DEB"),
    ],
)
def test_a_failed_export_is_one_line(said, exported, monkeypatch, error, code, line):
    def build(*args, **options):
        raise error

    monkeypatch.setattr(specedge.export, "build", build)
    got = said("export", "app.toml")
    assert got[0] == code
    assert got[2].startswith(line)
    assert "Traceback" not in got[2]


def test_debugging_shows_the_traceback(said, exported, monkeypatch):
    monkeypatch.setenv("SPECEDGE_DEBUG", "1")
    with pytest.raises(SpecedgeError):
        said("inspect", "/nonexistent")


def test_inspect_shows_the_parts_of_a_bundle(said, tmp_path):
    bundle = write_bundle(tmp_path / "tiny", draft=True)
    source = {"kind": "gguf", "reference": "model.gguf", "sha256": "a" * 64, "licence": "MIT"}
    proof = {"usable": True, "compared_ids": 271, "target_padded_to": 300, "draft_padded_to": 280}
    quality = {"method": "kl", "value": 0.0123, "positions": 2000, "rounding": "mse"}
    edit_manifest(
        bundle,
        sources={"target": source, "draft": source | {"licence": None}},
        pairing=proof | {"notes": ["the chat templates differ"]},
        quality={"draft": quality},
        notes=["a note"],
    )
    code, out, _ = said("inspect", str(bundle))
    assert code == 0
    for part in (
        "model.gguf",
        "MIT",
        "no licence stated",
        "usable",
        "271",
        "the chat templates differ",
        "0.0123 nats KL, 2000 positions, mse",
        "not measured",
        "memory plan",
        "target/weights.bin",
        "a" * 64,
        "a note",
    ):
        assert part in out, part


def test_inspect_json_is_one_object_with_the_manifest(said, tmp_path):
    bundle = write_bundle(tmp_path / "tiny")
    shown = json.loads(said("inspect", str(bundle), "--json")[1])
    manifest = json.loads((bundle / "specedge.json").read_text())
    assert shown["name"] == "tiny"
    assert shown["files"] == manifest["files"]
    assert len(shown["hash"]) == 64


def test_inspect_checks_hashes_unless_told_not_to(said, tmp_path):
    bundle = write_bundle(tmp_path / "tiny")
    (bundle / "target" / "weights.bin").write_bytes(b"\1\1\2\3")
    code, _, err = said("inspect", str(bundle))
    assert code == 1
    assert "altered since the export" in err
    assert said("inspect", str(bundle), "--no-verify")[0] == 0


@pytest.mark.parametrize(("args", "code"), [(["--version"], 0), (["-h"], 0), (["bogus"], 2)])
def test_exit_codes_of_the_command_itself(said, args, code):
    assert said(*args)[0] == code


@pytest.mark.parametrize("command", ["export", "run", "chat", "inspect", "doctor"])
def test_every_command_has_both_help_options(said, command):
    short, long = said(command, "-h"), said(command, "--help")
    assert short == long
    assert short[0] == 0
    assert short[1].startswith(f"Usage: specedge {command}")


def test_main_exits_with_the_code(monkeypatch):
    from specedge.cli import main

    monkeypatch.setattr(sys, "argv", ["specedge", "inspect", "/nonexistent"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1

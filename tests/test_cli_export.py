"""`specedge export`: options that become config keys, and a model for Triton."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from specedge.bundle import Bundle
from specedge.cli import invoke
from specedge.contract import MANIFEST
from specedge.errors import BundleError
from tiny import write_bundle
from tiny_exports import TinyExports, quick_rounding, read_manifest


def config(folder: Path, target: Path, draft: Path | None = None) -> str:
    text = f'name = "tiny"\n[target]\nsource = "{target}"\nprecision = "int4"\n'
    if draft is not None:
        text += f'[draft]\nsource = "{draft}"\nprecision = "int8"\n'
    file = folder / "tiny.toml"
    file.write_text(text + "[export]\ncontext = 64\nblock_size = 32\n")
    return str(file)


def export(*args: str) -> int:
    with quick_rounding():
        return invoke(["export", *args])


@pytest.mark.parametrize("with_draft", [False, True])
def test_precision_is_of_target_and_draft(tiny_exports: TinyExports, tmp_path, with_draft):
    checkpoint = tiny_exports.checkpoint("llama")
    path = config(tmp_path, checkpoint, checkpoint if with_draft else None)
    made = tmp_path / "made"
    assert export(path, "-o", str(made), "--precision", "fp32") == 0
    manifest = read_manifest(made)
    assert manifest.target.precision == "fp32"
    assert (manifest.draft is not None) == with_draft
    if manifest.draft is not None:
        assert manifest.draft.precision == "fp32"


def test_lowering_is_a_shortcut(tiny_exports: TinyExports, tmp_path):
    path = config(tmp_path, tiny_exports.checkpoint("llama"))
    made = tmp_path / "made"
    assert export(path, "-o", str(made), "--lowering", "standard", "--precision", "fp16") == 0
    target = read_manifest(made).target
    assert (target.lowering, target.precision, target.kv_dtype) == ("standard", "fp16", "float16")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--precision", "fp8", "--set target.precision: [target] precision = 'fp8': expected"),
        ("--lowering", "trt", "[export] lowering = 'trt': expected 'ort' or 'standard'"),
        ("--frontend", "torch", "[export] frontend = 'torch': expected 'native' or 'optimum'"),
    ],
)
def test_a_wrong_shortcut_is_refused(tmp_path, capsys, option, value, message):
    assert export(config(tmp_path, tmp_path), option, value) == 1
    assert message in capsys.readouterr().err


def test_a_bundle_becomes_a_model_of_a_repository(tmp_path, capsys):
    bundle = write_bundle(tmp_path / "abc")
    repository = tmp_path / "models"
    assert export(str(bundle), "--triton", str(repository), "--triton-set", "engine=fake") == 0
    model = Path(capsys.readouterr().out.strip())
    assert model.parent == repository
    assert 'key: "engine" value { string_value: "fake" }' in (model / "config.pbtxt").read_text()
    assert (model / "1" / "bundle" / MANIFEST).is_file()
    assert export(str(bundle), "--triton", str(repository)) == 1
    assert export(str(bundle), "--triton", str(repository), "--force") == 0


def test_a_config_becomes_a_bundle_and_a_model(tiny_exports: TinyExports, tmp_path, capsys):
    path = config(tmp_path, tiny_exports.checkpoint("llama"))
    made, repository = tmp_path / "made", tmp_path / "models"
    assert export(path, "-o", str(made), "--triton", str(repository)) == 0
    assert capsys.readouterr().out.split() == [str(made), str(repository / "tiny")]


@pytest.mark.parametrize("name", ["m" * 300, "a" * 200 + "/" + "b" * 300])
def test_a_repository_whose_name_is_too_long_is_one_line(tmp_path, capsys, name):
    bundle = write_bundle(tmp_path / "abc")
    assert export(str(bundle), "--triton", str(tmp_path / name)) == 1
    err = capsys.readouterr().err
    assert "cannot be written: File name too long" in err
    assert "unexpected" not in err


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text there")
def test_a_path_that_is_no_text_is_refused_before_anything_is_written(
    tiny_exports: TinyExports, tmp_path, capsys
):
    odd = tmp_path / os.fsdecode(b"x\xff")
    assert export(config(tmp_path, tiny_exports.checkpoint("llama")), "-o", str(odd)) == 1
    assert "the path is not UTF-8" in capsys.readouterr().err
    assert not odd.exists()
    write_bundle(odd)
    with pytest.raises(BundleError, match="not UTF-8, and no runtime opens such files; rename"):
        Bundle.open(odd)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--triton-set", "engine=cpu"], "--triton-set goes with --triton"),
        (["--triton", "m", "--triton-set", "engine"], "expected K=V"),
        (["--triton", "m", "--triton-set", "a=1", "--triton-set", "a=2"], "a is given twice"),
        (["--triton", "m", "--context", "64"], "--context: CONFIG is a bundle"),
        (["--triton", "m", "--set", "export.context=64"], "--set: CONFIG is a bundle"),
    ],
)
def test_options_that_cannot_be_honoured_are_a_matter_of_usage(tmp_path, capsys, args, message):
    bundle = write_bundle(tmp_path / "abc")
    assert export(str(bundle), *args) == 2
    assert message in capsys.readouterr().err

"""What travels to a GPU box: weighed, cut and joined, truncated; no downloads."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import gguf
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import gpu_kit
from gpu import pieces, sources
from gpu.pieces import KitError

from gguf_writing import LAYERS, VOCAB, weights, write
from specedge.export.sources import open_source

BENCH = Path(gpu_kit.__file__).parent
Q8 = gguf.GGMLQuantizationType.Q8_0


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def make(output, source, *options):
    return gpu_kit.main([str(output), "--source", str(source), "--no-wheels", *options])


def test_the_first_layers_are_kept_as_they_are_stored(source, tmp_path):
    gpu_kit.truncate(source, tmp_path / "cut.gguf", 1)
    whole, cut = (open_source(str(path)) for path in (source, tmp_path / "cut.gguf"))
    try:
        assert whole.config["num_hidden_layers"] == LAYERS
        assert cut.config["num_hidden_layers"] == 1
        assert cut.tokenizer.json == whole.tokenizer.json
        kept = set(cut.tensors.names())
        assert kept == {name for name in whole.tensors.names() if ".layers.1." not in name}
        for name in kept:
            rows = whole.tensors.shape(name)[0]
            left, right = (s.tensors.rows(name, 0, rows) for s in (cut, whole))
            assert left.tobytes() == right.tobytes()
    finally:
        whole.tensors.close()
        cut.tensors.close()


def test_the_embedding_is_packed_as_asked_and_nothing_else_is(source, tmp_path):
    gpu_kit.truncate(source, tmp_path / "cut.gguf", 1, "Q8_0")
    kinds = {t.name: t.tensor_type for t in gguf.GGUFReader(tmp_path / "cut.gguf").tensors}
    assert kinds.pop("token_embd.weight") == Q8
    assert Q8 not in kinds.values()
    opened = open_source(str(tmp_path / "cut.gguf"))
    try:
        table = opened.tensors.rows("model.embed_tokens.weight", 0, VOCAB)
    finally:
        opened.tensors.close()
    expected = weights()["token_embd.weight"]
    assert np.abs(table - expected).max() <= np.abs(expected).max() / 127


@pytest.mark.parametrize("layers", [0, LAYERS + 1])
def test_layers_that_a_file_does_not_have_are_refused(source, tmp_path, layers):
    with pytest.raises(KitError, match=rf"expected 1\.\.{LAYERS} layers, found {layers}"):
        gpu_kit.truncate(source, tmp_path / "cut.gguf", layers)
    assert list(tmp_path.iterdir()) == []


def test_a_kit_holds_what_its_record_says_and_runs_the_check(source, tmp_path, capsys):
    assert make(tmp_path / "kit", source, "--layers", "1", "--embedding", "keep") == 0
    kit = tmp_path / "kit"
    record = json.loads((kit / "kit.json").read_text())
    names = {str(path.relative_to(kit)) for path in kit.rglob("*") if path.is_file()}
    assert names == {*record["files"], "kit.json"}
    for name, said in record["files"].items():
        data = (kit / name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (said["bytes"], said["sha256"])
    with tarfile.open(tmp_path / "kit.tar") as archive:
        assert {f"kit/{name}" for name in names} <= set(archive.getnames())
    total = sum(path.stat().st_size for path in kit.rglob("*") if path.is_file())
    assert f"{total / 1e6:8.2f} MB  {kit}" in capsys.readouterr().out
    command = [sys.executable, "gpu_check.py", "--help"]
    done = subprocess.run(command, cwd=kit, capture_output=True, text=True, check=True)
    assert "--provider" in done.stdout


def test_a_kit_above_the_limit_is_refused_and_the_older_one_stays(source, tmp_path, capsys):
    assert make(tmp_path / "kit", source, "--layers", "1") == 0
    before = (tmp_path / "kit" / "kit.json").read_bytes()
    capsys.readouterr()
    assert make(tmp_path / "kit", source, "--layers", "2", "--limit-mb", "0.05") == 1
    assert "expected at most 0.1 MB, found" in capsys.readouterr().err
    assert (tmp_path / "kit" / "kit.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kit", "kit.tar"]


def test_weight_is_the_sum_of_all_files_and_one_byte_above_the_limit_is_too_much():
    sizes = {"a": 600, "b/c": 400}
    assert gpu_kit.check_weight(sizes, 1000) == 1000
    with pytest.raises(KitError, match="a being"):
        gpu_kit.check_weight(sizes, 999)


def test_a_folder_that_is_no_kit_is_not_replaced(source, tmp_path, capsys):
    (tmp_path / "precious").write_text("mine")
    assert make(tmp_path, source) == 1
    assert (tmp_path / "precious").read_text() == "mine"
    assert "expected an empty folder or an older kit" in capsys.readouterr().err


@pytest.fixture
def cut(tmp_path):
    """A file, and the folder of its pieces."""
    wheel = tmp_path / "onnxruntime_gpu-1-cp312.whl"
    wheel.write_bytes(np.random.default_rng(0).bytes(10_000))
    found = pieces.split(wheel, tmp_path / "pieces", 4096)
    assert [path.stat().st_size for path in found] == [4096, 4096, 1808]
    return wheel, tmp_path / "pieces"


def test_pieces_join_to_the_same_file_without_any_package(cut, tmp_path):
    wheel, folder = cut
    copied = tmp_path / "box"
    shutil.copytree(BENCH / "gpu", copied / "gpu", ignore=gpu_kit.COMPILED)
    command = [sys.executable, "-S", "-m", "gpu.pieces", str(folder), "joined"]
    subprocess.run(command, cwd=copied, capture_output=True, check=True)
    assert (copied / "joined" / wheel.name).read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize("harm", ["altered", "missing", "swapped", "unlisted"])
def test_pieces_that_were_harmed_are_refused_by_name(cut, tmp_path, harm):
    wheel, folder = cut
    first, second = (folder / f"{wheel.name}.00{n}" for n in (0, 1))
    if harm == "altered":
        first.write_bytes(b"x" + first.read_bytes()[1:])
    elif harm == "missing":
        first.unlink()
    elif harm == "swapped":
        data = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(data)
    else:
        (folder / "pieces.json").unlink()
    with pytest.raises(KitError, match=r"pieces\.json" if harm == "unlisted" else first.name):
        pieces.join(folder, tmp_path / "out")
    assert not (tmp_path / "out" / wheel.name).exists()


def test_a_record_that_lists_pieces_in_another_order_is_refused(cut, tmp_path):
    _, folder = cut
    record = json.loads((folder / "pieces.json").read_text())
    record["pieces"].reverse()
    (folder / "pieces.json").write_text(json.dumps(record))
    with pytest.raises(KitError, match="wrong order"):
        pieces.join(folder, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_wheel_travels_in_pieces_beside_the_kit(source, tmp_path, cut, capsys):
    wheel, _ = cut
    options = ("--layers", "1", "--with-onnxruntime-gpu", str(wheel.parent))
    assert make(tmp_path / "kit", source, *options, "--piece-mb", "0.004") == 0
    assert "3 in this one" in (tmp_path / "kit" / "README.md").read_text()
    assert "to travel apart" in capsys.readouterr().out
    assert pieces.join(tmp_path / "kit-pieces", tmp_path).read_bytes() == wheel.read_bytes()


@pytest.fixture
def in_cache(source, tmp_path, monkeypatch):
    """The config "smollm2" names a package that is in the cache; yields its file there."""
    from specedge import config
    from specedge.export.sources import cache

    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path / "cache"))
    named = {"name": "x", "target": {"source": "package:tiny==1"}}
    monkeypatch.setattr(config, "load_config", lambda name: config.Config.model_validate(named))
    with cache.part_file(tmp_path / "cache", "package:tiny==1") as part:
        part.write(source.read_bytes())
        return cache.keep(tmp_path / "cache", "package:tiny==1", part).path


def test_the_model_of_a_config_is_the_file_in_the_cache(in_cache, source):
    found = sources.of_config("smollm2")
    assert found == in_cache
    assert found.read_bytes() == source.read_bytes()


def test_a_model_that_cannot_be_had_is_one_line(tmp_path, capsys, monkeypatch):
    from specedge import config

    named = {"name": "x", "target": {"source": str(tmp_path / "none.gguf")}}
    monkeypatch.setattr(config, "load_config", lambda name: config.Config.model_validate(named))
    assert gpu_kit.main([str(tmp_path / "kit"), "--no-wheels"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1


def test_a_package_that_is_missing_is_one_line(source, tmp_path):
    command = [sys.executable, "-S", gpu_kit.__file__, str(tmp_path / "kit"), "--no-wheels"]
    for given in ([], ["--source", str(source)]):
        done = subprocess.run([*command, *given], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr.startswith("error: No module named")
        assert done.stderr.count("\n") == 1


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_hands_on_the_python_of_the_box_and_the_wheel():
    command = [
        "make",
        "-n",
        "--no-print-directory",
        "gpu-bundle",
        "GPU_PYTHON=3.13",
        "ONNXRUNTIME_GPU=a.whl",
    ]
    said = subprocess.run(command, cwd=BENCH.parent, capture_output=True, text=True, check=True)
    words = said.stdout.replace("\\\n", " ").split()
    given = gpu_kit.parse(words[words.index("bench/gpu_kit.py") + 1 :])
    assert (given.python, given.with_onnxruntime_gpu) == ("3.13", Path("a.whl"))

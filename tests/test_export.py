"""`build` from a tiny checkpoint to a bundle: what it refuses, what it leaves, what it writes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import specedge
from specedge import replacing
from specedge.bundle import Bundle
from specedge.config import Config
from specedge.errors import (
    ExportError,
    MemoryBudgetError,
    PairingError,
    SourceError,
    SpecedgeError,
    UnsupportedError,
)
from specedge.export import builder, staging
from specedge.export.builder import build
from specedge.export.lowerings import ort
from specedge.progress import Silent
from tiny_exports import TinyExports, config_for, quick_rounding, read_manifest

CONTEXT = 64


@pytest.fixture
def checkpoint(tiny_exports: TinyExports, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return shutil.copytree(tiny_exports.checkpoint("llama"), tmp_path / "checkpoint")


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """A folder for destinations, empty."""
    folder = tmp_path / "room"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_rounding():
        yield


def export(checkpoint: Path, output: Path, draft: Path | None = None, **given: Any) -> Path:
    options = {key: given.pop(key) for key in list(given) if key in _OPTIONS}
    given.setdefault("context", CONTEXT)
    return build(config_for(checkpoint, draft, **given), output, **options)


_OPTIONS = {"force", "drop_incompatible_draft", "progress", "base"}


def refused(error: type[SpecedgeError], match: str, room: Path, export: Callable[[], Any]) -> str:
    """The export fails with one line that matches, and leaves nothing in `room`."""
    before = contents(room)
    with pytest.raises(error, match=match) as raised:
        export()
    assert "\n" not in str(raised.value)
    assert contents(room) == before
    return str(raised.value)


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Every path under a folder, with size and modification time."""
    found = sorted(folder.rglob("*"))
    return {str(p.relative_to(folder)): (p.stat().st_size, p.stat().st_mtime_ns) for p in found}


def rewrite_weights(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def rewrite_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


# --- checkpoints that cannot be exported --------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("precision", ["fp32", "int4"])
@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight", "model.norm.weight"]
)
def test_weights_that_are_no_numbers_are_refused_by_name(
    checkpoint: Path, room: Path, name: str, precision: str, value: float
) -> None:
    def spoil(tensors: dict[str, Any]) -> None:
        tensors[name].reshape(-1)[5] = value

    rewrite_weights(checkpoint, spoil)
    go = partial(export, checkpoint, room / "out", precision=precision)
    refused(SourceError, rf"{name}.*(NaN|not finite|infinit)", room, go)


def test_a_weights_file_that_is_cut_short_is_refused(checkpoint: Path, room: Path) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    go = partial(export, checkpoint, room / "out")
    refused(SourceError, "model.safetensors: cut short", room, go)


def test_a_tensor_of_the_wrong_shape_is_refused_by_name(checkpoint: Path, room: Path) -> None:
    name = "model.layers.0.mlp.down_proj.weight"

    def narrow(tensors: dict[str, Any]) -> None:
        tensors[name] = tensors[name][:, :-8].copy()

    rewrite_weights(checkpoint, narrow)
    go = partial(export, checkpoint, room / "out")
    refused(SourceError, rf"{name}.*\[64, 88\].*\[64, 96\]", room, go)


def test_a_missing_tensor_is_refused_by_name(checkpoint: Path, room: Path) -> None:
    name = "model.layers.1.self_attn.o_proj.weight"
    rewrite_weights(checkpoint, lambda tensors: tensors.pop(name))
    refused(SourceError, name, room, partial(export, checkpoint, room / "o"))


def test_an_unknown_architecture_is_refused_with_the_known_ones(
    checkpoint: Path, room: Path
) -> None:
    change = {"model_type": "mamba", "architectures": ["MambaForCausalLM"]}
    rewrite_json(checkpoint / "config.json", lambda said: said.update(change))
    said = refused(UnsupportedError, "mamba", room, partial(export, checkpoint, room / "o"))
    assert "llama" in said
    assert "gemma3" in said


def test_a_source_that_is_not_there_is_refused(room: Path) -> None:
    refused(SourceError, "no such folder", room, partial(export, room / "nowhere", room / "o"))


def test_a_context_beyond_the_models_is_refused(checkpoint: Path, room: Path) -> None:
    go = partial(export, checkpoint, room / "o", context=513)
    refused(ExportError, "context = 513, but the target was made for 512", room, go)


def test_a_budget_that_does_not_hold_the_plan_names_a_context_that_does(
    checkpoint: Path, room: Path
) -> None:
    given: dict[str, Any] = {"memory_budget": 1_500_000, "context": 512}
    said = refused(
        MemoryBudgetError,
        r"context 512 needs .*the budget is .*the largest context that fits is \d+$",
        room,
        partial(export, checkpoint, room / "o", **given),
    )
    given["context"] = int(said.split()[-1])
    plan = read_manifest(export(checkpoint, room / "o", **given)).memory
    assert plan.total <= plan.budget == 1_500_000
    given |= {"memory_budget": 100_000, "context": 512}
    go = partial(export, checkpoint, room / "p", **given)
    refused(MemoryBudgetError, "no context fits", room, go)


# --- drafts -------------------------------------------------------------------------------------


def with_another_token(checkpoint: Path, folder: Path) -> Path:
    """A copy whose tokenizer means another token by id 40."""
    copy = shutil.copytree(checkpoint, folder)

    def change(said: dict[str, Any]) -> None:
        vocab = said["model"]["vocab"]
        (old,) = [token for token, id_ in vocab.items() if id_ == 40]
        del vocab[old]
        vocab["¤other"] = 40

    rewrite_json(copy / "tokenizer.json", change)
    return copy


def test_a_draft_of_another_vocabulary_is_refused_with_the_first_id(
    checkpoint: Path, room: Path, tmp_path: Path
) -> None:
    draft = with_another_token(checkpoint, tmp_path / "draft")
    refused(
        PairingError,
        r"\[draft\] vocabulary differs at id 40: '¤other' in the draft.*drop-incompatible-draft",
        room,
        partial(export, checkpoint, room / "o", draft),
    )


def test_a_draft_may_be_dropped_and_the_bundle_says_why(
    checkpoint: Path, room: Path, tmp_path: Path
) -> None:
    draft = with_another_token(checkpoint, tmp_path / "draft")
    notes = Notes()
    made = export(checkpoint, room / "o", draft, drop_incompatible_draft=True, progress=notes)
    manifest = read_manifest(made)
    assert manifest.draft is None
    assert manifest.sources.keys() == {"target"}
    assert manifest.pairing is not None
    assert (manifest.pairing.usable, manifest.pairing.first_difference) == (False, 40)
    assert any("draft dropped, lookup proposers remain" in note for note in notes.said)
    assert not (made / "draft").exists()
    with specedge.load(made) as model:
        assert len(model.generate("the the", max_tokens=9, ignore_eos=True).tokens) == 9
        assert "no draft model in the bundle" in model.speculation.reason


class Notes(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, message: str) -> None:
        self.said.append(message)


def test_a_draft_of_the_targets_own_weights_shares_its_files(checkpoint: Path, room: Path) -> None:
    same = export(checkpoint, room / "same", checkpoint, precision="int4", draft_precision="int4")
    manifest = read_manifest(same)
    assert manifest.draft is not None
    assert (manifest.draft.model, manifest.draft.weights) == (
        manifest.target.model,
        manifest.target.weights,
    )
    assert manifest.draft.weight_bytes == manifest.target.weight_bytes
    assert not (same / "draft").exists()
    assert manifest.memory.draft_weights == 0
    other = read_manifest(export(checkpoint, room / "other", checkpoint, precision="fp32"))
    assert other.draft is not None
    assert other.draft.weights != other.target.weights
    assert other.pairing is not None
    assert other.pairing.usable


# --- destinations -------------------------------------------------------------------------------


def test_a_bundle_that_is_there_stays_unless_forced(checkpoint: Path, room: Path) -> None:
    first = export(checkpoint, room / "out")
    go = partial(export, checkpoint, room / "out")
    refused(ExportError, r"out: a bundle is there already; pass --force", room, go)
    (first / "left-over").write_text("of the first bundle")
    export(checkpoint, room / "out", context=32, force=True)
    assert read_manifest(room / "out").target.context == 32
    assert not (room / "out" / "left-over").exists()
    assert [path.name for path in room.iterdir()] == ["out"]


def test_something_that_is_no_bundle_is_never_replaced(checkpoint: Path, room: Path) -> None:
    (room / "mine").mkdir()
    (room / "mine" / "thesis.txt").write_text("years of work")
    (room / "file").write_text("a file")
    (room / "dangling").symlink_to(room / "nowhere")
    for name in ("mine", "file", "dangling"):
        go = partial(export, checkpoint, room / name, force=True)
        there = {p.name for p in room.iterdir()}
        with pytest.raises(ExportError, match=f"{name}: exists and is not a bundle"):
            go()
        assert {p.name for p in room.iterdir()} == there
    assert (room / "mine" / "thesis.txt").read_text() == "years of work"


def test_a_name_that_no_folder_can_have_is_one_error(checkpoint: Path, room: Path) -> None:
    refused(ExportError, "cannot be written", room, partial(export, checkpoint, room / ("n" * 300)))


def test_an_empty_folder_is_a_fine_destination(checkpoint: Path, room: Path) -> None:
    (room / "out").mkdir()
    Bundle.open(export(checkpoint, room / "out"))


def test_parents_are_made_and_go_again_when_the_export_fails(checkpoint: Path, room: Path) -> None:
    go = partial(export, checkpoint, room / "a" / "b" / "out", context=513)
    refused(ExportError, "513", room, go)
    Bundle.open(export(checkpoint, room / "a" / "b" / "out"))


def test_a_folder_that_cannot_be_written_is_one_line(checkpoint: Path, room: Path) -> None:
    (room / "file").write_text("in the way")
    go = partial(export, checkpoint, room / "file" / "sub" / "out")
    refused(ExportError, r"file/sub: cannot be written: (Not a directory|File exists)", room, go)


def test_a_folder_without_permission_is_one_line(
    checkpoint: Path, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(**_: Any) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(replacing.tempfile, "mkdtemp", denied)
    go = partial(export, checkpoint, room / "sub" / "out")
    refused(ExportError, "sub: cannot be written: Permission denied; choose another", room, go)


def test_a_disk_without_room_is_found_before_anything_is_written(
    checkpoint: Path, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(staging.shutil, "disk_usage", lambda _: usage(10**9, 10**9, 1000))
    monkeypatch.setattr(builder, "_write", lambda *_: pytest.fail("wrote all the same"))
    go = partial(export, checkpoint, room / "out")
    refused(ExportError, r"the bundle needs \d+ MB, the disk has 0 MB free", room, go)


def full(*_: Any, **__: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("where", ["weights", "graph", "text", "manifest"])
def test_a_disk_that_fills_up_leaves_nothing_and_the_old_bundle_whole(
    checkpoint: Path, room: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    old = export(checkpoint, room / "out")
    if where == "weights":
        _fill_up_after(monkeypatch, 50_000)
    elif where == "graph":
        monkeypatch.setattr(ort, "write", full)
    elif where == "text":
        monkeypatch.setattr(Path, "write_text", full)
    else:
        monkeypatch.setattr(staging.os, "fsync", full)
    go = partial(export, checkpoint, room / "out", force=True)
    refused(ExportError, "No space left on device; choose another folder", room, go)
    Bundle.open(old)


def _fill_up_after(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """The weights file takes a part of what it is given, then nothing."""
    opened = Path.open

    class Disk:
        def __init__(self, file: Any) -> None:
            self.file, self.left = file, room

        def write(self, data: Any) -> int:
            if not self.left:
                return full()
            taken = self.file.write(data[: self.left])
            self.left -= taken
            return taken

        def close(self) -> None:
            self.file.close()

    def open_(self: Path, *args: Any, **kwargs: Any) -> Any:
        file = opened(self, *args, **kwargs)
        return Disk(file) if self.name == "weights.bin" and "x" in str(args) else file

    monkeypatch.setattr(Path, "open", open_)


# --- Ctrl-C -------------------------------------------------------------------------------------


class Interrupts(Silent):
    """Ctrl-C at the n-th report of progress."""

    def __init__(self, at: int) -> None:
        self.left = at

    def advance(self, amount: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("at", [1, 3, 10, 12])
@pytest.mark.parametrize("there", [True, False])
def test_ctrl_c_leaves_nothing_and_the_old_bundle_whole(
    checkpoint: Path, room: Path, at: int, there: bool
) -> None:
    if there:
        export(checkpoint, room / "out")
    before = contents(room)
    with pytest.raises(KeyboardInterrupt):
        export(checkpoint, room / "out", precision="int4", force=True, progress=Interrupts(at))
    assert contents(room) == before
    if there:
        Bundle.open(room / "out")


@pytest.mark.parametrize("at", [1, 2])
def test_ctrl_c_while_the_new_bundle_takes_its_place_keeps_the_old(
    checkpoint: Path, room: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    export(checkpoint, room / "out")
    before = contents(room)
    rename, calls = Path.rename, []

    def interrupted(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == at:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(checkpoint, room / "out", context=32, force=True)
    assert contents(room) == before


@pytest.mark.parametrize(
    ("number", "code", "last"),
    [(signal.SIGINT, 130, "interrupted\n"), (signal.SIGTERM, 143, "")],
)
def test_a_signal_ends_the_command_with_its_code_and_leaves_nothing(
    tiny_exports: TinyExports, room: Path, number: signal.Signals, code: int, last: str
) -> None:
    slow = tiny_exports.checkpoint("gemma3", num_hidden_layers=24)
    config = room / "slow.toml"
    config.write_text(f'name = "slow"\n[target]\nsource = "{slow}"\nprecision = "int4"\n')
    command = [sys.executable, "-c", "from specedge.cli import main; main()", "export", str(config)]
    command += ["-o", str(room / "x" / "out"), "--context", "512", "--set", "export.rounding=mse"]
    with subprocess.Popen(command, cwd=room, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "target:" in line:
                assert list((room / "x").iterdir()) != []
                process.send_signal(number)
    assert process.returncode == code, said
    assert not last or said[-1] == last
    assert [path.name for path in room.iterdir()] == ["slow.toml"]


# --- what is written ----------------------------------------------------------------------------


def test_the_manifest_says_where_everything_came_from_and_nothing_of_the_machine(
    checkpoint: Path, room: Path
) -> None:
    made = export(checkpoint, room / "out", checkpoint)
    manifest = Bundle.open(made).manifest  # every hash is compared
    on_disk = {str(p.relative_to(made)) for p in made.rglob("*") if p.is_file()}
    assert manifest.files.keys() == on_disk - {"specedge.json"}
    for role in ("target", "draft"):
        source = manifest.sources[role]
        assert (source.kind, source.reference) == ("folder", "checkpoint")
        assert source.sha256 is not None
    assert manifest.quality.keys() == {"draft"}
    assert manifest.tool.keys() >= {"specedge", "onnx", "onnx-ir"}
    assert manifest.tokenizer.vocab == manifest.target.vocab < 304
    size = (made / "target" / "weights.bin").stat().st_size
    assert manifest.target.weight_bytes == size
    assert 0.99 * size < manifest.memory.target_weights <= size
    for path in made.rglob("*"):
        if path.is_file():
            assert str(room.parent).encode() not in path.read_bytes(), path
    assert (made.stat().st_mode & 0o777) == 0o755


def test_the_configs_defaults_of_a_request_are_in_the_manifest(
    checkpoint: Path, room: Path
) -> None:
    speculation = {
        "mode": "on",
        "proposers": ["ngram"],
        "draft_length": 3,
        "ngram_min": 1,
        "ngram_max": 5,
        "acceptance": "block",
        "margin": 1.1,
    }
    generation = {
        "temperature": 0.7,
        "max_tokens": 99,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "min_tokens": 3,
    }
    said = config_for(checkpoint, context=CONTEXT).model_dump()
    config = Config.model_validate(said | {"speculation": speculation, "generation": generation})
    manifest = read_manifest(build(config, room / "out"))
    assert manifest.speculation.model_dump() == speculation
    assert manifest.generation.model_dump() == generation


def test_the_same_checkpoint_gives_the_same_bytes(checkpoint: Path, room: Path) -> None:
    given = {"precision": "int4"}
    first, second = export(checkpoint, room / "a", **given), export(checkpoint, room / "b", **given)
    assert read_manifest(first).files == read_manifest(second).files


def test_shards_give_the_same_weights_as_one_file(checkpoint: Path, room: Path) -> None:
    from safetensors.numpy import load_file, save_file

    whole = read_manifest(export(checkpoint, room / "whole"))
    tensors = load_file(checkpoint / "model.safetensors")
    names, index = sorted(tensors), {}
    for shard in range(3):
        file = f"model-0000{shard + 1}-of-00003.safetensors"
        part = {name: tensors[name] for name in names[shard::3]}
        save_file(part, checkpoint / file)
        index |= dict.fromkeys(part, file)
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    sharded = read_manifest(export(checkpoint, room / "sharded"))
    assert sharded.files["target/weights.bin"] == whole.files["target/weights.bin"]


def test_a_bundle_runs_from_where_it_was_moved_and_is_never_written(
    checkpoint: Path, room: Path, private_cache: Path
) -> None:
    made = export(checkpoint, room / "out", checkpoint)
    with specedge.load(made) as model:
        wanted = model.generate("the cat", max_tokens=12, ignore_eos=True).tokens
    moved = room / "elsewhere" / "bundle"
    moved.parent.mkdir()
    made.rename(moved)
    for path in [*moved.rglob("*"), moved]:
        path.chmod(path.stat().st_mode & ~0o222)
    before = contents(moved.parent)
    try:
        with specedge.load(moved) as model:
            chat = model.chat()
            chat.send("the cat", max_tokens=5)
            assert model.generate("the cat", max_tokens=12, ignore_eos=True).tokens == wanted
        with specedge.load(moved) as again:  # two at a time is nobody's business
            assert again.generate("the cat", max_tokens=12, ignore_eos=True).tokens == wanted
        assert contents(moved.parent) == before
    finally:
        for path in [moved, *moved.rglob("*")]:
            path.chmod(0o755)

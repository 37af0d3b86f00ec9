"""The optimum front end before and after tracing: what it refuses, reads and writes.

Nothing is traced here; test_concat.py does that.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from concat_graphs import COLUMNS, D, H, Toy
from specedge.bundle import Bundle
from specedge.config import Config
from specedge.contract import MANIFEST
from specedge.errors import (
    ExportError,
    MemoryBudgetError,
    PairingError,
    SpecedgeError,
    UnsupportedError,
)
from specedge.export import builder, optimum
from specedge.export.checkpoint import Checkpoint, read
from specedge.export.optimum import child, folders, tracing
from specedge.export.optimum.sizes import sizes_of
from specedge.export.optimum.tracing import Traced
from specedge.export.sources import open_source
from specedge.progress import Progress, Silent
from tiny_decoders import make_decoder
from tiny_exports import TinyExports

TRACED = Traced(2, 2, 16, 304, 400, 32, 1e-6)


def config(target: Path, draft: Path | None = None, **export: Any) -> Config:
    said: dict[str, Any] = {
        "name": "tiny",
        "target": {"source": str(target)},
        "export": {"frontend": "optimum", **export},
    }
    if draft is not None:
        said["draft"] = {"source": str(draft)}
    return Config.model_validate(said)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Instead of optimum: a file of each kind, and what was asked for."""
    asked: list[dict[str, Any]] = []

    def trace(role: str, source: Path, model: Path, weights: str, scratch: Path, **given: Any):
        assert (source / "config.json").is_file()
        model.write_bytes(b"graph")
        (model.parent / weights).write_bytes(bytes(400))
        (scratch / "left behind").write_bytes(b"")
        asked.append({"role": role, "source": source, **given})
        return TRACED

    monkeypatch.setattr(optimum, "trace", trace)
    return asked


@pytest.fixture
def llama(tiny_exports: TinyExports) -> Path:
    return tiny_exports.checkpoint("llama")


# --- refused before anything is traced ----------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [("lowering", "ort"), ("activations", "fp32"), ("hidden_taps", [1])],
)
def test_a_choice_of_the_native_front_end_is_refused_by_name(
    llama: Path, tmp_path: Path, traced: list[Any], key: str, value: Any
) -> None:
    with pytest.raises(ExportError, match=rf"\[export\] {key}: .*front end has it, for .*llama"):
        optimum.build(config(llama, **{key: value}), tmp_path / "out")
    assert (traced, list(tmp_path.iterdir())) == ([], [])


@pytest.mark.parametrize("role", ["target", "draft"])
def test_quantised_weights_are_refused_and_said_nothing_means_fp32(
    llama: Path, tmp_path: Path, traced: list[Any], role: str
) -> None:
    asked = config(llama, llama)
    said = asked.model_dump(exclude_unset=True)
    said[role]["precision"] = "int8"
    with pytest.raises(ExportError, match=rf"\[{role}\] precision = 'int8': .*fp32 only"):
        optimum.build(Config.model_validate(said), tmp_path / "out")
    built = Bundle.open(optimum.build(asked, tmp_path / "out"))
    assert built.manifest.target.precision == "fp32"


def test_a_context_that_was_asked_for_is_kept_or_refused_and_the_default_is_cut(
    llama: Path, tmp_path: Path, traced: list[Any]
) -> None:
    with pytest.raises(ExportError, match=r"context = 513, but .* made for 512 positions"):
        optimum.build(config(llama, context=513), tmp_path / "out")
    made = Bundle.open(optimum.build(config(llama), tmp_path / "out")).manifest
    assert made.target.context == made.memory.context == 512
    kept = Bundle.open(optimum.build(config(llama, context=64), tmp_path / "kept")).manifest
    assert kept.target.context == 64


def test_a_missing_library_is_named_with_its_remedy(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tracing.importlib.metadata.version

    def version(name: str) -> str:
        if name == "optimum-onnx":
            raise tracing.importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(tracing.importlib.metadata, "version", version)
    with pytest.raises(ExportError, match=r"needs optimum-onnx, .*specedge\[optimum\]"):
        optimum.build(config(llama), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_missing_runtime_is_named_before_an_hour_of_tracing(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tracing.importlib.util.find_spec
    missing = lambda name: None if name == "onnxruntime" else real(name)  # noqa: E731
    monkeypatch.setattr(tracing.importlib.util, "find_spec", missing)
    with pytest.raises(ExportError, match=r"needs onnxruntime; .*specedge\[cpu\]"):
        optimum.build(config(llama), tmp_path / "out")


@pytest.mark.parametrize("found", ["5.0.0", "4.58.1", "4.35.2"])
def test_a_transformers_that_optimum_does_not_take_is_named(
    monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    monkeypatch.setattr(tracing.importlib.metadata, "version", lambda _: found)
    with pytest.raises(ExportError, match=rf"transformers {found} .* 4\.36 up to 4\.57"):
        tracing.check_installed()


def test_a_draft_of_another_tokenizer_is_refused_or_dropped(
    llama: Path, tiny_exports: TinyExports, tmp_path: Path, traced: list[Any]
) -> None:
    other = tmp_path / "other"
    make_decoder("gpt2", other)
    file = other / "tokenizer.json"
    file.write_text(file.read_text().replace("<|im_end|>", "<|other|>"))
    with pytest.raises(PairingError, match="vocabulary differs"):
        optimum.build(config(llama, other), tmp_path / "out")
    assert traced == []
    made = builder.build(config(llama, other), tmp_path / "out", drop_incompatible_draft=True)
    assert Bundle.open(made).manifest.draft is None


def test_a_bundle_over_its_budget_leaves_nothing_behind(
    llama: Path, tmp_path: Path, traced: list[Any]
) -> None:
    with pytest.raises(MemoryBudgetError, match="budget"):
        optimum.build(config(llama, memory_budget="100KiB"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# --- what is asked of optimum -------------------------------------------------------------------


def test_weights_of_a_draft_are_counted_once_where_it_is_its_own_target(
    llama: Path, tmp_path: Path, traced: list[Any]
) -> None:
    made = Bundle.open(optimum.build(config(llama, llama), tmp_path / "out")).manifest
    assert [each["role"] for each in traced] == ["target"]
    assert made.memory.draft_weights == 0
    assert made.draft is not None
    assert made.draft.model == "target/model.onnx"


def test_scratch_does_not_become_part_of_the_bundle(
    llama: Path, tmp_path: Path, traced: list[Any]
) -> None:
    made = optimum.build(config(llama), tmp_path / "out")
    listed = Bundle.open(made).manifest.files
    found = {path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file()}
    assert found == {*listed, MANIFEST}


def test_the_comparison_reaches_past_a_sliding_window(
    tiny_exports: TinyExports, tmp_path: Path, traced: list[Any]
) -> None:
    optimum.build(config(tiny_exports.checkpoint("mistral")), tmp_path / "out")
    assert traced[0]["tokens"] == 24 + 16  # its window is 24


# --- sizes, folders -----------------------------------------------------------------------------


def opened(folder: Path, **changes: Any) -> Checkpoint:
    checkpoint = open_source(str(folder))
    return replace(checkpoint, config=checkpoint.config | changes)


def test_a_rotary_scaling_by_length_is_refused_as_a_trace_keeps_one_length(llama: Path) -> None:
    for kind in ("dynamic", "longrope"):
        with pytest.raises(UnsupportedError, match=f"rope_scaling '{kind}'"):
            sizes_of(opened(llama, rope_scaling={"rope_type": kind}), "here")
    sizes_of(opened(llama, rope_scaling={"rope_type": "linear", "factor": 2.0}), "here")


def test_a_checkpoint_without_sizes_is_refused_by_the_names_it_lacks(llama: Path) -> None:
    with pytest.raises(UnsupportedError, match="none of hidden_size, n_embd"):
        sizes_of(opened(llama, hidden_size=None), "here")
    with pytest.raises(UnsupportedError, match="encoder-decoder"):
        sizes_of(opened(llama, is_encoder_decoder=True), "here")


def test_a_source_without_a_folder_becomes_one_that_says_the_same(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a GGUF; in several shards, as of a large one."""
    monkeypatch.setattr(folders, "SHARD_BYTES", 1 << 16)
    was = open_source(str(llama))
    gguf = replace(was, record=was.record.model_copy(update={"kind": "gguf"}))
    made = folders.folder_of("model.gguf", gguf, Path(), tmp_path, Silent())
    assert len(list(made.glob("*.safetensors"))) > 1
    now = open_source(str(made))
    assert now.tensors.names() == was.tensors.names()
    for name in was.tensors.names():
        np.testing.assert_array_equal(read(now.tensors, name), read(was.tensors, name))
    assert now.tokenizer == was.tokenizer
    kept = ("hidden_size", "num_key_value_heads", "rope_theta", "model_type", "vocab_size")
    assert {key: now.config[key] for key in kept} == {key: was.config[key] for key in kept}


def test_a_hub_source_is_read_from_the_cache_that_it_was_fetched_into(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def snapshot(repository: str, *, revision: str | None, local_files_only: bool) -> str:
        assert (repository, revision, local_files_only) == ("some/one", "v2", True)
        return str(llama)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    was = open_source(str(llama))
    hub = replace(was, record=was.record.model_copy(update={"kind": "hub"}))
    assert folders.folder_of("hub:some/one@v2", hub, Path(), tmp_path, Silent()) == llama


# --- the process --------------------------------------------------------------------------------


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a line of Python in the place of `child`."""

    real = tracing.subprocess.Popen

    def run(code: str, progress: Progress | None = None) -> Traced:
        def popen(command: list[str], **given: Any) -> Any:
            started.append(real([sys.executable, "-c", code], **given))
            return started[-1]

        monkeypatch.setattr(tracing.subprocess, "Popen", popen)
        where = {"source": tmp_path, "model": tmp_path / "m", "weights": "w", "scratch": tmp_path}
        return tracing.trace("target", **where, tokens=1, progress=progress or Silent())

    started: list[Any] = []
    run.started = started  # type: ignore[attr-defined]
    return run


def test_a_good_end_is_the_last_line_whatever_is_printed_before(process: Any) -> None:
    fields = json.dumps({"traced": vars(TRACED)})
    assert process(f"print('Loading...'); print('''{fields}''')") == TRACED


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ('print(\'{"error": "no such layer"}\'); exit(1)', "target: no such layer"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by signal 9.*memory"),
        ("raise ImportError('no wheel')", "ended with 1: ImportError: no wheel"),
        ("pass", "ended with 0: without a word"),
    ],
)
def test_a_bad_end_is_one_error_with_its_reason(process: Any, code: str, said: str) -> None:
    with pytest.raises(ExportError, match=said) as caught:
        process(code)
    assert "\n" not in str(caught.value)


def test_stages_are_passed_on_and_an_interrupted_export_leaves_no_process(process: Any) -> None:
    class Impatient(Silent):
        def stage(self, title: str, total: int | None = None, unit: str = "") -> None:
            assert title == "target: tracing"
            raise KeyboardInterrupt

    code = 'import time; print(\'{"stage": "tracing"}\', flush=True); time.sleep(300)'
    with pytest.raises(KeyboardInterrupt):
        process(code, Impatient())
    assert process.started[0].poll() is not None


def test_an_architecture_that_optimum_does_not_know_is_said_in_one_line(
    llama: Path, tmp_path: Path
) -> None:
    """The real process, as far as it comes."""
    said = json.loads((llama / "config.json").read_text()) | {"model_type": "starcoder2"}
    (tmp_path / "config.json").write_text(json.dumps(said))
    (tmp_path / "scratch").mkdir()
    with pytest.raises(ExportError, match="target: optimum cannot export this model: ") as caught:
        tracing.trace(
            "target",
            tmp_path,
            tmp_path / "model.onnx",
            "weights.bin",
            tmp_path / "scratch",
            tokens=8,
            progress=Silent(),
        )
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model.onnx").exists()


# --- what the process does with a graph ---------------------------------------------------------


def test_a_graph_is_rewritten_with_its_weights_beside_it(tmp_path: Path) -> None:
    toy = Toy()
    toy.write(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    sizes = child.rewrite(tmp_path / "target" / "model.onnx", out / "model.onnx", "weights.bin")
    assert sizes == {"layers": 1, "kv_heads": H, "head_dim": D, "columns": COLUMNS}
    assert (out / "weights.bin").stat().st_size == toy.places.nbytes  # the others are small
    session = onnxruntime.InferenceSession(out / "model.onnx")
    assert session.get_outputs()[0].name == "logits"
    ids = np.arange(9, dtype=np.int64)
    found = child.graph_logits(out / "model.onnx", ids)
    np.testing.assert_array_equal(found[:, : toy.logits(ids).shape[1]], toy.logits(ids))


KV = {f"past_key_values.0.{part}": ["batch", 2, "past", 4] for part in ("key", "value")}


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"use_cache_branch": [1], **KV}, "'use_cache_branch' that nothing here feeds"),
        ({"input_ids": ["b", "s"]}, "no KV at all"),
        ({**KV, "past_key_values.1.key": ["batch", 3, "past", 4]}, "all of one shape"),
        ({"past_key_values.0.key": ["batch", 2, 8, 4]}, "all of one shape"),
        ({"past_key_values.0": ["batch", "past", 8]}, "all of one shape"),
    ],
)
def test_kv_that_no_slot_could_hold_is_refused(inputs: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedError, match=said):
        child.sizes_of(inputs, {"logits": ["b", "s", 7]})
    assert child.sizes_of(KV, {"logits": ["b", "s", 7]})["kv_heads"] == 2


def test_logits_that_differ_are_an_error(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import transformers

    reference = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)

    def wrong(by: float) -> Any:
        def logits(model: Path, ids: Any) -> Any:
            with torch.no_grad():
                found = reference(torch.from_numpy(ids)[None]).logits[0].numpy().copy()
            found[3, 5] += by * np.abs(found).max()
            return found

        return logits

    monkeypatch.setattr(child, "graph_logits", wrong(1e-4))
    assert child.compare(llama, tmp_path, 16) == pytest.approx(1e-4, rel=0.2)
    for by in (0.01, float("nan")):
        monkeypatch.setattr(child, "graph_logits", wrong(by))
        with pytest.raises(ExportError, match="logits differ"):
            child.compare(llama, tmp_path, 16)

    def refuses(model: Path, ids: Any) -> Any:
        raise RuntimeError("Reshape_4\nfailed")

    monkeypatch.setattr(child, "graph_logits", refuses)
    with pytest.raises(ExportError, match="does not run over a past: Reshape_4 failed"):
        child.compare(llama, tmp_path, 16)


def test_reasons_are_one_line_without_advice_to_callers() -> None:
    assert child.reason_of(ExportError("ours. All of it.")) == "ours. All of it."
    theirs = child.reason_of(ValueError("a\nb. Please refer to the guide"))
    assert theirs == "optimum cannot export this model: a b"
    assert issubclass(ExportError, SpecedgeError)

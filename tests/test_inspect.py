"""`specedge inspect`: what it says of graphs, engines and plans, readable at 80 columns."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from commands import Said, runner
from specedge.bundle import Bundle
from specedge.cli._bundle_tables import bundle_tables
from specedge.engines.trt import plans
from test_trt_plans import stored
from tiny import edit_manifest, write_bundle

GPU = "NVIDIA GeForce RTX 4090"


@pytest.fixture
def said(capfd: Any, monkeypatch: pytest.MonkeyPatch, private_cache: Path) -> Callable[..., Said]:
    return runner(capfd, monkeypatch)


@pytest.fixture
def bundle(tmp_path: Path, private_cache: Path) -> Path:
    """A pair of lowering standard with everything that a manifest can say of it."""
    folder = write_bundle(tmp_path / "pair", draft=True, speculation={"mode": "on"})
    manifest = json.loads((folder / "specedge.json").read_text())
    heads = {"heads": 128, "kv_heads": 16, "head_dim": 128, "context": 131072}
    heads |= {"max_verify": 16, "lowering": "standard", "parameters": 70_000_000_000}
    quality = {"method": "kl", "value": 0.1612, "positions": 2048}
    edit_manifest(
        folder,
        target=manifest["target"] | heads | {"kv_dtype": "bfloat16", "taps": [0, 1]},
        draft=manifest["draft"] | heads | {"precision": "int4", "block_size": 32},
        quality={"draft": quality | {"rounding": "asymmetric int4, block 32, calibrated"}},
        engines={"tensorrt": {"tune_for": 3}, "cuda": {"device_id": 1, "enable_cuda_graph": True}},
    )
    return folder


def shown(folder: Path, width: int) -> list[str]:
    opened = Bundle.open(folder)
    stream = io.StringIO()
    console = Console(file=stream, width=width)
    for table in bundle_tables(opened, plans.beside(folder)):
        console.print(table)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def cells(lines: list[str], name: str) -> str:
    """Of the row of that name, a blank between them."""
    (line,) = (line for line in lines if line.startswith(f"{name} "))
    return one_blank(line.removeprefix(name))


def one_blank(text: str) -> str:
    return " ".join(text.split())


def test_graphs_say_what_engines_and_devices_ask_about(said: Callable[..., Said], bundle: Path):
    code, out, _ = said("inspect", str(bundle))
    lines = out.splitlines()
    assert code == 0
    assert cells(lines, "lowering") == "standard standard"
    assert cells(lines, "activations, KV") == "bfloat16 float32"
    assert cells(lines, "taps") == "hidden.0, hidden.1 none"
    assert cells(lines, "verifies at most") == "16 16"
    assert cells(lines, "tensorrt") == "tune_for = 3"
    assert cells(lines, "cuda") == "device_id = 1, enable_cuda_graph = true"


def test_what_is_not_there_takes_no_room(said: Callable[..., Said], tmp_path: Path):
    _, out, _ = said("inspect", str(write_bundle(tmp_path / "alone")))
    for absent in ("taps", "options of engines", "plans\n"):
        assert absent not in out
    titles = ["graphs", "error of quantised weights", "sources", "memory plan", "defaults", "files"]
    lines = [line.rstrip() for line in out.splitlines()]
    assert [line for line in lines if line in titles] == titles  # wider than its table or not


def test_proposers_are_those_that_the_bundle_can_run(said: Callable[..., Said], tmp_path: Path):
    alone, pair = write_bundle(tmp_path / "a"), write_bundle(tmp_path / "b", draft=True)
    assert "auto, 4 tokens, ngram; n-grams" in said("inspect", str(alone))[1]
    assert "auto, 4 tokens, ngram, draft; n-grams" in said("inspect", str(pair))[1]


def test_plans_are_listed_with_what_they_are_for(said: Callable[..., Said], bundle: Path):
    stored(bundle, "target", context=512)
    stored(bundle, "draft", backend="tensorrt", device=GPU, version="10.16.1")
    cut = stored(bundle, "draft", context=256).path
    cut.write_bytes(cut.read_bytes()[:-1])
    out = said("inspect", str(bundle))[1]
    listed = out[out.index("\nplans") : out.index("\nfiles")].splitlines()[3:]
    assert list(map(one_blank, listed)) == [
        f"draft tensorrt 10.16.1 {GPU} 131072 10.0 KiB",
        "draft tensorrt-rtx 1.7.1 sm89 256 10.0 KiB 10239 bytes, expected 10240: damaged",
        "target tensorrt-rtx 1.7.1 sm89 512 10.0 KiB",
    ]
    in_json = json.loads(said("inspect", str(bundle), "--json")[1])["plans"]
    assert [(each["key"]["role"], each["key"]["context"], each["bytes"]) for each in in_json] == [
        ("draft", 131072, 10240),
        ("draft", 256, 10240),
        ("target", 512, 10240),
    ]
    assert [each["damage"] is None for each in in_json] == [True, False, True]
    assert all(Path(each["path"]).is_file() for each in in_json)


def test_a_pair_with_plans_reads_at_80_columns(bundle: Path):
    stored(bundle, "target")
    stored(bundle, "draft", backend="tensorrt", device=GPU, version="10.16.1")
    lines = shown(bundle, 80)
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    whole = list(map(one_blank, lines))
    assert "heads 128, 16 of KV, 128 wide 128, 16 of KV, 128 wide" in whole
    assert "weights fp32 int4, blocks of 32" in whole
    sentence = "0.1612 nats KL, 2048 positions, asymmetric int4, block 32, calibrated"
    assert f"draft {sentence}" in whole
    assert f"draft tensorrt 10.16.1 {GPU} 131072 10.0 KiB" in whole
    wide = shown(bundle, 160)
    start = lines.index("graphs"), wide.index("graphs")
    rows = [lines[start[0] : lines.index("sources")], wide[start[1] : wide.index("sources")]]
    assert len(rows[0]) == len(rows[1])  # nothing is folded

"""bench/speed.py and bench/peers with engines that only pretend."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import speed
from peers import figures, plans, report
from peers.process import Plan, Worker, WorkerError, reason

BENCH = Path(speed.__file__).parent

# An engine of the protocol, whose times are stated and not spent.
ENGINE = """
import json, sys, time
sys.path.insert(0, {peers!r})
from serving import Delivery, serve

def load(given):
    print("a runtime's own noise")
    if given.get("refuses"):
        raise ValueError("no such kernel")

    served = []

    def generate(ids, max_tokens):
        served.append(ids)
        if len(served) > given.get("lives", 99):
            raise RuntimeError("out of blocks")
        if given.get("hangs"):
            time.sleep(60)
        delivery = Delivery()
        delivery.push(range(1))
        delivery.push(range(1, max_tokens))
        return delivery.answer(speculative=True, ttft_ms=10.0, decode_ms=given["decode_ms"])

    return "an engine that pretends", generate

serve(load)
"""


def plan(tmp_path: Path, name: str, *, own: bool = False, **given: Any) -> Plan:
    script = tmp_path / "engine.py"
    script.write_text(ENGINE.format(peers=str(BENCH / "peers")))
    options = json.dumps({"context": 100, "decode_ms": 20.0, **given})
    mode = given.get("mode", "plain")
    argv = [sys.executable, str(script), options]
    return Plan(name, argv, kind=name[:1], mode=mode, own=own)


@pytest.fixture
def python(tmp_path: Path) -> str:
    """Stands for an interpreter that has every package."""
    return stub(tmp_path / "python", 0)


def stub(path: Path, code: int) -> str:
    path.write_text(f"#!/bin/sh\nexit {code}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that every kind takes for a model."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("genai_config.json", "openvino_model.xml", "config.json"):
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("how", "name", "mode", "k"),
    [
        ("", "OpenVINO", "plain", None),
        (":lookup", "OpenVINO lookup K=5", "lookup", 5),
        (":lookup:k=16", "OpenVINO lookup K=16", "lookup", 16),
        (":k=3:draft={model}", "OpenVINO draft K=3", "draft", 3),
    ],
)
def test_a_peer_is_read_with_its_way_of_drafting(how, name, mode, k, python, model):
    got = plans.peer(f"openvino={python}:{model}{how.format(model=model)}", threads=2, context=64)
    given = json.loads(got.argv[-1])
    assert (got.name, got.mode, got.kind) == (name, mode, "OpenVINO")
    assert (given["mode"], given.get("k"), given["threads"]) == (mode, k, 2)
    assert given.get("draft") == (str(model) if mode == "draft" else None)


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("vllm={python}:{model}", "expected KIND=WHERE:MODEL"),
        ("genai={python}", "expected KIND=WHERE:MODEL"),
        ("genai={python}:{model}:quick", "found 'quick'"),
        ("genai={python}:{model}:lookup:draft={model}", "expected KIND=WHERE:MODEL"),
        ("genai={python}:{model}:lookup:k=17", "expected k=1 to k=16, found k=17"),
        ("genai={python}:{model}:lookup=7", "K is given by k=K"),
        ("genai={python}:{model}/none", "expected a model that is a folder with genai_config.json"),
        ("genai={python}:{model}:draft=none", "expected a draft that is a folder"),
        ("transformers={missing}:{model}", "transformers is not installed at"),
        ("llamacpp={model}:model.gguf", "node-llama-cpp is not installed at"),
    ],
)
def test_a_peer_that_cannot_be_is_one_clear_error(form, words, python, model, tmp_path):
    missing = stub(tmp_path / "other", 1)
    form = form.format(python=python, model=model, missing=missing)
    with pytest.raises(ValueError, match="--peer") as error:
        plans.peer(form, threads=2, context=64)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_two_models_of_one_peer_are_told_apart_and_the_same_one_twice_is_refused(python, model):
    other = model.parent / "other-model"
    other.mkdir()
    (other / "genai_config.json").write_text("{}")
    forms = [f"genai={python}:{model}", f"genai={python}:{other}"]
    got = plans.peers(forms, threads=2, context=64)
    assert [each.name for each in got] == [
        "onnxruntime-genai (model)",
        "onnxruntime-genai (other-model)",
    ]
    with pytest.raises(ValueError, match="given twice"):
        plans.peers(forms + forms[:1], threads=2, context=64)


def test_a_worker_answers_and_its_memory_is_known(tmp_path):
    worker = Worker(plan(tmp_path, "p"))
    assert worker.description == "an engine that pretends"
    answer = worker.ask({"ids": [1], "max_tokens": 5})
    assert answer["tokens"] == [0, 1, 2, 3, 4]
    assert (answer["first_tokens"], answer["rounds"], answer["acceptance_length"]) == (1, 1, 4.0)
    assert 1 < worker.peak_mib() < 1000
    worker.close()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"refuses": True}, "ended with code 1: ValueError: no such kernel"),
        ({"lives": 0}, "ended with code 1: RuntimeError: out of blocks"),
        ({"hangs": True}, "no answer within 1 s"),
        ({"context": 4}, "1 + 5 tokens, the context is 4"),
    ],
)
def test_a_worker_that_fails_says_why_in_one_line(fault, words, tmp_path):
    with pytest.raises(WorkerError) as error:  # noqa: PT012 - it may fail at either
        worker = Worker(plan(tmp_path, "p", **fault), patience_s=1.0)
        try:
            worker.ask({"ids": [1], "max_tokens": 5})
        finally:
            worker.close()
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_reason_is_the_last_exception_however_many_lines_it_has():
    said = "Traceback:\n  File x\nRuntimeError: Check failed at\n[load] no tensor\n\n"
    assert reason(said) == "RuntimeError: Check failed at [load] no tensor"
    assert reason("killed\n") == "killed"
    assert reason("") == "it said nothing"


def test_engines_are_loaded_all_at_once_by_runtime_or_one_by_one():
    chosen = [Plan(name, [], kind=name[0]) for name in ("plain", "pk", "a1", "a2", "b1")]
    names = {
        together: [[each.name for each in group] for group in speed.groups(chosen, together)]
        for together in ("all", "kind", "one")
    }
    assert names == {
        "all": [["pk", "a1", "a2", "b1"]],
        "kind": [["pk"], ["a1", "a2"], ["b1"]],
        "one": [["pk"], ["a1"], ["a2"], ["b1"]],
    }
    assert speed.groups(chosen[:1], "kind") == [[]]


@pytest.mark.parametrize("together", ["all", "kind", "one"])
def test_a_peer_that_cannot_run_says_why_and_the_others_go_on(together, tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "SETTLE_S", 0.0)
    monkeypatch.setattr(speed, "WARM_UP_TOKENS", 3)
    monkeypatch.setattr(speed, "encode", lambda plain: PROMPTS)
    monkeypatch.setattr(speed.Bench, "texts", lambda bench: said(bench.runs))
    given = speed.parse(["b", "--repeat", "2", "--tokens", "9", "--together", together])
    result = speed.benchmark(
        given,
        [
            plan(tmp_path, "plain", own=True, decode_ms=40.0),
            plan(tmp_path, "ngram", own=True, mode="lookup", decode_ms=10.0),
            plan(tmp_path, "fast", mode="lookup", decode_ms=20.0),
            plan(tmp_path, "fragile", lives=2),  # dies in its second run that counts
            plan(tmp_path, "refused", refuses=True),
        ],
    )
    failed = {engine["name"]: engine["failed"] for engine in result["engines"]}
    assert failed == {
        "plain": None,
        "ngram": None,
        "fast": None,
        "fragile": "ended with code 1: RuntimeError: out of blocks",
        "refused": "ended with code 1: ValueError: no such kernel",
    }
    assert {run["engine"] for run in result["runs"]} == {"plain", "ngram", "fast"}
    shown = report.render(result)
    assert "- refused: could not run: ended with code 1: ValueError: no such kernel" in shown
    assert "Speculative: ngram is 2.00 times the best peer, fast." in shown
    cells = {row[0]: row for row in report.rows(result, "chat")}
    assert cells["fast"][3] == "2.00 (2.00..2.00)"  # over plain
    assert cells["fast"][4] == "0.50 (0.50..0.50)"  # over the best of ours


PROMPTS = {"chat": {"text": "hello", "edit": False, "tokens": 2, "ids": [1, 2]}}


def said(runs: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    return {"chat": {run["engine"]: "a text" for run in runs}}


def record(engine: str, group: int, decode_ms: float, tokens: list[int]) -> dict[str, Any]:
    run = {"prompt": "edit", "engine": engine, "group": group, "repeat": 0, "tokens": tokens}
    return run | {"decode_ms": decode_ms}


def test_ratios_are_to_plain_runs_of_the_same_group():
    words = list(range(11))
    runs = [
        record("plain", 0, 10.0, words),
        record("plain", 1, 30.0, words),  # a slow minute
        record("peer", 1, 15.0, words),
    ]
    result = {"baseline": "plain"}
    by = {"plain": runs[:2], "peer": runs[2:]}
    assert figures.over_plain(result, by, "peer") == [2.0]
    assert figures.over_plain(result, by, "plain") == [1.0, 1.0]


def test_tokens_that_came_with_the_first_are_not_counted_as_decoded():
    run = record("peer", 0, 10.0, list(range(11)))
    assert figures.tokens_per_second(run) == 1000.0
    assert figures.tokens_per_second(run | {"first_tokens": 6}) == 500.0


@pytest.mark.parametrize(
    ("text", "tokens", "wanted"),
    [
        ("a = 1\nb = 2\n", list(range(20)), "ok"),
        ("a = 1\nb = 2\n", [1, 2] * 10, "loops"),
        ("Certainly!\nHere it is\n", list(range(20)), "no edit"),
    ],
)
def test_a_text_that_is_no_answer_is_told(text, tokens, wanted):
    result = {
        "prompts": {"edit": {"text": "a = 1\nb = 2\nc = 3\n", "edit": True}},
        "texts": {"edit": {"peer": text}},
    }
    assert figures.sense(result, "edit", "peer", tokens) == wanted

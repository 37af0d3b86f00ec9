"""Bundles of the optimum front end: exported for real, run by the same loop as all others.

Each checkpoint is traced once, in optimum's own process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specedge
from equality_cases import Pair, Run, opened, run, tiny_prompt
from parity_cases import ids_for, relative_error, transformers_logits
from specedge.bundle import Bundle
from specedge.cli import invoke
from specedge.config import Config
from specedge.engines import slotted
from specedge.engines.base import Engine, prefill
from specedge.export.builder import build
from specedge.sampling.params import SamplingParams
from tiny_decoders import DECODERS, make_decoder
from tiny_exports import read_manifest
from tiny_models import VOCAB_ROWS

TOLERANCE = 1e-5  # of the largest logit
CONTEXT, CHUNK = 80, 24
# target: draft. Itself always agrees; another architecture hardly ever does.
PAIRS = {"gpt2": "opt", "falcon, one kv head": "falcon, one kv head"}


@dataclass
class Tiny:
    """What is made once a module."""

    root: Path
    models: dict[str, Any] = field(default_factory=dict)  # of transformers

    def checkpoint(self, name: str) -> Path:
        if name not in self.models:
            self.models[name] = make_decoder(name, self.root / name)
        return self.root / name

    def bundle(self, target: str) -> Path:
        folder = self.root / f"bundle of {target}"
        if not folder.exists():
            draft = PAIRS.get(target)
            said: dict[str, Any] = {
                "name": "tiny",
                "target": {"source": str(self.checkpoint(target)), "precision": "fp32"},
                "export": {"frontend": "optimum", "context": CONTEXT},
            }
            if draft is not None:
                said["draft"] = {"source": str(self.checkpoint(draft)), "precision": "fp32"}
            build(Config.model_validate(said), folder)
        return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return Tiny(tmp_path_factory.mktemp("optimum"))


@pytest.fixture(autouse=True)
def narrow_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slotted, "PREFILL_CHUNK", CHUNK)


@dataclass
class Opened:
    """An open bundle beside transformers' logits of a text."""

    name: str
    engine: Engine
    ids: np.ndarray  # [S]
    want: np.ndarray  # [S, V]

    def check(self, scored: np.ndarray, first_row: int) -> None:
        wanted = self.want[first_row : first_row + len(scored)]
        assert relative_error(scored, wanted) <= TOLERANCE, f"{self.name} at {first_row}"


@pytest.fixture(scope="module", params=DECODERS)
def decoder(request: pytest.FixtureRequest, tiny: Tiny) -> Iterator[Opened]:
    """Every architecture, as the target of a bundle or as the draft of another."""
    name = request.param
    target = next((t for t, draft in PAIRS.items() if draft == name), name)
    bundle = tiny.bundle(target)
    with opened(bundle) as pair:
        engine = pair.target
        if target != name:
            assert pair.draft is not None
            engine = pair.draft.engine
        ids = ids_for(CONTEXT) % engine.spec.vocab
        want = transformers_logits(tiny.models[name], ids)[:, : engine.spec.vocab]
        yield Opened(name, engine, ids, want)


def test_logits_are_those_of_transformers(decoder: Opened) -> None:
    engine, ids = decoder.engine, decoder.ids
    slot = engine.new_slot()
    scored = engine.forward(slot, ids, 0, len(ids))
    decoder.check(scored.logits, 0)
    np.testing.assert_array_equal(scored.greedy_ids, scored.logits.argmax(-1))
    for width in (1, 7, CHUNK):
        for start in range(0, len(ids), width):
            part = ids[start : start + width]
            decoder.check(engine.forward(slot, part, start, len(part)).logits, start)
    engine.release(slot)


@pytest.mark.parametrize("width", [1, 2, 5, 16])
def test_rows_of_a_refused_draft_are_never_seen(decoder: Opened, width: int) -> None:
    engine, ids = decoder.engine, decoder.ids
    slot, junk = engine.new_slot(), (ids + 1) % engine.spec.vocab
    n_cached = 3
    prefill(engine, slot, ids[:n_cached], 0)
    while n_cached + width <= len(ids):
        wrong = np.concatenate([ids[n_cached : n_cached + 1], junk[: width - 1]])
        engine.forward(slot, wrong, n_cached, width)
        scored = engine.forward(slot, ids[n_cached : n_cached + width], n_cached, width)
        decoder.check(scored.logits, n_cached)
        n_cached += 1 + width // 2
    engine.release(slot)


@pytest.mark.parametrize("name", [*PAIRS, "bloom"])
def test_greedy_text_does_not_depend_on_speculation(tiny: Tiny, name: str) -> None:
    with opened(tiny.bundle(name)) as pair:
        drafted = accepted = 0
        for length in (1, CHUNK, 2 * CHUNK + 5, CONTEXT - 1):
            prompt = tiny_prompt(length, pair.target.spec.vocab)
            plain = run(pair.target, prompt)
            assert len(plain.tokens) == CONTEXT + 1 - length, "the last row was not used"
            for k in (1, 4, 15):
                for got in speculated(pair, prompt, k):
                    assert got.tokens == plain.tokens, f"{length} prompt tokens, K = {k}"
                    drafted += got.metrics.proposed
                    accepted += got.metrics.accepted
    # else this would prove nothing
    assert accepted > 0, "drafts must be kept"
    if name != "falcon, one kv head":
        assert drafted > accepted, "drafts must be refused"


def speculated(pair: Pair, prompt: np.ndarray, k: int, **given: Any) -> list[Run]:
    """With lookups, and with the draft model where there is one."""
    ways = [pair.proposers("ngram")]
    if pair.draft is not None:
        ways += [pair.proposers("draft"), pair.proposers("both")]
    return [run(pair.target, prompt, k, proposers, **given) for proposers in ways]


def test_plain_text_is_what_transformers_would_say(tiny: Tiny) -> None:
    with opened(tiny.bundle("gpt2")) as pair:
        prompt = tiny_prompt(9, pair.target.spec.vocab)
        tokens = run(pair.target, prompt).tokens
        text = np.concatenate([prompt, tokens[:-1]]).astype(np.int64)
        logits = transformers_logits(tiny.models["gpt2"], text)[:, : pair.target.spec.vocab]
        assert logits[len(prompt) - 1 :].argmax(-1).tolist() == tokens


@pytest.mark.parametrize("name", PAIRS)
def test_coupled_samples_do_not_depend_on_speculation(tiny: Tiny, name: str) -> None:
    with opened(tiny.bundle(name)) as pair:
        prompt = tiny_prompt(7, pair.target.spec.vocab)
        texts = set()
        for seed in range(3):
            given = SamplingParams(temperature=0.8, seed=seed, acceptance="coupled")
            plain = run(pair.target, prompt, params=given)
            texts.add(tuple(plain.tokens))
            for got in speculated(pair, prompt, 4, params=given):
                assert got.tokens == plain.tokens
        assert len(texts) == 3, "the seed decides"


def test_the_manifest_says_what_it_is_and_what_it_costs(tiny: Tiny) -> None:
    manifest = Bundle.open(tiny.bundle("gpt2")).manifest
    target, draft = manifest.target, manifest.draft
    assert draft is not None
    assert (target.lowering, target.precision, target.kv_dtype) == ("concat", "fp32", "float32")
    assert (target.model_type, draft.model_type) == ("gpt2", "opt")
    assert (target.layers, target.kv_heads, target.head_dim) == (2, 4, 8)
    assert (target.hidden, target.heads, target.context) == (32, 4, CONTEXT)
    assert target.vocab == draft.vocab < VOCAB_ROWS
    assert manifest.pairing is not None
    assert manifest.pairing.usable
    one_copy = 2 * target.layers * CONTEXT * 32 * 4
    assert manifest.memory.target_kv == 2 * one_copy
    assert "slower" in manifest.notes[0]
    assert "transformers" in manifest.notes[1]
    assert {"optimum", "optimum-onnx", "transformers", "torch"} <= manifest.tool.keys()
    assert target.weight_bytes == manifest.files["target/weights.bin"].bytes > 100_000
    left = {path.name for path in tiny.bundle("gpt2").iterdir()}
    assert not {name for name in left if name.startswith(".")}, "scratch was left behind"


def test_a_model_that_drafts_for_itself_lies_in_the_bundle_once(tiny: Tiny) -> None:
    bundle = tiny.bundle("falcon, one kv head")
    manifest = read_manifest(bundle)
    assert manifest.draft is not None
    assert manifest.draft.weights == manifest.target.weights
    assert (manifest.target.kv_heads, manifest.target.heads) == (1, 4)
    assert not (bundle / "draft").exists()
    with specedge.load(bundle, speculation="on", proposers=["draft"], draft_length=3) as model:
        result = model.generate("the re in the re", max_tokens=20)
    assert result.metrics.accepted == result.metrics.proposed > 0


def test_the_gates_run_on_it(tiny: Tiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "the other"}\n{"prompt": "in the in the"}\n')
    bundle = str(tiny.bundle("gpt2"))
    gates = ["--gate", "compatibility", "--gate", "greedy"]
    asked = ["verify", bundle, *gates, "--prompts", str(prompts), "--max-tokens", "8", "--json"]
    code = invoke([*asked, "--threads", "1"])
    said = capfd.readouterr()
    assert code == 0, said.out + said.err
    verified = json.loads(said.out)
    ran = [gate for gate in verified["gates"] if gate["name"] in gates]
    assert [gate["outcome"] for gate in ran] == ["passed", "passed"], said.out

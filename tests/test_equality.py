"""Greedy text does not depend on speculation: real graphs of every family, run by the engine.

A subset that meets every family, proposer, draft length and kind of prompt length;
`make verify-full` runs the whole product and keeps its table in docs/equality.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equality_cases
import specedge
from equality_cases import (
    CASES,
    CHUNK,
    CONTEXT,
    LENGTHS,
    PAIRS,
    PROPOSER_SETS,
    TINY_LENGTHS,
    Pair,
    ProposerSet,
    Run,
    run,
    tiny_bundle,
    tiny_prompt,
)
from specedge.contract import Ids
from specedge.controller import Controller
from specedge.engines import slotted
from specedge.export.families import describe
from specedge.export.reference import Reference
from specedge.loop import decode
from specedge.metrics import Metrics
from specedge.sequence import Sequence
from specedge.speculator import Speculator
from tiny_exports import TinyExports
from tiny_models import ArrayTensors, read_config


@dataclass
class Case:
    """An open pair and its plain texts, by prompt length."""

    name: str
    stranger: bool
    checkpoint: Path
    pair: Pair
    plain: dict[int, Run] = field(default_factory=dict)

    @property
    def precision(self) -> str:
        return self.pair.target.spec.precision

    def prompt(self, length: int) -> Ids:
        return tiny_prompt(length, self.pair.target.spec.vocab)

    def expected(self, length: int) -> Run:
        if length not in self.plain:
            self.plain[length] = run(self.pair.target, self.prompt(length))
        return self.plain[length]

    def check(self, length: int, k: int, which: ProposerSet) -> Run:
        want = self.expected(length)
        got = run(self.pair.target, self.prompt(length), k, self.pair.proposers(which))
        if got.tokens != want.tokens and self.precision != "fp32":
            self.excuse(length)
        assert got.tokens == want.tokens, f"{length} prompt tokens, K = {k}, {which}"
        return got

    def excuse(self, length: int) -> None:
        """Where no padding makes quantised widths agree, a near-tie may fall the other way."""
        target = self.pair.target
        if target.width_noise:
            tokens = self.expected(length).tokens
            margin = equality_cases.smallest_margin(target, self.prompt(length), tokens)
            pytest.skip(
                f"this processor's int4 kernels differ between widths by up to "
                f"{target.width_noise:.3g}; the smallest top-2 margin is {margin:.3g}"
            )


OPENED = [(c, p) for c in CASES for p in PAIRS if "repeats" not in c or not PAIRS[p][1]]


@pytest.fixture(scope="module", params=OPENED, ids=" ".join)
def case(request: pytest.FixtureRequest, tiny_exports: TinyExports) -> Iterator[Case]:
    name, pair = request.param
    target, bundle = tiny_bundle(tiny_exports, name, pair)
    with equality_cases.opened(bundle) as opened:
        yield Case(name, PAIRS[pair][1], target, opened)


@pytest.fixture(autouse=True)
def narrow_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slotted, "PREFILL_CHUNK", CHUNK)


@pytest.mark.parametrize("k", LENGTHS)
def test_every_proposer_gives_the_text_of_plain_decoding(case: Case, k: int) -> None:
    drafted = accepted = 0
    for turn, which in enumerate(PROPOSER_SETS):
        for length in TINY_LENGTHS[(LENGTHS.index(k) + turn) % 4 :: 4]:
            got = case.check(length, k, which)
            assert len(got.tokens) == CONTEXT + 1 - length, "the last row was not used"
            assert case.pair.target.prefill_chunk == CHUNK, "long prompts have one chunk only"
            drafted += got.metrics.proposed
            accepted += got.metrics.accepted
    # else this would prove nothing
    if case.stranger:
        assert drafted > accepted, "drafts must be refused"
    else:
        assert accepted > 0, "drafts must be kept"
        assert drafted > accepted or "repeats" in case.name, "drafts must be refused"


def test_plain_decoding_agrees_with_a_model_that_keeps_no_cache(case: Case) -> None:
    """The oracle is plain numpy and runs the whole text at once: row i knows ids[: i + 1] only."""
    if case.precision != "fp32":
        pytest.skip("the oracle reads the checkpoint's own weights")
    spec = describe(read_config(case.checkpoint), CONTEXT)
    oracle = Reference.from_checkpoint(spec, ArrayTensors.from_folder(case.checkpoint))
    for length in (1, CONTEXT // 2):
        tokens = case.expected(length).tokens
        text = np.concatenate([case.prompt(length), tokens[:-1]]).astype(np.int64)
        logits = oracle.forward(text, stop=case.pair.target.spec.vocab)
        assert logits[length - 1 :].argmax(-1).tolist() == tokens


def test_past_the_context_of_its_draft_a_model_decodes_plainly(tiny_exports: TinyExports) -> None:
    target = tiny_exports.checkpoint("llama")
    draft = tiny_exports.checkpoint("llama", 0, max_position_embeddings=40)
    bundle = tiny_exports.bundle(target, draft, context=CONTEXT, draft_precision="fp32")
    with equality_cases.opened(bundle) as pair:
        case = Case("llama", False, target, pair)
        for length in (1, 38, 39, 40, 41, 60):
            got = case.check(length, 4, "draft")
            # the same weights are always right: row 40 scores the draft's last guess
            assert got.metrics.accepted == got.metrics.proposed <= max(0, 41 - length)
            assert (got.metrics.proposed > 0) == (length < 40)


def test_a_slot_that_was_speculated_in_serves_the_next_turn(case: Case) -> None:
    """The second prompt keeps most of the first text, and rows of refused drafts lie after it."""
    target, prompt = case.pair.target, case.prompt(9)
    slot = target.new_slot()
    seq = Sequence(prompt, context=slot.context, max_tokens=30)
    speculator = Speculator(case.pair.proposers("both"), Controller(7), mode="on")
    for _ in decode(seq, target, slot, speculator, Metrics()):
        pass
    text = seq.tokens[: len(prompt) + 25]
    again = np.concatenate([text, case.prompt(11)])
    seq.resume(again, max_tokens=CONTEXT)
    assert seq.n_cached == len(text)
    for _ in decode(seq, target, slot, speculator, Metrics()):
        pass
    resumed = seq.generated.tolist()
    target.release(slot)
    fresh = run(target, again).tokens
    if resumed != fresh and case.precision != "fp32":
        case.excuse(9)
    assert resumed == fresh


ASKED: dict[str, dict[str, Any]] = {
    "greedy, past its end": {"ignore_eos": True},
    "greedy": {},
    "greedy with penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.3},
    "coupled": {"temperature": 1.0, "seed": 11},
    "coupled, three samples": {"temperature": 0.8, "seed": 12, "top_p": 0.9, "n": 3},
    "coupled with penalties": {"temperature": 0.7, "seed": 13, "frequency_penalty": 0.5},
}


@pytest.mark.parametrize("options", ASKED.values(), ids=ASKED)
def test_a_loaded_model_says_the_same_in_every_mode(
    tiny_exports: TinyExports, options: dict[str, Any]
) -> None:
    checkpoint = tiny_exports.checkpoint("qwen2")
    bundle = tiny_exports.bundle(checkpoint, checkpoint, context=CONTEXT)
    prompts = ["def main():\n    return", "the the the the", [7, 8, 9, 7, 8]]
    said = []
    for mode in ("off", "auto", "on"):
        with specedge.load(bundle, speculation=mode, draft_length=7) as model:
            given = {"max_tokens": None, "logprobs": 3, "explain": True, **options}
            results = [model.generate(p, **given) for p in prompts]
            samples = [sample for r in results for sample in r.samples or [r]]
            # in "auto" a call may also be wide to be measured
            wide = any(round_.drafted for s in samples for round_ in s.rounds or ())
            assert wide == (mode != "off")
            said.append([(s.tokens, s.text, s.finish_reason, s.logprobs) for s in samples])
    assert said[0] == said[1] == said[2]

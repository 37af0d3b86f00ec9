"""SmolLM2 with its whole vocabulary: the tokens that each rule commits follow the target's law.

Logits are computed once for each context and looked up; everything after them is the real thing.
For each case 10,000 rounds with fixed seeds, and a chi-square test with rare ids pooled. Suite-wide
alarm 1 % over 16 tests. At this size a bias of 0.06 towards one likely id, over two hundred cells
at most, is caught with 99 % power (shown by `test_a_bias_of_this_size_is_caught`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import chi_square
import real
from specedge.acceptance import Verdict
from specedge.contract import Ids, Logits
from specedge.engines import registry
from specedge.engines.base import Engine, Scored, prefill
from specedge.loading import load
from specedge.proposers import Draft
from specedge.proposers.base import NO_DRAFT
from specedge.sampling.law import Law
from specedge.sampling.params import RuleName, SamplingParams
from specedge.sampling.sampler import ProcessedSampler, make_sampler
from specedge.sampling.scratch import Scratch
from specedge.sequence import Sequence
from tiny_exports import read_manifest

pytestmark = pytest.mark.model

ROUNDS = 10_000
ALARM = 0.01 / 16
PROMPT = "The best thing about the sea is"
ASKED = {
    "temperature 1": {"temperature": 1.0},
    "temperature 0.6, top-p 0.9": {"temperature": 0.6, "top_p": 0.9},
}
RULES: tuple[RuleName, ...] = ("rejection", "block", "coupled")


class Memory:
    """Logits of the target (fp32) and of the draft (its int4 copy) by context, computed once."""

    def __init__(self, target: Engine, draft: Engine, prompt: Ids) -> None:
        self.engines = {"target": target, "draft": draft}
        self.prompt = prompt
        self.rows: dict[tuple[str, tuple[int, ...]], Logits] = {}

    def row(self, who: str, *more: int) -> Logits:
        """float32 [V]: the token after the prompt and `more`."""
        key = (who, more)
        if key not in self.rows:
            engine = self.engines[who]
            slot = engine.new_slot()
            ids = np.concatenate([self.prompt, np.array(more, np.int64)])
            self.rows[key] = prefill(engine, slot, ids, 0).logits[0].copy()
            engine.release(slot)
        return self.rows[key]

    def scored(self, *rows: Logits) -> Scored:
        logits = np.stack(rows)
        return Scored(logits.argmax(axis=1), logits, 0.0)


@pytest.fixture(scope="module")
def memory() -> Iterator[Memory]:
    bundle = real.bundle("smollm2-selfdraft")
    manifest = read_manifest(bundle)
    with load(bundle, speculation="off") as model:
        prompt = model.encode(PROMPT)[0]
    assert manifest.draft is not None
    target = registry.create("cpu", bundle, manifest.target, context=64)
    draft = registry.create("cpu", bundle, manifest.draft, context=64)
    yield Memory(target, draft, prompt)
    target.close()
    draft.close()


def rounds(
    memory: Memory, asked: dict[str, float], rule: RuleName, one: Callable[..., Verdict | None]
) -> Iterator[tuple[Draft, Verdict]]:
    """`one(sampler) → draft, scored` for each sample number, and what the sampler says to it."""
    params = SamplingParams(**asked, acceptance=rule)  # type: ignore[arg-type]
    scratch = Scratch()
    vocab = memory.engines["target"].spec.vocab
    for number in range(ROUNDS):
        seq = Sequence(memory.prompt, context=64, max_tokens=8)
        sampler = make_sampler(
            params, seq, vocab=vocab, end_ids=(), seed=20261130, sample=number, scratch=scratch
        )
        assert isinstance(sampler, ProcessedSampler)
        draft, scored = one(sampler)  # type: ignore[misc]
        yield draft, sampler.accept(draft, scored)


def wanted(memory: Memory, asked: dict[str, float], *more: int) -> np.ndarray:
    """The target's law, float64 [V], in the plainest way."""
    row = memory.row("target", *more).astype(np.float64) / asked["temperature"]
    p = np.exp(row - row.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    kept = int((p[order].cumsum() < asked.get("top_p", 1.0)).sum()) + 1
    if kept < len(p):
        p[order[kept:]] = 0.0
    return p / p.sum()


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
class TestLaw:
    @pytest.mark.parametrize("rule", RULES)
    def test_the_first_token_of_a_speculative_round(
        self, memory: Memory, asked: dict[str, float], rule: RuleName
    ) -> None:
        row = memory.row("target")
        q = memory.scored(memory.row("draft"))
        both = memory.scored(row, row)  # what follows an accepted token is not looked at here

        def one(sampler: ProcessedSampler) -> tuple[Draft, Scored]:
            token, law = sampler.choose(q, np.empty(0, np.int64))
            laws = None if law is None else (law,)
            return Draft(np.array([token], np.int64), "draft", 0.0, laws), both

        accepted, tokens = 0, []
        for draft, verdict in rounds(memory, asked, rule, one):
            accepted += verdict.n_accepted
            tokens.append(draft.tokens.item(0) if verdict.n_accepted else verdict.next_token)
        assert 0.3 < accepted / ROUNDS < 0.99
        assert chi_square.p_value(np.array(tokens), wanted(memory, asked)) > ALARM

    @pytest.mark.parametrize("rule", RULES)
    def test_the_second_token_after_a_first_that_was_looked_up(
        self, memory: Memory, asked: dict[str, float], rule: RuleName
    ) -> None:
        first = int(memory.row("target").argmax())
        q = memory.scored(memory.row("draft", first))
        three = memory.scored(
            memory.row("target"), memory.row("target", first), memory.row("target", first)
        )
        forced = np.array([first], np.int64)

        def one(sampler: ProcessedSampler) -> tuple[Draft, Scored]:
            token, law = sampler.choose(q, forced)
            laws = None if law is None else (Law.certain(first), law)
            return Draft(np.array([first, token], np.int64), "draft", 0.0, laws), three

        tokens = []
        for draft, verdict in rounds(memory, asked, rule, one):
            if verdict.n_accepted:
                both = verdict.n_accepted == 2
                tokens.append(draft.tokens.item(1) if both else verdict.next_token)
        assert len(tokens) > ROUNDS // 20
        assert chi_square.p_value(np.array(tokens), wanted(memory, asked, first)) > ALARM

    @pytest.mark.parametrize("rule", ["rejection", "coupled"])
    def test_a_plain_token(self, memory: Memory, asked: dict[str, float], rule: RuleName) -> None:
        alone = memory.scored(memory.row("target"))
        tokens = [
            verdict.next_token
            for _, verdict in rounds(memory, asked, rule, lambda sampler: (NO_DRAFT, alone))
        ]
        assert chi_square.p_value(np.array(tokens), wanted(memory, asked)) > ALARM


def test_a_bias_of_this_size_is_caught(memory: Memory) -> None:
    rng = np.random.default_rng(1)
    for asked in ASKED.values():
        p = wanted(memory, asked)
        biased = 0.94 * p
        biased[np.argsort(-p)[1]] += 0.06
        caught = [
            chi_square.p_value(rng.choice(len(p), ROUNDS, p=biased), p) <= ALARM for _ in range(100)
        ]
        fair = [chi_square.p_value(rng.choice(len(p), ROUNDS, p=p), p) <= ALARM for _ in range(100)]
        assert sum(caught) >= 99
        assert sum(fair) <= 1

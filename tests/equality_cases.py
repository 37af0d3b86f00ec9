"""Decoding of one prompt, with or without speculation, and how close the target's calls
were. Used by the equality tests and by bench/verify_full.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from specedge.contract import Ids, Logits
from specedge.controller import Controller
from specedge.engines import registry
from specedge.engines.base import Engine, prefill
from specedge.loop import decode
from specedge.metrics import Metrics, MetricsSummary
from specedge.proposers import DraftModelProposer, NgramProposer, Proposer
from specedge.sampling.params import SamplingParams
from specedge.sampling.sampler import make_sampler
from specedge.sequence import Sequence as TokenSequence
from specedge.speculator import Speculator
from tiny_exports import TinyExports, read_manifest
from tiny_models import FAMILIES

ProposerSet = Literal["ngram", "draft", "both"]
PROPOSER_SETS: tuple[ProposerSet, ...] = ("ngram", "draft", "both")
LENGTHS = (1, 2, 4, 7, 15)  # K
GREEDY = SamplingParams()
# What stands in a bundle beside what: "copy" drafts with the target's own weights in int4,
# "stranger" with other random weights, so that nearly every draft is refused.
PAIRS: dict[str, tuple[str, bool]] = {
    "fp32 with its int4 copy": ("fp32", False),
    "int4 with a stranger": ("int4", True),
}


CASES: dict[str, dict[str, Any]] = {
    **{family: {} for family in FAMILIES},
    "gemma3": {"tie_word_embeddings": False},
    "gemma3 that repeats itself": {},  # tied, it says one word for ever: lookups always hit
}
CONTEXT, CHUNK = 80, 24  # the prefill chunk is narrowed to have several in a short text
TINY_LENGTHS = (1, 5, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5, CONTEXT - 1, CONTEXT)


@dataclass(frozen=True)
class Run:
    """One finished request."""

    tokens: list[int]  # generated ones
    metrics: MetricsSummary


@dataclass
class Pair:
    """An open target and draft; the draft proposer lives on from prompt to prompt."""

    target: Engine
    draft: DraftModelProposer | None

    def proposers(self, which: ProposerSet) -> list[Proposer]:
        chosen: list[Proposer] = []
        if which in ("ngram", "both"):
            chosen.append(NgramProposer(2, 6))
        if which in ("draft", "both"):
            assert self.draft is not None, "this bundle has no draft"
            chosen.append(self.draft)
        return chosen


@contextmanager
def opened(bundle: Path, context: int | None = None, *, exact: bool = True) -> Iterator[Pair]:
    """The engines of a bundle, as `specedge.load` opens them."""
    manifest = read_manifest(bundle)
    target = registry.create("cpu", bundle, manifest.target, context=context, exact=exact)
    draft = None
    if manifest.draft is not None:
        rows = min(context or manifest.draft.context, manifest.draft.context)
        engine = registry.create("cpu", bundle, manifest.draft, context=rows, exact=False)
        draft = DraftModelProposer(engine)
    yield Pair(target, draft)
    target.close()
    if draft is not None:
        draft.close()


def tiny_bundle(exports: TinyExports, case: str, pair: str) -> tuple[Path, Path]:
    """Checkpoint of the target, and bundle, of one of CASES and one of PAIRS."""
    family, overrides = case.split(" ")[0], CASES[case]
    precision, stranger = PAIRS[pair]
    target = exports.checkpoint(family, **overrides)
    draft = exports.checkpoint(family, 1, **overrides) if stranger else target
    return target, exports.bundle(target, draft, precision=precision, context=CONTEXT)


def tiny_prompt(length: int, vocab: int) -> Ids:
    """Ids that mean nothing; the last fifth repeats the first, for lookups."""
    ids = np.random.default_rng(length).integers(5, vocab, length)
    again = length // 5
    if again:
        ids[-again:] = ids[:again]
    return ids


def run(
    target: Engine,
    prompt: Ids,
    k: int = 0,
    proposers: Sequence[Proposer] = (),
    max_tokens: int | None = None,
    params: SamplingParams = GREEDY,
) -> Run:
    """Decode, greedily unless `params` say otherwise; k 0 is plain decoding. `max_tokens` None
    fills the context.

    A failing proposer is an error here, never a silent return to plain decoding.
    """
    slot = target.new_slot()
    seq = TokenSequence(prompt, context=slot.context, max_tokens=max_tokens or slot.context + 1)
    speculator = Speculator(proposers, Controller(k), mode="on" if k else "off")
    metrics = Metrics()
    vocab, seed = target.spec.vocab, params.seed or 0
    sampler = make_sampler(params, seq, vocab=vocab, end_ids=(), seed=seed)
    for _ in decode(seq, target, slot, speculator, metrics, sampler=sampler):
        pass
    target.release(slot)
    return Run(seq.generated.tolist(), metrics.summary())


def first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    """Index of the first element that differs; the shorter length where there is none."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def smallest_margin(target: Engine, prompt: Ids, tokens: Sequence[int]) -> float:
    """Least distance from the best logit to the second over the positions that chose `tokens`."""
    ids = np.concatenate([prompt, np.array(tokens[:-1], np.int64)])
    slot = target.new_slot()
    first = len(prompt) - 1
    prefill(target, slot, ids[: first + 1], 0)
    least = np.inf
    for start in range(first, len(ids), 16):
        part = ids[start : start + 16]
        logits = target.forward(slot, part, start, len(part)).logits
        top = np.partition(logits, -2, axis=1)[:, -2:]
        least = min(least, float((top[:, 1] - top[:, 0]).min()))
    target.release(slot)
    return least


def noise_between_widths(target: Engine, prompt: Ids, tokens: Sequence[int]) -> float:
    """Largest difference of a logit over the positions of `tokens`, between calls of 1, 2 and 5
    tokens and those of 16."""
    ids = np.concatenate([prompt, np.array(tokens[:-1], np.int64)])
    slot = target.new_slot()
    first = len(prompt) - 1

    def scored(width: int) -> Logits:
        prefill(target, slot, ids[: first + 1], 0)
        calls = [
            target.forward(slot, ids[at : at + width], at, len(ids[at : at + width])).logits.copy()
            for at in range(first, len(ids), width)
        ]
        return np.concatenate(calls)

    wide = scored(16)
    noise = max(float(np.abs(scored(width) - wide).max()) for width in (1, 2, 5))
    target.release(slot)
    return noise

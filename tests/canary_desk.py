"""A model with a canary, on engines whose time is known and whose texts are rules."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import alphabet
from specedge.acceptance import Verdict
from specedge.bundle import Bundle
from specedge.canary.watching import Canary
from specedge.controller import Controller
from specedge.engines.fake import FakeEngine, Rule, table
from specedge.model import Model
from specedge.probe.fingerprint import take
from specedge.proposers import NgramProposer
from specedge.sampling import sampler
from specedge.speculator import Mode, Speculator
from specedge.tokenizer import Tokenizer
from timed import Clock, Cost, TimedEngine, steps
from tiny import write_bundle

TEXT = "abcdefghijklmnopqrstuvwxyzabcdefghij"  # what comes next has been said already
K = 4

# a call of K + 1 tokens against K + 1 plain steps
GAIN = steps({1: 20.0, 16: 30.0})
LOSS = steps({1: 20.0, 2: 400.0})
EVEN = steps({1: 20.0, 2: 40.0, 3: 60.0, 4: 80.0, 5: 100.0})


def spelling() -> Rule:
    """Every letter is followed by the next one, as `alphabet` says."""
    rule = alphabet()
    successors = {int(key): int(value) for key, value in rule["successors"].items()}  # type: ignore[attr-defined]
    return table(successors, int(rule["default"]))  # type: ignore[call-overload]


@dataclass
class Watched:
    """A model that compares, with what it is made of."""

    model: Model
    engine: FakeEngine
    canary: Canary
    folder: Path

    def ask(self, times: int = 1, **options: Any) -> None:
        for _ in range(times):
            self.model.generate(TEXT, **{"max_tokens": 22, **options})


def watched(
    folder: Path,
    *,
    engine: FakeEngine | None = None,
    clock: Clock | None = None,
    cost: Cost = GAIN,
    mode: Mode = "auto",
    share: float = 1.0,
    draws: random.Random | None = None,
    **given: Any,
) -> Watched:
    """Lookups draft K tokens in every round that they find any for.

    Args:
        folder: a bundle is written there unless there is one.
        engine: with a rule of its own; None: spells the alphabet, in the clock's time if given.
        given: to the engine.
    """
    if not (folder / "specedge.json").exists():
        write_bundle(folder, rule=alphabet())
    bundle = Bundle.open(folder)
    spec = bundle.manifest.target
    if engine is None and clock is None:
        engine = FakeEngine(spec, spelling(), **given)
    elif engine is None:
        assert clock is not None
        engine = TimedEngine(clock, cost, spec, spelling(), **given)
    speculator = Speculator([NgramProposer()], Controller(K), mode=mode)
    tokenizer = Tokenizer(bundle.tokenizer_json, bundle.manifest.tokenizer)
    model = Model(bundle, engine, speculator, tokenizer)
    parts = take(bundle, engine, context=spec.context)
    canary = Canary(bundle, parts, share, insists=mode == "on", draws=draws)
    model.canary = canary
    return Watched(model, engine, canary, folder)


def spoil_acceptance(patch: pytest.MonkeyPatch, token: int) -> None:
    """A fault: whole drafts stand, and this token follows each."""

    def wrong(draft: Any, ids: Any) -> Verdict:
        k = len(draft)
        return Verdict(k, token if k else int(ids[0]))

    patch.setattr(sampler, "accept_greedy_ids", wrong)


class Wobbling(FakeEngine):
    """Two tokens nearly tie everywhere; calls of two tokens or more lean to the other one.

    Args:
        margin: of `a` over `b` in calls of one token.
        shift: what wider calls add to `b`.
    """

    def __init__(
        self, *args: Any, a: int, b: int, margin: float, shift: float, **given: Any
    ) -> None:
        vocab = args[0].vocab
        logits = np.full(vocab, -5.0, dtype=np.float32)
        logits[a], logits[b] = 1.0, 1.0 - margin
        super().__init__(*args, scores=lambda tokens: logits, **given)
        self.width_noise = shift
        self._b, self._shift = b, shift

    def forward(self, slot, tokens, n_cached, rows):
        scored = super().forward(slot, tokens, n_cached, rows)
        if len(tokens) > 1:
            scored.logits[:, self._b] += np.float32(self._shift)
            scored.greedy_ids[:] = scored.logits.argmax(axis=1)
        return scored


def numbers(values: Sequence[float]) -> list[float]:
    return [round(value, 6) for value in values]

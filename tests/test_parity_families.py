"""Exported graphs, run by the engine, against transformers: every family and rotary scaling.

The target of each bundle is a tiny random checkpoint in float32, read by the folder source and
written by `build`. Tolerance: largest difference of logits within 1e-4 of the largest logit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity_cases import CASES, ids_for, relative_error, transformers_logits
from specedge.config import Config
from specedge.contract import MANIFEST, GraphSpec
from specedge.engines.base import Engine, prefill
from specedge.engines.registry import create
from specedge.export.builder import build
from tiny_models import make_checkpoint

TOLERANCE = 1e-4


@dataclass
class Exported:
    """An open engine, a text, and transformers' logits of it for the ids that were kept."""

    engine: Engine
    ids: np.ndarray  # [S]
    want: np.ndarray  # [S, V]

    def error(self, scored: np.ndarray, first_row: int) -> float:
        return relative_error(scored, self.want[first_row : first_row + len(scored)])


@contextmanager
def opened(folder: Path, context: int) -> Iterator[Engine]:
    """Export `folder`/checkpoint beside itself and open what came out."""
    config = Config.model_validate(
        {
            "name": "tiny",
            "target": {"source": str(folder / "checkpoint"), "precision": "fp32"},
            "export": {"context": context},
        }
    )
    bundle = build(config, folder / "bundle")
    spec = GraphSpec.model_validate(json.loads((bundle / MANIFEST).read_bytes())["target"])
    engine = create("cpu", bundle, spec)
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=CASES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Exported]:
    family, overrides, tokens, context = CASES[request.param]
    folder: Path = tmp_path_factory.mktemp("parity")
    model = make_checkpoint(family, folder / "checkpoint", **overrides)
    with opened(folder, context) as engine:
        ids = ids_for(tokens) % engine.spec.vocab
        yield Exported(engine, ids, transformers_logits(model, ids)[:, : engine.spec.vocab])


def test_a_whole_prompt_at_once_scores_every_row_like_transformers(exported: Exported) -> None:
    engine, ids = exported.engine, exported.ids
    slot = engine.new_slot()
    scored = engine.forward(slot, ids, 0, len(ids))
    assert exported.error(scored.logits, 0) <= TOLERANCE
    np.testing.assert_array_equal(scored.greedy_ids, scored.logits.argmax(-1))
    engine.release(slot)


@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_a_prompt_in_chunks_ends_in_the_same_logits(exported: Exported, chunk: int) -> None:
    engine, ids = exported.engine, exported.ids
    slot = engine.new_slot()
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        scored = engine.forward(slot, part, start, 1)
        assert exported.error(scored.logits, start + len(part) - 1) <= TOLERANCE
    engine.release(slot)


@pytest.mark.parametrize("width", [2, 5, 16])
def test_a_verification_over_a_past_scores_all_of_its_rows(exported: Exported, width: int) -> None:
    """Rejected rows lie past the valid ones at each call: junk must be overwritten, never seen."""
    engine, ids = exported.engine, exported.ids
    slot = engine.new_slot()
    junk = (ids + 1) % engine.spec.vocab
    n_cached = 3
    prefill(engine, slot, ids[:n_cached], 0)
    while n_cached + width <= len(ids):
        wrong = np.concatenate([ids[n_cached : n_cached + 1], junk[: width - 1]])
        engine.forward(slot, wrong, n_cached, width)
        scored = engine.forward(slot, ids[n_cached : n_cached + width], n_cached, width)
        assert exported.error(scored.logits, n_cached) <= TOLERANCE
        n_cached += 1 + width // 2
    engine.release(slot)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_the_last_row_of_the_context_scores_like_any_other(width: int, tmp_path: Path) -> None:
    model = make_checkpoint("gemma3", tmp_path / "checkpoint")
    with opened(tmp_path, context=48) as engine:
        ids = ids_for(48) % engine.spec.vocab
        want = transformers_logits(model, ids)[:, : engine.spec.vocab]
        slot = engine.new_slot()
        prefill(engine, slot, ids[:-width], 0)
        scored = engine.forward(slot, ids[-width:], len(ids) - width, width)
        assert relative_error(scored.logits, want[-width:]) <= TOLERANCE

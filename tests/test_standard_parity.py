"""Lowering "standard" run as a graph alone, against transformers and against lowering "ort".

Errors are the largest difference of logits over the largest logit. In float32, 2e-5. In float16,
FLOAT16: 30 unit roundoffs of 2^-11, for about 10 roundings in a row in each of up to 7 layers of
random weights that damp nothing. Measured at worst: 4e-6 and 9e-3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity_cases import CASES, ids_for, relative_error, transformers_logits
from raw_graph import RawGraph
from specedge.contract import GREEDY_IDS, GREEDY_LOGITS, LOGITS
from specedge.export.builder import build
from tiny_exports import config_for, read_spec
from tiny_models import make_checkpoint

FLOAT32, FLOAT16 = 2e-5, 30 * 2.0**-11
PASTS = (3, 17, 0, 11)  # of a batch; rows past them hold other tokens' keys
WIDTH = 6


@dataclass
class Case:
    """A checkpoint, a text, and transformers' logits of it for the ids that were kept."""

    folder: Path
    context: int
    ids: np.ndarray  # [S]
    want: np.ndarray  # [S, V]

    def graph(self, precision: str, lowering: str = "standard", batch: int = 1) -> RawGraph:
        bundle = self.folder / f"{lowering}-{precision}"
        if not bundle.exists():
            config = config_for(
                self.folder / "checkpoint",
                precision=precision,
                lowering=lowering,
                context=self.context,
                max_verify=8,
            )
            build(config, bundle)
        return RawGraph(bundle, read_spec(bundle), batch=batch)

    def error(self, got: dict[str, np.ndarray], first_row: int = 0) -> float:
        rows = len(got[LOGITS])
        return relative_error(got[LOGITS], self.want[first_row : first_row + rows])


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Case]:
    family, overrides, tokens, context = CASES[request.param]
    folder: Path = tmp_path_factory.mktemp("standard")
    model = make_checkpoint(family, folder / "checkpoint", **overrides)
    probe = Case(folder, context, np.empty(0), np.empty(0))
    vocab = probe.graph("fp32").spec.vocab
    ids = ids_for(tokens) % vocab
    return Case(folder, context, ids, transformers_logits(model, ids)[:, :vocab])


@pytest.mark.parametrize(("precision", "bound"), [("fp32", FLOAT32), ("fp16", FLOAT16)])
def test_a_whole_prompt_scores_every_row_like_transformers(
    case: Case, precision: str, bound: float
) -> None:
    got = case.graph(precision).forward(case.ids[None], [0])
    assert case.error(got) <= bound
    np.testing.assert_array_equal(got[GREEDY_IDS], got[LOGITS].argmax(-1))
    np.testing.assert_array_equal(got[GREEDY_LOGITS], got[LOGITS].max(-1))
    assert got[LOGITS].dtype == got[GREEDY_LOGITS].dtype == np.float32


@pytest.mark.parametrize(("precision", "bound"), [("fp32", FLOAT32), ("fp16", FLOAT16)])
def test_steps_over_a_past_see_neither_junk_nor_what_was_rejected(
    case: Case, precision: str, bound: float
) -> None:
    """Chunks of 7; at each place a wrong draft is scored first, whose rows are then overwritten."""
    graph, ids = case.graph(precision), case.ids
    for start in range(0, len(ids), 7):
        part = ids[None, start : start + 7]
        wrong = (part + 1) % graph.spec.vocab
        graph.forward(wrong, [start], [0])
        assert case.error(graph.forward(part, [start]), start) <= bound


def test_only_the_rows_asked_for_are_scored(case: Case) -> None:
    rows = [5, 0, 5]
    got = case.graph("fp32").forward(case.ids[None, :8], [0], rows)
    assert relative_error(got[LOGITS], case.want[rows]) <= FLOAT32


@pytest.mark.parametrize(("precision", "bound"), [("fp32", FLOAT32), ("fp16", FLOAT16)])
def test_a_batch_with_unequal_pasts_scores_each_sequence_like_itself(
    case: Case, precision: str, bound: float
) -> None:
    graph = case.graph(precision, batch=len(PASTS))
    longest = max(PASTS)
    batch = np.stack([(case.ids[:longest] + 1) % graph.spec.vocab] * len(PASTS))
    for row, past in zip(batch, PASTS, strict=True):
        row[:past] = case.ids[:past]
    graph.forward(batch, [0] * len(PASTS), [0])
    steps = np.stack([case.ids[past : past + WIDTH] for past in PASTS])
    logits = graph.forward(steps, PASTS)[LOGITS].reshape(len(PASTS), WIDTH, -1)
    for got, past in zip(logits, PASTS, strict=True):
        assert relative_error(got, case.want[past : past + WIDTH]) <= bound


@pytest.mark.parametrize(("precision", "bound"), [("fp32", FLOAT32), ("fp16", FLOAT16)])
def test_both_lowerings_score_alike(case: Case, precision: str, bound: float) -> None:
    standard, ort = case.graph(precision), case.graph(precision, "ort")
    cut = len(case.ids) - 5
    for part, start in ((case.ids[:cut], 0), (case.ids[cut:], cut)):
        got, want = (graph.forward(part[None], [start]) for graph in (standard, ort))
        assert relative_error(got[LOGITS], want[LOGITS]) <= 2 * bound
        assert case.error(want, start) <= bound

"""SmolLM2 on real text against transformers, which reads the same GGUF by its own code.

transformers dequantises the tensors, undoes the permutation of q and k, and runs its LlamaModel in
float32. Tolerance: largest difference of logits within 2e-5 of the largest logit; measured 2e-6.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity_cases import relative_error, transformers_logits
from specedge.bundle import Bundle
from specedge.contract import Ids, Logits
from specedge.engines import registry
from specedge.engines.base import Engine, prefill
from specedge.export.calibration import TEXT
from specedge.tokenizer import Tokenizer
from tests import real

pytestmark = pytest.mark.model

TOLERANCE = 2e-5
POSITIONS = 200


def transformers_model(path: Path) -> Any:
    """`from_pretrained(gguf_file=...)` without the library that it asks for."""
    import torch
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
    from transformers.modeling_utils import no_init_weights

    said = load_gguf_checkpoint(str(path), return_tensors=False)
    config = transformers.LlamaConfig(**said["config"])
    config._attn_implementation = "eager"
    with torch.device("meta"):
        empty = transformers.LlamaForCausalLM(config)
    read = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=empty)
    with no_init_weights():
        model = transformers.LlamaForCausalLM(config).eval().float()
    missing, unexpected = model.load_state_dict(read["tensors"], strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])  # tied
    model.tie_weights()
    return model


@pytest.fixture(scope="module")
def text(selfdraft: Path) -> Ids:
    bundle = Bundle.open(selfdraft)
    tokenizer = Tokenizer(bundle.tokenizer_json, bundle.manifest.tokenizer)
    return tokenizer.encode(TEXT)[:POSITIONS]


@pytest.fixture(scope="module")
def wanted(text: Ids) -> Logits:
    return transformers_logits(transformers_model(real.gguf()), text)


@pytest.fixture(scope="module")
def engine(selfdraft: Path) -> Iterator[Engine]:
    spec = Bundle.open(selfdraft).manifest.target
    assert spec.precision == "fp32"
    engine = registry.create("cpu", selfdraft, spec, context=POSITIONS)
    yield engine
    engine.close()


def test_a_prefill_scores_every_position_like_transformers(
    engine: Engine, text: Ids, wanted: Logits
) -> None:
    slot = engine.new_slot()
    scored = engine.forward(slot, text, 0, len(text))
    assert relative_error(scored.logits, wanted[:, : engine.spec.vocab]) <= TOLERANCE
    np.testing.assert_array_equal(scored.greedy_ids, wanted.argmax(-1))
    engine.release(slot)


@pytest.mark.parametrize("width", [1, 5, 16])
def test_steps_of_several_tokens_over_a_past_do_too(
    engine: Engine, text: Ids, wanted: Logits, width: int
) -> None:
    slot = engine.new_slot()
    start = POSITIONS - 4 * width
    prefill(engine, slot, text[:start], 0)
    for at in range(start, POSITIONS, width):
        scored = engine.forward(slot, text[at : at + width], at, width)
        assert relative_error(scored.logits, wanted[at : at + width]) <= TOLERANCE
    engine.release(slot)

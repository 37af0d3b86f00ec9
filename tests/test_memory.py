from __future__ import annotations

import pytest

from specedge.contract import GraphSpec
from specedge.errors import ConfigError, MemoryBudgetError
from specedge.memory import (
    PREFILL_CHUNK,
    activation_bytes,
    format_size,
    largest_context,
    mlp_width,
    parse_size,
    plan,
)

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCAB, MLP = 2, 32, 4, 2, 8, 100, 96


def graph(role: str = "target", **changes: object) -> GraphSpec:
    attention = HIDDEN * HEAD_DIM * (2 * HEADS + 2 * KV_HEADS)
    sizes: dict[str, object] = {
        "role": role,
        "model": f"{role}/model.onnx",
        "weights": f"{role}/weights.bin",
        "model_type": "llama",
        "lowering": "ort",
        "precision": "fp32",
        "vocab": VOCAB,
        "layers": LAYERS,
        "hidden": HIDDEN,
        "heads": HEADS,
        "kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "context": 4096,
        "max_verify": 8,
        "weight_bytes": 10_000,
        "parameters": VOCAB * HIDDEN + LAYERS * (attention + 3 * HIDDEN * MLP),
    }
    return GraphSpec.model_validate(sizes | changes)


def test_the_plan_adds_up_what_is_counted_by_hand():
    made = plan(graph(), graph("draft", layers=1), context=512, max_verify=8)
    assert made.target_kv == 2 * LAYERS * KV_HEADS * 512 * HEAD_DIM * 4
    assert made.draft_kv == made.target_kv // 2
    wide = PREFILL_CHUNK
    floats = 8 * VOCAB + 2 * wide * HIDDEN + wide * 12 * HEAD_DIM + HEADS * wide * 512
    assert activation_bytes(graph(), 512, 8) == 4 * (floats + 3 * wide * MLP)
    parts = (made.target_weights, made.target_kv, made.draft_weights, made.draft_kv)
    assert made.total == sum(parts) + made.activations


def test_the_width_of_the_mlp_is_found_from_the_parameters():
    assert mlp_width(graph()) == MLP


def test_a_draft_with_its_own_shorter_context_allocates_no_more_than_that():
    made = plan(graph(), graph("draft", context=64), context=512, max_verify=8)
    assert made.draft_kv == graph().kv_bytes(64)


def test_weights_shared_by_both_count_once():
    made = plan(graph(), graph("draft", weights="target/weights.bin"), context=64, max_verify=8)
    assert made.draft_weights == 0


def test_over_budget_proposes_the_largest_context_that_fits():
    budget = plan(graph(), graph("draft"), context=1000, max_verify=8).total
    with pytest.raises(MemoryBudgetError, match=r"largest context that fits is 960$"):
        plan(graph(), graph("draft"), context=4096, max_verify=8, budget=budget)


@pytest.mark.parametrize("context", [64, 65, 127, 128, 500, 4096])
def test_the_proposal_is_what_trying_every_step_would_find(context):
    budget = plan(graph(), None, context=context, max_verify=8).total
    tried = [
        candidate
        for candidate in [16, *range(64, 8192, 64)]
        if plan(graph(), None, context=candidate, max_verify=8).total <= budget
    ]
    found = largest_context(graph(), None, max_verify=8, budget=budget, below=8192)
    assert found == max(tried)


def test_nothing_fits_when_the_weights_alone_are_too_large():
    with pytest.raises(MemoryBudgetError, match=r"no context fits.*leave \[draft\] out"):
        plan(graph(), graph("draft"), context=4096, max_verify=8, budget=15_000)


def test_a_budget_that_is_just_enough_passes():
    total = plan(graph(), None, context=256, max_verify=8).total
    assert plan(graph(), None, context=256, max_verify=8, budget=total).budget == total
    with pytest.raises(MemoryBudgetError):
        plan(graph(), None, context=256, max_verify=8, budget=total - 1)


@pytest.mark.parametrize(
    ("text", "size"),
    [("6GiB", 6 << 30), ("2GB", 2 * 10**9), ("1.5 kib", 1536), (4096, 4096), ("77", 77)],
)
def test_sizes_are_read_in_both_unit_families(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "6 gigs", "0", "0.2B", "1e3", "nan"])
def test_what_is_not_a_size_is_refused(text):
    with pytest.raises(ConfigError, match="not a size"):
        parse_size(text)


def test_sizes_are_printed_in_binary_units():
    assert [format_size(n) for n in (12, 1536, 90 << 20, 3 << 29)] == [
        "12 B",
        "1.5 KiB",
        "90.0 MiB",
        "1.5 GiB",
    ]

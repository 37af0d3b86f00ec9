"""What a graph of lowering "standard" is made of, and the versions of it that a CPU hardly runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from parity_cases import ids_for, relative_error
from raw_graph import RawGraph
from specedge.contract import (
    CACHED_LENGTHS,
    INPUT_IDS,
    LOGIT_ROWS,
    LOGITS,
    GraphSpec,
    past,
    tap,
)
from specedge.engines.ort import open_engine
from specedge.errors import ExportError
from specedge.export import families
from specedge.export.builder import build
from specedge.export.reference import Reference
from tiny_exports import TinyExports, config_for, quick_rounding, read_manifest, read_spec
from tiny_models import ArrayTensors, read_config

CONTEXT = 64
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "phi3", "gemma3")


def exported(
    tiny_exports: TinyExports, family: str, precision: str, **given: Any
) -> tuple[Path, GraphSpec]:
    given = {"lowering": "standard", "context": CONTEXT, "rounding": "mse", **given}
    bundle = tiny_exports.bundle(tiny_exports.checkpoint(family), precision=precision, **given)
    return bundle, read_spec(bundle)


def reference(tiny_exports: TinyExports, family: str) -> Reference:
    checkpoint = tiny_exports.checkpoint(family)
    spec = families.describe(read_config(checkpoint), CONTEXT)
    return Reference.from_checkpoint(spec, ArrayTensors.from_folder(checkpoint))


def loaded(bundle: Path, spec: GraphSpec) -> onnx.ModelProto:
    return onnx.load(str(bundle / spec.model), load_external_data=False)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int4", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_graph_holds_standard_operators_and_reads_all_of_its_inputs(
    tiny_exports: TinyExports, family: str, precision: str
) -> None:
    model = loaded(*exported(tiny_exports, family, precision))
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 24)]
    assert {node.domain for node in model.graph.node} == {""}
    read = {name for node in model.graph.node for name in node.input}
    assert {value.name for value in model.graph.input} <= read
    assert {tensor.name for tensor in model.graph.initializer} <= read
    names = [node.name for node in model.graph.node]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_told_its_lengths_by_a_mask_that_comes_from_them(
    tiny_exports: TinyExports, family: str
) -> None:
    model = loaded(*exported(tiny_exports, family, "fp16"))
    producers = {name: node for node in model.graph.node for name in node.output}

    def sources(name: str) -> set[str]:
        if name not in producers:
            return {name}
        return set().union(*(sources(n) for n in producers[name].input))

    attentions = [node for node in model.graph.node if node.op_type == "Attention"]
    spec = reference(tiny_exports, family).spec
    assert len(attentions) == len(spec.layers)
    masks: dict[int | None, set[str]] = {}
    for node, layer in zip(attentions, spec.layers, strict=True):
        _, keys, values, mask = node.input
        assert {a.name for a in node.attribute} == {"scale"}
        assert sources(mask) >= {CACHED_LENGTHS, INPUT_IDS, past(0, "key")}
        for name in (keys, values):
            scatter = producers[name]
            assert scatter.op_type == "TensorScatter"
            assert scatter.input[0] in {value.name for value in model.graph.input}
            assert name in {value.name for value in model.graph.output}
            assert sources(scatter.input[2]) == {CACHED_LENGTHS}
        masks.setdefault(layer.window, set()).add(mask)
    assert all(len(shared) == 1 for shared in masks.values()), "layers of a window share its mask"


@pytest.mark.parametrize("lowering", ["standard", "ort"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_taps_are_what_each_layer_takes_and_what_the_last_one_gives(
    tiny_exports: TinyExports, precision: str, lowering: str
) -> None:
    taps, bound = (0, 1, 3), 1e-5 if precision == "fp32" else 1e-2
    checkpoint = tiny_exports.checkpoint("mistral")
    bundle = tiny_exports.bundle(
        checkpoint, precision=precision, lowering=lowering, context=CONTEXT, hidden_taps=list(taps)
    )
    spec = read_spec(bundle)
    assert tuple(spec.taps) == taps
    ids = (ids_for(10) % spec.vocab)[None]
    got = RawGraph(bundle, spec).forward(ids, [0])
    oracle = reference(tiny_exports, "mistral")
    hidden = oracle.embed(ids[0])
    for layer in oracle.spec.layers:
        if layer.index in taps:
            assert relative_error(got[tap(layer.index)][0], hidden) <= bound
        hidden = oracle.block(layer, hidden)
    assert relative_error(got[tap(len(oracle.spec.layers))][0], hidden) <= bound
    assert tap(2) not in got
    assert str(got[tap(1)].dtype) == spec.kv_dtype


@pytest.mark.parametrize("lowering", ["standard", "ort"])
def test_an_engine_runs_a_tapped_graph_as_any_other(
    tiny_exports: TinyExports, lowering: Any
) -> None:
    checkpoint = tiny_exports.checkpoint("mistral")
    scored = []
    for taps in ([], [0, 1, 3]):
        bundle = tiny_exports.bundle(
            checkpoint, precision="fp32", lowering=lowering, context=CONTEXT, hidden_taps=taps
        )
        engine = open_engine(bundle, read_spec(bundle))
        ids = ids_for(8) % engine.spec.vocab
        scored.append(engine.forward(engine.new_slot(), ids, 0, 8).logits.copy())
        engine.close()
    np.testing.assert_array_equal(*scored)


def test_a_tap_past_the_last_layer_is_refused(tiny_exports: TinyExports, tmp_path: Path) -> None:
    config = config_for(tiny_exports.checkpoint("mistral"), hidden_taps=[4], context=CONTEXT)
    with pytest.raises(ExportError, match=r"hidden_taps: 4, but the target has 3 layers"):
        build(config, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_bfloat16_is_within_its_own_rounding_of_float32(tiny_exports: TinyExports) -> None:
    """By onnx's reference evaluator: ONNX Runtime's CPU multiplies no bfloat16.

    30 unit roundoffs of 2^-8, as float16 has 30 of 2^-11 in test_standard_parity.
    """
    bundle, spec = exported(tiny_exports, "llama", "bf16")
    ids = ids_for(12) % spec.vocab
    evaluator = ReferenceEvaluator(str(bundle / spec.model))
    shape = (1, spec.kv_heads, 16, spec.head_dim)
    feed: dict[str, Any] = {
        past(layer, part): np.zeros(shape, ml_dtypes.bfloat16)
        for layer in range(spec.layers)
        for part in ("key", "value")
    }
    feed[INPUT_IDS], feed[LOGIT_ROWS] = ids[None], np.arange(len(ids))
    feed[CACHED_LENGTHS] = np.zeros(1, np.int32)
    logits = evaluator.run([LOGITS], feed)[0]
    assert logits.dtype == np.float32
    want = reference(tiny_exports, "llama").forward(ids, spec.vocab)
    assert 1e-3 < relative_error(logits, want) <= 30 * 2.0**-8


@pytest.mark.parametrize("precision", ["int4", "int8"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_float16_states_change_lowering_ort_by_what_float16_costs(
    tiny_exports: TinyExports, family: str, precision: str
) -> None:
    """The same codes with float32 states are the oracle; both multiply int8 by int8 inside, whose
    own rounding of states (accuracy level 4) amplifies the difference; measured 0.045 at worst."""
    graphs = []
    for activations in ("fp32", "fp16"):
        given = {"lowering": "ort", "activations": activations}
        bundle, spec = exported(tiny_exports, family, precision, **given)
        graphs.append(RawGraph(bundle, spec))
    ids = ids_for(20) % graphs[0].spec.vocab
    want, got = (graph.forward(ids[None], [0])[LOGITS] for graph in graphs)
    assert graphs[1].spec.kv_dtype == "float16"
    assert relative_error(got, want) <= 0.1


@pytest.mark.parametrize("precision", ["fp16", "int4"])
def test_a_draft_of_the_same_weights_shares_the_targets_files(
    tiny_exports: TinyExports, tmp_path: Path, precision: str
) -> None:
    checkpoint = tiny_exports.checkpoint("llama")
    config = config_for(
        checkpoint,
        checkpoint,
        precision=precision,
        draft_precision=precision,
        lowering="standard",
        context=CONTEXT,
        rounding="mse",
    )
    with quick_rounding():
        manifest = read_manifest(build(config, tmp_path / "out"))
    assert manifest.draft is not None
    assert (manifest.draft.model, manifest.draft.weights) == (
        "target/model.onnx",
        "target/weights.bin",
    )
    assert manifest.draft.kv_dtype == manifest.target.kv_dtype == "float16"
    assert not (tmp_path / "out" / "draft").exists()

"""One-layer graphs of contract 1 made by hand, sound or with one flaw that a parser lets pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from specedge.contract import GraphSpec, past, present

HEADS, WIDTH, VOCAB = 2, 16, 32
FLAWS = {
    "lengths as nonpad_kv_seqlen": "has no mask",
    "causal from the upper left": "has no mask",
    "a mask without lengths": "does not depend on cached_lengths",
    "a mask by the shape of lengths": "does not depend on cached_lengths",
    "an input that nothing reads": "inputs that differ: total_length",
    "a cache written at its start": "does not depend on cached_lengths",
    "a rotation by the step alone": "does not depend on cached_lengths",
    "a cache behind a copy": "not past.0.key updated in place",
    "an operator it lacks": "Multinomial: not supported",
    "no greedy ids": "no output greedy_ids",
    "no greedy logits": "no output greedy_logits",
    "an output more": "outputs that the manifest does not know: y",
}


def spec(context: int, **changes: Any) -> GraphSpec:
    said = {
        "role": "target",
        "model": "target/model.onnx",
        "weights": "target/weights.bin",
        "model_type": "llama",
        "lowering": "standard",
        "precision": "fp16",
        "vocab": VOCAB,
        "layers": 1,
        "hidden": HEADS * WIDTH,
        "heads": HEADS,
        "kv_heads": HEADS,
        "head_dim": WIDTH,
        "kv_dtype": "float16",
        "context": context,
        "max_verify": 8,
        "weight_bytes": 4,
        "parameters": 1,
    }
    return GraphSpec.model_validate(said | changes)


def write_graph(path: Path, flaw: str | None = None) -> None:
    """Weights are inside the file; `flaw` is a key of FLAWS."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(graph(flaw).SerializeToString())


def graph(flaw: str | None = None) -> onnx.ModelProto:
    half = TensorProto.FLOAT16
    constants: dict[str, Any] = {
        "zero": np.int64(0),
        "one": np.int64(1),
        "axis1": np.array([1]),
        "axes13": np.array([1, 3]),
        "heads": np.array([0, 0, HEADS, WIDTH]),
        "flat": np.array([-1, HEADS * WIDTH]),
        "table": np.random.default_rng(0)
        .standard_normal((VOCAB, HEADS * WIDTH))
        .astype(np.float16),
    }
    kv = ["B", HEADS, "T", WIDTH]
    caches = [(past(0, part), present(0, part)) for part in ("key", "value")]
    nodes = [
        _node("Cast", ["cached_lengths"], "starts", to=TensorProto.INT64),
        _node("Gather", ["table", "input_ids"], "hidden"),
        _node("Reshape", ["hidden", "heads"], "by_head"),
        _node("Transpose", ["by_head"], "query", perm=[0, 2, 1, 3]),
        _node("Shape", ["input_ids"], "width", start=1, end=2),
        _node("Squeeze", ["width"], "S"),
        _node("Shape", [past(0, "key")], "rows", start=2, end=3),
        _node("Squeeze", ["rows"], "T"),
        _node("Range", ["zero", "S", "one"], "steps"),
        _node("Range", ["zero", "T", "one"], "keys"),
        _node("Unsqueeze", ["starts", "axis1"], "column"),
        _node("Add", ["column", "steps"], "positions"),
        _node("Unsqueeze", ["positions", "axes13"], "queries"),
        _node("LessOrEqual", ["keys", "queries"], "mask"),
    ]
    for old, new in caches:
        source = old
        if flaw == "a cache behind a copy" and old == past(0, "key"):
            source = "copied"
            nodes.append(_node("Mul", [old, "factor"], "copied"))
            constants["factor"] = np.float16(1)
        inputs = [source, "query", "starts"]
        if flaw == "a cache written at its start":
            inputs.pop()
        nodes.append(_node("TensorScatter", inputs, new, axis=-2, mode="linear"))
    mask = ["mask"]
    options: dict[str, Any] = {}
    if flaw == "lengths as nonpad_kv_seqlen":
        mask = ["", "", "", "starts"]
    elif flaw == "causal from the upper left":
        mask, options = [], {"is_causal": 1}
    elif flaw == "a mask without lengths":
        nodes.append(_node("Unsqueeze", ["steps", "axis1"], "steps_column"))
        nodes.append(_node("LessOrEqual", ["keys", "steps_column"], "blind"))
        mask = ["blind"]
    elif flaw == "a mask by the shape of lengths":
        nodes.append(_node("Shape", ["starts"], "batch", start=0, end=1))
        nodes.append(_node("Add", ["steps", "batch"], "shifted"))
        nodes.append(_node("Unsqueeze", ["shifted", "axis1"], "steps_column"))
        nodes.append(_node("LessOrEqual", ["keys", "steps_column"], "blind"))
        mask = ["blind"]
    query = "query"
    if flaw == "a rotation by the step alone":
        query = "turned"
        constants["zero_row"] = np.array([0])
        constants |= dict.fromkeys(("cos", "sin"), np.ones((VOCAB, WIDTH // 2), np.float16))
        nodes.append(_node("Unsqueeze", ["steps", "zero_row"], "turns"))
        nodes.append(_node("RotaryEmbedding", ["query", "cos", "sin", "turns"], query))
    nodes += [
        _node("Attention", [query, present(0, "key"), present(0, "value"), *mask], "y", **options),
        _node("Transpose", ["y"], "by_row", perm=[0, 2, 1, 3]),
        _node("Reshape", ["by_row", "flat"], "attended"),
        _node("Gather", ["attended", "logit_rows"], "scored", axis=0),
        _node("Transpose", ["table"], "head", perm=[1, 0]),
        _node("MatMul", ["scored", "head"], "scores"),
        _node("Cast", ["scores"], "logits", to=TensorProto.FLOAT),
        _node("ReduceMax", ["logits", "axis1"], "greedy_logits", keepdims=0),
    ]
    if flaw == "an operator it lacks":
        nodes.append(_node("Multinomial", ["logits"], "drawn", dtype=TensorProto.INT64))
        nodes.append(_node("Squeeze", ["drawn", "axis1"], "greedy_ids"))
    else:
        nodes.append(_node("ArgMax", ["logits"], "greedy_ids", axis=-1, keepdims=0))
    inputs = [
        _value("input_ids", TensorProto.INT64, ["B", "S"]),
        _value("cached_lengths", TensorProto.INT32, ["B"]),
        _value("logit_rows", TensorProto.INT64, ["M"]),
        *(_value(old, half, kv) for old, _ in caches),
    ]
    if flaw == "an input that nothing reads":
        inputs.append(_value("total_length", TensorProto.INT32, []))
    outputs = [
        _value("logits", TensorProto.FLOAT, ["M", VOCAB]),
        _value("greedy_ids", TensorProto.INT64, ["M"]),
        _value("greedy_logits", TensorProto.FLOAT, ["M"]),
        *(_value(new, half, kv) for _, new in caches),
    ]
    if flaw in ("no greedy ids", "no greedy logits"):
        outputs = [output for output in outputs if output.name != flaw[3:].replace(" ", "_")]
    if flaw == "an output more":
        outputs.append(_value("y", half, ["B", HEADS, "S", WIDTH]))
    initializers = [
        numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()
    ]
    made = helper.make_graph(nodes, "hand-made", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 24)]
    return helper.make_model(made, opset_imports=opsets, ir_version=11)


def _node(kind: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [output], **attributes)


def _value(name: str, element: int, shape: list[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)

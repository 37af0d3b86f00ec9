"""A hand-made graph of contract concat, and what it computes, in plain numpy.

A row's logits are the sum of the values of all rows up to its own, turned through a head:

    key, value = tables[id]                                       [H, D] each
    logits[i]  = sum(value[j] + place[j] for j <= i) @ head       V'

so a row too many, a row too few, or one at a wrong position changes them. Values are small whole
numbers: sums are exact whatever their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specedge.contract import GraphSpec, Ids, Logits

V, COLUMNS, H, D, CONTEXT = 11, 14, 2, 3, 64


@dataclass
class Toy:
    """Sizes and weights.

    Args:
        rows_axis: of the KV tensors: 2 as most exporters write, or 1.
        positions, mask: whether the graph has that input.
    """

    rows_axis: int = 2
    positions: bool = True
    mask: bool = True

    def __post_init__(self) -> None:
        rng = np.random.default_rng(5)

        def whole(*shape: int) -> Any:
            return rng.integers(-8, 9, shape).astype(np.float32)

        self.values, self.places = whole(V, H * D), whole(CONTEXT, H * D)
        self.head = whole(H * D, COLUMNS)
        self.head[:, V:] = 50 * self.head[:, :1]  # the padded tail would often be the best

    def logits(self, ids: Ids) -> Logits:
        """float32 [n, V] of a whole text."""
        rows = self.values[ids]
        if self.positions:
            rows = rows + self.places[: len(ids)]
        return (np.cumsum(rows, axis=0) @ self.head)[:, :V]

    def write(self, folder: Path, extra: str | None = None) -> GraphSpec:
        """model.onnx under `folder`/target; `extra` is the name of one more input."""
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        node, info = helper.make_node, helper.make_tensor_value_info
        to_kv = [0, 2, 1, 3] if self.rows_axis == 2 else [0, 1, 2, 3]
        nodes = [node("Gather", ["values", "input_ids"], ["rows_of_ids"], axis=0)]
        if self.positions:
            nodes += [
                node("Gather", ["places", "position_ids"], ["rows_of_places"], axis=0),
                node("Add", ["rows_of_ids", "rows_of_places"], ["rows"]),
            ]
        else:
            nodes.append(node("Identity", ["rows_of_ids"], ["rows"]))
        nodes += [
            node("Reshape", ["rows", "heads"], ["split"]),
            node("Transpose", ["split"], ["new"], perm=to_kv),
        ]
        for part in ("key", "value"):
            names = [f"past_key_values.0.{part}", "new"]
            nodes.append(node("Concat", names, [f"present.0.{part}"], axis=self.rows_axis))
        nodes += [
            node("Transpose", ["present.0.value"], ["merged"], perm=to_kv),
            node("Reshape", ["merged", "flat"], ["all_rows"]),
        ]
        if self.mask:
            nodes += [
                node("Cast", ["attention_mask"], ["seen"], to=TensorProto.FLOAT),
                node("Unsqueeze", ["seen", "last"], ["seen_rows"]),
                node("Mul", ["all_rows", "seen_rows"], ["kept"]),
            ]
        else:
            nodes.append(node("Identity", ["all_rows"], ["kept"]))
        nodes += [
            node("CumSum", ["kept", "one"], ["sums"]),
            node("Shape", ["input_ids"], ["width"], start=1, end=2),
            node("Neg", ["width"], ["first"]),
            node("Slice", ["sums", "first", "end", "rows_at"], ["scored"]),
            node("MatMul", ["scored", "head"], ["logits"]),
        ]
        constants = {
            "values": self.values,
            "places": self.places,
            "head": self.head,
            "heads": np.array([0, 0, H, D], np.int64),
            "flat": np.array([0, 0, H * D], np.int64),
            "last": np.array([-1], np.int64),
            "one": np.array(1, np.int64),
            "end": np.array([1 << 30], np.int64),
            "rows_at": np.array([1], np.int64),
        }
        integer, real = TensorProto.INT64, TensorProto.FLOAT
        inputs = [info("input_ids", integer, ["batch_size", "sequence_length"])]
        if self.mask:
            inputs.append(info("attention_mask", integer, ["batch_size", "past + sequence"]))
        if self.positions:
            inputs.append(info("position_ids", integer, ["batch_size", "sequence_length"]))
        if extra is not None:
            inputs.append(info(extra, TensorProto.BOOL, [1]))
        for part in ("key", "value"):
            shape = self.kv_shape("past_sequence_length")
            inputs.append(info(f"past_key_values.0.{part}", real, shape))
        outputs = [info("logits", real, ["batch_size", "sequence_length", COLUMNS])]
        for part in ("key", "value"):
            outputs.append(info(f"present.0.{part}", real, self.kv_shape("past + sequence")))
        graph = helper.make_graph(
            nodes,
            "toy",
            inputs,
            outputs,
            [numpy_helper.from_array(array, name) for name, array in constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        (folder / "target").mkdir(parents=True, exist_ok=True)
        onnx.save(model, folder / "target" / "model.onnx")
        return self.spec()

    def kv_shape(self, rows: str) -> list[Any]:
        shape: list[Any] = ["batch_size", H, D]
        shape.insert(self.rows_axis, rows)
        return shape

    def spec(self, **changes: Any) -> GraphSpec:
        said = {
            "role": "target",
            "model": "target/model.onnx",
            "weights": "target/weights.bin",
            "model_type": "toy",
            "lowering": "concat",
            "precision": "fp32",
            "vocab": V,
            "layers": 1,
            "hidden": H * D,
            "heads": H,
            "kv_heads": H,
            "head_dim": D,
            "context": CONTEXT,
            "max_verify": 8,
            "weight_bytes": 0,
            "parameters": 1000,
        }
        return GraphSpec.model_validate(said | changes)

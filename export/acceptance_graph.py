"""Writes the weightless `accept` graph of a bundle; `specedge.acceptance.device` says what it does.

Operators of the ONNX standard that ONNX Runtime and TensorRT take alike: no float64, no top-k, no
scatter. A running sum over the vocabulary is two short ones, over blocks and inside one, because
runtimes sum a long axis slowly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from specedge.acceptance import device

OPSET = 18
BLOCK = 256
_IR = 10  # the oldest that knows this opset's types; older runtimes read it
_LOW = 29  # bits of the lower part of a sum, see `_share`


def write(folder: Path, vocab: int) -> str:
    """Write the graph for V ids below `folder`; returns its path in there.

    Raises:
        OSError: it cannot be written.
    """
    path = folder / device.MODEL
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(build(vocab).SerializeToString(deterministic=True))
    return device.MODEL


def build(vocab: int) -> onnx.ModelProto:
    """The graph; M and R are symbolic."""
    g = _Nodes()
    one = float(1 << device.weight_bits(vocab))
    fixed_one = g.constant([one], np.float32)
    zero, axis = g.ints(0), g.ints(1)
    columns = [
        g.add("Gather", device.PLAN, g.constant(i, np.int64), axis=1) for i in range(device.COLUMNS)
    ]
    draft, q_row, bar_high, bar_low, next_high, next_low = columns
    scale, certain = (g.add("Gather", device.LAW, g.ints(i)) for i in range(2))

    # float32 [M, V]: the target's weights and the draft's; then int64 [M], their sums
    top = g.add("ReduceMax", device.LOGITS, axis, keepdims=1)
    p = g.add("Exp", g.add("Mul", g.add("Sub", device.LOGITS, top), scale))
    q = g.add("Gather", device.Q, q_row, axis=0)
    p_sum = g.add("ReduceSum", g.fixed(p, fixed_one), axis, keepdims=0)
    q_sum = g.add("ReduceSum", g.fixed(q, fixed_one), axis, keepdims=0)
    p_total = g.add("Div", g.cast(p_sum, TensorProto.FLOAT), fixed_one)
    q_total = g.add("Add", g.add("Div", g.cast(q_sum, TensorProto.FLOAT), fixed_one), certain)

    # [M]: the threshold of each drafted token, and whether its draw is below; the bonus never is
    drafted = g.add("Not", g.add("Less", draft, zero))
    place = g.add("Unsqueeze", g.add("Max", draft, zero), axis)
    mine = g.add("Squeeze", g.add("GatherElements", p, place, axis=1), axis)
    its = g.add("Add", g.add("Squeeze", g.add("GatherElements", q, place, axis=1), axis), certain)
    none = g.constant([0], np.float32)
    possible = g.add("And", drafted, g.add("Greater", its, none))
    safe = g.add("Where", possible, its, g.constant([1], np.float32))
    ratio = g.add("Div", g.add("Mul", mine, q_total), g.add("Mul", safe, p_total))
    height = g.add("Where", possible, g.add("Min", ratio, g.constant([1], np.float32)), none)
    bits = 2 * device.WORD - 12  # of a draw, as finely as float32 thresholds ask for and more
    bar = g.add(
        "Add",
        g.add("Mul", bar_high, g.ints(1 << bits - device.WORD)),
        g.add("Div", bar_low, g.ints(1 << 2 * device.WORD - bits)),
    )
    fails = g.add("Not", g.add("Less", bar, g.fixed(height, g.constant([1 << bits], np.float32))))
    so_far = g.add("CumSum", g.cast(fails, TensorProto.INT64), g.constant(0, np.int64))
    stands = g.cast(g.add("Equal", so_far, zero), TensorProto.INT64)
    n = g.add("ReduceSum", stands, zero, keepdims=1)

    # float32 [1, V]: what is left of the target's law in row n; in the bonus' row q is 0
    row_p, row_q = (g.add("Gather", rows, n, axis=0) for rows in (p, q))
    token = g.add("Gather", draft, n, axis=0)
    limits = (g.constant(i, np.int64) for i in (0, vocab, 1))
    ids = g.add("Unsqueeze", g.add("Range", *limits), zero)
    hit = g.add("Where", g.add("Equal", ids, g.add("Unsqueeze", token, axis)), certain, none)
    share = g.add("Div", *(g.add("Gather", sums, n, axis=0) for sums in (q_total, p_total)))
    left = g.add("Sub", g.add("Sub", g.add("Mul", row_p, share), row_q), hit)
    left = g.add("Max", left, none)
    most = g.add("ReduceMax", left, axis, keepdims=1)
    some = g.add("Greater", most, none)
    # p and q equal up to rounding, and yet a token was refused: p is as good
    scaled = g.add("Div", left, g.add("Where", some, most, g.constant([1], np.float32)))
    chosen = g.add("Where", some, scaled, row_p)

    drawn = g.draw(
        g.fixed(chosen, fixed_one),
        vocab,
        g.add("Gather", next_high, n, axis=0),
        g.add("Gather", next_low, n, axis=0),
    )
    g.nodes.append(helper.make_node("Concat", [n, drawn], [device.VERDICT], axis=0))
    return _model(g, vocab)


class _Nodes:
    """Nodes in order, and the constants they read."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name, **attributes))
        return name

    def constant(self, values: Any, kind: type) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(np.array(values, kind), name)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def cast(self, name: str, to: int) -> str:
        return self.add("Cast", name, to=to)

    def fixed(self, weights: str, one: str) -> str:
        """int64: weights in units of 1 / `one`, rounded down."""
        return self.cast(self.add("Mul", weights, one), TensorProto.INT64)

    def draw(self, weights: str, vocab: int, high: str, low: str) -> str:
        """int64 [1]: the id at a draw (two words, [1] each) of the running sum of int64 [1, V]."""
        blocks = -(-vocab // BLOCK)
        padding = blocks * BLOCK - vocab
        if padding:
            nothing = self.constant(np.zeros((1, padding)), np.int64)
            weights = self.add("Concat", weights, nothing, axis=1)
        weights = self.add("Reshape", weights, self.ints(blocks, BLOCK))
        sums = self.add("ReduceSum", weights, self.ints(1), keepdims=0)
        ends = self.add("CumSum", sums, self.constant(0, np.int64))
        total = self.add("Gather", ends, self.ints(blocks - 1), axis=0)
        wanted = self._share(total, high, low)
        block = self._passed(ends, wanted)
        begin = self.add("Sub", *(self.add("Gather", x, block, axis=0) for x in (ends, sums)))
        inside = self.add("Gather", weights, block, axis=0)
        inside = self.add("CumSum", inside, self.constant(1, np.int64))
        place = self._passed(
            self.add("Squeeze", inside, self.ints(0)), self.add("Sub", wanted, begin)
        )
        return self.add("Add", self.add("Mul", block, self.ints(BLOCK)), place)

    def _passed(self, ends: str, wanted: str) -> str:
        """int64 [1]: how many of the rising int64 [n] are not above `wanted`."""
        behind = self.add("Not", self.add("Greater", ends, wanted))
        return self.add("ReduceSum", self.cast(behind, TensorProto.INT64), self.ints(0), keepdims=1)

    def _share(self, total: str, high: str, low: str) -> str:
        """total * draw, at most 10 below it, of 2^40; products of parts, none over 2^58.

        The product of both lower parts is left out: it is below 8.
        """
        word = device.WORD
        upper = self.add("Div", total, self.ints(1 << _LOW))
        lower = self.add("Sub", total, self.add("Mul", upper, self.ints(1 << _LOW)))
        parts = (
            self.add("Mul", self.add("Mul", high, upper), self.ints(1 << _LOW - word)),
            self.add("Div", self.add("Mul", high, lower), self.ints(1 << word)),
            self.add("Div", self.add("Mul", low, upper), self.ints(1 << 2 * word - _LOW)),
        )
        return self.add("Add", self.add("Add", parts[0], parts[1]), parts[2])


def _model(g: _Nodes, vocab: int) -> onnx.ModelProto:
    def value(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    inputs = [
        value(device.LOGITS, TensorProto.FLOAT, "M", vocab),
        value(device.Q, TensorProto.FLOAT, "R", vocab),
        value(device.PLAN, TensorProto.INT64, "M", device.COLUMNS),
        value(device.LAW, TensorProto.FLOAT, 2),
    ]
    outputs = [value(device.VERDICT, TensorProto.INT64, 2)]
    graph = helper.make_graph(g.nodes, "accept", inputs, outputs, list(g.constants.values()))
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR, producer_name="specedge")
    onnx.checker.check_model(model, full_check=True)
    return model

"""The weightless `accept` graph, for `acceptance.py` to compare with: rejection in plain ONNX.

Inputs: logits float32 [K + 1, V]; scale float32 [1], 1 / temperature; draft int64 [K]; accept
float64 [K], draws; next float64 [K + 1], the residuals' draws and the bonus'; and what the draft
was drawn from: draft_logits float32 [K, V], or its probabilities q float32 [K, V], with top-k
[K, k] beside their ids q_ids int64 [K, k], rising.
Outputs: n_accepted int64 [1], token int64 [1, 1].

Sums are float64: a float32 CumSum over a vocabulary loses the tail.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from acceptance_means import Means, Ours, Setting, round_draws
from onnx import TensorProto, helper, numpy_helper

from specedge.acceptance import Verdict
from specedge.engines.base import Scored

ELEMENT = {
    "logits": np.float32,
    "scale": np.float32,
    "draft": np.int64,
    "accept": np.float64,
    "next": np.float64,
    "draft_logits": np.float32,
    "q": np.float32,
    "q_ids": np.int64,
}


class _Nodes:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"{kind}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, values: Any, kind: type) -> str:
        array: np.ndarray[Any, Any] = np.array(values, kind)
        name = f"constant_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def cast(self, name: str, to: int) -> str:
        return str(self.add("Cast", name, to=to))

    def softmax(self, logits: str) -> str:
        return str(self.add("Softmax", self.add("Mul", logits, "scale"), axis=-1))

    def top(self, logits: str, top_k: int) -> tuple[str, str]:
        """Ids, rising, and probabilities of the largest."""
        k = self.ints(top_k)
        values, found = self.add("TopK", logits, k, outputs=2, sorted=0)
        ids, places = self.add("TopK", found, k, outputs=2, largest=0, sorted=1)
        return ids, self.softmax(self.add("GatherElements", values, places, axis=1))


def build(k: int, vocab: int, top_k: int, draft_logits: bool) -> onnx.ModelProto:
    """The graph for a fixed K; `top_k` 0: the whole vocabulary."""
    g, width = _Nodes(), top_k or vocab
    ids = q_ids = ""
    if top_k:
        ids, p = g.top("logits", top_k)
        q_ids, q = g.top("draft_logits", top_k) if draft_logits else ("q_ids", "q")
    else:
        p, q = g.softmax("logits"), g.softmax("draft_logits") if draft_logits else "q"
    column = g.add("Unsqueeze", "draft", g.ints(1))
    at = g.add("Concat", g.constant([[i] for i in range(k)], np.int64), column, axis=1)
    nothing = g.constant(0, np.float32) if top_k else ""

    def of_drafted(law: str, law_ids: str) -> Any:
        """float64 [K]: probability of each drafted token."""
        if not top_k:
            return g.cast(g.add("GatherND", law, at), TensorProto.DOUBLE)
        same = g.add("Where", g.add("Equal", law_ids, column), law, nothing)
        return g.cast(g.add("ReduceSum", same, g.ints(1), keepdims=0), TensorProto.DOUBLE)

    own = p, ids
    if top_k:  # the row of the bonus has no drafted token
        rows = g.ints(0), g.ints(k), g.ints(0)
        own = g.add("Slice", p, *rows), g.add("Slice", ids, *rows)
    bar = g.add("Mul", "accept", of_drafted(q, q_ids))
    fails = g.add("Not", g.add("Less", bar, of_drafted(*own)))
    so_far = g.add("CumSum", g.cast(fails, TensorProto.INT64), g.constant(0, np.int64))
    stands = g.cast(g.add("Equal", so_far, g.ints(0)), TensorProto.INT64)
    n = g.add("ReduceSum", stands, g.ints(0), keepdims=1)

    place = g.add("Min", n, g.ints(k - 1))
    refused = g.cast(g.add("Less", n, g.ints(k)), TensorProto.FLOAT)
    its = g.add("Mul", g.add("Gather", q, place, axis=0), refused)
    mine = g.add("Gather", p, n, axis=0)
    if top_k:
        left_ids = g.add("Gather", ids, n, axis=0)
        right_ids = g.add("Gather", q_ids, place, axis=0)
        one = g.add("Unsqueeze", left_ids, g.ints(2))
        other = g.add("Unsqueeze", right_ids, g.ints(1))
        spread = g.add("Unsqueeze", its, g.ints(1))
        shared = g.add("Where", g.add("Equal", one, other), spread, nothing)
        its = g.add("ReduceSum", shared, g.ints(2), keepdims=0)
    left = g.add("Relu", g.add("Sub", mine, its))
    sums = g.add("CumSum", g.cast(left, TensorProto.DOUBLE), g.constant(1, np.int64))
    total = g.add("Slice", sums, g.ints(width - 1), g.ints(width), g.ints(1))
    wanted = g.add("Mul", total, g.add("Gather", "next", n, axis=0))
    behind = g.cast(g.add("LessOrEqual", sums, wanted), TensorProto.INT32)
    token = g.cast(g.add("ReduceSum", behind, g.ints(1), keepdims=1), TensorProto.INT64)
    token = g.add("Min", token, g.ints(width - 1))
    if top_k:
        token = g.add("GatherElements", left_ids, token, axis=1)
    g.nodes.append(helper.make_node("Identity", [n], ["n_accepted"]))
    g.nodes.append(helper.make_node("Identity", [token], ["token"]))

    sizes: dict[str, list[int]] = {"logits": [k + 1, vocab], "scale": [1]}
    sizes |= {"draft": [k], "accept": [k], "next": [k + 1]}
    sizes |= {"draft_logits": [k, vocab]} if draft_logits else {"q": [k, width]}
    if top_k and not draft_logits:
        sizes["q_ids"] = [k, width]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape)
        for name, shape in sizes.items()
        for kind in [ELEMENT[name]]
    ]
    outputs = [
        helper.make_tensor_value_info("n_accepted", TensorProto.INT64, [1]),
        helper.make_tensor_value_info("token", TensorProto.INT64, [1, 1]),
    ]
    graph = helper.make_graph(g.nodes, "accept", inputs, outputs, list(g.constants.values()))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


class AcceptGraph:
    """A session over memory that is bound where it lies."""

    def __init__(self, model: onnx.ModelProto, threads: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        # As engines that take turns: idle threads must not spin while the target runs.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self._session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._binding = self._session.io_binding()
        self._bound: dict[str, tuple[int, Any]] = {}  # with the array: a binding keeps none alive
        self._n, self._token = np.zeros(1, np.int64), np.zeros((1, 1), np.int64)
        for name, out in (("n_accepted", self._n), ("token", self._token)):
            self._binding.bind_output(name, "cpu", 0, out.dtype, out.shape, out.ctypes.data)

    def bind(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """Contiguous, of the input's type; rebound only where it lies elsewhere than before."""
        at = array.ctypes.data
        if self._bound.get(name, (0,))[0] != at:
            assert array.flags.c_contiguous
            assert array.dtype == ELEMENT[name]
            self._binding.bind_input(name, "cpu", 0, array.dtype, array.shape, at)
            self._bound[name] = at, array

    def run(self) -> tuple[int, int]:
        """n_accepted and the next token."""
        self._session.run_with_iobinding(self._binding)
        return self._n.item(0), self._token.item(0)


class Graph(Means):
    """What was drafted comes from our sampler; its own draft's side would be another graph."""

    drafts = False

    def __init__(self, setting: Setting, draft_logits: bool, threads: int) -> None:
        super().__init__(setting)
        self._ours = Ours(setting)
        self.seq, self.tokens = self._ours.seq, self._ours.tokens
        self.name = f"graph, {'draft logits' if draft_logits else 'q'}"
        s = self.setting
        self._draft_logits = np.empty((s.k, s.vocab), np.float32) if draft_logits else None
        self._graph = AcceptGraph(build(s.k, s.vocab, s.top_k, draft_logits), threads)
        self._graph.bind("scale", np.full(1, 1 / s.temperature, np.float32))
        self._accept, self._next = np.empty(s.k), np.empty(s.k + 1)
        self._q = np.zeros((s.k, s.top_k or s.vocab), np.float32)
        self._q_ids = np.zeros((s.k, s.top_k), np.int64)
        bound: dict[str, np.ndarray[Any, Any]] = {
            "draft": self.tokens,
            "accept": self._accept,
            "next": self._next,
        }
        if self._draft_logits is not None:
            bound["draft_logits"] = self._draft_logits
        else:
            bound["q"] = self._q
            if s.top_k:
                bound["q_ids"] = self._q_ids
        for name, array in bound.items():
            self._graph.bind(name, array)

    def choose(self, scored: Scored, place: int) -> int:
        token, law = self._ours.choose_with_law(scored, place)
        assert law is not None
        if self._draft_logits is not None:
            self._draft_logits[place] = scored.logits[0]
        else:
            self._q[place] = law.weights / law.total
            if law.ids is not None:
                self._q_ids[place] = law.ids
        return token

    def accept(self, scored: Scored) -> Verdict:
        self._graph.bind("logits", scored.logits)
        self._accept[:], self._next[:] = round_draws(self)
        return Verdict(*self._graph.run())

    def commit(self, verdict: Verdict) -> None:
        self._ours.commit(verdict)
        self.seq = self._ours.seq

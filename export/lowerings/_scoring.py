"""What every lowering makes of its logits: the cap, and the outputs of contract 1."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from specedge.contract import GREEDY_IDS, GREEDY_LOGITS, LOGITS
from specedge.export.decoder import DecoderSpec
from specedge.export.graph import GraphWriter

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64


def write_scores(g: GraphWriter, spec: DecoderSpec, logits: ir.Value, vocab: int) -> None:
    """Cap `logits`, float32 [M, V], and make them and their argmax outputs of the graph."""
    if spec.final_softcap is not None:
        cap = g.constant(np.array(spec.final_softcap, np.float32), "head.softcap")
        bounded = g.op("Tanh", [g.op("Div", [logits, cap], "head/softcap")], "head/softcap")
        logits = g.op("Mul", [bounded, cap], "head/softcap")
    greedy = g.op("ArgMax", [logits], "head/greedy", axis=1, keepdims=1, select_last_index=0)
    axis = g.constant(np.array([1], np.int64), "shape.1")
    # taken at the id, not by ReduceMax: a maximum may pass over NaN
    scores = g.op("GatherElements", [logits, greedy], "head/greedy_logits", axis=1)
    ids = g.op("Squeeze", [greedy, axis], "head/greedy_ids")
    scores = g.op("Squeeze", [scores, axis], "head/greedy_logits")
    g.output(logits, LOGITS, FLOAT, ["M", vocab])
    g.output(ids, GREEDY_IDS, INT64, ["M"])
    g.output(scores, GREEDY_LOGITS, FLOAT, ["M"])

"""A graph of a bundle run as it is, without the engine: numpy arrays in, numpy arrays out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort

from specedge.contract import (
    CACHED_LENGTHS,
    GREEDY_IDS,
    GREEDY_LOGITS,
    INPUT_IDS,
    LOGIT_ROWS,
    LOGITS,
    TOTAL_LENGTH,
    GraphSpec,
    past,
    present,
)

DTYPES: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}


class RawGraph:
    """One graph with buffers of T rows for B sequences; unwritten rows hold loud junk.

    Args:
        bundle: the folder.
        spec: of the graph.
        batch: B.
        rows: T; default the bundle's context.
        entries: of the session's configuration.
        optimised: where to write what ONNX Runtime made of the graph.
    """

    def __init__(
        self,
        bundle: Path,
        spec: GraphSpec,
        *,
        batch: int = 1,
        rows: int | None = None,
        entries: dict[str, str] | None = None,
        optimised: Path | None = None,
    ) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        if optimised is not None:
            options.optimized_model_filepath = str(optimised)
        for key, value in (entries or {}).items():
            options.add_session_config_entry(key, value)
        self.session = ort.InferenceSession(
            str(bundle / spec.model), options, providers=["CPUExecutionProvider"]
        )
        self.spec = spec
        self.outputs = [output.name for output in self.session.get_outputs()]
        self.takes_total = TOTAL_LENGTH in {value.name for value in self.session.get_inputs()}
        shape = (batch, spec.kv_heads, rows or spec.context, spec.head_dim)
        rng = np.random.default_rng(7)
        self.kv = {
            past(layer, part): (50 * rng.standard_normal(shape)).astype(DTYPES[spec.kv_dtype])
            for layer in range(spec.layers)
            for part in ("key", "value")
        }

    def forward(self, ids: np.ndarray, lengths: Any, rows: Any = None) -> dict[str, np.ndarray]:
        """Run `ids` [B, S] behind `lengths` [B] cached rows and keep the KV that comes out.

        Returns:
            logits, greedy_ids, greedy_logits and taps of the flattened rows asked for (all).
        """
        lengths = np.asarray(lengths, np.int32)
        feed: dict[str, Any] = {
            INPUT_IDS: ids,
            CACHED_LENGTHS: lengths,
            LOGIT_ROWS: np.arange(ids.size) if rows is None else np.asarray(rows, np.int64),
            **self.kv,
        }
        if self.takes_total:
            feed[TOTAL_LENGTH] = np.array(int(lengths.max()) + ids.shape[1], np.int32)
        results = dict(zip(self.outputs, self.session.run(None, feed), strict=True))
        for layer in range(self.spec.layers):
            for part in ("key", "value"):
                self.kv[past(layer, part)] = results.pop(present(layer, part))
        assert {LOGITS, GREEDY_IDS, GREEDY_LOGITS} <= set(results)
        return results

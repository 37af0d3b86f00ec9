"""What runs in optimum's process; see `tracing`, which starts it and reads what it writes.

Comparing is not left to optimum: where logits differ it logs a line and goes on. Here a text is run
by transformers at once and by the graph in two calls, so that KV, positions and masks are in it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specedge.errors import ExportError, UnsupportedError, one_line

TOLERANCE = 1e-3  # of the largest logit; float32 differs by 1e-6
_INLINE_BYTES = 1024  # tensors up to this stay in the graph: shapes and axes must be readable
_PAST = "past_key_values."
_FED = ("input_ids", "attention_mask", "position_ids")

Floats = npt.NDArray[np.float32]


def main() -> None:
    # nothing but our own lines goes to the parent; whatever libraries print is the log's
    parent = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**message: Any) -> None:
        print(json.dumps(message), file=parent, flush=True)

    try:
        say(traced=run(json.loads(sys.argv[1]), lambda title: say(stage=title)))
    except Exception as error:  # whatever a library raises, the parent tells it in one line
        say(error=reason_of(error))
        sys.exit(1)


def reason_of(error: Exception) -> str:
    """In one line; libraries go on with advice that is meant for their callers."""
    reason = one_line(error)
    if isinstance(error, ExportError | UnsupportedError):
        return reason
    if "custom or unsupported architecture" in reason:
        reason = "its exporter does not know the architecture"
    return f"optimum cannot export this model: {reason.partition('. ')[0][:300]}"


def run(request: dict[str, Any], stage: Callable[[str], None]) -> dict[str, Any]:
    """Trace, rewrite, compare; the fields of `tracing.Traced`.

    Raises:
        UnsupportedError: KV that our engine cannot hold.
        ExportError: logits differ.
        Exception: whatever the libraries raise.
    """
    stage("loading optimum")
    from optimum.exporters.onnx import main_export

    exported = Path(request["scratch"]) / "exported"
    _spread_falcon_heads()
    stage("tracing")
    main_export(
        request["source"],
        exported,
        task="text-generation-with-past",
        dtype="fp32",
        framework="pt",
        library_name="transformers",
        do_validation=False,
    )
    stage("writing")
    model = Path(request["model"])
    sizes = rewrite(exported / "model.onnx", model, request["weights"])
    error = 0.0
    if request["tokens"]:
        stage("comparing with transformers")
        error = compare(Path(request["source"]), model, request["tokens"])
    weight_bytes = (model.parent / request["weights"]).stat().st_size
    return {**sizes, "weight_bytes": weight_bytes, "tokens": request["tokens"], "error": error}


def _spread_falcon_heads() -> None:
    """Repair optimum's example KV of falcons with grouped heads (40B and later).

    transformers spreads their keys and values over all heads before it caches them, optimum 2.1
    gives an example of the grouped ones, and tracing fails. This process does nothing else.
    """
    from optimum.utils.input_generators import FalconDummyPastKeyValuesGenerator as Example

    begin = Example.__init__

    def spread(self: Any, task: str, normalized_config: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, task, normalized_config, *args, **kwargs)
        if normalized_config.new_decoder_architecture:
            self.num_kv_heads = normalized_config.num_attention_heads

    Example.__init__ = spread


def rewrite(traced: Path, model: Path, weights: str) -> dict[str, int]:
    """Write the graph again with all weights in one file; its sizes.

    Raises:
        UnsupportedError: see `sizes_of`.
    """
    import onnx_ir as ir

    graph = ir.load(traced)
    inputs = {each.name or "": _shape(each) for each in graph.graph.inputs}
    outputs = {each.name or "": _shape(each) for each in graph.graph.outputs}
    sizes = sizes_of(inputs, outputs)
    beside = model.parent / weights
    beside.touch()  # every tensor may be small
    ir.save(graph, model, external_data=weights, size_threshold_bytes=_INLINE_BYTES)
    return sizes


def _shape(value: Any) -> list[int | str | None]:
    sizes = [] if value.shape is None else list(value.shape)
    return [size if isinstance(size, int) else getattr(size, "value", None) for size in sizes]


def sizes_of(
    inputs: dict[str, list[int | str | None]], outputs: dict[str, list[int | str | None]]
) -> dict[str, int]:
    """Sizes of a graph's KV and logits.

    Args:
        inputs, outputs: shapes by name; a size that varies is a string or None.

    Raises:
        UnsupportedError: inputs we could not feed, or KV that is not [batch, heads, past, width].
    """
    kv = {name: shape for name, shape in inputs.items() if name.startswith(_PAST)}
    strange = [name for name in inputs if name not in kv and name not in _FED]
    if strange:
        raise UnsupportedError(f"the graph has an input {strange[0]!r} that nothing here feeds")
    shapes = {(shape[1], shape[3]) for shape in kv.values() if len(shape) == 4}
    one = next(iter(shapes), (None, None))
    fits = len(shapes) == 1 and all(
        len(shape) == 4 and not isinstance(shape[2], int) for shape in kv.values()
    )
    heads, width = one
    if not fits or not isinstance(heads, int) or not isinstance(width, int) or len(kv) % 2:
        seen = next((f"{name} {shape}" for name, shape in kv.items()), "no KV at all")
        raise UnsupportedError(
            f"the graph has {seen}; expected a key and a value for each layer, all of one shape "
            "[batch, heads, past, width]"
        )
    columns = outputs.get("logits", [None])[-1]
    if not isinstance(columns, int):
        raise UnsupportedError("the graph does not say how wide its logits are")
    return {"layers": len(kv) // 2, "kv_heads": heads, "head_dim": width, "columns": columns}


def compare(source: Path, model: Path, tokens: int) -> float:
    """Largest difference of a logit between transformers and the graph, over the largest logit.

    Raises:
        ExportError: it is above TOLERANCE.
    """
    import torch
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(source).float().eval()
    vocab = int(reference.config.vocab_size)
    ids = np.random.default_rng(tokens).integers(0, vocab, tokens)
    with torch.no_grad():
        wanted: Floats = reference(torch.from_numpy(ids)[None]).logits[0].numpy()
    del reference
    try:
        found = graph_logits(model, ids)
    except Exception as error:  # the runtime's exceptions share no base below Exception
        raise ExportError(
            f"the graph that optimum made does not run over a past: {one_line(error)[:200]}; use "
            "the native front end, or another model"
        ) from error
    apart = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    if not apart <= TOLERANCE:  # NaN too
        raise ExportError(
            f"the graph that optimum made does not compute what transformers does: logits differ "
            f"by {apart:.2g} of the largest over {tokens} tokens; use the native front end, or "
            "another model"
        )
    return apart


def graph_logits(model: Path, ids: npt.NDArray[np.int64]) -> Floats:
    """float32 [n, V'] of int64 [n] ids, in two calls: a prefill and a step over what it left."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = {each.name: each.shape for each in session.get_inputs()}
    names = [each.name for each in session.get_outputs()]
    kv = {
        name: np.zeros((1, shape[1], 0, shape[3]), np.float32)
        for name, shape in inputs.items()
        if name.startswith(_PAST)
    }
    first = 2 * len(ids) // 3
    parts = []
    for start, stop in ((0, first), (first, len(ids))):
        fed = {
            "input_ids": ids[None, start:stop],
            "attention_mask": np.ones((1, stop), np.int64),
            "position_ids": np.arange(start, stop, dtype=np.int64)[None],
        }
        feed = kv | {name: value for name, value in fed.items() if name in inputs}
        out = dict(zip(names, session.run(names, feed), strict=True))
        kv = {name: out[f"present.{name.removeprefix(_PAST)}"] for name in kv}
        parts.append(out["logits"][0])
    return np.concatenate(parts)


if __name__ == "__main__":
    main()

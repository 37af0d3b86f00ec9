"""Which inputs of a linear layer are large: where its rounding must be careful.

The error of y = W x is (W' - W) x, so a squared error in column k counts in proportion to the mean
square of x_k. The checkpoint itself is run over a short text to learn those mean squares. They
differ between columns by orders of magnitude, and rounding that knows them halves the KL of a
small int4 model (docs/decisions/0002).
"""

from __future__ import annotations

import numpy as np

from specedge.contract import Ids
from specedge.export.checkpoint import Array, TensorMap
from specedge.export.decoder import DecoderSpec, Linear
from specedge.export.reference import Reference
from specedge.progress import Progress, Silent

EMBEDDING, HEAD = "embed", "head"
_FLOOR = 1e-3  # of the mean: a column that stayed silent in a short text is not worthless


def input_importance(
    spec: DecoderSpec, tensors: TensorMap, ids: Ids, *, progress: Progress | None = None
) -> dict[str, Array]:
    """Mean square of every input column, for `quantize_rows`.

    Args:
        spec: the decoder.
        tensors: its checkpoint, run once from the first layer to the last.
        ids: int64 [S] of a text.

    Returns:
        float32 [in_features] by `Linear.name`, mean 1, positive; the output head's under HEAD, or
        under EMBEDDING when the two are tied.

    Raises:
        SourceError: a tensor cannot be read.
    """
    progress = progress or Silent()
    progress.stage("Learning which inputs are large", len(spec.layers), "layers")
    result: dict[str, Array] = {}

    def observe(linear: Linear, inputs: Array) -> None:
        result[linear.name] = mean_square(inputs)

    model = Reference.from_checkpoint(spec, tensors)
    hidden = model.embed(ids)
    for layer in spec.layers:
        hidden = model.block(layer, hidden, observe)
        progress.advance(1)
    result[EMBEDDING if spec.head is None else HEAD] = mean_square(model.final(hidden))
    return result


def mean_square(inputs: Array) -> Array:
    """float32 [K], mean 1, of inputs [S, K]; every position counts alike.

    Positions are brought to one norm first: the first token of a text can be a thousand times
    larger than all others, and would be the only one heard.
    """
    sizes = np.einsum("ij,ij->i", inputs, inputs, dtype=np.float64)
    shares = 1 / np.maximum(sizes, np.finfo(np.float32).tiny)
    columns = np.einsum("ij,ij,i->j", inputs, inputs, shares)
    mean = columns.mean()
    if not mean > 0:
        return np.ones(inputs.shape[1], np.float32)
    relative: Array = (columns / mean + _FLOOR).astype(np.float32)
    return relative

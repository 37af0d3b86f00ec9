"""How far quantised weights are from float32 arithmetic over the same checkpoint.

kl         Two hidden-state chains run through the layers side by side, one with the checkpoint's
           weights and one with the stored ones, over the same text; at the end
           KL(fp32 || quantised) of the next-token distributions, mean over positions, in nats.
layerwise  One chain: each block also runs with the stored weights on the checkpoint's input, and
           |difference| / |output - input| is taken, so that a block is measured by what it adds.
           Needs neither the second chain nor the logits; used where `kl` does not fit.

One layer's weights are in memory at a time, and logits exist for a slice of the vocabulary only.
What is measured is the weights: a runtime's own rounding of activations comes on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from specedge.contract import Ids, QualityRecord
from specedge.errors import ExportError
from specedge.export.checkpoint import Array, TensorMap
from specedge.export.decoder import DecoderSpec, Linear
from specedge.export.reference import QUERIES_AT_ONCE, CheckpointWeights, Reference
from specedge.progress import Progress, Silent

Method = Literal["kl", "layerwise"]
Doubles = npt.NDArray[np.float64]

MOST_POSITIONS, FEWEST_POSITIONS = 2048, 128
WORK = 2.5e12  # multiply-adds of one chain, twice over: tens of seconds on two cores
_SLICE_BYTES = 32 << 20  # float32 bytes of one slice of logits


class Weights(Protocol):
    """The matrices of a model; norms are never quantised and come from the checkpoint."""

    def linear(self, linear: Linear) -> tuple[Array, Array | None]:
        """W [out, in] and bias, as `Reference` asks for them."""
        ...

    def embedding(self, ids: Ids) -> Array:
        """Rows of the table, unscaled, float32 [S, H]."""
        ...


def measure(
    spec: DecoderSpec,
    tensors: TensorMap,
    stored: Weights,
    ids: Ids,
    *,
    vocab: int,
    rounding: str,
    budget_bytes: int,
    method: Method | None = None,
    progress: Progress | None = None,
) -> QualityRecord:
    """Compare `stored` with the checkpoint it was made from.

    Args:
        spec: the decoder.
        tensors: the checkpoint.
        stored: what a runtime will compute with.
        ids: int64 [S] of a text, S >= 2; only the first `positions` are used.
        vocab: rows of the head that were kept.
        rounding: how the weights were quantised, for the record.
        budget_bytes: memory to stay within; fewer positions, then `layerwise`, keep to it.
        method: None chooses.

    Raises:
        SourceError: the checkpoint cannot be read.
        ExportError: the error is not a number: the stored weights are broken.
    """
    progress = progress or Silent()
    positions = min(len(ids), affordable_positions(spec))
    if method is None:
        while positions > FEWEST_POSITIONS and needed_bytes(spec, positions) > budget_bytes:
            positions = max(FEWEST_POSITIONS, positions // 2)
        method = "kl" if needed_bytes(spec, positions) <= budget_bytes else "layerwise"
    ids = ids[:positions]
    plain = CheckpointWeights(spec, tensors)
    exact = Reference(spec, plain.linear, plain.vector, plain.embedding)
    coarse = Reference(spec, stored.linear, plain.vector, stored.embedding)
    progress.stage("Measuring the quantised weights", len(spec.layers) + 1, "layers")
    value, detail = (
        _kl(exact, coarse, ids, vocab, progress)
        if method == "kl"
        else _layerwise(exact, coarse, ids, progress)
    )
    if not np.isfinite(value):
        raise ExportError(
            f"quality check: the {method} error of the quantised weights is {value}; the "
            "checkpoint overflows float32 arithmetic, or the weights file is damaged"
        )
    return QualityRecord(
        method=method, value=value, positions=len(ids), rounding=rounding, detail=detail
    )


def affordable_positions(spec: DecoderSpec) -> int:
    """Positions that two chains can be run over in the time that WORK stands for."""
    per_position = spec.vocab_rows * spec.hidden + sum(
        linear.in_features * linear.out_features
        for layer in spec.layers
        for linear in (layer.qkv, layer.o, layer.gate_up, layer.down)
    )
    return int(np.clip(WORK / (4 * per_position), FEWEST_POSITIONS, MOST_POSITIONS))


def needed_bytes(spec: DecoderSpec, positions: int) -> int:
    """An upper estimate of what `kl` holds at once, beyond the checkpoint's own reader."""
    layer = spec.layers[0]
    widest = max(
        (layer.gate_up, layer.qkv, layer.down), key=lambda a: a.in_features * a.out_features
    )
    weights = 3 * 4 * widest.in_features * widest.out_features  # parts, their stack, a temporary
    states = 4 * positions * (8 * spec.hidden + 2 * layer.qkv.out_features)
    gated = 4 * positions * 4 * layer.gate_up.out_features
    queries = min(positions, QUERIES_AT_ONCE)
    scores = queries * positions * (3 * 4 * spec.heads + 16)  # 16: which keys are ahead
    return weights + states + max(gated, scores, 8 * _SLICE_BYTES)


def _kl(
    exact: Reference, coarse: Reference, ids: Ids, vocab: int, progress: Progress
) -> tuple[float, dict[str, float]]:
    a, b = exact.embed(ids), coarse.embed(ids)
    for layer in exact.spec.layers:
        a, b = exact.block(layer, a), coarse.block(layer, b)
        progress.advance(1)
    a, b = exact.final(a), coarse.final(b)
    step = max(1, _SLICE_BYTES // (4 * len(ids)))
    sums = Divergence(ids)
    for start in range(0, vocab, step):
        stop = min(start + step, vocab)
        sums.add(start, exact.logits(a, start, stop), coarse.logits(b, start, stop))
    progress.advance(1)
    kl = sums.kl()
    return float(kl.mean()), {
        "kl_p95": float(np.quantile(kl, 0.95)),
        "same_top1": sums.same_top1(),
        "loss_fp32": sums.loss(0),
        "loss_quantised": sums.loss(1),
    }


def _layerwise(
    exact: Reference, coarse: Reference, ids: Ids, progress: Progress
) -> tuple[float, dict[str, float]]:
    hidden = exact.embed(ids)
    detail = {"embed": _relative(coarse.embed(ids) - hidden, hidden)}
    for layer in exact.spec.layers:
        after = exact.block(layer, hidden)
        difference = coarse.block(layer, hidden) - after
        detail[f"layers.{layer.index}"] = _relative(difference, after - hidden)
        hidden = after
        progress.advance(1)
    progress.advance(1)
    return float(np.mean(list(detail.values()))), detail


def _relative(difference: Array, of: Array) -> float:
    size = float(np.linalg.norm(of))
    return float(np.linalg.norm(difference)) / size if size else 0.0


@dataclass
class _Side:
    """Running maximum, sum of exponentials below it, and argmax, of one model's logits."""

    top: Doubles
    total: Doubles
    best: Ids
    target: Doubles


class Divergence:
    """KL of two [S, V] arrays of logits that arrive in slices of V.

    KL(p || q) = sum p (a - b) - log Z_a + log Z_b for logits a, b; sums in float64, rescaled
    whenever a slice raises the maximum of a row.
    """

    def __init__(self, ids: Ids) -> None:
        """`ids` [S]: row i's right answer is ids[i + 1], for the loss."""
        n = len(ids)
        self._next = ids[1:]
        self._sides = tuple(
            _Side(np.full(n, -np.inf), np.zeros(n), np.zeros(n, np.int64), np.zeros(n - 1))
            for _ in range(2)
        )
        self._weighted = np.zeros(n)  # sum of exp(a - top) (a - b)

    def add(self, start: int, a: Array, b: Array) -> None:
        """Take in logits of tokens start..start + width: float32 [S, width] of both models."""
        for side, logits in zip(self._sides, (a, b), strict=True):
            best = logits.argmax(axis=1)
            top = logits[np.arange(len(logits)), best].astype(np.float64)
            side.best = np.where(top > side.top, best + start, side.best)
            raised = np.maximum(side.top, top)
            shrink = np.exp(side.top - raised)
            side.top = raised
            powers = np.exp(logits - raised[:, None].astype(np.float32))
            side.total = side.total * shrink + powers.sum(axis=1, dtype=np.float64)
            if side is self._sides[0]:
                products = np.einsum("ij,ij->i", powers, a - b, dtype=np.float64)
                self._weighted = self._weighted * shrink + products
            here = np.flatnonzero((self._next >= start) & (self._next < start + logits.shape[1]))
            side.target[here] = logits[here, self._next[here] - start]

    def kl(self) -> Doubles:
        """float64 [S]; rounding can leave a value a little below zero, which is cut to zero."""
        a, b = self._sides
        log_ratio = (b.top + np.log(b.total)) - (a.top + np.log(a.total))
        return np.maximum(self._weighted / a.total + log_ratio, 0)

    def loss(self, side: int) -> float:
        """Mean negative log likelihood of the text's own next tokens, in nats."""
        s = self._sides[side]
        log_total = s.top + np.log(s.total)
        return float((log_total[:-1] - s.target).mean())

    def same_top1(self) -> float:
        """Share of positions where both models' most likely token is the same."""
        return float((self._sides[0].best == self._sides[1].best).mean())

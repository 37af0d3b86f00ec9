"""A plain numpy forward of a `DecoderSpec`: the oracle of the lowerings and of quantisation.

Written from the description of the decoder alone, with nothing shared with a lowering. Float32
throughout, one sequence from position 0, weights fetched when a layer runs and dropped after it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from specedge.contract import Ids
from specedge.export.checkpoint import Array, TensorMap, read
from specedge.export.decoder import DecoderSpec, Layer, Linear, Rows

LinearWeights = Callable[[Linear], tuple[Array, Array | None]]
Vector = Callable[[str], Array]
Embedding = Callable[[Ids], Array]
Tap = Callable[[Linear, Array], None]

QUERIES_AT_ONCE = 256
HEAD_BYTES_AT_ONCE = 64 << 20


class Reference:
    """The forward pass with pluggable weights.

    Args:
        spec: the decoder.
        linear: W [out, in] and b [out] or None of a Linear; also asked for slices of an untied
            head, as a Linear named "head" whose one `Rows` says which rows.
        vector: what a norm multiplies by, `norm_offset` already added.
        embedding: rows of the embedding table, unscaled, float32 [S, H]; a tied head too.
    """

    def __init__(
        self, spec: DecoderSpec, linear: LinearWeights, vector: Vector, embedding: Embedding
    ) -> None:
        self.spec = spec
        self.linear = linear
        self.vector = vector
        self.embedding = embedding

    @classmethod
    def from_checkpoint(cls, spec: DecoderSpec, tensors: TensorMap) -> Reference:
        """The model as the checkpoint holds it. Reading raises SourceError."""
        weights = CheckpointWeights(spec, tensors)
        return cls(spec, weights.linear, weights.vector, weights.embedding)

    def embed(self, ids: Ids) -> Array:
        """float32 [S, H] of int64 [S]."""
        return self.embedding(ids) * np.float32(self.spec.embedding_scale)

    def block(self, layer: Layer, hidden: Array, tap: Tap | None = None) -> Array:
        """Run one block over a whole sequence.

        Args:
            layer: one of `spec.layers`.
            hidden: float32 [S, H]; row i stands at position i.
            tap: called with each Linear of the block and its input, float32 [S, in].

        Returns:
            float32 [S, H].
        """
        branch = self._attention(layer, self._norm(hidden, layer.input_norm), tap)
        if layer.post_attention_norm is not None:
            branch = self._norm(branch, layer.post_attention_norm)
        hidden = hidden + branch
        branch = self._mlp(layer, self._norm(hidden, layer.mlp_norm), tap)
        if layer.post_mlp_norm is not None:
            branch = self._norm(branch, layer.post_mlp_norm)
        return hidden + branch

    def final(self, hidden: Array) -> Array:
        """The last norm: float32 [S, H] of the same."""
        return self._norm(hidden, self.spec.final_norm)

    def logits(self, hidden: Array, start: int = 0, stop: int | None = None) -> Array:
        """Rows start..stop of the head (default: all `vocab_rows`) over what `final` returned.

        Args:
            hidden: float32 [S, H].
            start, stop: range of token ids.

        Returns:
            float32 [S, stop - start].
        """
        stop = self.spec.vocab_rows if stop is None else stop
        step = max(1, HEAD_BYTES_AT_ONCE // (4 * self.spec.hidden))
        scores = np.empty((len(hidden), stop - start), dtype=np.float32)
        for first in range(start, stop, step):
            last = min(first + step, stop)
            scores[:, first - start : last - start] = hidden @ self._head(first, last).T
        if self.spec.final_softcap is None:
            return scores
        cap = np.float32(self.spec.final_softcap)
        capped: Array = np.tanh(scores / cap) * cap
        return capped

    def forward(self, ids: Ids, stop: int | None = None) -> Array:
        """float32 [S, V]: row i scores the token after ids[: i + 1]; V = stop or `vocab_rows`."""
        hidden = self.embed(ids)
        for layer in self.spec.layers:
            hidden = self.block(layer, hidden)
        return self.logits(self.final(hidden), stop=stop)

    def _head(self, start: int, stop: int) -> Array:
        if self.spec.head is None:
            return self.embedding(np.arange(start, stop, dtype=np.int64))
        rows = Rows(self.spec.head, start, stop)
        return self.linear(Linear("head", (rows,), self.spec.hidden, stop - start))[0]

    def _norm(self, values: Array, name: str) -> Array:
        """RMS norm over the last axis."""
        mean: Array = np.mean(np.square(values), axis=-1, keepdims=True, dtype=np.float32)
        scaled: Array = values / np.sqrt(mean + np.float32(self.spec.norm_eps)) * self.vector(name)
        return scaled

    def _apply(self, linear: Linear, inputs: Array, tap: Tap | None) -> Array:
        if tap is not None:
            tap(linear, inputs)
        weight, bias = self.linear(linear)
        outputs: Array = inputs @ weight.T
        return outputs if bias is None else outputs + bias

    def _mlp(self, layer: Layer, normed: Array, tap: Tap | None) -> Array:
        both = self._apply(layer.gate_up, normed, tap)
        gate, up = both[:, : self.spec.intermediate], both[:, self.spec.intermediate :]
        act = _silu(gate) if self.spec.activation == "silu" else _gelu_tanh(gate)
        return self._apply(layer.down, act * up, tap)

    def _attention(self, layer: Layer, normed: Array, tap: Tap | None) -> Array:
        spec = self.spec
        rows = len(normed)
        both = self._apply(layer.qkv, normed, tap)
        heads = both.reshape(rows, spec.heads + 2 * spec.kv_heads, spec.head_dim)
        query, key, value = np.split(heads, [spec.heads, spec.heads + spec.kv_heads], axis=1)
        if layer.q_norm is not None:
            query = self._norm(query, layer.q_norm)
        if layer.k_norm is not None:
            key = self._norm(key, layer.k_norm)
        cos, sin = layer.rope.tables(rows)
        mixed = attend(
            _rotate(query, cos, sin), _rotate(key, cos, sin), value, spec.scale, layer.window
        )
        return self._apply(layer.o, mixed.reshape(rows, spec.heads * spec.head_dim), tap)


class CheckpointWeights:
    """The pluggable parts of `Reference`, read from a checkpoint at each call."""

    def __init__(self, spec: DecoderSpec, tensors: TensorMap) -> None:
        self.spec = spec
        self.tensors = tensors

    def linear(self, linear: Linear) -> tuple[Array, Array | None]:
        parts = []
        for rows in linear.weights:
            stop = self.tensors.shape(rows.name)[0] if rows.stop is None else rows.stop
            parts.append(self.tensors.rows(rows.name, rows.start, stop))
        biases = [read(self.tensors, name) for name in linear.bias]
        return np.concatenate(parts), np.concatenate(biases) if biases else None

    def vector(self, name: str) -> Array:
        return read(self.tensors, name) + np.float32(self.spec.norm_offset)

    def embedding(self, ids: Ids) -> Array:
        """Read in spans: a text's ids lie all over a table that may be too large to hold."""
        out = np.empty((len(ids), self.spec.hidden), dtype=np.float32)
        step = max(1, HEAD_BYTES_AT_ONCE // (4 * self.spec.hidden))
        for first in range(int(ids.min(initial=0)), int(ids.max(initial=-1)) + 1, step):
            here = np.flatnonzero((ids >= first) & (ids < first + step))
            if len(here):
                stop = int(ids[here].max()) + 1
                rows = self.tensors.rows(self.spec.embedding, first, stop)
                out[here] = rows[ids[here] - first]
        return out


def attend(query: Array, key: Array, value: Array, scale: float, window: int | None) -> Array:
    """Causal attention over one sequence, in chunks of queries so that memory stays bounded.

    Args:
        query: float32 [S, heads, D], rotated.
        key, value: float32 [S, H_kv, D]; heads / H_kv queries share one.
        scale: multiplies the scores.
        window: a position sees itself and the window - 1 before it; None: all before it.

    Returns:
        float32 [S, heads, D].
    """
    rows, heads, width = query.shape
    kv_heads = key.shape[1]
    queries = query.reshape(rows, kv_heads, heads // kv_heads, width).transpose(1, 2, 0, 3)
    keys, values = key.transpose(1, 2, 0)[:, None], value.transpose(1, 0, 2)[:, None]
    mixed = np.empty_like(queries)
    for start in range(0, rows, QUERIES_AT_ONCE):
        stop = min(start + QUERIES_AT_ONCE, rows)
        oldest = 0 if window is None else max(0, start - window + 1)
        scores = queries[:, :, start:stop] @ keys[..., oldest:stop] * np.float32(scale)
        behind = np.arange(start, stop)[:, None] - np.arange(oldest, stop)[None, :]
        hidden = behind < 0 if window is None else (behind < 0) | (behind >= window)
        scores[..., hidden] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores)
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed[:, :, start:stop] = weights @ values[:, :, oldest:stop]
    result: Array = mixed.transpose(2, 0, 1, 3).reshape(rows, heads, width)
    return result


def _rotate(heads: Array, cos: Array, sin: Array) -> Array:
    """Rotate [S, n, D] by tables [S, r / 2]; dimension i pairs with i + r / 2, the rest pass."""
    half = cos.shape[1]
    first, second, rest = np.split(heads, [half, 2 * half], axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def _silu(values: Array) -> Array:
    """x * sigmoid(x); by tanh, which cannot overflow."""
    half = values * np.float32(0.5)
    result: Array = half * (1 + np.tanh(half))
    return result


def _gelu_tanh(values: Array) -> Array:
    inner = np.float32(np.sqrt(2 / np.pi)) * (values + np.float32(0.044715) * values**3)
    result: Array = np.float32(0.5) * values * (1 + np.tanh(inner))
    return result

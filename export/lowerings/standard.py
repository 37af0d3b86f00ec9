"""Lowering "standard": contract 1, without total_length, in operators of the ONNX standard alone.

Opset 24, for ONNX Runtime, TensorRT and TensorRT-RTX.

    TensorScatter       appends keys and values to the aliased buffers at cached_lengths
    Attention           over the whole buffer, behind a mask that the graph builds from lengths
    RMSNormalization    in float32
    RotaryEmbedding     by position, from tables
    DequantizeLinear    int4 / int8 blocks, [in, out], right before the MatMul that they feed

Dtypes: matrices multiply in the activations' dtype, which is KV's and the rotary tables' too. The
residual sum, norms, softmax, the cap and logits are float32: a residual sum outgrows float16 long
before a branch does.

Attention is told what it may see by a boolean mask alone. Neither `is_causal`, aligned to the
upper left where lengths differ, nor `nonpad_kv_seqlen`, which TensorRT's parser drops without a
word, is used. `softmax_precision` is refused there: kernels in float16 take float32 by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from specedge.contract import (
    CACHED_LENGTHS,
    INPUT_IDS,
    LOGIT_ROWS,
    Element,
    past,
    present,
    tap,
)
from specedge.export.columns import LEAD
from specedge.export.decoder import DecoderSpec, Layer
from specedge.export.elements import onnx_type
from specedge.export.graph import Dim, GraphWriter
from specedge.export.lowerings._scoring import write_scores
from specedge.export.placement import Layout, PlacedEmbedding, PlacedLinear, PlacedModel
from specedge.export.weights import Placed

FLOAT, INT64, INT32 = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.INT32
OPSETS = {"": 24}


@dataclass(frozen=True)
class _Positions:
    """Values that every attention layer shares."""

    batch_and_width: ir.Value  # int64 [2]: B, S
    starts: ir.Value  # int64 [B]: cached_lengths
    rows: ir.Value  # int64 [B, S]: where each new token stands
    queries: ir.Value  # int64 [B, 1, S, 1]: the same
    keys: ir.Value  # int64 [T]: 0, 1, ...
    causal: ir.Value  # bool [B, 1, S, T]


def check(spec: DecoderSpec) -> None:
    """Every field of a `DecoderSpec` can be written; nothing is refused."""


def layout(activations: Element) -> Layout:
    """Norms stay float32; quantised matrices are [in, out]."""
    return Layout(activations, "float32", columns=True)


def write(
    spec: DecoderSpec,
    placed: PlacedModel,
    path: Path,
    *,
    weights: str,
    version: str,
    taps: Sequence[int] = (),
) -> None:
    """Write the model file `path`, referring to `weights` beside it.

    Args:
        spec: the decoder.
        placed: where every weight lies; `placed.vocab` rows of embedding and head.
        path: the .onnx file to write.
        weights: name of the external data file in the same folder.
        version: of specedge, recorded in the model.
        taps: layers n whose input becomes an output `hidden.{n}`, [B, S, H] in the activations'
            dtype; n = L is what the last norm takes.
    """
    writer = _Writer(spec, placed, GraphWriter(spec.model_type, weights, OPSETS), frozenset(taps))
    writer.write(path, version)


class _Writer:
    def __init__(
        self, spec: DecoderSpec, placed: PlacedModel, graph: GraphWriter, taps: frozenset[int]
    ) -> None:
        self.spec, self.placed, self.g, self.taps = spec, placed, graph, taps
        self.element = onnx_type(placed.layout.element)
        self._masks: dict[int, ir.Value] = {}
        self._by_head: ir.Value | None = None

    def write(self, path: Path, version: str) -> None:
        spec, g = self.spec, self.g
        ids = g.input(INPUT_IDS, INT64, ["B", "S"])
        cached = g.input(CACHED_LENGTHS, INT32, ["B"])
        rows = g.input(LOGIT_ROWS, INT64, ["M"])
        kv_shape: list[Dim] = ["B", spec.kv_heads, "T", spec.head_dim]
        pasts = [
            (
                g.input(past(layer.index, "key"), self.element, kv_shape),
                g.input(past(layer.index, "value"), self.element, kv_shape),
            )
            for layer in spec.layers
        ]
        at = self._positions(ids, cached, pasts[0][0])
        presents = []
        hidden = self._embed(ids)
        for layer, kv in zip(spec.layers, pasts, strict=True):
            self._tap(layer.index, hidden, at)
            hidden, key_value = self._block(layer, hidden, kv, at)
            presents.append(key_value)
        self._tap(len(spec.layers), hidden, at)
        self._head(hidden, rows)
        for index, (key, value) in enumerate(presents):
            g.output(key, present(index, "key"), self.element, kv_shape)
            g.output(value, present(index, "value"), self.element, kv_shape)
        g.save(path, version)

    def _positions(self, ids: ir.Value, cached: ir.Value, past_key: ir.Value) -> _Positions:
        g = self.g
        zero, one = self._scalar(0), self._scalar(1)
        shape = g.op("Shape", [ids], "positions/shape")
        width = g.op("Gather", [shape, one], "positions/width")
        context = g.op("Shape", [past_key], "positions/context", start=2, end=3)
        context = g.op("Squeeze", [context, self._shape(0)], "positions/context")
        starts = g.op("Cast", [cached], "positions/starts", to=int(INT64))
        steps = g.op("Range", [zero, width, one], "positions/steps")
        column = g.op("Unsqueeze", [starts, self._shape(1)], "positions/column")
        rows = g.op("Add", [column, steps], "positions/rows")
        queries = g.op("Unsqueeze", [rows, self._shape(1, 3)], "positions/queries")
        keys = g.op("Range", [zero, context, one], "positions/keys")
        causal = g.op("LessOrEqual", [keys, queries], "positions/causal")
        return _Positions(shape, starts, rows, queries, keys, causal)

    def _mask(self, window: int | None, at: _Positions) -> ir.Value:
        """bool [B, 1, S, T]: true where a query may look; the window counts the query itself."""
        if window is None:
            return at.causal
        if window not in self._masks:
            name = f"positions/window.{window}"
            before = self.g.op("Sub", [at.queries, self._scalar(window)], name)
            near = self.g.op("Greater", [at.keys, before], name)
            self._masks[window] = self.g.op("And", [at.causal, near], name)
        return self._masks[window]

    def _embed(self, ids: ir.Value) -> ir.Value:
        """float32 [B*S, H]."""
        g, spec = self.g, self.spec
        flat = g.op("Reshape", [ids, self._shape(-1)], "embed/flat")
        table = self.placed.embedding
        if table.scales is None:
            rows = g.op("Gather", [g.weight(table.table), flat], "embed", axis=0)
            hidden = self._widened(rows, "embed")
        else:
            hidden = self._unpacked(table, table.scales, flat)
        if spec.embedding_scale != 1.0:
            scale = g.constant(np.array(spec.embedding_scale, np.float32), "embed.scale")
            hidden = g.op("Mul", [hidden, scale], "embed/scale")
        return hidden

    def _block(
        self, layer: Layer, hidden: ir.Value, kv: tuple[ir.Value, ir.Value], at: _Positions
    ) -> tuple[ir.Value, tuple[ir.Value, ir.Value]]:
        """float32 [B*S, H] of the same, and what the layer's KV became."""
        root = f"layers.{layer.index}"
        normed = self._norm(hidden, layer.input_norm, f"{root}/input_norm")
        branch, present_kv = self._attention(
            layer, self._narrowed(normed, f"{root}/input_norm"), kv, at, f"{root}/attn"
        )
        hidden = self._add(hidden, branch, layer.post_attention_norm, f"{root}/attn")
        normed = self._norm(hidden, layer.mlp_norm, f"{root}/mlp_norm")
        branch = self._mlp(layer, self._narrowed(normed, f"{root}/mlp_norm"), f"{root}/mlp")
        return self._add(hidden, branch, layer.post_mlp_norm, f"{root}/mlp"), present_kv

    def _add(self, hidden: ir.Value, branch: ir.Value, norm: str | None, at: str) -> ir.Value:
        branch = self._widened(branch, f"{at}/branch")
        if norm is not None:
            branch = self._norm(branch, norm, f"{at}/post_norm")
        return self.g.op("Add", [hidden, branch], f"{at}/residual")

    def _attention(
        self,
        layer: Layer,
        hidden: ir.Value,
        kv: tuple[ir.Value, ir.Value],
        at: _Positions,
        name: str,
    ) -> tuple[ir.Value, tuple[ir.Value, ir.Value]]:
        g, spec = self.g, self.spec
        counts = [spec.heads, spec.kv_heads, spec.kv_heads]
        qkv = self._linear(self.placed.linears[layer.qkv.name], hidden, f"{name}/qkv")
        by_head = g.op("Reshape", [qkv, self._head_shape(sum(counts), at)], f"{name}/by_head")
        by_head = g.op("Transpose", [by_head], f"{name}/by_head", perm=[0, 2, 1, 3])
        sizes = g.constant(np.array(counts, np.int64), "attn.heads")
        query, key, value = g.ops("Split", [by_head, sizes], f"{name}/split", outputs=3, axis=1)
        query = self._turned(layer, query, layer.q_norm, at, f"{name}/q")
        key = self._turned(layer, key, layer.k_norm, at, f"{name}/k")
        keys, values = (
            g.op(
                "TensorScatter",
                [cache, new, at.starts],
                f"{name}/{part}_cache",
                axis=-2,
                mode="linear",
            )
            for cache, new, part in zip(kv, (key, value), ("k", "v"), strict=True)
        )
        attended = g.op(
            "Attention",
            [query, keys, values, self._mask(layer.window, at)],
            name,
            scale=float(spec.scale),
        )
        attended = g.op("Transpose", [attended], f"{name}/by_row", perm=[0, 2, 1, 3])
        flat = g.op(
            "Reshape", [attended, self._shape(-1, spec.heads * spec.head_dim)], f"{name}/by_row"
        )
        return self._linear(self.placed.linears[layer.o.name], flat, f"{name}/o"), (keys, values)

    def _turned(
        self, layer: Layer, heads: ir.Value, norm: str | None, at: _Positions, name: str
    ) -> ir.Value:
        """Norm of each head, where there is one, and rotary embedding of [B, heads, S, D]."""
        if norm is not None:
            heads = self._norm(self._widened(heads, f"{name}_norm"), norm, f"{name}_norm")
            heads = self._narrowed(heads, f"{name}_norm")
        cos, sin = (self.g.weight(table) for table in self.placed.rope_tables[layer.index])
        turned = 2 * len(layer.rope.inv_freq)
        return self.g.op(
            "RotaryEmbedding",
            [heads, cos, sin, at.rows],
            f"{name}_rope",
            rotary_embedding_dim=0 if turned == self.spec.head_dim else turned,
        )

    def _mlp(self, layer: Layer, hidden: ir.Value, at: str) -> ir.Value:
        g = self.g
        both = self._linear(self.placed.linears[layer.gate_up.name], hidden, f"{at}/gate_up")
        gate, up = g.ops("Split", [both], f"{at}/split", outputs=2, axis=1, num_outputs=2)
        if self.spec.activation == "silu":
            active = g.op("Mul", [gate, g.op("Sigmoid", [gate], f"{at}/act")], f"{at}/act")
        else:
            active = g.op("Gelu", [gate], f"{at}/act", approximate="tanh")
        product = g.op("Mul", [active, up], f"{at}/gated")
        return self._linear(self.placed.linears[layer.down.name], product, f"{at}/down")

    def _head(self, hidden: ir.Value, rows: ir.Value) -> None:
        scored = self.g.op("Gather", [hidden, rows], "head/rows", axis=0)
        normed = self._norm(scored, self.spec.final_norm, "head/norm")
        logits = self._linear(self.placed.head, self._narrowed(normed, "head/norm"), "head")
        write_scores(self.g, self.spec, self._widened(logits, "head"), self.placed.vocab)

    def _tap(self, index: int, hidden: ir.Value, at: _Positions) -> None:
        if index not in self.taps:
            return
        g, name = self.g, tap(index)
        width = g.constant(np.array([self.spec.hidden], np.int64), f"shape.{self.spec.hidden}")
        shape = g.op("Concat", [at.batch_and_width, width], name, axis=0)
        shaped = g.op("Reshape", [self._narrowed(hidden, name), shape], name)
        g.output(shaped, name, self.element, ["B", "S", self.spec.hidden])

    def _linear(self, placed: PlacedLinear, hidden: ir.Value, at: str) -> ir.Value:
        """[rows, out] of [rows, in], both in the activations' dtype."""
        g = self.g
        bias = [] if placed.bias is None else [g.weight(placed.bias)]
        if placed.scales is None:
            return g.op("Gemm", [hidden, g.weight(placed.weight), *bias], at, transB=1)
        matrix = g.op(
            "DequantizeLinear",
            [g.weight(placed.weight), g.weight(placed.scales)],
            at,
            axis=0,
            block_size=placed.block_size,
        )
        short = placed.weight.shape[0] - placed.in_features
        if short:
            ends = g.constant(np.array([0, 0, 0, short], np.int64), f"pad.{short}")
            hidden = g.op("Pad", [hidden, ends], f"{at}/pad")
        product = g.op("MatMul", [hidden, matrix], at)
        return g.op("Add", [product, *bias], f"{at}/bias") if bias else product

    def _unpacked(self, table: PlacedEmbedding, scales: Placed, flat: ir.Value) -> ir.Value:
        """float32 rows [B*S, H], looked up in the words of a matrix of codes [H', V]."""
        g, hidden, bits = self.g, self.spec.hidden, table.bits
        blocks, vocab = scales.shape
        width, codes_each = blocks * table.block_size, 32 // bits
        column = g.op("Unsqueeze", [flat, self._shape(1)], "embed/column")
        first = LEAD * 8 // bits
        starts = g.constant(first + np.arange(width, dtype=np.int64) * vocab, "embed.starts")
        at = g.op("Add", [column, starts], "embed/at")  # of a code among the words', [B*S, H']
        each = self._scalar(codes_each)
        word_at = g.op("Div", [at, each], "embed/word_at")
        within = g.op("Sub", [at, g.op("Mul", [word_at, each], "embed/within")], "embed/within")
        words = g.op("Gather", [g.weight(table.table), word_at], "embed/words", axis=0)
        # There is no shift that every runtime has. A word's sign is its top bit: with 2^32 added,
        # division counts from the lowest bit.
        words = g.op("Cast", [words], "embed/words", to=int(INT64))
        words = g.op("Add", [words, self._scalar(1 << 32)], "embed/words")
        powers = [1 << (bits * index) for index in range(codes_each)]
        power = g.constant(np.array(powers, np.int64), "embed.powers")
        divisor = g.op("Gather", [power, within], "embed/divisor", axis=0)
        shifted = g.op("Div", [words, divisor], "embed/shifted")
        # two's complement to a signed number: (x + half) mod 2 half - half
        half, span = self._scalar(1 << (bits - 1)), self._scalar(1 << bits)
        raised = g.op("Add", [shifted, half], "embed/raised")
        above = g.op("Mul", [g.op("Div", [raised, span], "embed/above"), span], "embed/above")
        codes = g.op("Sub", [g.op("Sub", [raised, above], "embed/low"), half], "embed/codes")
        codes = g.op("Cast", [codes], "embed/codes", to=int(FLOAT))
        codes = g.op("Reshape", [codes, self._shape(-1, blocks, table.block_size)], "embed/blocks")
        factors = g.op("Gather", [g.weight(scales), flat], "embed/scales", axis=1)
        factors = self._widened(g.op("Transpose", [factors], "embed/scales"), "embed/scales")
        factors = g.op("Unsqueeze", [factors, self._shape(2)], "embed/scales")
        rows = g.op("Mul", [codes, factors], "embed/rows")
        rows = g.op("Reshape", [rows, self._shape(-1, width)], "embed/rows")
        if width == hidden:
            return rows
        ends = [self._shape(0), self._shape(hidden), self._shape(1)]
        return g.op("Slice", [rows, *ends], "embed/unpad")

    def _norm(self, hidden: ir.Value, norm: str, at: str) -> ir.Value:
        """RMS norm over the last axis, float32."""
        return self.g.op(
            "RMSNormalization",
            [hidden, self.g.weight(self.placed.vectors[norm])],
            at,
            axis=-1,
            epsilon=self.spec.norm_eps,
            stash_type=int(FLOAT),
        )

    def _widened(self, value: ir.Value, at: str) -> ir.Value:
        """float32 of a value in the activations' dtype."""
        if self.element == FLOAT:
            return value
        return self.g.op("Cast", [value], f"{at}/float32", to=int(FLOAT))

    def _narrowed(self, value: ir.Value, at: str) -> ir.Value:
        """The activations' dtype of a float32 value."""
        if self.element == FLOAT:
            return value
        return self.g.op("Cast", [value], f"{at}/narrow", to=int(self.element))

    def _head_shape(self, heads: int, at: _Positions) -> ir.Value:
        """int64 [4]: B, S, heads, D; one for all layers."""
        if self._by_head is None:
            ends = self._shape(heads, self.spec.head_dim)
            self._by_head = self.g.op("Concat", [at.batch_and_width, ends], "attn/by_head", axis=0)
        return self._by_head

    def _shape(self, *dims: int) -> ir.Value:
        return self.g.constant(np.array(dims, np.int64), f"shape.{'x'.join(map(str, dims))}")

    def _scalar(self, value: int) -> ir.Value:
        return self.g.constant(np.array(value, np.int64), f"int64.{value}")

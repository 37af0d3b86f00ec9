"""Lowering "ort": contract 1 in ONNX Runtime's fused contrib operators.

    GroupQueryAttention          rotary, KV append into the aliased buffer, causal attention
    MatMulNBits                  linear layers over int4 / int8 blocks
    GatherBlockQuantized         embedding lookup in the quantised table
    SkipSimplifiedLayerNormalization   residual add and RMS norm in one pass

Hidden states stay [B*S, H]: a linear that is not quantised is then one Gemm over the checkpoint's
own [out, in] layout, so no weight is transposed at export or held twice at load.

Hidden states and KV are float32 or float16 (CUDA's GroupQueryAttention takes no float32); logits
are float32 either way, and the norms' kernels compute in float32. The residual sum is of the hidden
states' dtype: a model whose sum outgrows float16 wants lowering "standard", which keeps it float32.
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
    TOTAL_LENGTH,
    Element,
    past,
    present,
    tap,
)
from specedge.errors import UnsupportedError
from specedge.export.decoder import DecoderSpec, Layer
from specedge.export.elements import dtype_of, onnx_type
from specedge.export.graph import CONTRIB, Dim, GraphWriter
from specedge.export.lowerings._scoring import write_scores
from specedge.export.placement import (
    ACCURACY_LEVEL,
    Layout,
    PlacedEmbedding,
    PlacedLinear,
    PlacedModel,
)

FLOAT, INT64, INT32 = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.INT32
OPSETS = {"": 21, CONTRIB: 1}
_ROTARY_MULTIPLE = 8  # of half a rotated head, in GroupQueryAttention


@dataclass(frozen=True)
class _Lengths:
    """Values that every attention layer shares."""

    batch_and_width: ir.Value  # int64 [2]: B, S
    last_row: ir.Value  # int32 [B]: seqlens_k = cached_lengths + S - 1
    total: ir.Value  # int32 []


def write(
    spec: DecoderSpec,
    placed: PlacedModel,
    path: Path,
    *,
    weights: str,
    version: str,
    taps: Sequence[int] = (),
) -> None:
    """Write the model file `path`, referring to `weights` beside it; `check` has passed.

    Args:
        spec: the decoder.
        placed: where every weight lies; `placed.vocab` rows of embedding and head.
        path: the .onnx file to write.
        weights: name of the external data file in the same folder.
        version: of specedge, recorded in the model.
        taps: layers n whose input becomes an output `hidden.{n}`; n = L is what the last norm
            takes.
    """
    writer = _Writer(spec, placed, GraphWriter(spec.model_type, weights, OPSETS), frozenset(taps))
    writer.write(path, version)


def check(spec: DecoderSpec) -> None:
    """Refuse, before anything is written, what the operators cannot compute.

    Raises:
        UnsupportedError: names it.
    """
    for layer in spec.layers:
        half = len(layer.rope.inv_freq)
        if half % _ROTARY_MULTIPLE:
            raise UnsupportedError(
                f"layer {layer.index}: rotary embedding over {2 * half} of {spec.head_dim} "
                f"dimensions; GroupQueryAttention takes multiples of {2 * _ROTARY_MULTIPLE}"
            )


def layout(activations: Element) -> Layout:
    """Everything in the dtype of the hidden states; operators take one dtype throughout."""
    return Layout(activations, activations)


class _Writer:
    def __init__(
        self, spec: DecoderSpec, placed: PlacedModel, graph: GraphWriter, taps: frozenset[int]
    ) -> None:
        self.spec, self.placed, self.g, self.taps = spec, placed, graph, taps
        self.element = onnx_type(placed.layout.element)
        self._shapes: dict[str, ir.Value] = {}

    def write(self, path: Path, version: str) -> None:
        spec, g = self.spec, self.g
        ids = g.input(INPUT_IDS, INT64, ["B", "S"])
        cached = g.input(CACHED_LENGTHS, INT32, ["B"])
        total = g.input(TOTAL_LENGTH, INT32, [])
        rows = g.input(LOGIT_ROWS, INT64, ["M"])
        lengths = self._lengths(ids, cached, total)

        residual = self._embed(ids)
        branch: ir.Value | None = None
        for layer in spec.layers:
            residual, branch = self._block(layer, residual, branch, lengths)
        assert branch is not None
        if len(spec.layers) in self.taps:
            whole = g.op("Add", [residual, branch], "head/whole")
            self._tap(len(spec.layers), whole, lengths)
        self._head(residual, branch, rows)
        g.save(path, version)

    def _lengths(self, ids: ir.Value, cached: ir.Value, total: ir.Value) -> _Lengths:
        g = self.g
        shape = g.op("Shape", [ids], "lengths/shape")
        width = g.op("Gather", [shape, self._scalar(1)], "lengths/width")
        last = g.op("Sub", [width, self._scalar(1)], "lengths/last")
        last32 = g.op("Cast", [last], "lengths/last", to=int(INT32))
        return _Lengths(shape, g.op("Add", [cached, last32], "lengths/last_row"), total)

    def _embed(self, ids: ir.Value) -> ir.Value:
        g, spec = self.g, self.spec
        flat = g.op("Reshape", [ids, self._shape(-1)], "embed/flat")
        table: PlacedEmbedding = self.placed.embedding
        if table.scales is None:
            hidden = g.op("Gather", [g.weight(table.table), flat], "embed", axis=0)
        else:
            inputs = [g.weight(table.table), flat, g.weight(table.scales)]
            if table.zero_points is not None:
                inputs.append(g.weight(table.zero_points))
            hidden = g.op(
                "GatherBlockQuantized",
                inputs,
                "embed",
                domain=CONTRIB,
                gather_axis=0,
                quantize_axis=1,
                block_size=table.block_size,
                bits=table.bits,
            )
            if spec.hidden % table.block_size:
                # a row holds whole blocks: cut the padding of the last one
                ends = [self._shape(0), self._shape(spec.hidden), self._shape(1)]
                hidden = g.op("Slice", [hidden, *ends], "embed/unpad")
        if spec.embedding_scale != 1.0:
            value = np.array(spec.embedding_scale, dtype_of(self.placed.layout.element))
            scale = g.constant(value, "embed.scale")
            hidden = g.op("Mul", [hidden, scale], "embed/scale")
        return hidden

    def _block(
        self, layer: Layer, residual: ir.Value, branch: ir.Value | None, lengths: _Lengths
    ) -> tuple[ir.Value, ir.Value]:
        """One block; the sum of what it takes, and of what it returns, is the hidden state."""
        at = f"layers.{layer.index}"
        residual, normed = self._add_norm(residual, branch, layer.input_norm, f"{at}/input_norm")
        if layer.index in self.taps:
            self._tap(layer.index, residual, lengths)
        attended = self._attention(layer, normed, lengths, f"{at}/attn")
        if layer.post_attention_norm is not None:
            attended = self._norm(attended, layer.post_attention_norm, f"{at}/post_attention_norm")
        residual, normed = self._add_norm(residual, attended, layer.mlp_norm, f"{at}/mlp_norm")
        mixed = self._mlp(layer, normed, f"{at}/mlp")
        if layer.post_mlp_norm is not None:
            mixed = self._norm(mixed, layer.post_mlp_norm, f"{at}/post_mlp_norm")
        return residual, mixed

    def _attention(self, layer: Layer, hidden: ir.Value, lengths: _Lengths, at: str) -> ir.Value:
        g, spec = self.g, self.spec
        q_width, kv_width = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        qkv = self._linear(self.placed.linears[layer.qkv.name], hidden, f"{at}/qkv")
        query: ir.Value
        key: ir.Value | None
        value: ir.Value | None
        if layer.q_norm is None and layer.k_norm is None:
            query, key, value = (
                self._unflatten(qkv, lengths, q_width + 2 * kv_width, at),
                None,
                None,
            )
        else:
            widths = g.constant(np.array([q_width, kv_width, kv_width]), "attn.widths")
            q, k, v = g.ops("Split", [qkv, widths], f"{at}/split", outputs=3, axis=1)
            query = self._unflatten(
                self._head_norm(q, layer.q_norm, f"{at}/q_norm"), lengths, q_width, f"{at}/q"
            )
            key = self._unflatten(
                self._head_norm(k, layer.k_norm, f"{at}/k_norm"), lengths, kv_width, f"{at}/k"
            )
            value = self._unflatten(v, lengths, kv_width, f"{at}/v")
        cos, sin = self.placed.rope_tables[layer.index]
        kv_shape: list[Dim] = ["B", spec.kv_heads, "T", spec.head_dim]
        past_key = g.input(past(layer.index, "key"), self.element, kv_shape)
        past_value = g.input(past(layer.index, "value"), self.element, kv_shape)
        attended, present_key, present_value = g.ops(
            "GroupQueryAttention",
            [
                query,
                key,
                value,
                past_key,
                past_value,
                lengths.last_row,
                lengths.total,
                g.weight(cos),
                g.weight(sin),
            ],
            at,
            domain=CONTRIB,
            outputs=3,
            num_heads=spec.heads,
            kv_num_heads=spec.kv_heads,
            scale=float(spec.scale),
            do_rotary=1,
            local_window_size=-1 if layer.window is None else layer.window,
        )
        g.output(present_key, present(layer.index, "key"), self.element, kv_shape)
        g.output(present_value, present(layer.index, "value"), self.element, kv_shape)
        flat = g.op("Reshape", [attended, self._shape(-1, q_width)], f"{at}/flat")
        return self._linear(self.placed.linears[layer.o.name], flat, f"{at}/o")

    def _mlp(self, layer: Layer, hidden: ir.Value, at: str) -> ir.Value:
        g = self.g
        both = self._linear(self.placed.linears[layer.gate_up.name], hidden, f"{at}/gate_up")
        gate, up = g.ops("Split", [both], f"{at}/split", outputs=2, axis=1, num_outputs=2)
        if self.spec.activation == "silu":
            # alpha 1 makes x * sigmoid(alpha * x) the SiLU itself
            active = g.op("QuickGelu", [gate], f"{at}/act", domain=CONTRIB, alpha=1.0)
        else:
            active = g.op("Gelu", [gate], f"{at}/act", approximate="tanh")
        product = g.op("Mul", [active, up], f"{at}/gated")
        return self._linear(self.placed.linears[layer.down.name], product, f"{at}/down")

    def _head(self, residual: ir.Value, branch: ir.Value, rows: ir.Value) -> None:
        g, spec = self.g, self.spec
        residual = g.op("Gather", [residual, rows], "head/residual_rows", axis=0)
        branch = g.op("Gather", [branch, rows], "head/branch_rows", axis=0)
        _, normed = self._add_norm(residual, branch, spec.final_norm, "head/norm")
        logits = self._linear(self.placed.head, normed, "head")
        if self.element != FLOAT:
            logits = g.op("Cast", [logits], "head/float32", to=int(FLOAT))
        write_scores(g, spec, logits, self.placed.vocab)

    def _tap(self, index: int, flat: ir.Value, lengths: _Lengths) -> None:
        name, width = tap(index), self.spec.hidden
        shaped = self._unflatten(flat, lengths, width, name)
        self.g.output(shaped, name, self.element, ["B", "S", width])

    def _linear(self, placed: PlacedLinear, hidden: ir.Value, at: str) -> ir.Value:
        g = self.g
        bias = None if placed.bias is None else g.weight(placed.bias)
        if placed.scales is None:
            inputs = [hidden, g.weight(placed.weight)] + ([] if bias is None else [bias])
            return g.op("Gemm", inputs, at, transB=1)
        zero_points = None if placed.zero_points is None else g.weight(placed.zero_points)
        return g.op(
            "MatMulNBits",
            [hidden, g.weight(placed.weight), g.weight(placed.scales), zero_points, None, bias],
            at,
            domain=CONTRIB,
            K=placed.in_features,
            N=placed.out_features,
            bits=placed.bits,
            block_size=placed.block_size,
            accuracy_level=ACCURACY_LEVEL,
        )

    def _add_norm(
        self, residual: ir.Value, branch: ir.Value | None, norm: str, at: str
    ) -> tuple[ir.Value, ir.Value]:
        """residual + branch, and its RMS norm."""
        g = self.g
        if branch is None:
            return residual, self._norm(residual, norm, at)
        normed, _, _, total = g.ops(
            "SkipSimplifiedLayerNormalization",
            [residual, branch, g.weight(self.placed.vectors[norm])],
            at,
            domain=CONTRIB,
            outputs=4,
            epsilon=self.spec.norm_eps,
        )
        return total, normed

    def _norm(self, hidden: ir.Value, norm: str, at: str) -> ir.Value:
        scale = self.g.weight(self.placed.vectors[norm])
        return self.g.op(
            "SimplifiedLayerNormalization",
            [hidden, scale],
            at,
            axis=-1,
            epsilon=self.spec.norm_eps,
            stash_type=1,
        )

    def _head_norm(self, flat: ir.Value, norm: str | None, at: str) -> ir.Value:
        """RMS norm of every head of [B*S, heads * D]; the result is [B*S*heads, D]."""
        if norm is None:
            return flat
        per_head = self.g.op("Reshape", [flat, self._shape(-1, self.spec.head_dim)], at)
        return self._norm(per_head, norm, at)

    def _unflatten(self, flat: ir.Value, lengths: _Lengths, width: int, at: str) -> ir.Value:
        """[B*S, width], or any shape of as many values, to [B, S, width]."""
        name = f"attn.unflatten.{width}"
        if name not in self._shapes:
            self._shapes[name] = self.g.op(
                "Concat", [lengths.batch_and_width, self._shape(width)], name, axis=0
            )
        return self.g.op("Reshape", [flat, self._shapes[name]], f"{at}/unflatten")

    def _shape(self, *dims: int) -> ir.Value:
        return self.g.constant(np.array(dims, np.int64), f"shape.{'x'.join(map(str, dims))}")

    def _scalar(self, value: int) -> ir.Value:
        return self.g.constant(np.array(value, np.int64), f"int64.{value}")

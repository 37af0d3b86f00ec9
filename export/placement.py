"""Where every weight of a model lies: quantise, stream to the weights file, remember.

Lowerings refer to what was placed here; none of them reads a checkpoint. Tensors pass through in
blocks of rows, so that at no time more than one quantised tensor and a block are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from specedge.contract import Element
from specedge.export import columns
from specedge.export.checkpoint import Array, TensorMap, read, row_blocks
from specedge.export.decoder import DecoderSpec, Linear, Rope, Rows
from specedge.export.elements import dtype_of, narrowed
from specedge.export.quantize import Quantized, Scheme, quantize_blocks
from specedge.export.weights import Placed, PlacedQuantized, WeightWriter
from specedge.progress import Progress

# Of MatMulNBits: 4 multiplies int8 by int8, activations quantised block by block (5e-3 relative
# from exact). Levels below it dequantise the weights first: measured 3 times slower with 4-bit
# weights, 50 times with 8-bit ones (docs/decisions/0003).
ACCURACY_LEVEL = 4


@dataclass(frozen=True)
class Layout:
    """How a lowering wants its weights stored.

    Matrices that are not quantised are [out, in] in every layout.
    """

    element: Element = "float32"  # of matrices, biases, scales and rotary tables
    norms: Element = "float32"  # of what norms multiply by
    columns: bool = False  # quantised: [in, out], as specedge.export.columns says


@dataclass(frozen=True)
class PlacedLinear:
    """One linear layer: floats [out, in], or codes with scales and zero points."""

    in_features: int
    out_features: int
    weight: Placed
    bias: Placed | None = None
    scales: Placed | None = None
    zero_points: Placed | None = None
    bits: int = 32
    block_size: int = 0


@dataclass(frozen=True)
class PlacedEmbedding:
    """The lookup table, whose bytes a tied head multiplies by.

    Floats [V, H]; or uint8 [V, packed bytes of a row] with scales [V, blocks]; or int32 words of
    the matrix [H', V] with scales [blocks, V] (specedge.export.columns).
    """

    table: Placed
    scales: Placed | None = None
    zero_points: Placed | None = None
    bits: int = 32
    block_size: int = 0


@dataclass
class PlacedModel:
    """All weights of one graph, by the names its spec uses."""

    layout: Layout
    vocab: int
    embedding: PlacedEmbedding
    head: PlacedLinear
    linears: dict[str, PlacedLinear] = field(default_factory=dict)
    vectors: dict[str, Placed] = field(default_factory=dict)
    rope_tables: list[tuple[Placed, Placed]] = field(default_factory=list)  # cos, sin by layer


def place(
    spec: DecoderSpec,
    tensors: TensorMap,
    writer: WeightWriter,
    scheme: Scheme | None,
    layout: Layout,
    *,
    vocab: int,
    context: int,
    progress: Progress,
    importance: Mapping[str, Array] | None = None,
) -> PlacedModel:
    """Write every weight of `spec` and say where it went; names and shapes are checked already.

    Args:
        scheme: None for weights that are not quantised.
        layout: what the lowering asked for.
        vocab: rows of embedding and head to keep; the padded tail past it is cut.
        context: rows of the rotary tables (`specedge.contract.rope_rows`).
        importance: of input columns by `Linear.name` (specedge.export.importance).

    Raises:
        SourceError: a tensor is cut short or not finite.
        ExportError: the file cannot be written, or a value is beyond the range of its dtype.
    """
    placer = _Placer(spec, tensors, writer, scheme, layout, importance or {}, progress)
    return placer.place(vocab, context)


class _Placer:
    def __init__(
        self,
        spec: DecoderSpec,
        tensors: TensorMap,
        writer: WeightWriter,
        scheme: Scheme | None,
        layout: Layout,
        importance: Mapping[str, Array],
        progress: Progress,
    ) -> None:
        self.spec, self.tensors, self.writer = spec, tensors, writer
        self.scheme, self.layout = scheme, layout
        self.importance, self.progress = importance, progress

    def place(self, vocab: int, context: int) -> PlacedModel:
        spec = self.spec
        embedding, head = self._embedding(vocab)
        if spec.head is not None:
            head = self._linear(Linear("head", (Rows(spec.head, 0, vocab),), spec.hidden, vocab))
        model = PlacedModel(self.layout, vocab, embedding, head)
        ropes: dict[int, tuple[Placed, Placed]] = {}
        for layer in spec.layers:
            for linear in (layer.qkv, layer.o, layer.gate_up, layer.down):
                model.linears[linear.name] = self._linear(linear)
            for norm in (
                layer.input_norm,
                layer.mlp_norm,
                layer.post_attention_norm,
                layer.post_mlp_norm,
                layer.q_norm,
                layer.k_norm,
            ):
                if norm is not None:
                    model.vectors[norm] = self._norm(norm)
            if id(layer.rope) not in ropes:
                ropes[id(layer.rope)] = self._rope(layer.rope, len(ropes), context)
            model.rope_tables.append(ropes[id(layer.rope)])
        model.vectors[spec.final_norm] = self._norm(spec.final_norm)
        return model

    def _embedding(self, vocab: int) -> tuple[PlacedEmbedding, PlacedLinear]:
        """The table, and the same bytes as the matrix that a tied head multiplies by."""
        linear = Linear("embed", (Rows(self.spec.embedding, 0, vocab),), self.spec.hidden, vocab)
        if self.scheme is None or not self.layout.columns:
            placed = self._linear(linear)
            return _as_table(placed), placed
        scheme, lead = self.scheme, np.zeros(columns.LEAD, np.uint8)
        self.writer.add("embed.lead", lead.dtype, lead.shape, [lead])
        matrix = columns.add_columns(
            self.writer, "embed", self._parts(linear, scheme), self.layout.element
        )
        words = columns.as_words(matrix.packed, "embed.table")
        # by a name of their own: ONNX Runtime fuses no MatMul whose scales serve another node too
        dtype, shape = matrix.scales.dtype, matrix.scales.shape
        scales = matrix.scales.seen_as("embed.table.scales", dtype, shape)
        lookup = PlacedEmbedding(words, scales, None, scheme.bits, scheme.block_size)
        return lookup, _quantized(linear, scheme, matrix, None)

    def _linear(self, linear: Linear) -> PlacedLinear:
        bias = None
        if linear.bias:
            values = [
                narrowed(read(self.tensors, name), self.layout.element, name)
                for name in linear.bias
            ]
            joined = np.concatenate(values)
            bias = self.writer.add(f"{linear.name}.bias", joined.dtype, joined.shape, [joined])
        if self.scheme is None:
            weight = self.writer.add(
                f"{linear.name}.weight",
                dtype_of(self.layout.element),
                (linear.out_features, linear.in_features),
                self._narrowed(linear),
            )
            return PlacedLinear(linear.in_features, linear.out_features, weight, bias)
        parts = self._parts(linear, self.scheme)
        if self.layout.columns:
            placed = columns.add_columns(self.writer, linear.name, parts, self.layout.element)
        else:
            placed = self.writer.add_quantized(
                linear.name,
                linear.out_features,
                linear.in_features,
                self.scheme,
                parts,
                self.layout.element,
            )
        return _quantized(linear, self.scheme, placed, bias)

    def _parts(self, linear: Linear, scheme: Scheme) -> Iterator[Quantized]:
        return quantize_blocks(
            self._counted(linear), scheme, importance=self.importance.get(linear.name)
        )

    def _counted(self, linear: Linear) -> Iterator[Array]:
        for block in linear_blocks(self.tensors, linear):
            yield block
            self.progress.advance(block.size)

    def _narrowed(self, linear: Linear) -> Iterator[npt.NDArray[Any]]:
        """Blocks of rows in the layout's element."""
        for part in linear.weights:
            for block in row_blocks(self.tensors, part.name, part.start, part.stop):
                yield narrowed(block, self.layout.element, part.name)
                self.progress.advance(block.size)

    def _norm(self, name: str) -> Placed:
        values = read(self.tensors, name) + np.float32(self.spec.norm_offset)
        stored = narrowed(values, self.layout.norms, name)
        return self.writer.add(name, stored.dtype, stored.shape, [stored])

    def _rope(self, rope: Rope, index: int, context: int) -> tuple[Placed, Placed]:
        tables = [narrowed(t, self.layout.element, "a rotary table") for t in rope.tables(context)]
        cos, sin = (
            self.writer.add(f"rope.{index}.{name}", table.dtype, table.shape, [table])
            for name, table in zip(("cos", "sin"), tables, strict=True)
        )
        return cos, sin


def _quantized(
    linear: Linear, scheme: Scheme, placed: PlacedQuantized, bias: Placed | None
) -> PlacedLinear:
    return PlacedLinear(
        linear.in_features,
        linear.out_features,
        placed.packed,
        bias,
        placed.scales,
        placed.zero_points,
        scheme.bits,
        scheme.block_size,
    )


def _as_table(linear: PlacedLinear) -> PlacedEmbedding:
    """The same bytes under the embedding's shape."""
    if linear.scales is None:
        return PlacedEmbedding(linear.weight)
    n, blocks, block_bytes = linear.weight.shape
    table = linear.weight.seen_as("embed.table", np.uint8, (n, blocks * block_bytes))
    return PlacedEmbedding(table, linear.scales, linear.zero_points, linear.bits, linear.block_size)


def linear_blocks(tensors: TensorMap, linear: Linear) -> Iterator[Array]:
    """The stacked weight of a linear layer, [out, in], in blocks of rows."""
    for part in linear.weights:
        yield from row_blocks(tensors, part.name, part.start, part.stop)


def predict_bytes(
    spec: DecoderSpec, scheme: Scheme | None, layout: Layout, *, vocab: int, context: int
) -> int:
    """Bytes `place` will write, alignment left out: what a plan needs before anything is read."""
    element, norm = dtype_of(layout.element).itemsize, dtype_of(layout.norms).itemsize

    def weight(rows: int, features: int) -> int:
        if scheme is None:
            return element * rows * features
        return scheme.weight_bytes(rows, features, scale_bytes=element)

    tables = 1 if spec.head is None else 2
    lead = columns.LEAD if scheme is not None and layout.columns else 0
    total = lead + tables * weight(vocab, spec.hidden) + norm * spec.hidden
    for layer in spec.layers:
        for linear in (layer.qkv, layer.o, layer.gate_up, layer.down):
            total += weight(linear.out_features, linear.in_features)
            total += element * linear.out_features if linear.bias else 0
        norms = (layer.input_norm, layer.mlp_norm, layer.post_attention_norm, layer.post_mlp_norm)
        total += norm * spec.hidden * sum(name is not None for name in norms)
        head_norms = (layer.q_norm, layer.k_norm)
        total += norm * spec.head_dim * sum(name is not None for name in head_norms)
    ropes = {id(layer.rope): layer.rope for layer in spec.layers}
    return total + sum(2 * element * context * len(rope.inv_freq) for rope in ropes.values())


def count_parameters(spec: DecoderSpec, *, vocab: int) -> int:
    """Weights of the model, a tied table counted once."""
    linears = (
        linear.in_features * linear.out_features + (linear.out_features if linear.bias else 0)
        for layer in spec.layers
        for linear in (layer.qkv, layer.o, layer.gate_up, layer.down)
    )
    tables = 1 if spec.head is None else 2
    return sum(linears) + tables * vocab * spec.hidden

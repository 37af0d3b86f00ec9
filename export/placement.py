"""Where every weight of a model lies: quantise, stream to the weights file, remember.

Lowerings refer to what was placed here; none of them reads a checkpoint. Tensors pass through in
blocks of rows, so that at no time more than one quantised tensor and a block are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from specedge.export.checkpoint import Array, TensorMap, read, row_blocks
from specedge.export.decoder import DecoderSpec, Linear, Rope, Rows
from specedge.export.progress import Progress
from specedge.export.quantize import Scheme, quantize_blocks
from specedge.export.weights import Placed, WeightWriter

# Of MatMulNBits: 4 multiplies int8 by int8, activations quantised block by block (5e-3 relative
# from exact). Levels below it dequantise the weights first: measured 3 times slower with 4-bit
# weights, 50 times with 8-bit ones (docs/decisions/0003).
ACCURACY_LEVEL = 4


@dataclass(frozen=True)
class PlacedLinear:
    """One linear layer: float32 [out, in], or codes with scales and zero points."""

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
    """The lookup table: float32 [V, H], or uint8 [V, packed bytes of a row] with scales."""

    table: Placed
    linear: PlacedLinear  # the same bytes as a matrix: what a tied head multiplies by

    @property
    def scales(self) -> Placed | None:
        return self.linear.scales

    @property
    def zero_points(self) -> Placed | None:
        return self.linear.zero_points


@dataclass
class PlacedModel:
    """All weights of one graph, by the names its spec uses."""

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
    *,
    vocab: int,
    context: int,
    progress: Progress,
    importance: Mapping[str, Array] | None = None,
) -> PlacedModel:
    """Write every weight of `spec` and say where it went; names and shapes are checked already.

    Args:
        scheme: None for float32.
        vocab: rows of embedding and head to keep; the padded tail past it is cut.
        context: rows of the rotary tables (`specedge.contract.rope_rows`).
        importance: of input columns by `Linear.name` (specedge.export.importance).

    Raises:
        SourceError: a tensor is cut short or not finite.
        ExportError: the file cannot be written.
    """
    return _Placer(spec, tensors, writer, scheme, importance or {}, progress).place(vocab, context)


class _Placer:
    def __init__(
        self,
        spec: DecoderSpec,
        tensors: TensorMap,
        writer: WeightWriter,
        scheme: Scheme | None,
        importance: Mapping[str, Array],
        progress: Progress,
    ) -> None:
        self.spec, self.tensors, self.writer = spec, tensors, writer
        self.scheme, self.importance, self.progress = scheme, importance, progress

    def place(self, vocab: int, context: int) -> PlacedModel:
        spec = self.spec
        table = Linear("embed", (Rows(spec.embedding, 0, vocab),), spec.hidden, vocab)
        embedding = self._linear(table)
        head = embedding
        if spec.head is not None:
            head = self._linear(Linear("head", (Rows(spec.head, 0, vocab),), spec.hidden, vocab))
        model = PlacedModel(vocab, self._as_table(embedding), head)
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

    def _linear(self, linear: Linear) -> PlacedLinear:
        bias = None
        if linear.bias:
            parts = [read(self.tensors, name) for name in linear.bias]
            bias = self._vector(f"{linear.name}.bias", np.concatenate(parts))
        if self.scheme is None:
            weight = self.writer.add(
                f"{linear.name}.weight",
                "float32",
                (linear.out_features, linear.in_features),
                self._counted(linear),
            )
            return PlacedLinear(linear.in_features, linear.out_features, weight, bias)
        return self._quantized(linear, self.scheme, bias)

    def _quantized(self, linear: Linear, scheme: Scheme, bias: Placed | None) -> PlacedLinear:
        parts = quantize_blocks(
            self._counted(linear), scheme, importance=self.importance.get(linear.name)
        )
        placed = self.writer.add_quantized(
            linear.name, linear.out_features, linear.in_features, scheme, parts
        )
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

    def _counted(self, linear: Linear) -> Iterator[Array]:
        for block in linear_blocks(self.tensors, linear):
            yield block
            self.progress.advance(block.size)

    def _as_table(self, linear: PlacedLinear) -> PlacedEmbedding:
        """The same bytes under the embedding's shape."""
        if linear.scales is None:
            return PlacedEmbedding(linear.weight, linear)
        n, blocks, block_bytes = linear.weight.shape
        table = linear.weight.seen_as("embed.table", np.uint8, (n, blocks * block_bytes))
        return PlacedEmbedding(table, linear)

    def _norm(self, name: str) -> Placed:
        return self._vector(name, read(self.tensors, name) + np.float32(self.spec.norm_offset))

    def _vector(self, name: str, values: Array) -> Placed:
        return self.writer.add(name, "float32", values.shape, [values])

    def _rope(self, rope: Rope, index: int, context: int) -> tuple[Placed, Placed]:
        cos, sin = rope.tables(context)
        return (
            self.writer.add(f"rope.{index}.cos", "float32", cos.shape, [cos]),
            self.writer.add(f"rope.{index}.sin", "float32", sin.shape, [sin]),
        )


def linear_blocks(tensors: TensorMap, linear: Linear) -> Iterator[Array]:
    """The stacked weight of a linear layer, [out, in], in blocks of rows."""
    for part in linear.weights:
        yield from row_blocks(tensors, part.name, part.start, part.stop)


def predict_bytes(spec: DecoderSpec, scheme: Scheme | None, *, vocab: int, context: int) -> int:
    """Bytes `place` will write, alignment left out: what a plan needs before anything is read."""

    def weight(rows: int, columns: int) -> int:
        return 4 * rows * columns if scheme is None else scheme.weight_bytes(rows, columns)

    tables = 1 if spec.head is None else 2
    total = tables * weight(vocab, spec.hidden) + 4 * spec.hidden
    for layer in spec.layers:
        for linear in (layer.qkv, layer.o, layer.gate_up, layer.down):
            total += weight(linear.out_features, linear.in_features)
            total += 4 * linear.out_features if linear.bias else 0
        norms = (layer.input_norm, layer.mlp_norm, layer.post_attention_norm, layer.post_mlp_norm)
        total += 4 * spec.hidden * sum(norm is not None for norm in norms)
        head_norms = (layer.q_norm, layer.k_norm)
        total += 4 * spec.head_dim * sum(norm is not None for norm in head_norms)
    ropes = {id(layer.rope): layer.rope for layer in spec.layers}
    return total + sum(8 * context * len(rope.inv_freq) for rope in ropes.values())


def count_parameters(spec: DecoderSpec, *, vocab: int) -> int:
    """Weights of the model, a tied table counted once."""
    linears = (
        linear.in_features * linear.out_features + (linear.out_features if linear.bias else 0)
        for layer in spec.layers
        for linear in (layer.qkv, layer.o, layer.gate_up, layer.down)
    )
    tables = 1 if spec.head is None else 2
    return sum(linears) + tables * vocab * spec.hidden

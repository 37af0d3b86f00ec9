"""A small graph writer over onnx_ir: named nodes, shared constants, weights by reference.

Node names follow one grammar, `/layers.0/attn/qkv/MatMulNBits`, so that a profile or an error
of a runtime can be read back to the decoder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from specedge.export.weights import Placed, external

CONTRIB = "com.microsoft"
Dim = int | str
Attribute = int | float | str | Sequence[int]


class GraphWriter:
    """Collects inputs, nodes and initializers; `save` writes the model beside its weights."""

    def __init__(self, name: str, weights: str, opsets: Mapping[str, int]) -> None:
        """`weights` is the external data file, relative to the model's folder."""
        self._name = name
        self._weights = weights
        self._opsets = dict(opsets)
        self._inputs: list[ir.Value] = []
        self._outputs: list[ir.Value] = []
        self._nodes: list[ir.Node] = []
        self._initializers: dict[str, ir.Value] = {}

    def input(self, name: str, dtype: ir.DataType, shape: Sequence[Dim]) -> ir.Value:
        value = ir.val(name, dtype, shape)
        self._inputs.append(value)
        return value

    def output(self, value: ir.Value, name: str, dtype: ir.DataType, shape: Sequence[Dim]) -> None:
        """Make `value` a graph output under the contract's name."""
        value.name, value.dtype, value.shape = name, dtype, ir.Shape(shape)
        self._outputs.append(value)

    def op(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        *,
        domain: str = "",
        outputs: int = 1,
        **attributes: Attribute,
    ) -> ir.Value:
        """Add a node with one output that matters; `ops` returns them all."""
        return self.ops(op_type, inputs, name, domain=domain, outputs=outputs, **attributes)[0]

    def ops(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        *,
        domain: str = "",
        outputs: int = 1,
        **attributes: Attribute,
    ) -> tuple[ir.Value, ...]:
        """Add a node; `name` is its path without the leading slash and the operator."""
        full = f"/{name}/{op_type}"
        node = ir.node(
            op_type,
            inputs,
            attributes,
            domain=domain,
            outputs=[ir.val(f"{full}:{i}") for i in range(outputs)],
            name=full,
        )
        self._nodes.append(node)
        return tuple(node.outputs)

    def constant(self, array: np.ndarray, name: str) -> ir.Value:
        """A small value kept inside the model file; the same name is the same constant."""
        if name not in self._initializers:
            tensor = ir.tensor(array, name=name)
            self._initializers[name] = ir.val(name, tensor.dtype, array.shape, const_value=tensor)
        return self._initializers[name]

    def weight(self, placed: Placed) -> ir.Value:
        """A tensor of the weights file; it is referred to, never loaded."""
        if placed.name not in self._initializers:
            tensor = external(placed, self._weights)
            self._initializers[placed.name] = ir.val(
                placed.name, tensor.dtype, tensor.shape, const_value=tensor
            )
        return self._initializers[placed.name]

    def save(self, path: Path, producer_version: str) -> None:
        graph = ir.Graph(
            self._inputs,
            self._outputs,
            nodes=self._nodes,
            initializers=list(self._initializers.values()),
            opset_imports=self._opsets,
            name=self._name,
        )
        model = ir.Model(
            graph, ir_version=10, producer_name="specedge", producer_version=producer_version
        )
        ir.save(model, path)

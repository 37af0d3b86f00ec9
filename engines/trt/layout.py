"""Where the parts of a call, and of one sequence's keys and values, lie in device memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specedge.contract import GraphSpec, past, present
from specedge.engines.trt.cudart import aligned

Call = tuple[int, int]  # S, M


@dataclass(eq=False)
class Cache:
    """One sequence's keys and values on the device, and the graphs captured over them."""

    address: int
    size: int  # bytes
    tensors: dict[str, int]  # address by name; past and present of a layer share one
    calls: dict[Call, int] = field(default_factory=dict)  # plain ones, by kind
    graphs: dict[Call, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """Where the parts of the blocks lie, in bytes; every part at an aligned offset."""

    max_verify: int
    chunk: int
    vocab: int

    @property
    def rows_at(self) -> int:
        return aligned(4)

    @property
    def ids_at(self) -> int:
        return self.rows_at + aligned(8 * self.max_verify)

    @property
    def input_bytes(self) -> int:
        return self.ids_at + aligned(8 * max(self.chunk, self.max_verify))

    @property
    def best_at(self) -> int:
        """Of greedy logits, behind the greedy ids."""
        return aligned(8 * self.max_verify)

    @property
    def verdict_bytes(self) -> int:
        return self.best_at + aligned(4 * self.max_verify)

    @property
    def logits_bytes(self) -> int:
        return 4 * self.max_verify * self.vocab

    @property
    def total(self) -> int:
        return self.input_bytes + self.verdict_bytes + self.logits_bytes


def cache_bytes(spec: GraphSpec, rows: int) -> int:
    """Of one sequence at T = `rows`, every tensor at an aligned address."""
    return 2 * spec.layers * _tensor_bytes(spec, rows)


def cache_tensors(spec: GraphSpec, rows: int, address: int) -> dict[str, int]:
    """Address of every past and present tensor of a block of `cache_bytes`."""
    each = _tensor_bytes(spec, rows)
    tensors: dict[str, int] = {}
    for layer in range(spec.layers):
        key = address + 2 * layer * each
        value = key + each
        tensors |= {past(layer, "key"): key, present(layer, "key"): key}
        tensors |= {past(layer, "value"): value, present(layer, "value"): value}
    return tensors


def _tensor_bytes(spec: GraphSpec, rows: int) -> int:
    return aligned(spec.kv_bytes(rows) // (2 * spec.layers))

"""One sequence's buffers and the bindings made over them."""

from __future__ import annotations

from collections import OrderedDict

from specedge.contract import GraphSpec
from specedge.engines.ort.bindings import Binding, Lengths, Ports
from specedge.engines.ort.memory import Array, Memory
from specedge.engines.ort.rows import DeviceRows, HostRows, Rows

ODD_WIDTHS_KEPT = 4  # bindings of prefill remainders; those of verification are all kept
SIZES_KEPT = 4  # values of T whose bindings are kept

Key = tuple[int, int, int]  # T, width, rows


class OrtSlot:
    """KV buffers of one sequence and the bindings made over them."""

    def __init__(
        self,
        owner: object,
        spec: GraphSpec,
        context: int,
        spare: int,
        *,
        memory: Memory,
        ports: Ports,
        steps: bool,
    ) -> None:
        """
        Args:
            owner: the engine.
            spec: of its graph.
            context: rows that a sequence may have.
            spare: rows past the context that take what padding writes at the last position.
            memory: where keys and values lie.
            ports: of the engine's session.
            steps: T follows the sequence; False: it is context + spare from the start.

        Raises:
            EngineError: the memory has no room.
        """
        self.owner = owner
        self.context = context
        self.released = False
        made = DeviceRows if memory.is_apart else HostRows
        self.cache: Rows = made(memory, spec, context + spare, steps=steps)
        self.lengths = Lengths.of(ports)
        self.bindings: OrderedDict[Key, Binding] = OrderedDict()
        self._max_verify = spec.max_verify

    @property
    def kv(self) -> list[tuple[Array, Array]]:
        """Keys and values of each layer, [1, H_kv, T, D]; on the host alone."""
        assert isinstance(self.cache, HostRows), "these lie on a device"
        arrays = self.cache.arrays
        return list(zip(arrays[::2], arrays[1::2], strict=True))

    def fit(self, needed: int) -> int:
        """Have that many rows; returns T."""
        if self.cache.fit(needed):
            self.bindings.clear()
        return self.cache.rows

    def touch(self) -> None:
        self.cache.clear()

    def keep(self, key: Key, binding: Binding) -> None:
        """Remember a binding, and forget those that are unlikely to be asked for again."""
        self.bindings[key] = binding
        sizes = list(dict.fromkeys(rows for rows, _, _ in reversed(self.bindings)))
        odd = [each for each in self.bindings if each[1] > self._max_verify]
        gone = {*odd[:-ODD_WIDTHS_KEPT]}
        gone |= {each for each in self.bindings if each[0] in sizes[SIZES_KEPT:]}
        for each in gone:
            del self.bindings[each]

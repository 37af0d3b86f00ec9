"""Keys and values of one sequence, [1, H_kv, T, D] a layer, and how large T is.

Lowering "ort" reads the valid rows only, so its T is the whole context from the start. Lowering
"standard" attends over all T rows and masks those that are not valid: a call costs as much as T is
long, whoever has filled it. There T follows the sequence in steps. A new T moves every row once
(the heads of a layer lie one behind the other, T rows each); a step that is too large is paid by
every call instead. The sum of both is least where steps grow with the square root of T.

Going back far enough makes T smaller again: a slot that serves the next prompt, or a measurement
after a short past, must not pay for the longest one that the slot has seen. Going back a little, as
a rejected draft does, changes nothing.
"""

from __future__ import annotations

from typing import Protocol

import onnxruntime as ort

from specedge.contract import GraphSpec
from specedge.engines.ort.memory import Array, Memory, host_zeros

FIRST_STEP = 128
FIRST_DEVICE_ROWS = 512
_STEPS_SQUARED = 16  # the square of a step is at least this many times T
_STEPS_BACK = 2  # T shrinks when this many steps of it would be left over

Values = list[tuple[ort.OrtValue, ort.OrtValue]]


def step_at(rows: int) -> int:
    """Rows by which a cache of about `rows` grows."""
    step = FIRST_STEP
    while step * step < _STEPS_SQUARED * rows:
        step *= 2
    return step


def rows_for(needed: int, most: int) -> int:
    """T for a call that reaches `needed` rows, of a cache that may have `most`."""
    step = step_at(needed)
    return min(most, -(-needed // step) * step)


class Rows(Protocol):
    """What a slot holds; `rows` is T, `values` are the keys and values of each layer at that T."""

    rows: int
    values: Values

    def fit(self, needed: int) -> bool:
        """Have at least `needed` rows, and not many more; those that fit keep what they hold.

        True: values of another T are gone, and what was bound to them must go.
        """
        ...

    def clear(self) -> None:
        """Write zeros everywhere."""
        ...

    def scrub(self, first: int) -> None:
        """Write zeros from row `first` on: a masked weight of 0 times NaN is NaN."""
        ...


class _Stepping:
    """When to change T."""

    def __init__(self, spec: GraphSpec, most: int, *, steps: bool) -> None:
        self.spec, self.most = spec, most
        self.rows = self._rows_for(1) if steps else most
        self._enough = 0  # a call that needs no more than this makes T smaller

    def shape(self, rows: int) -> tuple[int, int, int, int]:
        return (1, self.spec.kv_heads, rows, self.spec.head_dim)

    def fit(self, needed: int) -> bool:
        if self._enough < needed <= self.rows:
            return False
        assert needed <= self.most, "the engine has looked at the context"
        rows = self._rows_for(needed)
        is_rebound = self._lay_out(rows)
        self.rows, self._enough = rows, self._enough_at(rows)
        return is_rebound

    def _rows_for(self, needed: int) -> int:
        return rows_for(needed, self.most)

    def _enough_at(self, rows: int) -> int:
        return max(0, rows - _STEPS_BACK * step_at(rows))

    def _lay_out(self, rows: int) -> bool:
        """Move what is there from T = self.rows to T = rows; whether it lies elsewhere then."""
        raise NotImplementedError


class HostRows(_Stepping):
    """One array for the largest T; a smaller T is a tighter layout of the same memory.

    The addresses never change, so that what was bound at a T serves when T comes back to it, and
    pages that were written once need not be found again.
    """

    def __init__(self, memory: Memory, spec: GraphSpec, most: int, *, steps: bool) -> None:
        super().__init__(spec, most, steps=steps)
        self._memory = memory
        # zeros, not empty: a masked weight of 0 times NaN is NaN
        self._whole = [host_zeros(self.shape(most), spec.kv_dtype) for _ in range(2 * spec.layers)]
        self._seen: dict[int, tuple[list[Array], Values]] = {}
        self.arrays, self.values = self._seen_at(self.rows)

    def clear(self) -> None:
        for whole in self._whole:
            whole.fill(0)

    def scrub(self, first: int) -> None:
        for array in self.arrays:
            array[:, :, first:] = 0

    def _seen_at(self, rows: int) -> tuple[list[Array], Values]:
        if rows not in self._seen:
            shape = self.shape(rows)
            size = shape[1] * shape[2] * shape[3]
            arrays = [whole.reshape(-1)[:size].reshape(shape) for whole in self._whole]
            each = [self._memory.over(array, self.spec.kv_dtype) for array in arrays]
            self._seen[rows] = arrays, list(zip(each[::2], each[1::2], strict=True))
        return self._seen[rows]

    def _lay_out(self, rows: int) -> bool:
        old = self.arrays
        self.arrays, self.values = self._seen_at(rows)
        kept = min(self.rows, rows)
        heads = range(self.spec.kv_heads)
        for source, target in zip(old, self.arrays, strict=True):
            # each head goes where no head lies that has yet to go
            for head in heads if rows < self.rows else reversed(heads):
                target[0, head, :kept] = source[0, head, :kept].copy()
                target[0, head, kept:] = 0
        return False


class DeviceRows(_Stepping):
    """Values on a device. A new T is a new allocation, filled by way of the host, since the runtime
    copies whole values only. That is dear, so T doubles; while it does, the old values and the new
    ones are there."""

    def __init__(self, memory: Memory, spec: GraphSpec, most: int, *, steps: bool) -> None:
        super().__init__(spec, most, steps=steps)
        self._memory = memory
        self.values = [(self._zeros(), self._zeros()) for _ in range(spec.layers)]

    def clear(self) -> None:
        zeros = host_zeros(self.shape(self.rows), self.spec.kv_dtype)
        for pair in self.values:
            for value in pair:
                value.update_inplace(zeros)

    def scrub(self, first: int) -> None:
        for pair in self.values:
            for value in pair:
                held = self._memory.read(value)
                held[:, :, first:] = 0
                value.update_inplace(held)

    def _rows_for(self, needed: int) -> int:
        rows = FIRST_DEVICE_ROWS
        while rows < needed:
            rows *= 2
        return min(self.most, rows)

    def _enough_at(self, rows: int) -> int:
        return rows // 4

    def _zeros(self) -> ort.OrtValue:
        return self._memory.zeros(self.shape(self.rows), self.spec.kv_dtype)

    def _lay_out(self, rows: int) -> bool:
        # all or nothing: the device may have no room for the last layer
        self.values = [
            (self._moved(key, rows), self._moved(value, rows)) for key, value in self.values
        ]
        return True

    def _moved(self, value: ort.OrtValue, rows: int) -> ort.OrtValue:
        held = self._memory.read(value)
        kept = min(self.rows, rows)
        other = host_zeros(self.shape(rows), self.spec.kv_dtype)
        other[:, :, :kept] = held[:, :, :kept]
        moved = self._memory.empty(other.shape, self.spec.kv_dtype)
        moved.update_inplace(other)
        return moved

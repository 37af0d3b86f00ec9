"""An engine whose kernels differ between widths, as those of quantised weights do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from specedge.engines.base import Scored
from specedge.engines.fake import FakeEngine

Bend = Callable[[int, int, np.ndarray], None]
"""(width of the call, place of the row in it, float32 [V]) → the row changed in place."""


class UnevenEngine(FakeEngine):
    """`bend` changes every row that is scored; the argmax is taken after it."""

    def __init__(self, *args: Any, bend: Bend, noise: float = 0.0, **given: Any) -> None:
        super().__init__(*args, **given)
        self.bend = bend
        self.width_noise = noise

    def forward(self, slot, tokens, n_cached, rows):
        scored = super().forward(slot, tokens, n_cached, rows)
        for row in range(rows):
            self.bend(len(tokens), len(tokens) - rows + row, scored.logits[row])
        return Scored(scored.logits.argmax(axis=1), scored.logits, scored.run_ms)


def raising(token: int, by: float, narrowest: int = 2) -> Bend:
    """One token's logit is higher by so much in every call of this width or wider."""

    def bend(width: int, place: int, row: np.ndarray) -> None:
        if width >= narrowest:
            row[token] += np.float32(by)

    return bend

"""Do logits depend on how many tokens a call has, and which widths agree?

Kernels differ by the number of rows they are given: matrix times vector, tiles of two or four rows,
what remains after whole tiles. Each adds up in another order, and int8 arithmetic turns the last
bit into differences of whole logits. Plain decoding (1 row) and verification (K + 1 rows) then see
two models. But where all multiples of some small step agree to the bit, padding every call to the
next multiple makes them one again. Which step does depends on weights, runtime and processor, so
it is measured when an engine is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from specedge.contract import Logits

WIDEST = 16  # the reference; T(16) bounds what measuring costs
_STEPS = (1, 2, 4, 8)
_SINGLY_UP_TO = 8


@dataclass(frozen=True)
class Widths:
    """What was measured.

    Args:
        step: multiples of it agree to the bit; None when not even multiples of 8 do.
        noise: largest difference of a logit between any two of the widths tried.
    """

    step: int | None
    noise: float


def measure(score: Callable[[int], Logits], widest: int = WIDEST) -> Widths:
    """Compare the widths 1..8 with the widest.

    Args:
        score: runs the first N of a fixed list of tokens as one call, without padding, and returns
            a copy of float32 [N, V].
        widest: at least 2; fewer than WIDEST where the context is shorter.
    """
    reference = score(widest)
    noise, same = 0.0, {widest: True}
    for width in range(1, min(_SINGLY_UP_TO, widest - 1) + 1):
        logits = score(width)
        same[width] = bool(np.array_equal(logits, reference[:width]))
        if not same[width]:
            noise = max(noise, float(np.abs(logits - reference[:width]).max()))
    step = next((step for step in _STEPS if all(same[w] for w in same if w % step == 0)), None)
    return Widths(step, noise)

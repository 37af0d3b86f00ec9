"""Do logits depend on how many tokens a call has, and which widths agree?

Kernels differ by the number of rows they are given: matrix times vector, tiles of two or four rows,
what remains after whole tiles. Each adds up in another order, and int8 arithmetic turns the last
bit into differences of whole logits. Plain decoding (1 row) and verification (K + 1 rows) then see
two models. But where all multiples of some small step agree to the bit, padding every call to the
next multiple makes them one again. Which step does depends on weights, runtime and processor, so
it is measured when an engine is loaded.

One row proves little: int8 rounding hides most last-bit differences, and of a small model's rows
one in ten comes out the same from kernels that differ. Hence several places in the text, more of
them where a model is small.

Activations of 16 bits hide more than measuring can find: of SmolLM2's rows in int8 one in eleven
tells a call of one token from wider ones, by half a logit, and of a toy's one in a thousand. One
row, the only width whose kernels multiply a matrix with a vector, is then never taken as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from specedge.contract import WIDEST_STEP, GraphSpec, Ids, Logits

WIDEST = 16  # the reference; T(16) bounds what measuring costs
ROWS = 48  # of a slot to measure in: a quarter is the past, and two calls of WIDEST fit behind it
_STEPS = tuple(step for step in (1, 2, 4, 8) if step <= WIDEST_STEP)
_FULL_BYTES = 4
_LEAST_ROUNDED = 2  # step where activations have less than those
_ROUNDING = 2.0**-10  # float16's, of the largest value: the least difference that there may be
_SINGLY_UP_TO = 8
_FEWEST_PLACES, _MOST_PLACES = 2, 24
_PARAMETERS_AT_MOST_PLACES = 4_000_000


@dataclass(frozen=True)
class Widths:
    """What was measured.

    Args:
        step: multiples of it agree to the bit; None when not even multiples of 8 do.
        noise: largest difference of a logit between any of the widths tried and the widest.
    """

    step: int | None
    noise: float


@dataclass(frozen=True)
class Padding:
    """How an engine pads its calls.

    Args:
        step: calls are padded to a multiple of it.
        head_step: and the rows that are scored to a multiple of this.
        widths: what was measured; None: the context is too short to.
    """

    step: int = 1
    head_step: int = 1
    widths: Widths | None = None

    @property
    def noise(self) -> float:
        """What padding leaves of the difference between widths; see `Engine.width_noise`."""
        exact = self.widths is None or self.widths.step in (1, self.step)
        return 0.0 if self.widths is None or exact else self.widths.noise


def padded(width: int, step: int) -> int:
    """The multiple of `step` that has room for `width`."""
    return -(-width // step) * step


def some_tokens(count: int, vocab: int) -> Ids:
    """int64 [count]: a fixed text without meaning."""
    return (np.arange(count, dtype=np.int64) * 7919) % vocab


Run = Callable[[Padding, Ids, int, int], Logits]
"""How to pad, tokens, the rows cached before them, M → a copy of float32 [M, V]."""


def padding(
    run: Run,
    spec: GraphSpec,
    rows: int,
    *,
    exact: bool,
    widest: int = WIDEST,
    most_scored: int = WIDEST_STEP,
) -> Padding:
    """Measure an engine.

    Args:
        run: makes calls in one slot.
        spec: of its graph.
        rows: of the slot; ROWS are enough for the usual `widest`.
        exact: pad calls where that makes them agree; False: only say by how much they differ.
        widest: call that is compared.
        most_scored: rows of the head that are compared.
    """
    n_past = min(rows, ROWS) // 4
    widest = min(widest, (rows - n_past) // 2)
    if widest < 2:
        return Padding()
    narrow, tokens = Padding(), some_tokens(n_past + 2 * widest, spec.vocab)
    for start in range(0, n_past, widest):
        run(narrow, tokens[start : min(start + widest, n_past)], start, 1)
    text = tokens[n_past:]

    def score(start: int, width: int) -> Logits:
        return run(narrow, text[start : start + width], n_past + start, width)

    found = measure(score, widest, places=places_for(spec.parameters))
    if found.step == 1 and spec.element_bytes < _FULL_BYTES:
        largest = float(np.abs(score(0, widest)).max())
        found = Widths(_LEAST_ROUNDED, largest * _ROUNDING)
    if not exact or found.step in (None, 1):
        return Padding(widths=found)
    step = found.step
    wide = most_scored if most_scored <= widest else widest // step * step
    # measured without padding the head; a context too short for it keeps the common step
    unpadded = Padding(step, 1, found)
    head_step = measure_head(lambda n: run(unpadded, text[:wide], n_past, n), wide, step)
    return Padding(step, head_step, found)


def places_for(parameters: int) -> int:
    """Places to compare at: from 24 for a toy down to 2, each costing about T(1) + ... + T(8)."""
    wanted = _MOST_PLACES * _PARAMETERS_AT_MOST_PLACES // max(1, parameters)
    return min(_MOST_PLACES, max(_FEWEST_PLACES, wanted))


def measure(
    score: Callable[[int, int], Logits], widest: int = WIDEST, *, places: int = _MOST_PLACES
) -> Widths:
    """Compare the widths 1..8 with the widest, at several places of a text of 2 * widest tokens.

    Args:
        score: runs tokens start..start + width of a fixed text after the rows of those before
            them, as one call without padding, and returns a copy of float32 [width, V].
        widest: at least 2; fewer than WIDEST where the context is shorter.
        places: starts that are tried, spread over the text, its beginning among them.
    """
    reference = np.concatenate([score(0, widest), score(widest, widest)])
    narrow = range(1, min(_SINGLY_UP_TO, widest - 1) + 1)
    last = len(reference) - narrow[-1]
    noise, same = 0.0, dict.fromkeys(narrow, True)
    # From the end: a call leaves rows of its own making behind, which no later call may read.
    for start in sorted({round(x) for x in np.linspace(0, last, places)}, reverse=True):
        for width in (width for width in narrow if same[width] or start == 0):
            difference = np.abs(score(start, width) - reference[start : start + width]).max()
            same[width] &= difference == 0
            noise = max(noise, float(difference))
    tried = (step for step in _STEPS if step <= narrow[-1])
    step = next((step for step in tried if all(same[w] for w in same if w % step == 0)), None)
    return Widths(step, noise)


def measure_head(score: Callable[[int], Logits], widest: int, step: int) -> int:
    """Step of the number of scored rows, where calls are padded to multiples of `step` already.

    The head is a layer of its own, as wide as there are scored rows, and the largest one: where its
    kernel gives one row the same bits as many, a plain step need not score a second row. It ends
    in logits, which no rounding hides, so one place is enough.

    Args:
        score: runs a fixed call of `widest` tokens and returns a copy of the logits of its last N.
        widest: a multiple of `step`.
        step: from `measure`; the result divides it.
    """
    reference = score(widest)
    same = {rows: np.array_equal(score(rows), reference[-rows:]) for rows in range(1, widest)}
    steps = (each for each in _STEPS if each <= step)
    return next((each for each in steps if all(same[n] for n in same if n % each == 0)), step)

"""The rejection rule where the logits are: what the `accept` graph takes and gives.

`specedge.export.acceptance_graph` writes the graph, an engine runs it over logits that never leave
its device, and `rejection` in numpy is the oracle. It serves requests that ask for a temperature
and nothing else; every other law is made on the host.

inputs, M = K + 1 scored rows
    logits   float32 [M, V]
    q        float32 [R, V]    weights that drafted tokens were drawn from, the largest of a row
                               about 1; row 0 is zeros
    plan     int64 [M, 6]      of each row: the drafted token, -1 in the last; its row of q, 0 where
                               it was not drawn; the draw that decides about it, and the draw of the
                               token in its place (in the last row: of the bonus), as two words each
    law      float32 [2]       1 / temperature; 1 where drafted tokens were certain (a lookup's), 0
                               where they were drawn from q
output
    verdict  int64 [2]         n_accepted, next token

A draw of 52 bits is two words of 26, because no device type but float64 holds it, and TensorRT has
none. For the same reason weights are added up as integers of `weight_bits`: sums are exact, and do
not depend on the order in which a device adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specedge.acceptance.thresholds import RoundDraws
from specedge.contract import Ids
from specedge.sampling.law import STEEP, Law

MODEL = "accept/model.onnx"  # in a bundle that has it
LOGITS, Q, PLAN, LAW, VERDICT = "logits", "q", "plan", "law", "verdict"
COLUMNS = 6  # of a plan
BONUS = -1  # the drafted token of the last row

WORD = 26  # bits; a draw has two words
_DRAW = 1 << 2 * WORD


def weight_bits(vocab: int) -> int:
    """Bits of a weight of 1, such that V of them add up to 2^58 at most."""
    return min(40, 58 - (vocab - 1).bit_length())


@dataclass(frozen=True, slots=True)
class Question:
    """What the rule has to know of a round besides the target's logits.

    Args:
        scale: 1 / temperature.
        draft: int64 [K], K >= 0.
        q: K laws over the whole vocabulary that the tokens were drawn from; None: they are certain.
        draws: of this round.
    """

    scale: float
    draft: Ids
    q: tuple[Law, ...] | None
    draws: RoundDraws

    def plan(self, out: Ids) -> Ids:
        """Fill `out`, int64 [M, COLUMNS], and return it."""
        k = len(self.draft)
        draws = self.draws
        out[:k, 0] = self.draft
        out[k, 0] = BONUS
        out[:, 1] = 0
        if self.q is not None:
            out[:k, 1] = np.arange(1, k + 1)
        bars = [*map(draws.accept, range(k)), 0.0]
        places = [*map(draws.residual, range(k)), draws.bonus(k)]
        for column, column_draws in ((2, bars), (4, places)):
            for row, draw in enumerate(column_draws):
                out[row, column], out[row, column + 1] = divmod(int(draw * _DRAW), 1 << WORD)
        return out

    def law(self, out: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Fill `out`, float32 [2], and return it."""
        out[0], out[1] = self.scale, self.q is None
        return out


def can_ask(scale: float, q: Sequence[Law] | None) -> bool:
    """Whether a round with these laws is one for the graph."""
    return scale <= STEEP and (q is None or all(law.ids is None for law in q))


def q_rows(question: Question, out: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Copy the weights of drawn tokens into rows 1..K of `out`, float32 [R, V]; returns them."""
    laws: Any = question.q or ()
    for row, law in enumerate(laws, 1):
        out[row] = law.weights
    return out[1 : len(laws) + 1]

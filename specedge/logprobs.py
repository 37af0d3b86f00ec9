"""Log-probabilities of committed tokens, from the target's raw logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specedge.contract import Ids, Logits


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One committed token: its natural log-probability, and the likeliest ids with theirs."""

    token: int
    logprob: float
    top: list[tuple[int, float]]  # falling probability; ties by rising id


def token_logprobs(tokens: Ids, logits: Logits, top: int) -> list[TokenLogprobs]:
    """Score each token by the row that chose it.

    Args:
        tokens: int64 [N].
        logits: float32 [M, V], M >= N; row i is the one that `tokens[i]` was taken from.
        top: how many likeliest ids to list, 0 or more.

    Returns:
        N entries; a row gives the same numbers whatever the width of the call it came from.
    """
    return [_score(token, logits[row], top) for row, token in enumerate(tokens.tolist())]


def _score(token: int, row: Logits, top: int) -> TokenLogprobs:
    wide = row.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    best: list[tuple[int, float]] = []
    if top > 0:
        top = min(top, len(row))
        # All ids that tie with the last place, so that the lowest of them can be chosen.
        bound = np.partition(row, len(row) - top)[len(row) - top]
        ids = np.flatnonzero(row >= bound)
        ids = ids[np.lexsort((ids, -row[ids]))][:top]
        best = [(int(i), float(wide[i])) for i in ids]
    return TokenLogprobs(token, float(wide[token]), best)

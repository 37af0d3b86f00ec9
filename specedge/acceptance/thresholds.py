"""`rejection` and `block`: each drafted token has a threshold, and a uniform draw below it passes.

Both rules say what they would do, `thresholds` and `next_law`, apart from doing it, so that the
law of their output can be added up instead of sampled.

Draws are keyed by the committed length at the beginning of the round, and by place in the draft.
Absolute positions would be wrong for `block`: it looks at the draws of all places, also of those
behind the last one that stands, and the next round would meet them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specedge.acceptance.residual import residual, residual_mass
from specedge.acceptance.verdict import Verdict
from specedge.contract import Ids
from specedge.randomness import Randomness, Stream
from specedge.sampling.law import Law

Laws = Sequence[Law]


class RoundDraws:
    """The draws of one round."""

    __slots__ = ("position", "randomness")

    def __init__(self, randomness: Randomness, position: int) -> None:
        """`position`: committed tokens when the round begins."""
        self.randomness = randomness
        self.position = position

    def accept(self, index: int) -> float:
        """Decides about draft[index]."""
        return self.randomness.uniform(Stream.ACCEPT, self.position, index)

    def residual(self, index: int) -> float:
        """Draws the token in place of draft[index]."""
        return self.randomness.uniform(Stream.RESIDUAL, self.position, index)

    def bonus(self, index: int) -> float:
        """Draws the token after a draft of `index` tokens."""
        return self.randomness.uniform(Stream.BONUS, self.position, index)


class ThresholdRule(Protocol):
    """A rule that compares one draw with one number for each drafted token."""

    def thresholds(self, draft: Ids, p: Laws, q: Laws) -> list[float]:
        """h, [K]: draft[i] passes iff its draw is below h[i]."""
        ...

    def next_law(self, draft: Ids, p: Laws, q: Laws, n_accepted: int) -> Law:
        """Law of the token after draft[:n_accepted]."""
        ...


def _threshold(token: int, p: Law, q: Law) -> float:
    """min(1, p / q); 0.0 for a token that q cannot have given."""
    mine, its = p.probability(token), q.probability(token)
    return 0.0 if its == 0.0 else min(1.0, mine / its)


def _next(p: Law, q: Law, scale: float) -> Law:
    left = residual(p, q, scale)
    # p and q are equal up to rounding, and yet a token was refused: p is as good.
    return left if left.total > 0.0 else p


class _Rejection:
    def thresholds(self, draft: Ids, p: Laws, q: Laws) -> list[float]:
        return [_threshold(token, p[i], q[i]) for i, token in enumerate(draft.tolist())]

    def next_law(self, draft: Ids, p: Laws, q: Laws, n_accepted: int) -> Law:
        if n_accepted == len(draft):
            return p[n_accepted]
        return _next(p[n_accepted], q[n_accepted], 1.0)


class _Block:
    def weights(self, draft: Ids, p: Laws, q: Laws) -> list[float]:
        """[K + 1]: 1, then w[i] = min(1, w[i - 1] p(draft[i - 1]) / q(draft[i - 1]))."""
        weights = [1.0]
        for i, token in enumerate(draft.tolist()):
            mine, its = p[i].probability(token), q[i].probability(token)
            # In this order: p / q may be infinite, and times a weight of 0 no number.
            weights.append(0.0 if its == 0.0 else min(1.0, weights[-1] * mine / its))
        return weights

    def thresholds(self, draft: Ids, p: Laws, q: Laws) -> list[float]:
        weights = self.weights(draft, p, q)
        k = len(draft)
        passing = []
        for i in range(1, k):
            left = residual_mass(p[i], q[i], weights[i])
            out_of = left + 1.0 - weights[i]
            # Only where w = 1 and p = q is nothing left: then a later place always passes.
            passing.append(left / out_of if out_of > 0.0 else 1.0)
        return passing + weights[k:] if k else []

    def next_law(self, draft: Ids, p: Laws, q: Laws, n_accepted: int) -> Law:
        if n_accepted == len(draft):
            return p[n_accepted]
        weight = self.weights(draft[:n_accepted], p, q)[-1]
        return _next(p[n_accepted], q[n_accepted], weight)


REJECTION, BLOCK = _Rejection(), _Block()


def rejection(draft: Ids, p: Laws, q: Laws, draws: RoundDraws) -> Verdict:
    """Accept draft[i] with probability min(1, p / q); stop at the first refused one, and draw its
    replacement from max(0, p - q), normalised.

    Leviathan et al., 2023, "Fast inference from transformers via speculative decoding"; Chen et
    al., 2023, "Accelerating large language model decoding with speculative sampling".

    Args:
        draft: int64 [K], K >= 0.
        p: K + 1 laws of the target; rows behind the first refused token are not looked at.
        q: K laws, those that the drafted tokens were really drawn from.
        draws: of this round.
    """
    n_accepted = 0
    for i, token in enumerate(draft.tolist()):
        if draws.accept(i) >= _threshold(token, p[i], q[i]):
            break
        n_accepted += 1
    return _verdict(REJECTION, draft, p, q, draws, n_accepted)


def block(draft: Ids, p: Laws, q: Laws, draws: RoundDraws) -> Verdict:
    """Keep the longest prefix whose threshold passes; shorter ones need not pass.

    Sun et al., 2024, "Block verification accelerates speculative decoding", algorithm 2. Arguments
    as `rejection`; all rows but the bonus are looked at.
    """
    thresholds = BLOCK.thresholds(draft, p, q)
    passed = [i + 1 for i, h in enumerate(thresholds) if draws.accept(i) < h]
    return _verdict(BLOCK, draft, p, q, draws, passed[-1] if passed else 0)


def _verdict(
    rule: ThresholdRule, draft: Ids, p: Laws, q: Laws, draws: RoundDraws, n_accepted: int
) -> Verdict:
    law = rule.next_law(draft, p, q, n_accepted)
    drawn = draws.bonus if n_accepted == len(draft) else draws.residual
    return Verdict(n_accepted, law.sample(drawn(n_accepted)))

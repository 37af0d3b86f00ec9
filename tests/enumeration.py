"""The law of what a rule puts out, added up over all drafts and all outcomes; nothing is drawn."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

from specedge.acceptance import BLOCK, REJECTION, ThresholdRule
from specedge.sampling.law import Law

Tokens = tuple[int, ...]
Joint = npt.NDArray[np.float64]
"""[V, V, …]: probability of each sequence of so many tokens."""

LawAfter = Callable[[Tokens, Tokens], Law]
"""(committed, drafted) → law of the token that follows both."""

RULES: dict[str, ThresholdRule] = {"rejection": REJECTION, "block": BLOCK}


def n_accepted_law(rule: ThresholdRule, thresholds: list[float]) -> list[float]:
    """[K + 1]: probability of 0..K accepted tokens, when each draw is uniform and independent."""
    k = len(thresholds)
    chances = []
    for n in range(k + 1):
        if rule is REJECTION:  # all before pass, the next does not
            chance = float(np.prod(thresholds[:n]))
            chances.append(chance * (1 - thresholds[n]) if n < k else chance)
        else:  # n passes, none behind it does
            chance = float(np.prod([1 - h for h in thresholds[n:]]))
            chances.append(chance * thresholds[n - 1] if n else chance)
    return chances


def outcomes(
    rule: ThresholdRule, committed: Tokens, k: int, vocab: int, p: LawAfter, q: LawAfter
) -> Iterator[tuple[float, Tokens, Law]]:
    """Probability, accepted tokens, and law of the next, of all that a round can decide."""
    for draft in itertools.product(range(vocab), repeat=k):
        mine = [p(committed, draft[:i]) for i in range(k + 1)]
        its = [q(committed, draft[:i]) for i in range(k)]
        drawn = float(np.prod([law.probability(x) for law, x in zip(its, draft, strict=True)]))
        if drawn == 0:
            continue
        tokens = np.array(draft, np.int64)
        for n, chance in enumerate(n_accepted_law(rule, rule.thresholds(tokens, mine, its))):
            if chance > 0:
                yield drawn * chance, draft[:n], rule.next_law(tokens, mine, its, n)


def plain(committed: Tokens, n: int, vocab: int, p: LawAfter) -> Joint:
    """The target's own law of the next n tokens."""
    if n == 0:
        return np.ones(())
    law = p(committed, ()).dense(vocab)
    return np.stack([law[x] * plain((*committed, x), n - 1, vocab, p) for x in range(vocab)])


def speculative(
    rule: ThresholdRule,
    n: int,
    vocab: int,
    p: LawAfter,
    q: LawAfter,
    draft_length: Callable[[int], int],
) -> Joint:
    """The law of the first n tokens that rounds of speculation put out.

    Args:
        draft_length: committed tokens → K of the round; cut to what is missing.
    """

    @cache
    def after(committed: Tokens) -> Joint:
        missing = n - len(committed)
        out = np.zeros((vocab,) * missing)
        if missing == 0:
            return np.ones(())
        k = min(draft_length(len(committed)), missing - 1)
        for chance, accepted, law in outcomes(rule, committed, k, vocab, p, q):
            for x, share in enumerate(law.dense(vocab).tolist()):
                if share > 0:
                    committed_now = (*accepted, x)
                    out[committed_now] += chance * share * after((*committed, *committed_now))
        return out

    return after(())


def expected_accepted(rule: ThresholdRule, k: int, vocab: int, p: LawAfter, q: LawAfter) -> float:
    """Mean number of accepted tokens of the first round."""
    return sum(chance * len(accepted) for chance, accepted, _ in outcomes(rule, (), k, vocab, p, q))

"""`coupled`: target and draft draw with the same noise, and the text is the target's own sample.

The token at position t wins an exponential race: argmin over ids of E(id) / p(id), with E
independent and exponential. That is the Gumbel trick, argmax of log p - log E, and each id wins
with its probability. E depends on seed, sample, t and id alone, so what the target draws does not
depend on the draft; a draft that draws from q with the same E often names the same token, with
probability (1 - TV) / (1 + TV) at least (Daliri et al., 2024, "Coupling without communication and
drafter-invariant speculative decoding").

Few of the E are ever made. Ids stand in groups of 256. The first arrival of a group is exponential
with rate 256 and its place is uniform; being memoryless, the others come at the first plus an
exponential each. The first arrival bounds what anybody in the group can reach, so groups are
opened from the best bound down until no bound passes the best score (the top-down construction of
Maddison et al., 2014, "A* sampling", one level deep).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np

from specedge.acceptance.greedy import accept_chosen
from specedge.acceptance.verdict import Verdict
from specedge.contract import Ids
from specedge.randomness import Randomness, Stream
from specedge.sampling.law import BLOCK as GROUP
from specedge.sampling.law import Floats, Law, Scores, block_starts

FIRST_DRAW = 2**32
"""Index of the draw of group 0's first arrival; its place, and the other groups, follow. Ids are
below, the largest vocabularies have less than 2^20."""

_FEW = 512  # ids that are looked at one by one


def coupled(draft: Ids, p: Sequence[Law], randomness: Randomness, position: int) -> Verdict:
    """Keep drafted tokens as long as they are what the target draws itself.

    Args:
        draft: int64 [K], K >= 0.
        p: K + 1 laws of the target; rows behind the first refused token are not looked at.
        randomness: the draft was drawn with it as well, if it is to agree.
        position: committed tokens when the round begins: that of the first drafted one.
    """
    return accept_chosen(draft, lambda i: race(p[i], randomness, position + i))


def race(law: Law, randomness: Randomness, position: int) -> int:
    """The token of this law at `position`; equal scores go to the lowest id."""
    if law.ids is None:
        return _among_all(law.logits, law.scale, randomness, position)
    if law.size <= _FEW:
        return _among_few(law.ids, law.logits, law.scale, randomness, position)
    # Nobody else has a chance: the same race, with the others at minus infinity.
    n = (int(law.ids[-1]) // GROUP + 1) * GROUP
    logits = np.full(n, -np.inf, law.logits.dtype)
    logits[law.ids] = law.logits
    return _among_all(logits, law.scale, randomness, position)


def _first(randomness: Randomness, position: int, n_groups: int) -> tuple[Floats, Floats]:
    """First arrivals of the groups 0..n - 1 and their places, as shares of 1."""
    draws = randomness.uniforms(Stream.COUPLED, position, FIRST_DRAW, 2 * n_groups)
    first = np.log(draws[0::2])
    first *= -1.0 / GROUP
    return first, draws[1::2]


def _among_all(logits: Scores, scale: float, randomness: Randomness, position: int) -> int:
    """Whole groups are opened, the one with the best bound first."""
    starts = block_starts(len(logits))
    first, places = _first(randomness, position, len(starts))
    bounds = np.multiply(np.maximum.reduceat(logits, starts), scale, dtype=np.float64)
    bounds -= np.log(first)
    best, token = -np.inf, -1
    while True:
        group = int(bounds.argmax())
        if bounds.item(group) < best:
            return token
        bounds[group] = -np.inf
        start = group * GROUP
        others = randomness.uniforms(Stream.COUPLED, position, start, GROUP)
        arrivals = np.log(others, out=others)
        np.subtract(first[group], arrivals, out=arrivals)
        arrivals[int(places.item(group) * GROUP)] = first[group]
        scores = np.multiply(logits[start : start + GROUP], scale, dtype=np.float64)
        scores -= np.log(arrivals)[: len(scores)]
        its = start + int(scores.argmax())
        score = scores.item(its - start)
        if score > best or (score == best and its < token):
            best, token = score, its


def _among_few(
    ids: Ids, logits: Scores, scale: float, randomness: Randomness, position: int
) -> int:
    """Ids are looked at one by one, from the best bound down, each with a draw of its own."""
    first, places = _first(randomness, position, int(ids[-1]) // GROUP + 1)
    mine = first[ids // GROUP]
    scores = np.multiply(logits, scale, dtype=np.float64)
    bounds = scores - np.log(mine)
    best, token = -np.inf, -1
    for at in np.argsort(-bounds).tolist():
        if bounds.item(at) < best:
            break
        its = ids.item(at)
        arrives = mine.item(at)
        if int(places.item(its // GROUP) * GROUP) != its % GROUP:
            arrives -= log(randomness.uniform(Stream.COUPLED, position, its))
        score = scores.item(at) - log(arrives)
        if score > best or (score == best and its < token):
            best, token = score, its
    return token


def arrival(randomness: Randomness, position: int, token: int) -> float:
    """E of one id, for reports: the id wins the race if its E / p is the least."""
    group = token // GROUP
    first, places = _first(randomness, position, group + 1)
    if int(places.item(group) * GROUP) == token % GROUP:
        return first.item(group)
    return first.item(group) - log(randomness.uniform(Stream.COUPLED, position, token))

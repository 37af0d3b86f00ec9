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

import numpy as np

from specedge.acceptance.greedy import accept_chosen
from specedge.acceptance.verdict import Verdict
from specedge.contract import Ids
from specedge.randomness import Randomness, Stream
from specedge.sampling.law import BLOCK as GROUP
from specedge.sampling.law import Floats, Law, block_starts

FIRST_DRAW = 2**32
"""Index of the draw of group 0's first arrival; its place, and the other groups, follow. Ids are
below, the largest vocabularies have less than 2^20."""


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
    ids, logits, scale = law.ids, law.logits, law.scale
    if ids is None:
        starts = block_starts(len(logits))
        groups = np.arange(len(starts))
    else:
        groups, starts = np.unique(ids >> _SHIFT, return_index=True)
    n_groups = int(groups[-1]) + 1
    draws = randomness.uniforms(Stream.COUPLED, position, FIRST_DRAW, 2 * n_groups)
    first = np.log(draws[0::2])
    first *= -1.0 / GROUP
    if ids is not None:
        first = first[groups]
    bounds = np.multiply(np.maximum.reduceat(logits, starts), scale, dtype=np.float64)
    bounds -= np.log(first)
    best, token = -np.inf, -1
    while True:
        at = int(bounds.argmax())
        if bounds.item(at) < best:
            return token
        bounds[at] = -np.inf
        group, start = int(groups[at]), int(starts[at])
        stop = int(starts[at + 1]) if at + 1 < len(starts) else len(logits)
        arrivals = _arrivals(randomness, position, group, first.item(at), draws)
        members = slice(0, stop - start) if ids is None else ids[start:stop] - group * GROUP
        scores = np.multiply(logits[start:stop], scale, dtype=np.float64)
        scores -= np.log(arrivals[members])
        place = int(scores.argmax())
        score = scores.item(place)
        its = start + place if ids is None else ids.item(start + place)
        if score > best or (score == best and its < token):
            best, token = score, its


def arrival(randomness: Randomness, position: int, token: int) -> float:
    """E of one id, for reports: the id wins the race if its E / p is the least."""
    group = token // GROUP
    draws = randomness.uniforms(Stream.COUPLED, position, FIRST_DRAW, 2 * group + 2)
    first = float(np.log(draws[2 * group]) * (-1.0 / GROUP))
    return _arrivals(randomness, position, group, first, draws).item(token % GROUP)


_SHIFT = GROUP.bit_length() - 1


def _arrivals(
    randomness: Randomness, position: int, group: int, first: float, draws: Floats
) -> Floats:
    """E of a group's 256 ids, float64 [256]."""
    others = randomness.uniforms(Stream.COUPLED, position, group * GROUP, GROUP)
    arrivals = first - np.log(others)
    arrivals[int(draws.item(2 * group + 1) * GROUP)] = first
    return arrivals

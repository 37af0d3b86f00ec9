"""Sampling and acceptance from their papers, on dense laws, slow and plain.

A law is a list or an array of V probabilities. Nothing here imports specedge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Probabilities = Sequence[float]

DRAFT, ACCEPT, RESIDUAL, BONUS, COUPLED = 1, 2, 3, 4, 5
GROUP = 256
GROUPS_FROM = 2**32

_MASK = 2**64 - 1
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x64-10, Salmon et al. 2011: four words for a counter of four and a key of two."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (
            (product1 >> 64) ^ b ^ k0,
            product1 & _MASK,
            (product0 >> 64) ^ d ^ k1,
            product0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return [a, b, c, d]


Place = tuple[tuple[int, int], tuple[int, int, int, int], int]


def place(seed: int, sample: int, stream: int, position: int, index: int) -> Place:
    """Key, counter and word of a draw."""
    return (seed, sample), (index // 4 + 1, position, stream, 0), index % 4


def uniform(seed: int, sample: int, stream: int, position: int, index: int) -> float:
    """52 bits of the word, in the middle of their interval."""
    key, counter, word = place(seed, sample, stream, position, index)
    return ((philox(counter, key)[word] >> 12) + 0.5) * 2.0**-52


def inverse_cdf(weights: Probabilities, u: float) -> int:
    """The first id at which the running sum passes u times the whole; never one of weight 0."""
    wanted = u * math.fsum(weights)
    last = -1
    running = 0.0
    for token, weight in enumerate(weights):
        if weight > 0:
            last = token
            running += weight
            if running > wanted:
                return token
    return last


Draw = Callable[[int, int], float]
"""(stream, index) → the draw of this round."""

Answer = tuple[int, int]
"""How many stand, next token."""


def leftover(p: Probabilities, q: Probabilities, scale: float = 1.0) -> list[float]:
    """max(0, scale p - q); p itself where rounding leaves nothing."""
    left = [max(0.0, scale * mine - its) for mine, its in zip(p, q, strict=True)]
    return left if math.fsum(left) > 0 else list(p)


def rejection(
    draft: Sequence[int], p: Sequence[Probabilities], q: Sequence[Probabilities], draw: Draw
) -> Answer:
    """Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2."""
    for i, token in enumerate(draft):
        chance = min(1.0, p[i][token] / q[i][token]) if q[i][token] > 0 else 0.0
        if draw(ACCEPT, i) >= chance:
            return i, inverse_cdf(leftover(p[i], q[i]), draw(RESIDUAL, i))
    k = len(draft)
    return k, inverse_cdf(p[k], draw(BONUS, k))


def block_weight(
    draft: Sequence[int], p: Sequence[Probabilities], q: Sequence[Probabilities], n: int
) -> float:
    """Sun et al. 2024, equation 4: the weight of the first n drafted tokens."""
    weight = 1.0
    for i in range(n):
        token = draft[i]
        weight = min(1.0, weight * p[i][token] / q[i][token]) if q[i][token] > 0 else 0.0
    return weight


def block_threshold(
    draft: Sequence[int], p: Sequence[Probabilities], q: Sequence[Probabilities], n: int
) -> float:
    """Sun et al. 2024, algorithm 2: the chance that the first n, as a block, pass."""
    weight = block_weight(draft, p, q, n)
    if n == len(draft):
        return weight
    left = math.fsum(max(0.0, weight * mine - its) for mine, its in zip(p[n], q[n], strict=True))
    beyond = left + 1.0 - weight
    return left / beyond if beyond > 0 else 1.0


def block(
    draft: Sequence[int], p: Sequence[Probabilities], q: Sequence[Probabilities], draw: Draw
) -> Answer:
    """Sun et al. 2024, algorithm 2: the longest block that passes."""
    k = len(draft)
    n = 0
    for length in range(1, k + 1):
        if draw(ACCEPT, length - 1) < block_threshold(draft, p, q, length):
            n = length
    if n == k:
        return k, inverse_cdf(p[k], draw(BONUS, k))
    left = leftover(p[n], q[n], block_weight(draft, p, q, n))
    return n, inverse_cdf(left, draw(RESIDUAL, n))


def arrivals(vocab: int, noise: Callable[[int], float], group: int = GROUP) -> list[float]:
    """E of ids 0..vocab - 1, each exponential with rate 1; `noise`: index → uniform draw.

    The first of a group arrives with rate `group`, at a uniform place, and the others follow it.
    """
    out = []
    for token in range(vocab):
        j = token // group
        first = -math.log(noise(GROUPS_FROM + 2 * j)) / group
        winner = j * group + math.floor(group * noise(GROUPS_FROM + 2 * j + 1))
        out.append(first if token == winner else first - math.log(noise(token)))
    return out


def winner(p: Probabilities, times: Sequence[float]) -> int:
    """argmin of E / p over the ids that can be; the lowest of several."""
    best, token = math.inf, -1
    for candidate, (chance, time) in enumerate(zip(p, times, strict=True)):
        if chance > 0 and time / chance < best:
            best, token = time / chance, candidate
    return token


def coupled(
    draft: Sequence[int], p: Sequence[Probabilities], times: Sequence[Sequence[float]]
) -> Answer:
    """Daliri et al. 2024: the target's own sample at each place, for as long as the draft is it."""
    for i, token in enumerate(draft):
        own = winner(p[i], times[i])
        if own != token:
            return i, own
    k = len(draft)
    return k, winner(p[k], times[k])

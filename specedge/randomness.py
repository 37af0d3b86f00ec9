"""The random number contract: every draw is a pure function of where it is used.

    uniform(seed, sample, stream, position, index)

seed      of the request, 0..2^64 - 1
sample    which of the request's n samples, 0..2^64 - 1
stream    what the draw decides, see `Stream`
position  rejection and block: committed tokens when the round begins; coupled: tokens before the
          one that is drawn
index     rejection and block: place in the draft; coupled: the token's id, and see `race`

The generator is Philox4x64-10 (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2,
3"), a keyed bijection of 256-bit counters. Each argument has 64 bits of key or counter to itself,
so draws that differ in any argument come from different blocks, or from different words of one:
streams cannot meet. Nothing is consumed and nothing depends on what was drawn before.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_SEED = 2**64 - 1

_WORDS = 4  # uint64 of one block
_STEP = 2.0**-52


class Stream(IntEnum):
    """What a draw decides."""

    DRAFT = 1  # the token that a draft model proposes
    ACCEPT = 2  # whether a drafted token stands
    RESIDUAL = 3  # the token in place of the first refused one
    BONUS = 4  # the token after a draft of which all stands, the empty one included
    COUPLED = 5  # the noise that target and draft share


def _philox(key: int, key_2: int, c0: int, c1: int, c2: int) -> tuple[int, int, int, int]:
    """The block of counter (c0, c1, c2, 0): ten rounds of two 64-bit multiplications each."""
    c3 = 0
    for _ in range(10):
        a, b = c0 * 0xD2E7470EE14C6C93, c2 * 0xCA5A826395121157
        c0, c1, c2, c3 = (b >> 64) ^ c1 ^ key, b & MAX_SEED, (a >> 64) ^ c3 ^ key_2, a & MAX_SEED
        key = (key + 0x9E3779B97F4A7C15) & MAX_SEED
        key_2 = (key_2 + 0xBB67AE8584CAA73B) & MAX_SEED
    return c0, c1, c2, c3


class Randomness:
    """All draws of one sample of one request; for one thread at a time."""

    __slots__ = ("_bits", "_counter", "_state", "sample", "seed")

    def __init__(self, seed: int, sample: int = 0) -> None:
        """`seed` and `sample` are 0..2^64 - 1."""
        self.seed = seed
        self.sample = sample
        self._bits = np.random.Philox()
        self._counter = np.zeros(4, np.uint64)
        self._state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": np.array([seed, sample], np.uint64)},
            "buffer": np.zeros(_WORDS, np.uint64),
            "buffer_pos": _WORDS,
            "has_uint32": 0,
            "uinteger": 0,
        }

    def uniform(self, stream: Stream, position: int, index: int = 0) -> float:
        """One draw, strictly between 0 and 1."""
        # Not numpy's generator: its code is cold after an engine's step, and costs ten times this.
        words = _philox(self.seed, self.sample, index // _WORDS + 1, position, stream)
        return ((words[index % _WORDS] >> 12) + 0.5) * _STEP

    def uniforms(
        self, stream: Stream, position: int, start: int, count: int
    ) -> npt.NDArray[np.float64]:
        """The draws of index start..start + count - 1, float64 [count], between 0 and 1."""
        return _between(self._words(stream, position, start, count)[start % _WORDS :])

    def _words(
        self, stream: Stream, position: int, start: int, count: int
    ) -> npt.NDArray[np.uint64]:
        """uint64 from the beginning of the block that holds `start`."""
        # numpy's generator adds 1 to the counter before each block: ours are counted from 1.
        counter = self._counter
        counter[0], counter[1], counter[2] = start // _WORDS, position, stream
        self._bits.state = self._state
        return self._bits.random_raw(start % _WORDS + count)


def _between(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """52 bits of each, strictly between 0 and 1."""
    draws = (words >> np.uint64(12)).astype(np.float64)
    draws += 0.5
    draws *= _STEP
    return draws

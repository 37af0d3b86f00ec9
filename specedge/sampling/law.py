"""A distribution over token ids, as rules of acceptance and draws need it.

A law is given by log-weights, logit / temperature, or by weights. Which of the two faces is
looked at depends on the rule: `rejection` and `block` compare probabilities, `coupled` never needs
one and so never pays for an exponential. Weights are made when they are first looked at: in
float64, but for the whole vocabulary of a model in float32, which takes half to a quarter of the
time. Sums are float64 always, so that the law is exactly the weights over their sum.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from specedge.contract import Ids

Floats = npt.NDArray[np.float64]
Scores = npt.NDArray[np.float32] | Floats
Weights = npt.NDArray[np.float32] | Floats

BLOCK = 256
WIDE = 4096
"""Logits of more tokens than this have weights in float32, if they are float32 themselves."""

STEEP = 1e6
"""Largest scale of float32 weights: the inverse of the least temperature."""


class Buffers(Protocol):
    """Where weights are made; see `Scratch`."""

    def floats(self, n: int) -> Floats: ...

    def singles(self, n: int) -> npt.NDArray[np.float32]: ...


class _Fresh:
    """Buffers for laws that are not made over and over."""

    def floats(self, n: int) -> Floats:
        return np.empty(n)

    def singles(self, n: int) -> npt.NDArray[np.float32]:
        return np.empty(n, np.float32)


FRESH = _Fresh()


@lru_cache(maxsize=64)
def block_starts(n: int) -> npt.NDArray[np.intp]:
    """0, 256, 512, … below n: where the blocks of n elements begin."""
    return np.arange(0, n, BLOCK)


class Law:
    """Probabilities of token ids; at least one is positive.

    Args:
        ids: int64 [n], rising; None: 0..n - 1. Every other id has probability 0.
        logits: float32 or float64 [n], none NaN or +inf, one finite at least. A view is fine: it
            is read when weights are first looked at.
        scale: a weight is exp(scale * (logit - the largest)).
        buffers: where weights are made.
    """

    __slots__ = ("_logits", "_sums", "_top", "_weights", "buffers", "ids", "scale")

    def __init__(
        self,
        ids: Ids | None,
        logits: Scores | None,
        scale: float = 1.0,
        *,
        weights: Weights | None = None,
        top: float | None = None,
        buffers: Buffers = FRESH,
    ) -> None:
        """`weights` in place of `logits` gives the law by its weights; `top` is the largest logit,
        where it is known."""
        self.ids = ids
        self.scale = scale
        self._logits = logits
        self._weights = weights
        self._top = top
        self._sums: Floats | None = None
        self.buffers = buffers

    @classmethod
    def of(cls, weights: Floats, ids: Ids | None = None) -> Law:
        """By weights, float64 [n], >= 0, that need not add up to 1."""
        return cls(ids, None, weights=weights)

    @classmethod
    def certain(cls, token: int) -> Law:
        """Always this token: what a lookup drafts from."""
        return cls(np.array([token], np.int64), None, weights=np.ones(1))

    @property
    def likeliest(self) -> int:
        """The id of the largest weight; the lowest of several."""
        place = int((self.weights if self._logits is None else self._logits).argmax())
        return place if self.ids is None else self.ids.item(place)

    @property
    def size(self) -> int:
        """n."""
        values = self._weights if self._logits is None else self._logits
        assert values is not None
        return len(values)

    @property
    def logits(self) -> Scores:
        """float [n]; times `scale`, the logarithm of the weights up to a constant."""
        if self._logits is None:
            with np.errstate(divide="ignore"):
                self._logits = np.log(self.weights)
        return self._logits

    @property
    def weights(self) -> Weights:
        """float32 or float64 [n], not normalised."""
        if self._weights is None:
            logits = self._logits
            assert logits is not None
            n = len(logits)
            top = logits.max().item() if self._top is None else self._top
            weights: Weights
            with np.errstate(over="ignore"):  # far below the largest: the weight is 0
                if n > WIDE and logits.dtype == np.float32 and self.scale <= STEEP:
                    weights = np.subtract(logits, np.float32(top), out=self.buffers.singles(n))
                else:
                    weights = self.buffers.floats(n)
                    np.copyto(weights, logits)
                    weights -= top
                weights *= self.scale
            np.exp(weights, out=weights)
            self._weights = weights
        return self._weights

    @property
    def sums(self) -> Floats:
        """float64 [blocks]: the sum of all weights up to the end of each block of 256."""
        if self._sums is None:
            weights = self.weights
            n = len(weights)
            if n <= BLOCK:
                self._sums = weights.sum(dtype=np.float64, keepdims=True)
            else:
                parts = np.add.reduceat(weights, block_starts(n), dtype=np.float64)
                self._sums = parts.cumsum(out=parts)
        return self._sums

    @property
    def total(self) -> float:
        """Sum of the weights."""
        return self.sums.item(-1)

    def weight(self, token: int) -> float:
        """Weight of one id; 0.0 for an id that is not among them."""
        weights, ids = self.weights, self.ids
        if ids is None:
            return weights.item(token) if token < len(weights) else 0.0
        # Few ids are searched as a list: numpy's code is cold after an engine's step.
        place = (
            bisect_left(ids.tolist(), token) if len(ids) <= BLOCK else int(ids.searchsorted(token))
        )
        found = place < len(weights) and ids.item(place) == token
        return weights.item(place) if found else 0.0

    def probability(self, token: int) -> float:
        """Of one id."""
        return self.weight(token) / self.total

    def sample(self, uniform: float) -> int:
        """The id at `uniform` (0 < uniform < 1) of the cumulative distribution, by rising id."""
        sums, weights = self.sums, self.weights
        wanted = uniform * sums.item(-1)
        block = int(sums.searchsorted(wanted, side="right"))
        block = min(block, len(sums) - 1)
        start = block * BLOCK
        inside = weights[start : start + BLOCK].cumsum(dtype=np.float64)
        if block:
            wanted -= sums.item(block - 1)
        place = int(inside.searchsorted(wanted, side="right"))
        if place >= len(inside):  # the two sums were rounded differently
            start, place = 0, int(weights[: start + BLOCK].nonzero()[0][-1])
        place += start
        return place if self.ids is None else self.ids.item(place)

    def dense(self, vocab: int) -> Floats:
        """Probabilities, float64 [vocab]."""
        out = np.zeros(vocab)
        out[slice(None, self.size) if self.ids is None else self.ids] = self.weights
        out /= self.total
        return out

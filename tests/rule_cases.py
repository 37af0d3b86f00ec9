"""Random and degenerate drafts with their laws, dense for the oracle and as `Law` for the code."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specedge.sampling.law import Law

Row = npt.NDArray[np.float64]

FORMS = ("dense", "sparse", "padded", "logits", "sparse logits")
TINY = 5e-324  # the smallest denormal


@dataclass(frozen=True)
class Case:
    """K drafted tokens; p of K + 1 rows and q of K rows, each [V] and normalised."""

    draft: list[int]
    p: list[Row]
    q: list[Row]

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        return np.array(self.draft, np.int64)

    @property
    def plain(self) -> tuple[list[int], list[list[float]], list[list[float]]]:
        """In Python numbers, for the oracle."""
        return self.draft, [row.tolist() for row in self.p], [row.tolist() for row in self.q]


def normalised(weights: Sequence[float] | Row) -> Row:
    row = np.asarray(weights, np.float64)
    return row / math.fsum(row.tolist())


def forms(kind: str) -> tuple[str, ...]:
    """The forms that leave the probabilities of this kind as they are, or near enough."""
    if kind in ("mixed", "denormals"):
        return ("dense",)  # a denormal that went through a division is another one
    # Where p = q, what the roundings of two logarithms leave of p - q is noise.
    return FORMS[:3] if kind == "p = q" else FORMS


def law(row: Row, form: str, rng: np.random.Generator) -> Law:
    """The same probabilities in one of `FORMS`; weights do not add up to 1."""
    kept = row.nonzero()[0]
    # a power of 2 changes no digit, but of a denormal
    factor = 2.0 ** int(rng.integers(-3, 4)) if row[kept].min() > 1e-300 else 1.0
    if form == "dense":
        return Law.of(row * factor)
    if form == "sparse":
        return Law.of(row[kept] * factor, kept)
    if form == "padded":  # ids that are named and have no weight
        ids = np.union1d(kept, rng.integers(0, len(row), 2))
        return Law.of(row[ids] * factor, ids)
    ids = kept if form == "sparse logits" else None
    scale = float(rng.choice([0.5, 1.0, 1.7]))
    with np.errstate(divide="ignore"):
        logits = np.log(row if ids is None else row[ids]) / scale + rng.normal()
    return Law(ids, logits, scale)


def random_row(vocab: int, rng: np.random.Generator) -> Row:
    """Flat or peaked, with zeros or without."""
    row = rng.exponential(size=vocab) ** rng.choice([1.0, 4.0])
    if rng.random() < 0.4:
        row *= rng.random(vocab) < 0.6
    if not row.any():
        row[rng.integers(vocab)] = 1.0
    return normalised(row)


def exact(row: Row) -> Row:
    """Multiples of 2^-20, so that no sum and no product with a power of 2 is rounded."""
    row = np.floor(row * 2**20) / 2**20
    row[row.argmax()] += 1 - row.sum()
    return row


def one_hot(vocab: int, token: int) -> Row:
    row = np.zeros(vocab)
    row[token] = 1.0
    return row


def _pair(kind: str, vocab: int, rng: np.random.Generator) -> tuple[Row, Row]:
    """p and q of one row."""
    p, q = random_row(vocab, rng), random_row(vocab, rng)
    if kind == "one-hot q":
        q = one_hot(vocab, int(rng.integers(vocab)))
    elif kind == "one-hot p":
        p = one_hot(vocab, int(rng.integers(vocab)))
    elif kind == "p = q":
        p = q = exact(p)
    elif kind == "nearly p = q":
        q = normalised(p * (1 + 0.01 * rng.random(vocab)))
    elif kind == "disjoint supports" and vocab > 1:
        mine = rng.permutation(vocab) < rng.integers(1, vocab)
        p, q = normalised((p + 0.1) * mine), normalised((q + 0.1) * ~mine)
    elif kind == "denormals":
        # the sum is exactly 1 still, so that dividing by it changes no denormal
        p = one_hot(vocab, int(rng.integers(vocab)))
        q = one_hot(vocab, int(rng.integers(vocab)))
        p[p == 0] = TINY * rng.integers(0, 5, vocab - 1)
        q[q == 0] = TINY * rng.integers(0, 5, vocab - 1)
    elif kind == "p with zeros":
        p = normalised((p + 0.1) * (np.arange(vocab) % 2 == rng.integers(2) % vocab))
    return p, q


KINDS = (
    "random",
    "one-hot q",
    "one-hot p",
    "p = q",
    "nearly p = q",
    "disjoint supports",
    "denormals",
    "p with zeros",
    "mixed",
)
DRAFTS = ("drawn from q", "anything", "outside p", "outside q")


def _token(kind: str, p: Row, q: Row, rng: np.random.Generator) -> int:
    if kind == "drawn from q":
        return int(rng.choice(len(q), p=q))
    outside = (p if kind == "outside p" else q) == 0
    if kind == "anything" or not outside.any():
        return int(rng.integers(len(q)))
    return int(rng.choice(outside.nonzero()[0]))


def case(kind: str, drafts: str, k: int, vocab: int, rng: np.random.Generator) -> Case:
    """One case; `mixed` takes another kind for each row, and `drafts` is then mixed as well."""
    draft, ps, qs = [], [], []
    for _ in range(k):
        mixed = kind == "mixed"
        p, q = _pair(str(rng.choice(KINDS[:-1])) if mixed else kind, vocab, rng)
        how = str(rng.choice(DRAFTS)) if mixed and rng.random() < 0.5 else drafts
        draft.append(_token(how, p, q, rng))
        ps.append(p)
        qs.append(q)
    ps.append(_pair("random" if kind == "mixed" else kind, vocab, rng)[0])
    return Case(draft, ps, qs)


def cases(kind: str, drafts: str, n: int, seed: int) -> Iterator[Case]:
    """n cases with K of 0..5 and V of 1..6."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        yield case(kind, drafts, int(rng.integers(0, 6)), int(rng.integers(1, 7)), rng)

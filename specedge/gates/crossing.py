"""A stop string that begins in one round of a speculative way and ends in the next."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

_SIDES = (2, 3, 5, 8, 12)  # characters tried on either side of the seam between two rounds


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where a text is to stop.

    Args:
        stop: the string; its first match is this one.
        at: characters of the text before it.
        n_tokens: output tokens that are kept: up to the one that holds the last character before.
        rounds: the tokens that the two rounds committed.
    """

    stop: str
    at: int
    n_tokens: int
    rounds: tuple[int, int]


def crossing(
    pieces: Sequence[str], committed: Sequence[int], special: Collection[str] = ()
) -> Crossing | None:
    """The place whose rounds commit most; None: no string of this text will do.

    Args:
        pieces: text of each output token, "" where a character is unfinished.
        committed: tokens of each round in order, the prefill's one first.
        special: texts that a stop string must not hold.
    """
    text = "".join(pieces)
    starts = [0]
    for piece in pieces:
        starts.append(starts[-1] + len(piece))
    seams = []
    n = 0
    for left, right in pairwise(committed):
        n += left
        if n + right <= len(pieces):
            seams.append((min(left, right), left + right, n, left, right))
    for _, _, n, left, right in sorted(seams, key=lambda seam: seam[:2], reverse=True):
        begin, seam, end = starts[n - left], starts[n], starts[n + right]
        for side in _SIDES:
            at = max(begin, seam - side)
            stop = text[at : min(end, seam + side)]
            if not at or not begin <= at < seam or at + len(stop) <= seam:
                continue
            if "\ufffd" in stop or any(each in stop for each in special) or text.find(stop) != at:
                continue
            kept = next(count for count, start in enumerate(starts) if start >= at)
            return Crossing(stop, at, kept, (left, right))
    return None

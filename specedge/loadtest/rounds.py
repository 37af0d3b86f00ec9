"""What rounds did: how drafts stood, and where the time of a round went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Self

from specedge.loadtest.records import RequestRecord, RoundRecord

Key = tuple[str, int, int, int]
"""Way, load, repeat, number: one request."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How drafts stood; rate and length belong together and are never shown alone.

    Args:
        rounds: target calls after the prefill, those without a draft included.
        proposed, accepted: drafted tokens verified, and those that stand.
        committed: tokens that the rounds added.
        rate: accepted / proposed; None: nothing was drafted.
        length: tokens committed per round.
        per_call: output tokens per call of the target, the prefill counted as one.
        proposed_by_position, accepted_by_position: from the first; rounds whose draft had such a
            token, and those in which it stands.
    """

    rounds: int
    proposed: int
    accepted: int
    committed: int
    rate: float | None
    length: float
    per_call: float
    proposed_by_position: list[int]
    accepted_by_position: list[int]

    @classmethod
    def of(
        cls, requests: Sequence[RequestRecord], rounds: Mapping[Key, Sequence[RoundRecord]]
    ) -> Self | None:
        """None: there was no round.

        Args:
            requests: served.
            rounds: by request; one that has none here committed all tokens after the first.
        """
        count = sum(each.rounds for each in requests)
        if not count:
            return None
        proposed = _summed(each.proposed_by_position for each in requests)
        accepted = _summed(each.accepted_by_position for each in requests)
        added = sum(
            sum(one.committed for one in rounds[key(each)])
            if rounds.get(key(each))
            else max(each.tokens - 1, 0)
            for each in requests
        )
        n_proposed, n_accepted = sum(proposed), sum(accepted)
        return cls(
            rounds=count,
            proposed=n_proposed,
            accepted=n_accepted,
            committed=added,
            rate=n_accepted / n_proposed if n_proposed else None,
            length=added / count,
            per_call=(added + len(requests)) / (count + len(requests)),
            proposed_by_position=proposed,
            accepted_by_position=accepted + [0] * (len(proposed) - len(accepted)),
        )

    @property
    def rate_by_position(self) -> list[float]:
        """Accepted over proposed at each position, as far as any draft came."""
        pairs = zip(self.accepted_by_position, self.proposed_by_position, strict=True)
        return [accepted / proposed for accepted, proposed in pairs if proposed]


@dataclass(frozen=True, slots=True)
class Split:
    """Where a round's time goes, ms a round; see `specedge.metrics`."""

    proposer: float
    verifier: float
    accept: float
    other: float

    @classmethod
    def of(cls, requests: Sequence[RequestRecord]) -> Self | None:
        """None: there was no round."""
        rounds = sum(each.rounds for each in requests)
        if not rounds:
            return None
        return cls(
            proposer=sum(each.propose_ms for each in requests) / rounds,
            verifier=sum(each.verify_ms for each in requests) / rounds,
            accept=sum(each.accept_ms for each in requests) / rounds,
            other=sum(each.other_ms for each in requests) / rounds,
        )

    @property
    def round(self) -> float:
        """All of it."""
        return self.proposer + self.verifier + self.accept + self.other


@dataclass(frozen=True, slots=True)
class Length:
    """Rounds that drafted the same number of tokens.

    Args:
        drafted: that number; 0: nobody drafted.
        rounds: of them.
        accepted, committed: mean tokens a round.
        proposer_ms, rest_ms: mean time of a round that proposers took, and that was left for the
            verifier and acceptance.
    """

    drafted: int
    rounds: int
    accepted: float
    committed: float
    proposer_ms: float
    rest_ms: float


def by_length(rounds: Iterable[RoundRecord]) -> list[Length]:
    """Rising in drafted tokens."""
    found: dict[int, list[RoundRecord]] = {}
    for each in rounds:
        found.setdefault(each.drafted, []).append(each)
    return [
        Length(
            drafted=drafted,
            rounds=len(some),
            accepted=sum(each.accepted for each in some) / len(some),
            committed=sum(each.committed for each in some) / len(some),
            proposer_ms=sum(each.draft_ms for each in some) / len(some),
            rest_ms=sum(each.ms - each.draft_ms for each in some) / len(some),
        )
        for drafted, some in sorted(found.items())
    ]


def key(each: RequestRecord | RoundRecord) -> Key:
    return each.way, each.load, each.repeat, each.number


def _summed(lists: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*lists, fillvalue=0)]

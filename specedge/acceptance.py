"""Which drafted tokens stand: (draft, scored rows) → Verdict.

accepted   a drafted token that the rule keeps; only a prefix of a draft can be accepted
next token the token that follows the accepted prefix and comes from the target itself: the
           replacement of the first refused token, or the bonus after a fully accepted draft

A round commits n_accepted + 1 tokens, so it always makes progress.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from specedge.contract import Ids, Logits
from specedge.errors import ShapeError

if TYPE_CHECKING:
    from specedge.engines.base import Scored
    from specedge.proposers.base import Draft


class Verdict(NamedTuple):
    """What one round decided."""

    n_accepted: int  # 0..K
    next_token: int


AcceptanceRule = Callable[["Draft", "Scored"], Verdict]
"""What the loop is given; a rule that samples closes over its processors and its randomness."""


def greedy(draft: Draft, scored: Scored) -> Verdict:
    """The rule at temperature 0; see `accept_greedy_ids`."""
    return accept_greedy_ids(draft.tokens, scored.greedy_ids)


def accept_greedy(draft: Ids, logits: Logits) -> Verdict:
    """Keep the longest draft prefix that equals the target's argmax; ties go to the lowest id.

    Args:
        draft: int64 [K], K >= 0.
        logits: float32 [K + 1, V]; row i scores the token after draft[:i].

    Returns:
        Verdict; the round commits n_accepted + 1 tokens, so 1..K+1.

    Raises:
        ShapeError: logits does not have exactly K + 1 rows.
    """
    if logits.ndim != 2:
        raise ShapeError(f"logits: expected [K + 1, V], found {list(logits.shape)}")
    return accept_greedy_ids(draft, logits.argmax(axis=1))


def accept_greedy_ids(draft: Ids, greedy_ids: Ids) -> Verdict:
    """`accept_greedy` for an argmax that was taken in the graph.

    Args:
        draft: int64 [K], K >= 0.
        greedy_ids: int64 [K + 1]; element i is the target's choice after draft[:i].

    Returns:
        Verdict; the round commits n_accepted + 1 tokens, so 1..K+1.

    Raises:
        ShapeError: greedy_ids does not have exactly K + 1 elements.
    """
    # Python integers: for K <= 15 one tolist is cheaper than any numpy reduction.
    drafted, chosen = draft.tolist(), greedy_ids.tolist()
    if len(chosen) != len(drafted) + 1:
        raise ShapeError(
            f"{len(drafted)} drafted tokens: expected {len(drafted) + 1} scored rows, "
            f"found {len(chosen)}"
        )
    n_accepted = 0
    for token in drafted:
        if token != chosen[n_accepted]:
            break
        n_accepted += 1
    return Verdict(n_accepted, chosen[n_accepted])

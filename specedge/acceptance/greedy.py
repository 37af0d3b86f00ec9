"""Temperature 0: a drafted token stands if it is the target's argmax."""

from __future__ import annotations

from collections.abc import Callable

from specedge.acceptance.verdict import Verdict
from specedge.contract import Ids, Logits
from specedge.errors import ShapeError


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


def accept_chosen(draft: Ids, chosen: Callable[[int], int]) -> Verdict:
    """`accept_greedy` where the target's choice is worked out for the rows that are asked for.

    Args:
        draft: int64 [K], K >= 0.
        chosen: i → the target's choice after draft[:i]; asked for rising i, not past the first
            refused token.
    """
    for i, token in enumerate(draft.tolist()):
        its = chosen(i)
        if its != token:
            return Verdict(i, its)
    return Verdict(len(draft), chosen(len(draft)))

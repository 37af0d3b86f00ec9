"""Which drafted tokens stand: pure functions (draft, p, q, randomness) → Verdict.

accepted   a drafted token that the rule keeps; only a prefix of a draft can be accepted
next token the token that follows the accepted prefix and comes from the target itself: the
           replacement of the first refused token, or the bonus after a fully accepted draft

A round commits n_accepted + 1 tokens, so it always makes progress.

greedy      equal to the target's argmax
rejection   token by token, with min(1, p / q); Leviathan 2023, Chen 2023
block       the draft as a whole; never accepts fewer in expectation; Sun 2024
coupled     equal to the target's own sample, drawn with noise that the draft shares; Daliri 2024

With K drafted tokens, p holds K + 1 laws, row i that of the token after draft[:i], and q the K
laws that the drafted tokens were drawn from. p may compute a row when it is asked for it.
"""

from specedge.acceptance.coupling import coupled, race
from specedge.acceptance.greedy import accept_chosen, accept_greedy, accept_greedy_ids
from specedge.acceptance.thresholds import (
    BLOCK,
    REJECTION,
    RoundDraws,
    ThresholdRule,
    block,
    rejection,
)
from specedge.acceptance.verdict import Verdict

__all__ = [
    "BLOCK",
    "REJECTION",
    "RoundDraws",
    "ThresholdRule",
    "Verdict",
    "accept_chosen",
    "accept_greedy",
    "accept_greedy_ids",
    "block",
    "coupled",
    "race",
    "rejection",
]

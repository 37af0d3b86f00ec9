"""What was chosen for a round, and why, in words that a person can read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from specedge.policy.arm import Arm

Why = Literal[
    "pays",  # drafting: expected to be faster than plain
    "trial",  # drafting: to learn, paid from the account
    "no room",  # plain: the clamp leaves no K
    "no draft",  # plain: no proposer has anything to offer now
    "does not pay",  # plain: the best K is slower, or not faster by the margin
    "resting",  # plain: was tried and did not pay, waits before the next trial
    "deferred",  # plain: feeding the draft's backlog costs more than it brings in what is left
    "outbid",  # plain: lookups gain more with plain steps between than with drafts to be fed
    "account",  # plain: might pay, but the account cannot bear the risk yet
    "pace",  # plain: a step to measure the machine's pace
    "forced",  # drafting: a grammar leaves no other tokens
    "measure",  # before costs are known: a call of K + 1 tokens is timed, plain ones among them
]


@dataclass(slots=True, eq=False)
class Choice:
    """Who drafts how much in the next round. Hand it back to `Policy.observe`.

    Args:
        proposer: a candidate's name; None for a plain step.
        k: K, tokens to draft; 0 exactly when proposer is None.
        why: the kind of reason; `reason` says it in words.
        expected_tokens_per_s: of this choice; 0.0 before any cost is known.
        past: as given to `choose`.
        gain: expected speed over plain of the best way to draft that was weighed, backlog included
            (for "deferred", "outbid": backlog left out); None when none was.
        best_k, share, stands: of that way: its K, what drafting and checking them adds to a plain
            step as a share of it, and the expected share of drafted tokens that stand.
        feed_steps: its backlog in plain steps.
        drafter: its name; for "measure": who reads the text so far in this round.
        draft_ms: what its drafting was predicted to take by the draft's curve.
        rest_tokens: for "resting": tokens until the next trial.
        best_ms: for a trial: milliseconds a token, at the curve's pace, that time is worth
            otherwise; 0.0: not a trial.
        forgone_ms: for a trial: what the better known choice would have won over that.
        backlog: tokens that the draft model was or would have been fed.
    """

    proposer: str | None
    k: int
    why: Why
    expected_tokens_per_s: float
    past: int
    gain: float | None = None
    best_k: int = 0
    share: float = 0.0
    stands: float = 0.0
    feed_steps: float = 0.0
    drafter: str = ""
    draft_ms: float = 0.0
    rest_tokens: int = 0
    best_ms: float = 0.0
    forgone_ms: float = 0.0
    backlog: int = 0
    arm: Arm | None = None  # the policy's own

    @property
    def reason(self) -> str:
        """One line."""
        weighed = self._weighed()
        if self.why == "pays":
            return f"{self.proposer}: {weighed}"
        if self.why == "trial":
            return f"{self.proposer}, on trial: {weighed}"
        if self.why == "forced":
            return f"{self.proposer}: the next {self.k} can only be these"
        if self.why == "no room":
            return "plain step: no room for a draft"
        if self.why == "no draft":
            return "plain step: nobody has a draft to offer"
        if self.why == "measure" and self.drafter:
            return f"measuring how long {self.drafter} takes to read the text so far"
        if self.why == "measure":
            return f"measuring what a call of N = {self.k + 1} costs"
        if self.why == "pace":
            return "plain step: to measure how fast this machine is now"
        if self.why == "deferred":
            return (
                f"plain step: {self.drafter} would first be fed for {self.feed_steps:.1f} target "
                "steps, more than it can win back in what is left of the output"
            )
        if self.why == "outbid":
            return (
                f"plain step: {weighed}, but with lookups in between it gains less than they do "
                "alone, as it must be fed what they committed"
            )
        if self.why == "account":
            return (
                f"plain step: {weighed}, but a miss would cost more than was set aside for trials"
            )
        off = f"speculation off: {weighed}" if weighed else "speculation off: it did not pay"
        return f"{off}; next trial in {self.rest_tokens} tokens" if self.rest_tokens else off

    def _weighed(self) -> str:
        if self.gain is None:
            return ""
        drafted = "looked-up" if self.arm is not None and self.arm.is_lookup else "drafted"
        tokens = f"1 {drafted} token costs" if self.best_k == 1 else (
            f"{self.best_k} {drafted} tokens cost"
        )  # fmt: skip
        return (
            f"{tokens} {self.share:.0%} of a target step and {self.stands:.0%} are accepted; "
            f"best K={self.best_k} gives {self.gain:.2f}x"
        )

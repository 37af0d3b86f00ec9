"""What speculation has cost over plain decoding, and what it may still cost.

Each token of text earns a share of the time it would have taken plainly. Each round with a draft
is charged what it took over the plain time of the tokens it committed, drafting and feeding the
draft's backlog included; a round that was faster pays back. A round may be risked only if the
account could bear its worst outcome, nothing accepted, so at every moment

    excess time <= share * plain time + what the caller allowed on top

as far as costs are predicted right. Gains are kept up to a bound, so that a long good stretch does
not pay for an equally long bad one.
"""

from __future__ import annotations

from specedge.errors import OptionError


class Account:
    """Milliseconds over plain decoding, against a share of plain decoding's milliseconds."""

    __slots__ = ("_keep_steps", "_share", "excess_ms", "granted_ms", "plain_ms")

    def __init__(self, share: float = 0.015, keep_steps: float = 64.0) -> None:
        """`share` of plain time may be lost; gains are kept up to `keep_steps` plain steps."""
        if not 0 <= share < 1 or keep_steps < 0:
            raise OptionError(
                f"account: expected share in 0..1, keep_steps >= 0; found {share}, {keep_steps}"
            )
        self._share = share
        self._keep_steps = keep_steps
        self.plain_ms = 0.0  # plain-equivalent time of all tokens so far
        self.excess_ms = 0.0  # over it; negative: gained
        self.granted_ms = 0.0  # of it, lent on evidence and not yet won back

    @property
    def balance_ms(self) -> float:
        """What may be lost now. Negative: nothing, until it is earned back."""
        return self._share * self.plain_ms - self.excess_ms

    def may_grant(self) -> bool:
        """Nothing lent is open: everything spent so far has been won back."""
        return self.excess_ms <= 0

    def grant(self, ms: float) -> None:
        """Lend for an investment that evidence vouches for, on top of the balance."""
        self.granted_ms = ms

    def plain_round(self, plain_ms: float) -> None:
        """A round without a draft: it earns and costs nothing."""
        self.plain_ms += plain_ms

    def round(self, spent_ms: float, plain_ms: float, step_ms: float) -> None:
        """A round with a draft.

        Args:
            spent_ms: the whole round.
            plain_ms: what the tokens it committed would have taken plainly.
            step_ms: one plain step now.
        """
        self.plain_ms += plain_ms
        kept = -self._keep_steps * step_ms
        self.excess_ms = max(kept, self.excess_ms + spent_ms - plain_ms)
        if self.excess_ms <= 0:
            self.granted_ms = 0.0

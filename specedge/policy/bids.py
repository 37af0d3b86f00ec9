"""What one way to draft offers for a round: its best K and what that is worth.

Times are milliseconds at the curve's own pace; a value is tokens per such millisecond.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from specedge.policy.arm import Arm
from specedge.policy.costing import DraftCost

STAY_K = 0.005  # share of its time that the K of the round before may be worse than another


@dataclass(slots=True)
class Bid:
    """Drafting K tokens by one arm.

    Args:
        k: K; 0 when every K takes longer than was allowed.
        tokens: expected of the round.
        ms: the round, the backlog left out.
        charge: of the backlog for each token committed.
        aside_ms: what the round costs a draft model besides: feeding now what it has missed, or
            later what it misses by this round.
    """

    arm: Arm
    cost: DraftCost
    k: int
    tokens: float
    ms: float
    charge: float
    aside_ms: float
    value: float  # the backlog's charge counted in

    @property
    def all_ms(self) -> float:
        """The round with the backlog."""
        return self.ms + self.cost.feed_ms

    def over(self, rate: float) -> float:
        """Expected tokens over what `rate` would bring in the same time."""
        return self.tokens - rate * (self.ms + self.aside_ms)

    def high_over(self, rate: float) -> float:
        return self.arm.survival.high_of(self.k) - rate * (self.ms + self.aside_ms)

    @property
    def low(self) -> float:
        tokens = self.arm.survival.low_of(self.k)
        return tokens / (self.ms + self.charge * tokens)

    @property
    def running(self) -> float:
        """Value once the backlog is fed."""
        return self.tokens / self.ms

    @property
    def running_high(self) -> float:
        return self.arm.survival.high_of(self.k) / self.ms

    @property
    def curve_ms(self) -> float:
        """Of the round the draft's part, by its curve."""
        first, step, feed = self.cost.curve_ms
        return first + (self.k - 1) * step + feed if self.k else 0.0


def best_bid(
    arm: Arm,
    table: list[float],
    limit: int,
    cost: DraftCost,
    horizon: int,
    rate: float = 0.0,
    cap_ms: float = 0.0,
) -> Bid:
    """The best K in 1..limit.

    Args:
        arm: whose survival counts; its last K has a small advantage.
        table: the target's call by K.
        limit: 1 or more.
        cost: of drafting.
        horizon: tokens over which the backlog must be won back, more than `limit`. It must be fed
            whatever K is, so it counts in the bid's value and not in the choice of K.
        rate: tokens per millisecond of all rounds together; 0: as if all were this arm's.
        cap_ms: only what takes no longer than this, the backlog included; 0: any.
    """
    base, step = cost.first_ms - cost.step_ms, cost.step_ms
    charge = cost.feed_ms / horizon
    if cap_ms:
        cap_ms = max(cap_ms - cost.feed_ms, 1e-9)
    hope, favoured = arm.survival.hope, arm.k
    most, best, best_ms = -inf, 0, table[0]
    for k in range(1, limit + 1):
        ms = table[k] + base + k * step
        if cap_ms and ms > cap_ms:
            continue
        tokens = hope[k]
        if rate:
            value = tokens - rate * ms * (1 - STAY_K if k == favoured else 1)
        else:
            value = tokens / ms * (1 + STAY_K if k == favoured else 1)
        if value > most:
            most, best, best_ms = value, k, ms
    tokens = arm.survival.mean[best]
    aside_ms = charge * tokens
    return Bid(arm, cost, best, tokens, best_ms, charge, aside_ms, tokens / (best_ms + aside_ms))

"""What a millisecond is worth, over all rounds together: lookups, the draft model and plain steps.

Rounds differ in what they are offered: a lookup has a match only now and then. So K and the
proposer of one round are not those of most tokens per millisecond of that round alone. With r the
tokens per millisecond of all rounds together, a round of E tokens that takes t is worth E - r t
tokens over what the time would bring otherwise, and taking the most of that makes r largest
(Dinkelbach, "On nonlinear fractional programming", 1967); r is found again each round.

That holds where matches come and go at random. Where they come in long stretches of text, each
stretch is best gone through at its own highest speed. `lasting` says which it is, from 0 to 1.

A draft model pays for every round that another proposer takes, as it must be fed later what it
missed. So there are three ways to go on, weighed as wholes:

    "lookups"   lookups where they match, plain steps elsewhere
    "draft"     the draft model always
    "both"      lookups where they match, the draft model elsewhere, and its catching up
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from specedge.policy.arm import Arm

Way = Literal["lookups", "draft", "both"]
STAY = 1.005  # the way that was gone last is worth this much more
GAIN = 1 / 96  # of the averages of what comes after a match


class Joint:
    """Averages over rounds, and the best way to go on.

    `rate` is in tokens per millisecond at the curve's pace; 0.0 before the first round. `open`: a
    draft model might be worth it, by its high estimate. `lasting` is 0 where a match says nothing
    about the next round, 1 where matches never begin nor end.
    """

    __slots__ = ("_at", "_matched", "_seen", "_tokens", "follows", "lasting", "open", "rate", "way")

    def __init__(self) -> None:
        self.rate = self.lasting = 0.0
        self.way: Way = "lookups"
        self.open = False
        self.follows = [0.5, 0.5]  # share of rounds with a match, after one without and with
        self._matched = False
        self._seen = [1, 1]
        self._at = 0
        self._tokens = 1.0  # of a round

    def saw(self, matched: bool, now: int) -> None:
        """The next round has a match that pays, or has none; `now` as `Policy.now`."""
        before = self._matched
        self._seen[before] += 1
        gain = max(GAIN, 1 / self._seen[before])
        self.follows[before] += gain * (matched - self.follows[before])
        self.lasting = max(0.0, self.follows[True] - self.follows[False])
        self._matched = matched
        self._tokens += GAIN * (max(1, now - self._at) - self._tokens)
        self._at = now

    @property
    def run(self) -> float:
        """Rounds with a match in a row, as they usually are."""
        return 1 / max(1 - self.follows[True], GAIN)

    @property
    def again(self) -> float:
        """Chance that the draft model would run in the round after one of another proposer."""
        if self.way == "both":
            return 1 - self.follows[self._matched]
        return 1.0 if self.way == "draft" else 0.0

    def choose(
        self,
        lookups: Sequence[Arm],
        plain_ms: float,
        drafted: tuple[float, float, float] | None,
        missed_ms: float,
    ) -> None:
        """Find the best way, and its rate.

        Args:
            lookups: that may draft.
            plain_ms: a plain step.
            drafted: expected tokens of a round of the draft model, milliseconds of it, and the
                high estimate of its tokens; None: nothing to draft with.
            missed_ms: feeding the draft model what a run of lookups made it miss.
        """
        arms = sorted(lookups, key=_speed, reverse=True) if len(lookups) > 1 else lookups
        best = self._rate(arms, 1.0, plain_ms, 0.0)
        way: Way = "lookups"
        self.open = False
        if drafted is not None:
            tokens, ms, high = drafted
            if self.way == way:
                best *= STAY
            ways: tuple[tuple[Way, Sequence[Arm]], ...] = (("draft", ()), ("both", arms))
            for other, used in ways:
                rate = self._rate(used, tokens, ms, missed_ms)
                if other == self.way:
                    rate *= STAY
                if rate > best:
                    way, best = other, rate
            if way == self.way:
                best /= STAY
            self.open = way != "lookups" or any(
                self._rate(used, high, ms, missed_ms) > best for _, used in ways
            )
        self.rate, self.way = best, way

    def _rate(self, arms: Sequence[Arm], tokens: float, ms: float, missed_ms: float) -> float:
        """With rounds of `tokens` and `ms` where no lookup is better."""
        if not arms:
            return tokens / ms
        all_tokens, all_ms = tokens, ms  # of a round, matches at random
        each_ms = ms / tokens  # of a token, matches in long stretches
        used = 0.0
        for arm in arms:
            rate = all_tokens / all_ms
            if arm.tokens - rate * arm.ms > tokens - rate * ms:
                all_tokens += arm.often * (arm.tokens - tokens)
                all_ms += arm.often * (arm.ms - ms)
                used += arm.often
            if arm.tokens * ms > tokens * arm.ms:
                each_ms += arm.text * (arm.ms / arm.tokens - ms / tokens)
        missed_ms *= used * (1 - self.follows[True])  # in each round
        lasting = self.lasting
        random = all_tokens / (all_ms + missed_ms)
        return random + lasting * (1 / (each_ms + missed_ms / self._tokens) - random)


def _speed(arm: Arm) -> float:
    return arm.tokens / arm.ms

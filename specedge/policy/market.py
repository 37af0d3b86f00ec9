"""All bids of a round: what each proposer offers, what it costs the others, and who must rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from specedge.policy.arm import FRESH_K, HORIZON, Arm
from specedge.policy.bids import Bid, best_bid
from specedge.policy.costing import FREE, MOST_GAP, Costing, DraftCost
from specedge.policy.joint import Joint
from specedge.policy.pace import Pace
from specedge.policy.survival import Prior

LONG_MATCH = 4  # a lookup that matched this many tokens is an arm of its own


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposer to weigh.

    Args:
        name: as in `Policy.choose`'s matches.
        cost: "lookup" is free to draft; "draft" costs calls of the draft model.
        prior: what is believed of it before the first round.
    """

    name: str
    cost: Literal["lookup", "draft"]
    prior: Prior = field(default_factory=Prior)


@dataclass(slots=True, eq=False)
class Terms:
    """Of one round.

    Args:
        table: the target's call by K, at the curve's own pace.
        limit: largest K, 1 or more.
        horizon: tokens over which a backlog must be won back.
    """

    table: list[float]
    limit: int
    horizon: int

    @property
    def plain(self) -> float:
        """Tokens per millisecond of a plain step."""
        return 1 / self.table[0]


class Market:
    """The arms of a policy, and their averages over rounds."""

    __slots__ = (
        "_before",
        "_costing",
        "_had",
        "_longest",
        "_lookups",
        "_margin",
        "_pace",
        "arms",
        "draft",
        "joint",
        "lookups",
    )

    def __init__(
        self, candidates: Iterable[Candidate], costing: Costing, pace: Pace, margin: float
    ) -> None:
        self._costing, self._pace, self._margin = costing, pace, margin
        self._longest = costing.longest
        self._lookups: dict[str, tuple[Arm, Arm]] = {}  # short matches and long ones apart
        self.draft: Arm | None = None
        for candidate in candidates:
            if candidate.cost == "lookup":
                self._lookups[candidate.name] = self._arm(candidate), self._arm(candidate)
            else:
                self.draft = self._arm(candidate)
        self.lookups = tuple(arm for pair in self._lookups.values() for arm in pair)
        self.arms = self.lookups if self.draft is None else (*self.lookups, self.draft)
        self.joint = Joint()
        self._had: list[Arm] = []  # lookups that had a match in the round before
        self._before = 0  # tokens of text before it

    def _arm(self, candidate: Candidate) -> Arm:
        return Arm(candidate.name, candidate.cost == "lookup", self._longest, candidate.prior)

    def lookup(self, name: str, match: int) -> Arm | None:
        """Of that name, for a match of that length; None: unknown."""
        pair = self._lookups.get(name)
        return None if pair is None else pair[match >= LONG_MATCH]

    def bids(
        self, terms: Terms, matches: Mapping[str, int | None], backlog: int | None, now: int
    ) -> list[Bid]:
        """Of everyone who has something to offer, resting ones included.

        Args:
            terms: of the round.
            matches: length of a lookup's longest match now; absent or None: it has none.
            backlog: tokens that the draft model would be fed first; None: it cannot draft now.
            now: tokens of text so far.
        """
        bids = []
        for name, pair in self._lookups.items():
            length = matches.get(name)
            if length is not None:
                bids.append(self._bid(pair[length >= LONG_MATCH], terms, FREE, now))
        tokens, self._before = now - self._before, now
        arms = [bid.arm for bid in bids]
        for arm in self.lookups:
            arm.offered(arm in arms, arm in self._had, tokens)
        self._had = arms
        live = [bid for bid in bids if not bid.arm.resting]
        drafted = None
        if self.draft is not None and backlog is not None:
            cost = self._costing.draft(backlog, self._pace.share[0])
            drafted = self._bid(self.draft, terms, cost, now)
            bids.append(drafted)
            if self.draft.resting:
                drafted = None
        self._find_way(live, drafted, backlog or 0, terms.table[0], now)
        return bids

    def start(self, now: int) -> None:
        """Another text begins: when lookups match in it has nothing to do with the last one."""
        self.joint = Joint()
        self._had, self._before = [], now
        for arm in self.lookups:
            arm.begin()

    def idle(self, now: int) -> None:
        """A round in which nobody has anything to offer; `now` as in `bids`."""
        tokens, self._before = now - self._before, now
        for arm in self.lookups:
            arm.offered(False, arm in self._had, tokens)
        self._had = []
        if self.lookups:
            self.joint.saw(False, now)

    def _bid(self, arm: Arm, terms: Terms, cost: DraftCost, now: int) -> Bid:
        """The arm's bid, after ending a rest that is over or sending it to one."""
        plain = terms.plain
        rate = self.joint.rate
        if rate:
            rate = max(rate, plain)
            own = arm.tokens / arm.ms
            if own > rate:
                rate += self.joint.lasting * (own - rate)
        limit = min(terms.limit, FRESH_K) if arm.fresh else terms.limit
        bid = best_bid(arm, terms.table, limit, cost, terms.horizon, rate)
        bar = self._margin * plain
        if arm.resting:
            if now >= arm.rest_until:
                arm.wake()
                bid = best_bid(arm, terms.table, limit, cost, terms.horizon, rate)
            elif arm.heard and not arm.measured_loss and bid.low >= bar:
                arm.wake()
            else:
                return bid
        # A small limit may hide a K that pays.
        if bid.k < limit or limit == self._longest:
            hopeless = bid.running_high < bar if not arm.on else bid.running < plain
            if hopeless:
                arm.rest(now)
        arm.tokens, arm.ms = bid.tokens, bid.ms
        return bid

    def _find_way(
        self, lookups: list[Bid], drafted: Bid | None, backlog: int, plain_ms: float, now: int
    ) -> None:
        """Find the best way to go on; tell each bid what it costs the draft model."""
        joint = self.joint
        if self.lookups:
            joint.saw(any(bid.value * plain_ms > 1 for bid in lookups), now)
        arms = [arm for arm in self.lookups if not arm.resting]
        if drafted is None:
            joint.choose(arms, plain_ms, None, 0.0)
            return
        pace, backlog_ms = self._pace.share[0], self._costing.backlog_ms
        tokens = drafted.tokens
        ms = drafted.ms if backlog <= MOST_GAP else tokens / drafted.value
        missed = 1 + round(min(HORIZON, joint.run * max((arm.tokens for arm in arms), default=1)))
        high = drafted.arm.survival.high_of(drafted.k)
        joint.choose(arms, plain_ms, (tokens, ms, high), pace * backlog_ms(missed))
        if joint.way == "lookups":
            return
        drafted.aside_ms = 0.0  # a prompt must be fed sooner or later, whoever has this round
        if backlog <= MOST_GAP:
            drafted.aside_ms = pace * backlog_ms(backlog)
            for bid in lookups:
                missed = backlog + round(bid.tokens)
                bid.aside_ms = pace * backlog_ms(missed) * joint.again

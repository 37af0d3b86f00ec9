"""Who drafts how much: expected tokens per second of every choice, and what may be risked on it.

For a proposer and K, with E_K expected tokens, T(K + 1) the target's call, D the draft's, B the
cost of feeding the draft's backlog and R tokens of output left to win it back:

    tokens per second = E_K / (T(K + 1) + (K - 1) D(1) + D(1 or 2 tokens) + B E_K / R)

and plain is 1 / T(1), all at this machine's present pace. What beats plain by the margin may be
taken; of that the one that is worth most over all rounds together, see `joint`. Whoever might be
better by its high estimate is tried, while the account could bear that nothing is accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from math import inf
from operator import mul

from specedge.errors import OptionError
from specedge.policy.account import Account
from specedge.policy.arm import FRESH_ROUNDS, HORIZON, Arm
from specedge.policy.bids import Bid, best_bid
from specedge.policy.choice import Choice, Why
from specedge.policy.costing import FED, Costing
from specedge.policy.market import Candidate, Market, Terms
from specedge.policy.pace import Pace
from specedge.probe.curves import CostCurves

SPIKE = 2.0  # a round is charged at most this much more than expected
CREDIT_STEPS = 6.0  # plain steps that a measured prior may lose before anything was earned
HEARD_STEPS = 1.0  # the same for a lookup that was heard to pay by its low estimate
REGRET = 0.01  # share of time that trials may cost against the best known choice


class Policy:
    """Chooses a proposer and K for each round, and learns from what came of it. No clock."""

    def __init__(
        self,
        costs: CostCurves,
        proposers: Iterable[Candidate],
        max_draft: int,
        margin: float = 1.03,
        account: Account | None = None,
    ) -> None:
        """`max_draft` is cut to what the curve was measured for, `widths[-1] - 1`.

        Raises:
            OptionError: max_draft is negative, margin under 1, two candidates share a name, or a
                draft model stands among them whose costs were not measured.
        """
        candidates = tuple(proposers)
        names = [candidate.name for candidate in candidates]
        if max_draft < 0 or not 1 <= margin < float("inf"):
            raise OptionError(
                f"policy: expected max_draft >= 0, margin >= 1; found {max_draft}, {margin}"
            )
        if len(set(names)) < len(names):
            raise OptionError(f"policy: expected proposers of different names, found {names}")
        drafting = [candidate for candidate in candidates if candidate.cost == "draft"]
        if len(drafting) > 1 or (drafting and costs.draft is None):
            raise OptionError("policy: expected at most one draft model, and its measured costs")
        self._costing = Costing(costs, max_draft)
        self.max_draft = self._costing.longest
        self.margin = margin
        self.account = account or Account()
        self.pace = Pace(self.max_draft + 1)
        self.now = 0  # tokens of text so far
        self._regret = Account(REGRET, 0.0)
        able = candidates if self.max_draft else ()
        self._market = Market(able, self._costing, self.pace, margin)

    @property
    def arms(self) -> tuple[Arm, ...]:
        """A lookup's short matches and its long ones apart; the draft model last."""
        return self._market.arms

    def start(self) -> None:
        """Another text begins: what was seen of the last one counts, but not blindly."""
        if self.now:
            self._market.start(self.now)
            for arm in self._market.lookups:
                arm.fresh = FRESH_ROUNDS

    def choose(
        self,
        past: int,
        room: int,
        matches: Mapping[str, int | None],
        backlog_tokens: int | None,
        budget_left: int,
    ) -> Choice:
        """The next round.

        Args:
            past: rows cached for the target.
            room: largest K that fits everything else: context, max_verify, grammar.
            matches: length of a lookup's longest match now; absent or None: it has none.
            backlog_tokens: what the draft model would be fed to draft its first token, 1 or more;
                None: it cannot draft now.
            budget_left: tokens that the request may still commit; K stays under it.
        """
        limit = min(self.max_draft, room, budget_left - 1)
        steps = self._costing.at(past)
        if limit < 1:
            return self._plain("no room", past)
        if self.pace.wants_plain:
            return self._plain("pace", past)
        if backlog_tokens is None and not matches:
            self._market.idle(self.now)
            return self._plain("no draft", past)
        # No call is cheaper than a narrower one, whatever noise has made of the biases.
        table = list(accumulate(map(mul, steps, self.pace.share[1:]), max))
        terms = Terms(table, limit, min(budget_left, HORIZON))
        bids = self._market.bids(terms, matches, backlog_tokens, self.now)
        choice = self._decide(bids, terms, past)
        choice.backlog = backlog_tokens or 0
        return choice

    def _decide(self, bids: list[Bid], terms: Terms, past: int) -> Choice:
        plain, joint = terms.plain, self._market.joint
        winner: Bid | None = None
        trusted = blocked = False
        live = [bid for bid in bids if not bid.arm.resting]
        rate = max(plain, joint.rate)
        if joint.lasting and live:
            rate += joint.lasting * max(0.0, max(bid.value for bid in live) - rate)
        if len(live) > 1:
            live.sort(key=lambda bid: bid.over(rate), reverse=True)
        plain_over = 1 - rate / plain
        for bid in live:
            bar = plain if bid.arm.on else plain * self.margin
            if bid.value < bar or (not bid.arm.is_lookup and joint.way == "lookups"):
                continue
            trusted = bid.low >= plain
            winner = self._afford(bid, terms, trusted)
            if winner is not None and winner.value >= bar:
                break
            winner, blocked = None, True
        forgone = plain_over if winner is None else winner.over(rate)
        for bid in live:
            if winner is not None and bid.arm is winner.arm:
                continue
            if not bid.arm.is_lookup and not joint.open:
                continue
            needed = forgone + (self.margin - 1) * rate * bid.ms
            if bid.high_over(rate) < needed:
                continue
            trial = self._afford(bid, terms, False)
            if trial is None or trial.high_over(rate) < needed:
                blocked = True
                continue
            loss_ms = trial.all_ms - (trial.tokens - forgone) / rate
            if loss_ms * self.pace.factor <= self._regret.balance_ms:
                choice = self._draft_choice(trial, "trial", plain, past)
                choice.best_ms, choice.forgone_ms = 1 / rate, forgone / rate
                return choice
            blocked = True
        if winner is not None:
            if self.account.may_grant():
                self.account.grant(self._lent_ms(winner, trusted) * self.pace.factor)
            winner.arm.turn(True)
            return self._draft_choice(winner, "pays", plain, past)
        return self._off(bids, blocked, plain, past)

    def _afford(self, bid: Bid, terms: Terms, trusted: bool) -> Bid | None:
        """The bid, or one with a smaller K, whose worst outcome the account could bear."""
        arm, table = bid.arm, terms.table
        allowed = self.account.balance_ms / self.pace.factor
        if trusted or arm.on:
            allowed += self._lent_ms(bid, trusted)
            if arm.prior.measured:
                allowed += CREDIT_STEPS * table[0]
            elif trusted and arm.vouched:
                allowed += HEARD_STEPS * table[0]
        cap_ms = table[0] + allowed
        if bid.all_ms <= cap_ms:
            return bid
        if allowed <= 0:
            return None
        rate = self._market.joint.rate
        smaller = best_bid(arm, table, terms.limit, bid.cost, terms.horizon, rate, cap_ms)
        return smaller if smaller.k else None

    def _lent_ms(self, bid: Bid, trusted: bool) -> float:
        """For its backlog, at the curve's pace; a second one waits till the first is won back."""
        if self.account.may_grant():
            known = trusted and (bid.arm.prior.measured or bid.arm.on)
            return bid.cost.feed_ms if known else 0.0
        return self.account.granted_ms / self.pace.factor

    def _plain(self, why: Why, past: int) -> Choice:
        rate = 1000 / (self._costing.steps_ms[0] * self.pace.factor)
        return Choice(None, 0, why, rate, past)

    def _draft_choice(self, bid: Bid, why: Why, plain: float, past: int) -> Choice:
        rate = 1000 * bid.value / self.pace.factor
        choice = Choice(bid.arm.name, bid.k, why, rate, past)
        self._weigh(choice, bid, plain, bid.value)
        choice.draft_ms = bid.curve_ms
        return choice

    def _weigh(self, choice: Choice, bid: Bid, plain: float, value: float) -> None:
        choice.arm, choice.drafter, choice.best_k = bid.arm, bid.arm.name, bid.k
        choice.gain = value / plain
        choice.share = bid.ms * plain - 1
        choice.stands = (bid.tokens - 1) / bid.k
        choice.feed_steps = bid.cost.feed_ms * plain

    def _off(self, bids: list[Bid], blocked: bool, plain: float, past: int) -> Choice:
        if not bids:
            return self._plain("no draft", past)
        best = max(bids, key=lambda bid: bid.running)
        arm = best.arm
        why: Why = "does not pay"
        value = best.value
        if arm.resting:
            why = "resting"
        elif best.running >= plain * self.margin and self._outbid(arm):
            why, value = "outbid", best.running
        elif best.cost.feed_ms and best.value < plain * self.margin <= best.running:
            why, value = "deferred", best.running
        elif blocked:
            why = "account"
        choice = self._plain(why, past)
        self._weigh(choice, best, plain, value)
        if arm.resting:
            choice.rest_tokens = max(0, arm.rest_until - self.now)
        return choice

    def _outbid(self, arm: Arm) -> bool:
        market = self._market
        on = any(lookup.on for lookup in market.lookups)
        return on and not arm.is_lookup and market.joint.way == "lookups"

    def observe(
        self,
        choice: Choice,
        n_accepted: int,
        committed: int,
        round_ms: float,
        draft_ms: float = 0.0,
        drafted: int | None = None,
    ) -> None:
        """What came of a choice.

        Args:
            choice: as `choose` gave it.
            n_accepted: drafted tokens that stood and were committed.
            committed: tokens committed, 1 or more; equal to n_accepted when the text ended there.
            round_ms: the whole round.
            draft_ms: of it, making the draft, backlog included.
            drafted: tokens really drafted, at most K; None: K of them.
        """
        k = choice.k if drafted is None else drafted
        steps = self._costing.at(choice.past)
        pace = self.pace
        timed = 0 <= draft_ms < round_ms < inf
        if timed:  # otherwise a clock went backwards
            pace.observe(k + 1, (round_ms - draft_ms) / steps[k])
            if k == choice.k and draft_ms > 0 and choice.draft_ms > 0 and choice.backlog < FED:
                pace.draft(draft_ms / choice.draft_ms)
        step_ms = steps[0] * pace.factor
        plain_ms = committed * step_ms
        self.now += committed
        arm = choice.arm
        if choice.k == 0 or arm is None:
            self.account.plain_round(plain_ms)
            self._regret.plain_round(plain_ms)
            return
        expected_ms = (steps[k] * pace.share[k + 1] + choice.draft_ms * pace.share[0]) * pace.factor
        # A spike of the machine would have hit a plain step as well.
        spent_ms = min(round_ms, SPIKE * expected_ms) if timed else expected_ms
        self.account.round(spent_ms, plain_ms, step_ms)
        if choice.best_ms:
            worth_ms = committed * choice.best_ms - choice.forgone_ms
            self._regret.round(spent_ms, worth_ms * pace.factor, step_ms)
        else:
            self._regret.plain_round(plain_ms)
        ended = committed <= n_accepted
        seen = n_accepted if ended else k
        if seen:
            arm.k = choice.k
            arm.observe(seen, n_accepted, spent_ms, plain_ms, self.now)

    def skip(self, tokens: int) -> None:
        """So many tokens were decoded plainly without a `choose`."""
        plain_ms = tokens * self._costing.steps_ms[0] * self.pace.factor
        self.now += tokens
        self.account.plain_round(plain_ms)
        self._regret.plain_round(plain_ms)

    def hear(self, name: str, match: int, drafted: int, accepted: int) -> None:
        """What would have come of a lookup that was not used: costs nothing, teaches as much.

        Args:
            name: of a lookup.
            match: length of its match.
            drafted, accepted: how many tokens it would have drafted, and how many of them came.
        """
        arm = self._market.lookup(name, match)
        if arm is not None and drafted > 0:
            arm.heard = arm.vouched = True
            arm.fresh = max(0, arm.fresh - 1)
            longest = self.max_draft
            arm.survival.learn(min(drafted, longest), min(accepted, longest), self.now)

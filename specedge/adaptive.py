"""Who drafts the next round, and how many tokens: what measured costs and survival say.

Without cost curves a `Startup` measures them first, in the rounds of the running text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as AnySequence
from dataclasses import replace

from specedge.contract import Ids
from specedge.policy import Candidate, Choice, Policy
from specedge.probe.curves import CostCurves
from specedge.proposers.base import NO_DRAFT, Draft, Proposer
from specedge.sequence import Sequence
from specedge.shadow import Shadows
from specedge.startup import Startup

Heard = tuple[str, int, int, int]
LONGEST_WAIT = 256  # tokens for which lookups that pay put off measuring the draft
DROWSY = 8  # plain rounds running, with nothing that might pay, after which rounds are cut short
NAP = 15  # rounds that are cut short, unless a lookup has something, before a whole one
IDLE = frozenset({"no draft", "does not pay", "resting"})
RECENT = 32  # rounds without a draft after which speculation is said to be off
MOST_HEARD = 256  # outcomes of lookups that a policy made later is told


class Adaptive:
    """Chooses by a `Policy`; see `specedge.controller.Chooser`."""

    def __init__(
        self,
        candidates: Iterable[Candidate],
        longest: int,
        *,
        margin: float,
        costs: CostCurves | None = None,
        startup: Startup | None = None,
        on_measured: Callable[[CostCurves], None] | None = None,
    ) -> None:
        """
        Args:
            candidates: proposers that may draft.
            longest: largest K.
            margin: speed over plain under which drafting is not worth it.
            costs: what calls cost here; None: `startup` finds out.
            startup: measures what `costs` lacks.
            on_measured: told what is known when a stage of `startup` has ended.
        """
        self.asking: Proposer | None = None
        self._candidates = {candidate.name: candidate for candidate in candidates}
        self._longest = longest
        self._margin = margin
        self._startup = startup
        self._on_measured = on_measured
        self._policy: Policy | None = None
        if costs is not None:
            self._policy = self._policy_of(costs)
        self._shadows = Shadows()
        self._heard: deque[Heard] = deque(maxlen=MOST_HEARD)  # while the start lasts
        self._draft = NO_DRAFT
        self._choice: Choice | None = None
        self._drafted: Choice | None = None  # last one of this request that drafted
        self._since = 0  # rounds since then
        self._idle = 0  # rounds running in which nothing might have paid
        self._nap = 0  # rounds that are still to be skipped
        self._asleep = False  # in this round
        self._slept = 0  # tokens that the policy has not heard of

    @property
    def longest(self) -> int:
        return self._longest

    @property
    def policy(self) -> Policy | None:
        """None until costs are known."""
        return self._policy

    def start(self) -> None:
        """A request begins."""
        self._shadows.clear()
        self._choice = self._drafted = None
        self._idle = self._nap = 0
        if self._startup is not None:
            self._startup.start()
        if self._policy is not None:
            self._policy.start()

    def draft(
        self, seq: Sequence, max_verify: int, proposers: AnySequence[Proposer]
    ) -> tuple[Draft, Choice | None]:
        self._since += 1
        limit = max(0, min(self._longest, seq.draft_limit, max_verify - 1))
        offered: dict[str, Draft] = {}
        drafter: Proposer | None = None
        for proposer in proposers:
            if proposer.name not in self._candidates or not limit:
                continue
            self.asking = proposer
            if not proposer.is_lookup:
                drafter = proposer
                continue
            draft = proposer.propose(seq, limit)
            if len(draft.tokens):
                offered[proposer.name] = draft
        self._asleep = self._nap > 0 and not offered
        if self._asleep:
            self._nap -= 1
            self.asking = None
            return NO_DRAFT, self._choice
        self.asking = drafter
        backlog = None if drafter is None else drafter.backlog(seq)
        self.asking = None
        found = None
        if self._startup is not None and limit and not self._waits(offered):
            self.asking = drafter
            found = self._startup.draft(seq, limit, offered, drafter, backlog)
            self.asking = None
        if found is None and self._policy is not None:
            found = self._by_policy(seq, limit, offered, drafter, backlog)
            self.asking = None
        draft, choice = found or (NO_DRAFT, Choice(None, 0, "no room", 0.0, seq.n_cached))
        for name, lookup in offered.items():
            if name == choice.proposer and self._policy is not None:
                self._shadows.drop(name)
            else:
                self._shadows.offer(name, lookup)
        self._draft, self._choice = draft, choice
        self._doze(choice)
        if len(draft.tokens) and choice.why != "measure":
            self._since = 0
        cut = limit < min(self._longest, max_verify - 1)  # the last rounds say little of the others
        if not (self._since or (cut and self._drafted)):
            self._drafted = choice
        return draft, choice

    def _doze(self, choice: Choice) -> None:
        """Weighing costs too: per cents of a small model's step, where there is nothing to gain.

        So where nothing came of it for long, rounds in which no lookup has a draft are not weighed.
        What is followed of unused lookups is seen to its end first.
        """
        idle = choice.why in IDLE and self._startup is None
        self._idle = self._idle + 1 if idle else 0
        self._nap = NAP if self._idle > DROWSY and not self._shadows else 0

    def _waits(self, offered: dict[str, Draft]) -> bool:
        """Measuring can wait, but not for ever: a lookup known to pay has something to offer."""
        policy = self._policy
        if policy is None or policy.now > LONGEST_WAIT:
            return False
        return any(arm.on and arm.name in offered for arm in policy.arms)

    def _by_policy(
        self,
        seq: Sequence,
        limit: int,
        offered: dict[str, Draft],
        drafter: Proposer | None,
        backlog: int | None,
    ) -> tuple[Draft, Choice]:
        assert self._policy is not None
        matches = {name: draft.match for name, draft in offered.items()}
        choice = self._policy.choose(seq.n_cached, limit, matches, backlog, seq.draft_limit + 1)
        if choice.proposer is None:
            return NO_DRAFT, choice
        if choice.proposer in offered:
            return offered[choice.proposer].cut(choice.k), choice
        assert drafter is not None, "the policy chose a proposer that was not offered"
        self.asking = drafter
        return drafter.propose(seq, choice.k), choice

    def observe(self, committed: Ids, n_accepted: int, round_ms: float, draft_ms: float) -> None:
        if self._asleep:
            self._slept += len(committed)
            return
        choice, policy = self._choice, self._policy
        if choice is None:
            return
        if self._shadows:
            self._shadows.commit(committed.tolist(), self._hear)
        startup = self._startup
        if choice.why == "measure" and startup is not None:
            startup.observe(len(self._draft.tokens), n_accepted, round_ms, draft_ms)
            if startup.fresh:
                self._measured(startup)
        elif policy is not None:
            if self._slept:
                policy.skip(self._slept)
                self._slept = 0
            drafted, match = len(self._draft.tokens), self._draft.match
            policy.observe(choice, n_accepted, len(committed), round_ms, draft_ms, drafted)
            if startup is not None and match:
                self._heard.append((self._draft.proposer, match, drafted, n_accepted))

    def passed(self, committed: Ids) -> None:
        if self._shadows:
            self._shadows.commit(committed.tolist(), self._hear)
        self._slept += len(committed)
        self._since += 1

    def _hear(self, name: str, match: int, drafted: int, accepted: int) -> None:
        if self._startup is not None:
            self._heard.append((name, match, drafted, accepted))
        if self._policy is not None:
            self._policy.hear(name, match, drafted, accepted)

    def _measured(self, startup: Startup) -> None:
        """A stage of the start has ended: decide by what it found from now on."""
        costs = startup.take()
        self._policy = self._policy_of(costs, startup)
        for heard in self._heard:  # again, for a policy that was made anew
            self._policy.hear(*heard)
        if startup.done:
            self._startup = None
            self._heard.clear()
        if self._on_measured is not None:
            self._on_measured(costs)

    def _policy_of(self, costs: CostCurves, startup: Startup | None = None) -> Policy:
        chosen = []
        for candidate in self._candidates.values():
            if candidate.cost == "draft" and costs.draft is None:
                continue
            if candidate.cost == "draft" and startup is not None and startup.prior is not None:
                candidate = replace(candidate, prior=startup.prior)
            chosen.append(candidate)
        account = None if self._policy is None else self._policy.account
        return Policy(costs, chosen, self._longest, self._margin, account)

    def state(self) -> tuple[bool, str] | None:
        """As of the current request."""
        choice = self._choice
        if self._startup is not None and self._policy is None:
            return False, self._startup.reason
        if choice is None:
            return True, "drafts where measured costs and the text so far say it pays"
        if self._drafted is not None and self._since < RECENT:
            return True, self._drafted.reason
        return False, choice.reason

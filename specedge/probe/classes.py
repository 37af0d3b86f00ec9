"""What is known of one class of prompts, and which of them to run next, and how.

    survey   the first prompts are decoded plainly, and every proposer is replayed on their texts
    check    one proposer at one K that the replay promises a gain for: each further prompt runs
             both ways, then the earlier ones do as well
    look     after 12, 18 and 24 pairs: the check ends where its interval has decided

Where nothing is promised, further prompts are decoded plainly, which is cheaper, until the replay
itself can rule a proposer out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specedge.contract import Ids
from specedge.probe import replay
from specedge.probe.curves import CostCurves
from specedge.probe.deciding import Live, choose_live, find
from specedge.probe.findings import Estimate, Verdict
from specedge.probe.intervals import MIN_PROMPTS, decided, ratio_interval
from specedge.probe.pairs import Pair

SURVEY = 4  # texts of a class after which its proposers are weighed, again after as many more
LOOKS = (MIN_PROMPTS, 18, 24)  # pairs


@dataclass(frozen=True)
class Plan:
    """What is the same for every class.

    Args:
        curves: what calls cost.
        prices: of `curves`.
        proposers: in priority order.
        longest: largest K, as far as the curves know; under 1 nothing can be drafted.
        margin: gain from which speculation is worth it.
        trusted: the curves are worth a verdict without live pairs.
    """

    curves: CostCurves
    prices: replay.Prices
    proposers: tuple[str, ...]
    longest: int
    margin: float
    trusted: bool = True


@dataclass
class Check:
    """Live pairs of one proposer at one K on one class.

    Args:
        workload: name of the class.
        proposer: who drafts.
        k: K.
        looks_at: numbers of pairs after which to look, fixed before the first; empty: there are
            too few prompts for an interval.
        tried: prompts that ran both ways, also those whose text ended too early for a pair.
    """

    workload: str
    proposer: str
    k: int
    looks_at: tuple[int, ...]
    pairs: list[Pair] = field(default_factory=list)
    tried: set[int] = field(default_factory=set)
    verdict: Verdict = "open"
    _looks: int = 0

    @property
    def over(self) -> bool:
        """More pairs would change nothing, or are not wanted."""
        most = self.looks_at[-1] if self.looks_at else LOOKS[0]
        return self.verdict != "open" or len(self.pairs) >= most

    def add(self, pair: Pair, margin: float) -> None:
        self.pairs.append(pair)
        if len(self.pairs) in self.looks_at:
            self._looks += 1
            self.verdict = decided(self._estimate(self._looks), margin)

    @property
    def live(self) -> Live:
        """As of now, with 1 pair or more; a look of its own where pairs have come since the last.

        It never is one too many: after the last that was planned there are no more pairs.
        """
        seen = self.looks_at[self._looks - 1] if self._looks else 0
        looks = self._looks + (len(self.pairs) > seen)
        return Live(self.workload, self.proposer, self.k, self._estimate(looks))

    def _estimate(self, looks: int) -> Estimate:
        return ratio_interval(
            [pair.plain_ms for pair in self.pairs],
            [pair.spec_ms for pair in self.pairs],
            looks=looks,
            planned_looks=max(1, len(self.looks_at)),
        )


@dataclass
class PromptClass:
    """Prompts of one class, and what came of them.

    Args:
        name: of the class.
        prompts: int64 [n] each.
        plan: see `Plan`.
        texts: tokens of output of the prompts that ran, which are the first ones.
        offers: by proposer, one entry a text.
        checks: in the order of running.
    """

    name: str
    prompts: list[Ids]
    plan: Plan
    texts: list[int] = field(default_factory=list)
    offers: dict[str, list[replay.Offers]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    _wanted: int = SURVEY  # texts, before the proposers are weighed again

    def task(self, stage: int) -> tuple[int, Check | None] | None:
        """The next prompt, and the check it is run both ways for; None: this stage is through.

        Args:
            stage: number of the check, from 0; the survey belongs to the first.
        """
        fresh = len(self.texts) if len(self.texts) < len(self.prompts) else None
        if fresh is not None and fresh < self._wanted:
            return fresh, None
        if len(self.checks) <= stage:
            check, doubtful = self._promising()
            if check is None:
                if fresh is None or not doubtful:
                    return None
                self._wanted = fresh + SURVEY  # replaying takes time too
                return fresh, None
            self.checks.append(check)
        check = self.checks[stage]
        if check.over:
            return None
        if fresh is not None:
            return fresh, check
        untried = (i for i in range(len(self.prompts)) if i not in check.tried)
        number = next(untried, None)
        return None if number is None else (number, check)

    def _promising(self) -> tuple[Check | None, bool]:
        """The best proposer without a check, if one promises anything; else whether more texts
        could make one promise something, or rule it out."""
        checked = {check.proposer for check in self.checks}
        enough = sum(tokens > 1 for tokens in self.texts) >= MIN_PROMPTS
        found: tuple[float, str, int] | None = None
        doubtful = False
        for name in self.plan.proposers:
            if name in checked:
                continue
            plan = self.plan
            known = self.calibration(name)
            finding = find(plan.curves, known, plan.margin, trusted=plan.trusted)
            k = choose_live(finding)
            gain = max((each.estimate.gain for each in finding.expected), default=0.0)
            if k is None or (gain < self.plan.margin and not enough):
                doubtful = doubtful or not enough
            elif found is None or gain > found[0]:
                found = (gain, name, k)
        if found is None:
            return None, doubtful
        looks_at = tuple(look for look in LOOKS if look <= len(self.prompts))
        return Check(self.name, found[1], found[2], looks_at), False

    def calibration(self, proposer: str) -> replay.Calibration:
        """The texts so far, replayed."""
        return replay.calibrate(
            self.name,
            proposer,
            self.offers.get(proposer, ()),
            self.plan.curves,
            drafts=proposer == "draft",
            max_draft=self.plan.longest,
            prices=self.plan.prices,
        )

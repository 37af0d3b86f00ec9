"""What is believed of each proposer before a text's first round: a probe's counts, over classes.

Nobody knows which class of workload a live request belongs to. So a prior is fitted over classes,
each as likely as another (empirical Bayes): its mean is that of the classes, and it weighs what the
spread between classes leaves of it. Where classes agree it is strong; where editing gains what chat
loses it is weak, and the first rounds decide. Weights are fitted by moments (Casella, "An
introduction to empirical Bayes data analysis", 1985):

    p_c ~ Beta(w m, w (1 - m)),  Var p_c = m (1 - m) / (w + 1)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specedge.policy.market import Candidate
from specedge.policy.survival import Prior
from specedge.probe.findings import Finding, Findings

LEAST_WEIGHT, MOST_WEIGHT = 2.0, 32.0
ONE_CLASS = 8.0  # most weight of counts of a single class, which tell nothing of others
LEAST_DRAFTS = 8  # under which counts are no calibration
SHRINK = 2.0  # drafts' weight of the place before, in each class


def candidates(findings: Findings | None, names: Iterable[str]) -> list[Candidate]:
    """Proposers to weigh, by name; "draft" is the model, all others are lookups.

    A proposer that was ruled out on every class is left out. One that was not looked at, and all of
    them without findings, begin with the default prior.
    """
    found = []
    for name in names:
        judged = () if findings is None else findings.of(name)
        if findings is not None and judged and name not in findings.proposers:
            continue
        found.append(Candidate(name, "draft" if name == "draft" else "lookup", prior(judged)))
    return found


def prior(classes: Sequence[Finding]) -> Prior:
    """Over the classes in which the proposer ever drafted; the default where there is none."""
    counts = [
        [(r, s) for r, s in zip(each.reached, each.stood, strict=True) if r]
        for each in classes
        if each.reached and each.reached[0]
    ]
    drafts = sum(places[0][0] for places in counts)
    if drafts < LEAST_DRAFTS:
        return Prior()
    before = sum(places[0][1] for places in counts) / drafts
    stands: list[float] = []
    for place in range(max(map(len, counts))):
        rates = [
            (places[place][1] + SHRINK * before) / (places[place][0] + SHRINK)
            if place < len(places)
            else before
            for places in counts
        ]
        before = sum(rates) / len(rates)
        stands.append(before)
    weight = min(_weight([places[0] for places in counts]), drafts)
    return Prior(tuple(stands), max(LEAST_WEIGHT, weight), measured=True)


def _weight(counts: Sequence[tuple[int, int]]) -> float:
    """Observations that the mean over classes is worth for a class yet unknown.

    Args:
        counts: (drafts, of them stood) at the first place, by class.
    """
    if len(counts) == 1:
        return ONE_CLASS
    rates = [stood / drafts for drafts, stood in counts]
    mean = sum(rates) / len(rates)
    spread = sum((rate - mean) ** 2 for rate in rates) / (len(rates) - 1)
    # Of it, what chance would show if all classes were alike.
    chance = sum(mean * (1 - mean) / drafts for drafts, _ in counts) / len(counts)
    between = spread - chance
    if between <= 0:
        return MOST_WEIGHT
    return max(LEAST_WEIGHT, min(MOST_WEIGHT, mean * (1 - mean) / between - 1))

"""What follows from replays and live pairs: a verdict for each proposer on each workload class.

    live pairs at one K      their interval decides
    none, and every K's expected upper end is under the margin
                             "does not pay", without a live run
    else                     "open": the controller finds out

No correction is needed for looking at every K. "Does not pay" says that the best K is under the
margin. Whichever K that is in truth, its own upper end is no larger than the largest of all of
them, so this holds with at least the confidence of one K looked at alone. "Pays" is only ever
said of one K that was fixed before its pairs ran.

A proposer is left out only where every class says that it does not pay; a class that was never
reached says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specedge.probe.curves import CostCurves
from specedge.probe.findings import Estimate, Expected, Finding, Verdict
from specedge.probe.intervals import decided, ratio_interval
from specedge.probe.replay import Calibration


@dataclass(frozen=True, slots=True)
class Live:
    """What live pairs measured: one proposer at one K on one workload class."""

    workload: str
    proposer: str
    k: int
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class Decision:
    """The parts of `Findings` that follow from calibration.

    Args:
        findings: by workload, then proposer.
        proposers: those that may draft, in the order given.
        reason: one sentence.
    """

    findings: tuple[Finding, ...]
    proposers: tuple[str, ...]
    reason: str


def decide(
    curves: CostCurves,
    calibrations: Iterable[Calibration],
    margin: float,
    *,
    live: Iterable[Live] = (),
    workloads: Sequence[str] = (),
    proposers: Sequence[str] = (),
    trusted: bool = True,
) -> Decision:
    """Weigh everything that is known so far.

    Args:
        curves: that the calibrations were made with.
        calibrations: at most one for each proposer on each workload.
        margin: gain from which speculation is worth it, 1 or more.
        live: at most one for each calibration.
        workloads, proposers: names of all that were to be calibrated, in order; others follow in
            the order of `calibrations`. One that is missing there stays open.
        trusted: see `find`.
    """
    found = {(each.workload, each.proposer): each for each in calibrations}
    measured = {(each.workload, each.proposer): each for each in live}
    classes = list(dict.fromkeys([*workloads, *(workload for workload, _ in found)]))
    names = list(dict.fromkeys([*proposers, *(proposer for _, proposer in found)]))
    findings = tuple(
        find(curves, found[key], margin, measured.get(key), trusted=trusted)
        for key in ((workload, proposer) for workload in classes for proposer in names)
        if key in found
    )
    return conclude(findings, classes, names)


def conclude(
    findings: Sequence[Finding], workloads: Sequence[str], proposers: Sequence[str]
) -> Decision:
    """Who may draft, by what was found; arguments as of `decide`."""
    by_name = {name: [each for each in findings if each.proposer == name] for name in proposers}
    allowed = tuple(name for name in proposers if not _ruled_out(by_name[name], workloads))
    return Decision(tuple(findings), allowed, _decision_reason(by_name, workloads, allowed))


def find(
    curves: CostCurves,
    calibration: Calibration,
    margin: float,
    live: Live | None = None,
    *,
    trusted: bool = True,
) -> Finding:
    """One proposer on one workload class; arguments as of `decide`.

    `trusted`: the curves are worth a verdict without live pairs.
    """
    expected = tuple(
        Expected(
            k=each.k,
            estimate=ratio_interval(each.plain_ms, each.spec_ms),
            acceptance_rate=each.acceptance_rate,
            acceptance_length=each.acceptance_length,
        )
        for each in calibration.by_k
    )
    best = _best(expected)
    if live is not None:
        best_k = live.k
        verdict: Verdict = decided(live.estimate, margin)
    else:
        best_k = best.k if best is not None and best.estimate.gain > 1 else 0
        verdict = "does not pay" if trusted and rules_out(expected, margin) else "open"
    return Finding(
        workload=calibration.workload,
        proposer=calibration.proposer,
        tokens=calibration.tokens,
        reached=calibration.reached,
        stood=calibration.stood,
        expected=expected,
        best_k=best_k,
        measured=None if live is None else live.estimate,
        verdict=verdict,
        reason=_finding_reason(curves, calibration, expected, live),
    )


def rules_out(expected: Sequence[Expected], margin: float) -> bool:
    """Whether every K's upper end is known and under the margin; False where there is no K."""
    highs = [each.estimate.high for each in expected]
    return bool(highs) and all(high is not None and high < margin for high in highs)


def choose_live(finding: Finding) -> int | None:
    """The K that live pairs are worth running at; None: no draft was made, or it is hopeless."""
    best = _best(finding.expected)
    return None if best is None or finding.verdict == "does not pay" else best.k


def _best(expected: Sequence[Expected]) -> Expected | None:
    """Of the largest gain, the smallest K."""
    return max(expected, key=lambda each: (round(each.estimate.gain, 9), -each.k), default=None)


def _ruled_out(findings: Sequence[Finding], classes: Sequence[str]) -> bool:
    hopeless = [each for each in findings if each.verdict == "does not pay"]
    return bool(classes) and len(hopeless) == len(classes)


# Sentences


def _finding_reason(
    curves: CostCurves,
    calibration: Calibration,
    expected: Sequence[Expected],
    live: Live | None,
) -> str:
    best = _best(expected)
    if live is not None:
        best = next((each for each in expected if each.k == live.k), best)
    if best is None:
        gained = (
            "" if live is None else f"; K={live.k} gives {_shown(live.estimate, 'paired runs')}"
        )
        return f"nothing could be drafted in {calibration.tokens} tokens of its texts{gained}"
    k = best.k if live is None else live.k
    step_ms = curves.target.cost_ms(1, calibration.past)
    ms = curves.target.cost_ms(k + 1, calibration.past) - step_ms
    if calibration.drafts and curves.draft is not None:
        ms += k * curves.draft.cost_ms(1, calibration.past)
    kind = "drafted" if calibration.drafts else "looked-up"
    tokens = f"1 {kind} token costs" if k == 1 else f"{k} {kind} tokens cost"
    gives = (
        f"would give {_shown(best.estimate, 'prompts')}"
        if live is None
        else f"gives {_shown(live.estimate, 'paired runs')}"
    )
    return (
        f"{tokens} {ms / step_ms:.0%} of a target step and {best.acceptance_rate:.0%} are "
        f"accepted; best K={k} {gives}"
    )


def _shown(estimate: Estimate, unit: str = "") -> str:
    """A gain and its interval: "0.93x (0.90 to 0.96, 24 prompts)"."""
    inside = []
    if estimate.low is not None and estimate.high is not None:
        inside.append(f"{estimate.low:.2f} to {estimate.high:.2f}")
    if unit:
        unit = unit if estimate.prompts != 1 else unit.removesuffix("s")
        inside.append(f"{estimate.prompts} {unit}")
    return f"{estimate.gain:.2f}x ({', '.join(inside)})" if inside else f"{estimate.gain:.2f}x"


def _estimate(finding: Finding) -> Estimate | None:
    best = _best(finding.expected)
    return finding.measured or (None if best is None else best.estimate)


def _gain(finding: Finding) -> float:
    estimate = _estimate(finding)
    return 1.0 if estimate is None else estimate.gain


def _decision_reason(
    by_name: dict[str, list[Finding]], classes: Sequence[str], allowed: Sequence[str]
) -> str:
    if not by_name:
        return "speculation off: there is no proposer"
    if not allowed and len(by_name) == 1:
        (findings,) = by_name.values()
        best = max(findings, key=_gain)
        where = f" for {best.workload}, the best of {len(classes)} workloads"
        return f"speculation off: {best.reason}{where if len(classes) > 1 else ''}"
    pays = any(each.verdict == "pays" for name in allowed for each in by_name[name])
    state = "on" if pays else "on trial" if allowed else "off"
    clauses = [
        _allowed_clause(name, findings, classes) if name in allowed else _out_clause(name, findings)
        for name, findings in by_name.items()
    ]
    return f"speculation {state}: {'; '.join(clauses)}"


def _allowed_clause(name: str, findings: Sequence[Finding], classes: Sequence[str]) -> str:
    of = {each.workload: each for each in findings}
    verdicts = {
        workload: of[workload].verdict if workload in of else "open" for workload in classes
    }
    parts = []
    for verdict, words in (("pays", "pays for"), ("does not pay", "not for"), ("open", "open for")):
        said = [_class(workload, of.get(workload)) for workload in classes
                if verdicts[workload] == verdict]  # fmt: skip
        if said:
            parts.append(f"{words} {_listed(said)}")
    return f"{name} {', '.join(parts) or 'not measured'}"


def _class(workload: str, finding: Finding | None) -> str:
    if finding is None:
        return f"{workload} (not measured)"
    estimate = _estimate(finding)
    if estimate is None:
        return f"{workload} (nothing drafted)"
    if finding.verdict == "pays" and estimate.low is not None and estimate.high is not None:
        return f"{workload} ({estimate.gain:.2f}x, {estimate.low:.2f} to {estimate.high:.2f})"
    return f"{workload} ({estimate.gain:.2f}x)"


def _out_clause(name: str, findings: Sequence[Finding]) -> str:
    best = max(findings, key=_gain)
    estimate = _estimate(best)
    assert estimate is not None, "an interval ruled it out"
    return f"{name} ruled out, at best {_shown(estimate)} for {best.workload}"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"

"""From comparisons to a verdict.

    off: mismatch   one output differs by more than the width noise: at once
    off: loss       a look finds the whole interval of the gain below 1
    on              a look finds the whole interval of the gain above 1
    watching        neither, or no look yet

A look is taken when so many timed comparisons have come in as LOOKS says, and after the last of
them each time that as many more have: by then the window holds other requests. The interval
(`specedge.probe.intervals`) allows for the looks planned. "Off" stays until the record is cleared.
"""

from __future__ import annotations

from specedge.canary.record import (
    MOST_EVIDENCE,
    MOST_KEPT,
    Comparison,
    Evidence,
    Record,
    State,
    Totals,
    Verdict,
    now,
)
from specedge.probe.findings import Estimate
from specedge.probe.intervals import ratio_interval

LOOKS = (12, 24, 48, 96, 192)  # timed comparisons


def added(record: Record, comparison: Comparison, evidence: Evidence | None = None) -> Record:
    """The record with one more comparison, and what follows from it.

    Args:
        evidence: of a mismatch.
    """
    totals = _counted(record.totals, comparison)
    last = (*record.last, comparison)[-MOST_KEPT:]
    kept = record.evidence
    if evidence is not None:
        kept = (*kept, evidence)[:MOST_EVIDENCE]
    gain = record.gain
    look = _look(totals.timed) if comparison.timed else 0
    if look:
        gain = estimate(last, look)
    changes = {"totals": totals, "last": last, "evidence": kept, "gain": gain}
    changed = _updated(record, **changes)
    if evidence is not None:
        return _judged(changed, "off: mismatch", _mismatch(evidence))
    if look:
        return _judged(changed, *_by_gain(gain))
    if record.totals.compared == 0:
        return _judged(changed, "watching", "the first look at the times is still to come")
    return changed


def failed(record: Record, why: str) -> Record:
    """The record with one more request that could not be decoded again, or not compared."""
    totals = record.totals
    more = totals.model_copy(update={"failures": totals.failures + 1})
    return _updated(record, totals=more, last_failure=why)


def interrupted(record: Record) -> Record:
    """The record with one more comparison that was given up for the next request."""
    totals = record.totals
    more = totals.model_copy(update={"interrupted": totals.interrupted + 1})
    return _updated(record, totals=more)


def estimate(last: tuple[Comparison, ...], looks: int = 1) -> Estimate | None:
    """Gain over those comparisons that were timed; None: there are none."""
    pairs = [(each.plain_ms, each.spec_ms) for each in last if each.timed]
    if not pairs:
        return None
    plain = [plain for plain, _ in pairs if plain is not None]
    spec = [spec for _, spec in pairs if spec is not None]
    return ratio_interval(plain, spec, looks=looks, planned_looks=len(LOOKS))


def _look(timed: int) -> int:
    """Which look is due after so many timed comparisons, from 1; 0: none."""
    if timed in LOOKS:
        return LOOKS.index(timed) + 1
    return len(LOOKS) if timed % LOOKS[-1] == 0 else 0


def _by_gain(gain: Estimate | None) -> tuple[State, str]:
    if gain is None or gain.low is None or gain.high is None:
        return "watching", "too few requests were timed to state an interval"
    said = (
        f"{gain.gain:.2f} times the speed of plain decoding ({gain.low:.2f} to {gain.high:.2f}) "
        f"on {gain.prompts} requests"
    )
    if gain.high < 1:
        return "off: loss", f"a loss: {said}"
    if gain.low > 1:
        return "on", f"a gain: {said}"
    return "watching", f"neither a gain nor a loss: {said}"


def _mismatch(evidence: Evidence) -> str:
    def text(token: int | None, said: str) -> str:
        return "nothing" if token is None else repr(said)

    return (
        f"output token {evidence.position + 1} is {text(evidence.spec_token, evidence.spec_text)} "
        f"with speculation and {text(evidence.plain_token, evidence.plain_text)} without"
        f"{_margin(evidence)}"
    )


def _margin(evidence: Evidence) -> str:
    if evidence.margin is None or evidence.noise is None:
        return ""
    return f" (margin {evidence.margin:.2g}, width noise {evidence.noise:.2g})"


def _judged(record: Record, state: State, reason: str) -> Record:
    """What turned speculation off stays the reason."""
    old = record.verdict
    if old.off:
        return record
    since = old.since if state == old.state else record.updated
    verdict = Verdict(state=state, reason=reason, since=since)
    return record.model_copy(update={"verdict": verdict})


def _counted(totals: Totals, comparison: Comparison) -> Totals:
    kinds = {"near-tie": "near_ties", "mismatch": "mismatches", "not compared": "not_compared"}
    kind = kinds.get(comparison.tokens, comparison.tokens)
    more = {
        "compared": totals.compared + 1,
        kind: getattr(totals, kind) + 1,
        "timed": totals.timed + comparison.timed,
    }
    return totals.model_copy(update=more)


def _updated(record: Record, **changes: object) -> Record:
    return record.model_copy(update={**changes, "updated": now()})

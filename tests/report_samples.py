"""Probes as they could have been: a real pair's costs, five classes of text, two proposers."""

from __future__ import annotations

from typing import Any

from specedge.probe.curves import CostCurves, Curve, Point
from specedge.probe.findings import (
    Energy,
    Estimate,
    Expected,
    Finding,
    Findings,
    Steadiness,
    Verdict,
)
from specedge.probe.fingerprint import Fingerprint
from specedge.report import Page

MARGIN = 1.03
CREATED = "2026-11-30T09:12:44.318+00:00"
# Qwen2.5-Coder 1.5B and 0.5B int4 on two cores, ms after 256 tokens; docs/benchmarks.md's machine
TARGET = {1: 31.0, 2: 33.9, 4: 43.1, 6: 54.6, 8: 66.0, 10: 79.3, 12: 90.5, 14: 104.0, 16: 117.2}
DRAFT = {1: 11.6, 2: 13.4, 4: 19.8, 8: 34.1, 16: 63.0}
# of a drafted token that it stands, given that all before it did; share of rounds that draft
AGREEMENT = {
    ("chat", "ngram"): (0.36, 0.16),
    ("chat", "draft"): (0.73, 1.0),
    ("code writing", "ngram"): (0.61, 0.31),
    ("code writing", "draft"): (0.86, 1.0),
    ("code editing", "ngram"): (0.97, 0.94),
    ("code editing", "draft"): (0.98, 1.0),
    ("summarising", "ngram"): (0.66, 0.42),
    ("summarising", "draft"): (0.46, 1.0),
    ("structured output", "ngram"): (0.78, 0.52),
    ("structured output", "draft"): (0.89, 1.0),
}
REASON = (
    "speculation on: ngram pays for code writing (1.21x, 1.16 to 1.25), code editing (3.37x, 3.25 "
    "to 3.48), summarising (1.33x, 1.29 to 1.38) and structured output (1.62x, 1.57 to 1.68), open "
    "for chat (1.03x); draft pays for chat (1.16x, 1.12 to 1.20), code writing (1.26x, 1.22 to "
    "1.31), code editing (1.54x, 1.49 to 1.59) and structured output (1.32x, 1.28 to 1.37), not "
    "for summarising (0.99x)"
)


def curve(role: str, costs: dict[int, float], pasts: tuple[int, ...], step: int = 1) -> Curve:
    """Costs that grow a little with the past, spread by 3 %."""
    points = []
    for past in pasts:
        for width, base in costs.items():
            ms = round(base * (1 + (past - 256) / 9000) + 0.0003 * past * width, 4)
            points.append(
                Point(width=width, past=past, count=9, ms=ms, low_ms=0.98 * ms, high_ms=1.04 * ms)
            )
    return Curve(role=role, width_step=step, points=tuple(points))  # type: ignore[arg-type]


def curves(
    *,
    draft: bool = True,
    pasts: tuple[int, ...] = (256, 2048),
    target: dict[int, float] = TARGET,
    **changed: Any,
) -> CostCurves:
    """Both curves; any field replaced."""
    measured = {"plan": "full", "passes": 9, "seconds": 18.4, "converged": True} | changed
    return CostCurves(
        target=curve("target", target, pasts, step=2),
        draft=curve("draft", DRAFT, pasts) if draft else None,
        **measured,
    )


def estimate(gain: float, half: float, prompts: int = 12, looks: int = 1) -> Estimate:
    """A gain and an interval of `half` of it to both sides."""
    return Estimate(
        gain=round(gain, 4),
        low=round(gain * (1 - half), 4),
        high=round(gain * (1 + half), 4),
        prompts=prompts,
        looks=looks,
    )


def expected(costs: CostCurves, proposer: str, stands: float, drafts: float) -> list[Expected]:
    """By K, from the chance that a drafted token stands and the share of rounds that draft."""
    found = []
    for k in range(1, 16):
        length = sum(stands**place for place in range(k + 1))
        wide = costs.target.cost_ms(k + 1, 256)
        if proposer == "draft" and costs.draft is not None:
            wide += k * costs.draft.cost_ms(1, 256)
        plain = costs.target.cost_ms(1, 256)
        committed = drafts * length + 1 - drafts
        gain = committed * plain / (drafts * wide + (1 - drafts) * plain)
        found.append(
            Expected(
                k=k,
                estimate=estimate(gain, 0.015 + 0.004 * k),
                acceptance_rate=round((length - 1) / k, 4),
                acceptance_length=round(committed, 4),
            )
        )
    return found


def finding(costs: CostCurves, workload: str, proposer: str) -> Finding:
    stands, drafts = AGREEMENT[workload, proposer]
    by_k = expected(costs, proposer, stands, drafts)
    best = max(by_k, key=lambda each: each.estimate.gain)
    gain = best.estimate.gain
    measured = estimate(0.985 * gain, 0.035, prompts=24, looks=2) if gain > 1 else None
    known = measured or best.estimate
    assert known.low is not None
    assert known.high is not None
    verdict: Verdict = "open"
    if known.low > MARGIN:
        verdict = "pays"
    elif known.high < MARGIN:
        verdict = "does not pay"
    began = round(620 * drafts)
    runs = "24 paired runs" if measured else "12 prompts"
    said = (
        f"drafts of {best.k} cost {costs.target.cost_ms(best.k + 1, 256) / 31 - 1:.0%} of a target "
        f"step and {best.acceptance_rate:.0%} are accepted; best K={best.k} gives "
        f"{known.gain:.2f}x ({known.low:.2f} to {known.high:.2f}, {runs})"
    )
    return Finding(
        workload=workload,
        proposer=proposer,
        tokens=1536,
        reached=tuple(round(began * stands**place) for place in range(15)),
        stood=tuple(round(began * stands ** (place + 1)) for place in range(15)),
        expected=tuple(by_k),
        best_k=best.k if gain > 1 else 0,
        measured=measured,
        verdict=verdict,
        reason=said,
    )


def findings(
    costs: CostCurves, proposers: tuple[str, ...] = ("ngram", "draft"), **changed: Any
) -> Findings:
    found = tuple(finding(costs, *named) for named in AGREEMENT if named[1] in proposers)
    whole = {
        "margin": MARGIN,
        "prompts_from": "built in",
        "findings": found,
        "proposers": proposers,
        "reason": REASON,
        "texts_equal": 216,
        "texts_compared": 216,
        "energy": Energy(source="RAPL package-0", idle_watts=11.8, plain=1.214, speculative=0.846),
        "steadiness": Steadiness(drift=1.012, clocks_mhz=(3247.0, 3702.0)),
        "seconds": 39.7,
        "complete": True,
    }
    return Findings(**(whole | changed))


def fingerprint(**changed: Any) -> Fingerprint:
    known: Fingerprint = {
        "bundle": "5f1d0c9be7a24b86" * 4,
        "specedge": "0.1.0",
        "engine": "onnxruntime 1.32.0",
        "provider": "cpu",
        "threads": 2,
        "exact": True,
        "width_step": 2,
        "target_context": 4096,
        "draft_context": 4096,
        "processor": "AMD EPYC (family 26 model 2)",
        "instructions": "avx2 avx512f avx512_vnni",
        "cores": "2 of 2",
        "cpu_quota": None,
        "governor": None,
        "power_mode": None,
        "gpu_driver": None,
    }
    return known | changed


def page(**changed: Any) -> Page:
    """A complete probe; any part of it replaced."""
    parts = {"fingerprint": fingerprint(), "created": CREATED, "bundle_name": "qwen2.5-coder"}
    parts["curves"] = costs = changed.get("curves") or curves()
    if "findings" not in changed:
        parts["findings"] = findings(costs)
    return Page(**(parts | changed))


def troubled() -> Page:
    """Nothing pays, everything is wrong, and names are long and hostile."""
    steep = {width: 31.0 * width for width in TARGET}
    costs = curves(passes=2, converged=False, target=steep)
    found = findings(costs).findings
    names = {
        "chat": '<b>questions & "answers"</b> about household electricity, long ones',
        "code writing": "Ünïcode 写代码",
    }
    odd = tuple(
        each.model_copy(
            update={
                "workload": names.get(each.workload, each.workload),
                "verdict": "does not pay",
                "best_k": 0,
                "measured": None,
                "reason": "1 drafted token costs 37% of a target step and 41% are accepted; best "
                "K=1 gives 0.93x (0.90 to 0.96, 24 paired runs), and what is more this sentence "
                "goes on for as long as a sentence of a careful measurer can go on",
            }
            | ({"reached": (), "stood": (), "expected": ()} if each.workload == "chat" else {})
        )
        for each in found
    )
    wrong = findings(
        costs,
        findings=odd,
        proposers=(),
        reason="speculation off: 1 drafted token costs 37% of a target step and 41% are accepted; "
        "best K=1 gives 0.93x (0.90 to 0.96, 24 paired runs)",
        texts_equal=23,
        texts_compared=24,
        energy=None,
        steadiness=Steadiness(
            drift=1.31,
            throttled=("core clock fell from 3700 to 2100 MHz after 22 s", "power mode 15W -> 7W"),
        ),
        complete=False,
    )
    return page(curves=costs, findings=wrong, bundle_name='edge <script>alert("1")</script> & co')

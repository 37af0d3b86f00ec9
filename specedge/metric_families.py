"""Sums and probes as metric families: plain data, before any library makes text of it.

Names, labels and their bounds are listed in docs/metrics.md. Values of a label come from a fixed
set, from what is loaded or measured, or from a number that is bounded (`specedge.counters`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from specedge import __version__
from specedge.counters import BUCKETS, CANARY, PHASES, Snapshot
from specedge.metrics import peak_rss_bytes
from specedge.stream import FinishReason

if TYPE_CHECKING:
    from specedge.probe.curves import CostCurves
    from specedge.probe.findings import Estimate, Findings

_REASONS = (*get_args(FinishReason), "error")
# quantity of specedge.counters, name, help, label, values that are there from the start
_COUNTERS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    ("requests", "requests", "Requests that ended, however they did.", "", ("",)),
    ("failures", "failed_requests", "Requests that an error ended.", "", ("",)),
    ("completions", "completions", "Texts, n of a request for n.", "finish_reason", _REASONS),
    ("prompt_tokens", "prompt_tokens", "Tokens of prompts, once a request.", "", ("",)),
    ("prefill_tokens", "prefill_tokens", "Prompt tokens that were not cached.", "", ("",)),
    ("generated_tokens", "generated_tokens", "Tokens committed.", "", ("",)),
    ("rounds", "rounds", "Target calls after the prefill.", "", ("",)),
    ("draft_rounds", "draft_rounds", "Rounds that verified a draft.", "proposer", ()),
    ("proposed", "proposed_tokens", "Drafted tokens verified.", "proposer", ()),
    ("accepted", "accepted_tokens", "Drafted tokens kept.", "proposer", ()),
    (
        "position_proposed",
        "position_proposed_tokens",
        "Drafted tokens verified, by place in the draft.",
        "position",
        (),
    ),
    (
        "position_accepted",
        "position_accepted_tokens",
        "Drafted tokens kept, by place in the draft.",
        "position",
        (),
    ),
    ("phase_seconds", "phase_seconds", "Time spent, by what it went into.", "phase", PHASES),
    ("engine_seconds", "engine_seconds", "Time inside the runtimes, prefill left out.", "", ("",)),
    (
        "canary_comparisons",
        "canary_comparisons",
        "Requests that a canary decoded both ways, by what came of it.",
        "outcome",
        CANARY,
    ),
)
_HISTOGRAMS = (
    ("ttft_seconds", "time_to_first_token_seconds", "From the request to its first token."),
    ("tpot_seconds", "time_per_output_token_seconds", "Mean of a text's tokens after the first."),
)


class Probed(Protocol):
    """What `probe_text` reads of a probe's record."""

    @property
    def created(self) -> str: ...
    @property
    def curves(self) -> CostCurves: ...
    @property
    def findings(self) -> Findings | None: ...


Row = tuple[tuple[str, ...], float]


@dataclass(slots=True)
class Family:
    """One metric: rows of label values with a number, or with counts by bucket and a sum."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    help: str
    labels: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)
    counts: list[tuple[tuple[str, ...], list[int], float]] = field(default_factory=list)
    ends: Sequence[float] = ()


def families(snapshots: Sequence[Snapshot]) -> Iterator[Family]:
    """Of models; those of one bundle add up. Without any, the names alone."""
    merged: dict[str, list[Snapshot]] = defaultdict(list)
    for each in snapshots:
        merged[each.bundle].append(each)
    yield from _sum_families(merged)
    yield from _histogram_families(merged)
    known = {
        bundle: [each.speculates for each in group if each.speculates is not None]
        for bundle, group in merged.items()
    }
    yield _per_bundle(
        "gauge",
        "specedge_speculation_on",
        "Whether drafts were made at the end of the last request.",
        {bundle: float(any(states)) for bundle, states in known.items() if states},
    )
    peak = peak_rss_bytes()
    yield Family(
        "gauge",
        "specedge_peak_resident_memory_bytes",
        "Largest resident memory of the process so far.",
        (),
        [((), peak)] if peak and snapshots else [],
    )
    loaded = dict.fromkeys((each.bundle, __version__, each.engine) for each in snapshots)
    yield Family(
        "gauge",
        "specedge_model_info",
        "What is loaded; always 1.",
        ("bundle", "version", "engine"),
        [(row, 1.0) for row in loaded],
    )


def _sum_families(merged: dict[str, list[Snapshot]]) -> Iterator[Family]:
    for quantity, name, help_, label, initial in _COUNTERS:
        labels = ("bundle", label) if label else ("bundle",)
        family = Family("counter", f"specedge_{name}", help_, labels)
        for bundle, group in merged.items():
            values = dict.fromkeys(initial, 0.0)
            for each in group:
                for (key, value), amount in each.sums.items():
                    if key == quantity:
                        values[value] = values.get(value, 0.0) + amount
            for value, amount in values.items():
                family.rows.append(((bundle, value) if label else (bundle,), amount))
        yield family
    yield _per_bundle(
        "counter",
        "specedge_proposer_failures",
        "Failures of proposers; decoding went on plainly.",
        {name: sum(each.proposer_failures for each in group) for name, group in merged.items()},
    )


def _histogram_families(merged: dict[str, list[Snapshot]]) -> Iterator[Family]:
    for quantity, name, help_ in _HISTOGRAMS:
        family = Family("histogram", f"specedge_{name}", help_, ("bundle",))
        family.ends = BUCKETS[quantity]
        for bundle, group in merged.items():
            by_bucket = zip(*(each.histograms[quantity] for each in group), strict=True)
            total = sum(each.sums.get((quantity, ""), 0.0) for each in group)
            family.counts.append(((bundle,), [sum(row) for row in by_bucket], total))
        yield family


def _per_bundle(
    kind: Literal["counter", "gauge"], name: str, help_: str, values: dict[str, float]
) -> Family:
    rows: list[Row] = [((bundle,), value) for bundle, value in values.items()]
    return Family(kind, name, help_, ("bundle",), rows)


def probe_families(record: Probed, bundle: str) -> Iterator[Family]:
    """Of a probe's record; `bundle` is the bundle's name."""
    with suppress(ValueError):  # nothing promises that it is a date
        yield _per_bundle(
            "gauge",
            "specedge_probe_created_timestamp_seconds",
            "When the probe was made.",
            {bundle: datetime.fromisoformat(record.created).timestamp()},
        )
    yield from _curve_families(record, bundle)
    if record.findings is not None:
        yield from _finding_families(record.findings, bundle)
        yield from _decision_families(record.findings, bundle)


def _curve_families(record: Probed, bundle: str) -> Iterator[Family]:
    family = Family(
        "gauge",
        "specedge_probe_call_seconds",
        "Median time of a call of so many new tokens after so many cached rows.",
        ("bundle", "role", "width", "past"),
    )
    for curve in (record.curves.target, record.curves.draft):
        if curve is None:
            continue
        for point in curve.points:
            row = (bundle, curve.role, str(point.width), str(point.past))
            family.rows.append((row, point.ms / 1e3))
    yield family


def _finding_families(findings: Findings, bundle: str) -> Iterator[Family]:
    labels = ("bundle", "workload", "proposer")
    gains: dict[str, Family] = {}
    for kind in ("expected", "measured"):
        for end, what in (("", "over plain"), ("_low", "lower end"), ("_high", "upper end")):
            name = f"specedge_probe_{kind}_gain{end}"
            gains[f"{kind}{end}"] = Family("gauge", name, f"Speed {what}, {kind}.", labels)
    length = Family(
        "gauge", "specedge_probe_best_draft_length", "K that gains most; 0: none does.", labels
    )
    for each in findings.findings:
        row = (bundle, each.workload, each.proposer)
        length.rows.append((row, each.best_k))
        best = max((one.estimate for one in each.expected), key=lambda e: e.gain, default=None)
        for kind, estimate in (
            ("expected", each.best.estimate if each.best else best),
            ("measured", each.measured),
        ):
            for end, value in _ends(estimate):
                gains[f"{kind}{end}"].rows.append((row, value))
    yield from (*gains.values(), length)


def _decision_families(findings: Findings, bundle: str) -> Iterator[Family]:
    tried = dict.fromkeys([*(each.proposer for each in findings.findings), *findings.proposers])
    yield Family(
        "gauge",
        "specedge_probe_permitted",
        "Whether this proposer may draft.",
        ("bundle", "proposer"),
        [((bundle, name), float(name in findings.proposers)) for name in tried],
    )
    yield _per_bundle(
        "gauge",
        "specedge_probe_speculates",
        "The decision: whether anybody may draft.",
        {bundle: float(findings.speculates)},
    )
    energy = Family(
        "gauge",
        "specedge_probe_token_energy_joules",
        "Energy of a token of text, as the probe's meter counts it.",
        ("bundle", "decoding"),
    )
    if findings.energy is not None:
        for way in ("plain", "speculative"):
            joules = getattr(findings.energy, way)
            if joules is not None:
                energy.rows.append(((bundle, way), joules))
    yield energy


def _ends(estimate: Estimate | None) -> Iterator[tuple[str, float]]:
    if estimate is None:
        return
    for end, value in (("", estimate.gain), ("_low", estimate.low), ("_high", estimate.high)):
        if value is not None:
            yield end, value

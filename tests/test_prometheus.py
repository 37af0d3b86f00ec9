"""Sums over requests, a probe's figures, and the text that a scraper reads of both."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specedge
from commands import alphabet
from specedge import counters as counting
from specedge import metric_families, prometheus
from specedge.counters import BEYOND, BUCKETS, MAX_NAMES, MAX_POSITION, PHASES, Counters
from specedge.errors import SpecedgeError
from specedge.metrics import MetricsSummary, ProposerCounts
from specedge.probe.curves import CostCurves, Curve, Point
from specedge.probe.findings import Energy, Estimate, Expected, Finding, Findings, Steadiness
from specedge.result import Result
from specedge.speculator import SpeculationState
from tiny import write_bundle

pytest.importorskip("prometheus_client", reason="needs the extra metrics")
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_parse
from prometheus_client.parser import text_string_to_metric_families as parse

MS = ("prefill_ms", "propose_ms", "verify_ms", "accept_ms", "other_ms", "engine_ms")


def summary(
    rng: np.random.Generator, proposers: tuple[str, ...] = ("ngram", "draft")
) -> MetricsSummary:
    """Of a request that never ran; the parts agree as far as the sums need."""
    shares, offered, kept = {}, [0] * 19, [0] * 19
    for name in proposers:
        rounds = int(rng.integers(1, 9))
        accepted = 0
        for _ in range(rounds):
            stood = int(rng.integers(0, 20))
            accepted += stood
            for place in range(19):
                offered[place] += 1
                kept[place] += place < stood
        shares[name] = ProposerCounts(rounds, 19 * rounds, accepted)
    times = {name: float(rng.uniform(0, 500)) for name in MS}
    return MetricsSummary(
        ttft_ms=float(rng.choice([5.0, 20.0, 20.1, 900.0, 1e6])),
        tpot_ms=None if rng.random() < 0.3 else float(rng.choice([1.0, 30.0, 5e5])),
        tokens_per_second=None,
        prefill_tokens=int(rng.integers(0, 50)),
        generated=int(rng.integers(1, 90)),
        rounds=sum(share.rounds for share in shares.values()) + 1,
        proposed=sum(offered),
        accepted=sum(kept),
        acceptance_rate=None,
        acceptance_length=None,
        proposed_by_position=offered,
        accepted_by_position=kept,
        peak_rss_bytes=0,
        proposers=shares,
        **times,
    )


def result(
    rng: np.random.Generator, *, on: bool = True, failures: int = 0, **changes: Any
) -> Result:
    said: dict[str, Any] = {
        "text": "",
        "tokens": [],
        "finish_reason": str(rng.choice(["stop", "length", "stop_string", "cancelled"])),
        "prompt_tokens": int(rng.integers(1, 40)),
        "seed": None,
        "acceptance": "greedy",
        "reproducible": True,
        "speculation": SpeculationState("auto", on, "why not", "ngram", failures),
        "metrics": summary(rng),
    }
    return Result(**(said | changes))


def values(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of a text by name and labels, `bundle` left out; none stands twice."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in parse(text):
        for sample in family.samples:
            labels = frozenset(sample.labels.items() - {("bundle", sample.labels.get("bundle"))})
            assert (sample.name, labels) not in found
            found[sample.name, labels] = sample.value
    return found


def value(text: str, name: str, **labels: str) -> float:
    return values(text)[name, frozenset(labels.items())]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(4)


@pytest.fixture
def texts(rng) -> list[Result]:
    return [result(rng) for _ in range(12)]


@pytest.fixture
def fed(texts) -> Counters:
    counters = Counters("tiny", "fake 1, 2 threads")
    for each in texts:
        counters.add(each)
    return counters


def test_every_number_is_the_plain_sum_over_the_requests(fed, texts):
    said = prometheus.text(fed)
    metrics = [each.metrics for each in texts]
    assert value(said, "specedge_requests_total") == 12
    assert value(said, "specedge_failed_requests_total") == 0
    for reason in ("stop", "length", "stop_string", "cancelled", "error"):
        counted = sum(each.finish_reason == reason for each in texts)
        assert value(said, "specedge_completions_total", finish_reason=reason) == counted
    assert value(said, "specedge_prompt_tokens_total") == sum(t.prompt_tokens for t in texts)
    assert value(said, "specedge_prefill_tokens_total") == sum(m.prefill_tokens for m in metrics)
    assert value(said, "specedge_generated_tokens_total") == sum(m.generated for m in metrics)
    assert value(said, "specedge_rounds_total") == sum(m.rounds for m in metrics)
    for name in ("ngram", "draft"):
        shares = [each.proposers[name] for each in metrics]
        for family, sums in (
            ("draft_rounds", sum(share.rounds for share in shares)),
            ("proposed_tokens", sum(share.proposed for share in shares)),
            ("accepted_tokens", sum(share.accepted for share in shares)),
        ):
            assert value(said, f"specedge_{family}_total", proposer=name) == sums
    for phase in PHASES:
        spent = sum(getattr(each, f"{phase}_ms") for each in metrics) / 1e3
        assert value(said, "specedge_phase_seconds_total", phase=phase) == pytest.approx(spent)
    spent = sum(each.engine_ms for each in metrics) / 1e3
    assert value(said, "specedge_engine_seconds_total") == pytest.approx(spent)


def test_places_in_a_draft_are_bounded_and_lose_no_token(fed, texts):
    said = values(prometheus.text(fed))
    for way in ("proposed", "accepted"):
        name = f"specedge_position_{way}_tokens_total"
        found = {
            dict(labels)["position"]: n for (known, labels), n in said.items() if known == name
        }
        assert list(found) == [*map(str, range(1, MAX_POSITION)), BEYOND]
        lists = [getattr(each.metrics, f"{way}_by_position") for each in texts]
        for place in range(1, MAX_POSITION):
            assert found[str(place)] == sum(each[place - 1] for each in lists)
        assert sum(found.values()) == sum(map(sum, lists))


@pytest.mark.parametrize(
    ("quantity", "field", "name"),
    [
        ("ttft_seconds", "ttft_ms", "specedge_time_to_first_token_seconds"),
        ("tpot_seconds", "tpot_ms", "specedge_time_per_output_token_seconds"),
    ],
)
def test_buckets_hold_everything_up_to_their_end(fed, texts, quantity, field, name):
    said = prometheus.text(fed)
    times = [ms / 1e3 for each in texts if (ms := getattr(each.metrics, field)) is not None]
    for end in BUCKETS[quantity]:
        le = "+Inf" if math.isinf(end) else str(end)
        assert value(said, f"{name}_bucket", le=le) == sum(time <= end for time in times)
    assert value(said, f"{name}_count") == len(times)
    assert value(said, f"{name}_sum") == pytest.approx(sum(times))


def test_before_the_first_request_the_known_names_stand_at_zero():
    said = values(prometheus.text(Counters("tiny")))
    assert said["specedge_requests_total", frozenset()] == 0
    assert said["specedge_completions_total", frozenset({("finish_reason", "error")})] == 0
    assert not any(name == "specedge_speculation_on" for name, _ in said)


def test_samples_of_one_request_count_each_and_its_prompt_once(rng):
    first, second, third = (result(rng, prompt_tokens=7) for _ in range(3))
    counters = Counters()
    counters.add(replace(first, samples=[first, second, third]))
    said = prometheus.text(counters)
    assert value(said, "specedge_requests_total") == 1
    assert value(said, "specedge_prompt_tokens_total") == 7
    made = sum(each.metrics.generated for each in (first, second, third))
    assert value(said, "specedge_generated_tokens_total") == made
    assert sum(completions(said).values()) == 3


def completions(said: str) -> Counter[str]:
    return Counter(
        {
            dict(labels)["finish_reason"]: int(n)
            for (name, labels), n in values(said).items()
            if name == "specedge_completions_total" and n
        }
    )


@pytest.mark.parametrize(
    ("error", "reason", "failed"),
    [(ValueError(), "error", 1), (KeyboardInterrupt(), "cancelled", 0), (None, "cancelled", 0)],
)
def test_a_request_that_ended_early_counts_once_with_what_it_made(rng, error, reason, failed):
    cut = result(rng, finish_reason="cancelled")
    counters = Counters()
    counters.add(cut, error)
    said = prometheus.text(counters)
    assert completions(said) == {reason: 1}
    assert value(said, "specedge_requests_total") == 1
    assert value(said, "specedge_failed_requests_total") == failed
    assert value(said, "specedge_generated_tokens_total") == cut.metrics.generated


def test_a_failure_in_a_later_sample_leaves_the_earlier_ones_as_they_ended(rng):
    whole, cut = result(rng, finish_reason="stop"), result(rng, finish_reason="cancelled")
    counters = Counters()
    counters.add(replace(whole, samples=[whole, cut]), ValueError())
    assert completions(prometheus.text(counters)) == {"stop": 1, "error": 1}


def test_a_request_without_a_result_counts_as_failed_or_cancelled():
    counters = Counters()
    counters.add(None, MemoryError())
    counters.add(None, KeyboardInterrupt())
    said = prometheus.text(counters)
    assert completions(said) == {"error": 1, "cancelled": 1}
    assert value(said, "specedge_failed_requests_total") == 1


def test_the_last_request_says_whether_speculation_is_on(rng):
    counters = Counters()
    for on, failures in ((True, 0), (False, 2), (True, 1)):
        counters.add(result(rng, on=on, failures=failures))
        assert value(prometheus.text(counters), "specedge_speculation_on") == on
    assert value(prometheus.text(counters), "specedge_proposer_failures_total") == 2


def test_names_of_proposers_are_bounded_and_no_token_is_lost(rng):
    counters, proposed = Counters(), 0
    for number in range(3 * MAX_NAMES):
        metrics = summary(rng, (f"mine {number}", "ngram"))
        proposed += sum(share.proposed for share in metrics.proposers.values())
        counters.add(result(rng, metrics=metrics))
    said = values(prometheus.text(counters))
    found = [n for (name, _), n in said.items() if name == "specedge_proposed_tokens_total"]
    assert len(found) == MAX_NAMES + 1
    assert sum(found) == proposed


def test_what_is_loaded_is_told_by_an_info_metric_and_a_reason_by_none(fed):
    said = prometheus.text(fed)
    info = 'specedge_model_info{bundle="tiny",engine="fake 1, 2 threads",version="'
    assert info in said
    assert "why not" not in said


def test_models_of_one_bundle_add_up_and_bundles_stand_apart(fed, texts, rng):
    again, other = Counters("tiny", "fake 1, 2 threads"), Counters("other")
    again.add(result(rng))
    said = prometheus.text(fed, again, other, fed)
    assert 'specedge_requests_total{bundle="tiny"} 13.0' in said
    assert 'specedge_requests_total{bundle="other"} 0.0' in said
    assert said.count("# TYPE specedge_requests_total") == 1
    buckets = 'specedge_time_to_first_token_seconds_bucket{bundle="tiny",le="+Inf"} 13.0'
    assert buckets in said


@pytest.mark.parametrize("name", ['a"b', "back\\slash", "new\nline", "é漢", "\ud800", "", "{}=,"])
def test_any_name_of_a_bundle_is_escaped(name):
    said = prometheus.text(Counters(name, "engine"))
    (sample,) = next(f for f in parse(said) if f.name == "specedge_requests").samples
    assert sample.labels["bundle"] == name.encode("utf-8", "replace").decode()


def test_a_registry_takes_the_collector_once_and_reads_it_anew(rng):
    @dataclass
    class Held:
        counters: Counters

    held, registry = Held(Counters("tiny")), CollectorRegistry()
    registry.register(prometheus.collector(held))
    labels = {"bundle": "tiny"}
    assert registry.get_sample_value("specedge_requests_total", labels) == 0
    held.counters.add(result(rng))
    assert registry.get_sample_value("specedge_requests_total", labels) == 1
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(prometheus.collector(held))


def test_the_stricter_open_metrics_format_holds_too(fed):
    registry = CollectorRegistry()
    registry.register(prometheus.collector(fed))
    names = {family.name for family in open_parse(open_metrics(registry).decode())}
    assert {"specedge_requests", "specedge_phase_seconds", "specedge_model_info"} <= names


def test_a_snapshot_stays_as_it_was(fed, rng):
    before = fed.snapshot()
    sums, counts = dict(before.sums), {k: list(v) for k, v in before.histograms.items()}
    fed.add(result(rng))
    assert (before.sums, before.histograms) == (sums, counts)
    assert fed.snapshot().sums["requests", ""] == 13


def test_reading_while_another_thread_counts_never_sees_half_a_request(rng):
    one = result(rng, finish_reason="stop")
    counters, done = Counters(), threading.Event()

    def feed() -> None:
        for _ in range(400):
            counters.add(one)
        done.set()

    thread = threading.Thread(target=feed)
    thread.start()
    seen = set()
    while not done.is_set():
        sums = counters.snapshot().sums
        requests = sums.get(("requests", ""), 0)
        seen.add(requests)
        assert sums.get(("generated_tokens", ""), 0) == requests * one.metrics.generated
        assert sums.get(("completions", "stop"), 0) == requests
    thread.join()
    assert counters.snapshot().sums["requests", ""] == 400


def test_a_request_that_ends_while_another_is_being_counted_is_counted_after_it(rng):
    """As when the garbage collector closes a stream that nobody holds, in the middle of `add`."""
    counters, inner = Counters(), result(rng)

    class Interrupted(MetricsSummary):
        @property
        def generated(self) -> int:
            counters.add(inner)
            return 5

        @generated.setter
        def generated(self, value: int) -> None: ...

    outer = result(rng)
    fields = {name: getattr(outer.metrics, name) for name in MetricsSummary.__slots__}
    counters.add(replace(outer, metrics=Interrupted(**fields)))
    sums = counters.snapshot().sums
    assert sums["requests", ""] == 2
    assert sums["generated_tokens", ""] == 5 + inner.metrics.generated


def test_requests_that_really_ran_are_counted_as_they_report(tmp_path):
    write_bundle(tmp_path / "tiny", rule=alphabet())
    on = {"speculation": "on", "proposers": ["ngram"], "draft_length": 4}
    with specedge.load(tmp_path / "tiny", engine="fake", **on) as model:
        plain = model.generate("hello", max_tokens=80)
        three = model.generate("hello", max_tokens=60, n=3, temperature=1.0, seed=1)
        cut = model.stream("hello", max_tokens=20)
        next(cut)
        cut.close()
    counters = Counters("tiny")
    for each in (plain, three, cut.result):
        counters.add(each)
    said = prometheus.text(counters)
    ran = [plain.metrics, *(each.metrics for each in three.samples), cut.result.metrics]
    assert value(said, "specedge_requests_total") == 3
    assert completions(said) == {"length": 4, "cancelled": 1}
    assert value(said, "specedge_time_to_first_token_seconds_count") == 5
    assert value(said, "specedge_generated_tokens_total") == sum(each.generated for each in ran)
    accepted = value(said, "specedge_accepted_tokens_total", proposer="ngram")
    assert accepted == sum(each.accepted for each in ran) > 20


def test_the_documentation_lists_every_name_and_no_other():
    page = (Path(__file__).resolve().parent.parent / "docs/metrics.md").read_text()
    tables = "\n".join(line for line in page.splitlines() if line.startswith("| `"))
    listed = set(re.findall(r"`(specedge_\w+)`", tables))
    said = prometheus.text(Counters()) + prometheus.probe_text(Stored(findings=FOUND), "tiny")
    assert listed == set(re.findall(r"^# TYPE (\w+) ", said, re.MULTILINE))


MUTANTS = {
    "forgets a sample": lambda r: replace(r, samples=(r.samples or [r])[:1]),
    "counts the prompt for each": lambda r: replace(
        r, prompt_tokens=r.prompt_tokens * len(r.samples or [r])
    ),
    "forgets the last place": lambda r: replace(
        r, metrics=replace(r.metrics, proposed_by_position=r.metrics.proposed_by_position[:-1])
    ),
    "takes milliseconds for seconds": lambda r: replace(
        r, metrics=replace(r.metrics, ttft_ms=1e3 * (r.metrics.ttft_ms or 1))
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_count_changes_the_text(monkeypatch, rng, name):
    first, second = result(rng), result(rng)
    both = [replace(first, samples=[first, second]), first]

    def said() -> dict[Any, float]:
        counters = Counters()
        for each in both:
            counters.add(each)
        found = values(prometheus.text(counters))
        found.pop(("specedge_peak_resident_memory_bytes", frozenset()), None)
        return found

    right, count = said(), counting._count
    monkeypatch.setattr(counting, "_count", lambda s, r, f: count(s, MUTANTS[name](r), f))
    assert said() != right


def test_a_file_is_put_in_place_whole(tmp_path, fed):
    path = tmp_path / "specedge.prom"
    path.write_text("old")
    prometheus.write(prometheus.text(fed), path)
    assert value(path.read_text(), "specedge_requests_total") == 12
    assert os.listdir(tmp_path) == ["specedge.prom"]
    assert path.stat().st_mode & 0o044 == 0o044 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_file_that_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path):
    (tmp_path / "folder.prom").mkdir()
    for path in (tmp_path / "none" / "x.prom", tmp_path / "folder.prom"):
        with pytest.raises(SpecedgeError, match="metrics cannot be written") as caught:
            prometheus.write("text\n", path)
        assert "\n" not in str(caught.value)
        with pytest.raises(SpecedgeError, match="metrics cannot be written"):
            prometheus.check_place(path)
    assert os.listdir(tmp_path) == ["folder.prom"]


def test_without_the_library_one_line_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    for call in (
        lambda: prometheus.text(Counters()),
        lambda: prometheus.collector(),
        lambda: prometheus.check_place(Path("x.prom")),
        lambda: prometheus.probe_text(Stored(), "tiny"),
    ):
        with pytest.raises(SpecedgeError, match=r"pip install 'specedge\[metrics\]'"):
            call()


def test_nobody_pays_for_the_library_who_does_not_use_it():
    code = (
        "import sys, specedge.loading, specedge.counters, specedge.prometheus\n"
        "assert 'prometheus_client' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd="/")


def test_peak_memory_is_left_out_where_the_system_does_not_tell(monkeypatch):
    monkeypatch.setattr(metric_families, "peak_rss_bytes", lambda: 7)
    name = "specedge_peak_resident_memory_bytes"
    assert value(prometheus.text(Counters()), name) == 7
    monkeypatch.setattr(metric_families, "peak_rss_bytes", lambda: 0)
    assert (name, frozenset()) not in values(prometheus.text(Counters()))


def curve(role: Any, base: float) -> Curve:
    points = [
        Point(width=w, past=p, count=3, ms=base * w + p, low_ms=1.0, high_ms=9.0)
        for w in (1, 4)
        for p in (0, 512)
    ]
    return Curve(role=role, width_step=1, points=tuple(points))


def finding(workload: str, proposer: str, best_k: int, measured: Estimate | None) -> Finding:
    gains = ((2, 0.9 + 0.2 * best_k), (4, 0.8))
    expected = [
        Expected(
            k=k,
            estimate=Estimate(gain=gain, low=gain - 0.1, prompts=12),
            acceptance_rate=0.5,
            acceptance_length=2.0,
        )
        for k, gain in gains
    ]
    return Finding(
        workload=workload,
        proposer=proposer,
        tokens=100,
        reached=(9, 4),
        stood=(4, 1),
        expected=tuple(expected),
        best_k=best_k,
        measured=measured,
        verdict="open",
        reason="x",
    )


@dataclass
class Stored:
    """What `probe_text` reads of a record."""

    created: str = "2026-11-01T00:00:00.000+00:00"
    curves: CostCurves = CostCurves(  # noqa: RUF009  frozen
        plan="full",
        target=curve("target", 10.0),
        draft=curve("draft", 1.0),
        passes=1,
        seconds=1.0,
        converged=True,
    )
    findings: Findings | None = None


FOUND = Findings(
    margin=1.03,
    prompts_from="built in",
    findings=(
        finding("chat", "draft", 0, None),
        finding('code "editing"', "draft", 2, Estimate(gain=1.4, low=1.2, high=1.6, prompts=12)),
        finding("chat", "ngram", 2, Estimate(gain=1.1, prompts=3)),
    ),
    proposers=("ngram",),
    reason="x",
    texts_equal=1,
    texts_compared=1,
    energy=Energy(source="x", idle_watts=None, plain=2.5, speculative=None),
    steadiness=Steadiness(drift=1.0),
    seconds=1.0,
    complete=True,
)


def test_a_probes_costs_stand_by_role_width_and_past():
    said = prometheus.probe_text(Stored(), "tiny")
    for held in (Stored.curves.target, Stored.curves.draft):
        assert held is not None
        for point in held.points:
            labels = {"role": held.role, "width": str(point.width), "past": str(point.past)}
            found = value(said, "specedge_probe_call_seconds", **labels)
            assert found == pytest.approx(point.ms / 1e3)
    alone = replace(Stored(), curves=Stored.curves.model_copy(update={"draft": None}))
    assert 'role="draft"' not in prometheus.probe_text(alone, "tiny")
    assert "gain" not in said


def test_a_probes_findings_stand_by_workload_and_proposer():
    said = prometheus.probe_text(Stored(findings=FOUND), "tiny")
    known = values(said)
    for each in FOUND.findings:
        labels = {"workload": each.workload, "proposer": each.proposer}
        at = frozenset(labels.items())
        largest = max(one.estimate.gain for one in each.expected)
        assert known["specedge_probe_expected_gain", at] == pytest.approx(largest)
        assert known["specedge_probe_expected_gain_low", at] == pytest.approx(largest - 0.1)
        assert ("specedge_probe_expected_gain_high", at) not in known
        assert known["specedge_probe_best_draft_length", at] == each.best_k
        for end, name in (("gain", ""), ("low", "_low"), ("high", "_high")):
            measured = None if each.measured is None else getattr(each.measured, end)
            assert known.get((f"specedge_probe_measured_gain{name}", at)) == measured


def test_a_probes_decision_is_0_or_1():
    said = prometheus.probe_text(Stored(findings=FOUND), "tiny")
    assert value(said, "specedge_probe_speculates") == 1
    assert value(said, "specedge_probe_permitted", proposer="ngram") == 1
    assert value(said, "specedge_probe_permitted", proposer="draft") == 0
    assert value(said, "specedge_probe_token_energy_joules", decoding="plain") == 2.5
    assert 'decoding="speculative"' not in said
    none = FOUND.model_copy(update={"proposers": (), "energy": None})
    said = prometheus.probe_text(Stored(findings=none), "tiny")
    assert value(said, "specedge_probe_speculates") == 0
    assert value(said, "specedge_probe_permitted", proposer="ngram") == 0
    assert "decoding=" not in said


def test_the_age_of_a_probe_is_given_where_it_is_known():
    name = "specedge_probe_created_timestamp_seconds"
    assert value(prometheus.probe_text(Stored(), "tiny"), name) == 1793491200
    assert name not in prometheus.probe_text(Stored(created="lately"), "tiny")

"""What one run keeps and the next one finds: records of costs, and of what a probe decided."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import specedge
from commands import alphabet
from report_samples import curves as sample_curves
from report_samples import findings as sample_findings
from specedge.bundle import Bundle
from specedge.engines import registry
from specedge.engines.fake import agreeing, hashed
from specedge.errors import EngineError
from specedge.probe.curves import CostCurves, Curve, Point
from specedge.probe.findings import Findings
from specedge.probe.record import Record, store
from tests.timed import CHEAP, DRAFT, Clock, TimedEngine, install, steps
from tiny import write_bundle

pytestmark = pytest.mark.usefixtures("private_cache")

LONG = 240  # tokens: both stages fit in


class Shop:
    """`registry.create` in known time; says what was opened."""

    def __init__(self, clock: Clock) -> None:
        self.opened: list[str] = []
        self.broken: set[str] = set()
        self._clock = clock

    def create(self, name, path, spec, *, context=None, **given):
        if spec.role in self.broken:
            raise EngineError("engine: no room\nfor it")
        self.opened.append(spec.role)
        rule = hashed(200, last=3)
        table = CHEAP
        if spec.role == "draft":
            rule, table = agreeing(rule, 0.6, 200), DRAFT
        return TimedEngine(self._clock, steps(table), spec, rule, context=context)


@pytest.fixture
def shop(monkeypatch) -> Shop:
    made = Shop(install(monkeypatch))
    monkeypatch.setattr(registry, "create", made.create)
    return made


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "tiny", draft=True, context=512, rule=alphabet())


def records(folder: Path) -> list[Path]:
    return sorted((folder / "probes").glob("*"))


def load(folder: Path, **given):
    return specedge.load(folder, engine="fake", **given)


def run(folder: Path, max_tokens: int = LONG, **given):
    """One request of one load; the result."""
    with load(folder, **given) as model:
        return model.generate("hello world", max_tokens=max_tokens, ignore_eos=True, explain=True)


def measured(result) -> int:
    """Rounds that measured."""
    return sum(report.reason.startswith("measuring") for report in result.rounds)


def read(path: Path) -> Record:
    return Record.model_validate_json(path.read_bytes())


def by_hand(role: str, table: dict[int, float]) -> Curve:
    points = [
        Point(width=n, past=9, count=4, ms=ms, low_ms=ms, high_ms=ms) for n, ms in table.items()
    ]
    return Curve(role=role, width_step=1, points=tuple(points))  # type: ignore[arg-type]


def put(folder: Path, changed: Findings | None, costs: CostCurves | None = None) -> Path:
    """Replace the record that a run has stored by one with findings."""
    run(folder)
    (path,) = records(folder)
    before = read(path)
    record = Record.of(before.fingerprint, costs or before.curves, changed)
    assert store(Bundle.open(folder), record) == path
    return path


def found(*proposers: str) -> Findings:
    """A probe of both proposers that lets these draft."""
    made = sample_findings(sample_curves())
    reason = f"speculation on for {', '.join(proposers)}" if proposers else "speculation off: slow"
    return made.model_copy(update={"proposers": proposers, "reason": reason})


def test_what_the_stream_showed_is_stored_and_used_by_the_next_load(shop, bundle):
    first = run(bundle)
    assert measured(first) > 40
    (path,) = records(bundle)
    record = read(path)
    assert (record.curves.plan, record.findings) == ("startup", None)
    assert {p.width: p.ms for p in record.curves.target.points} == pytest.approx(CHEAP)
    assert record.curves.draft is not None
    before = path.read_bytes()
    second = run(bundle)
    assert measured(second) == 0
    assert second.tokens == first.tokens
    assert path.read_bytes() == before


def test_a_first_run_has_nothing_to_note(shop, bundle):
    for _ in range(2):
        with load(bundle) as model:
            assert model.notes == ()
        run(bundle)


def test_the_stored_costs_are_believed_from_the_first_round(shop, bundle):
    run(bundle)
    result = run(bundle)
    assert result.rounds[0].expected_tokens_per_second is not None
    assert result.rounds[0].expected_tokens_per_second >= 1000 / CHEAP[1] * 0.99


@pytest.mark.parametrize("tokens", [90, 110])
def test_outputs_too_short_for_the_draft_still_spare_the_next_load_the_target(shop, bundle, tokens):
    """A `run` a prompt, each its own process: the target is measured once, not by each of them."""
    counts = [measured(run(bundle, tokens)) for _ in range(3)]
    assert counts[0] >= 40
    assert max(counts[1:]) < 10
    (path,) = records(bundle)
    assert {p.width: p.ms for p in read(path).curves.target.points} == pytest.approx(CHEAP)


def test_the_draft_is_measured_by_the_first_run_that_is_long_enough(shop, bundle):
    run(bundle, 100)
    (path,) = records(bundle)
    assert read(path).curves.draft is None
    result = run(bundle)
    assert 0 < measured(result) < 10
    record = read(path)
    assert record.curves.draft is not None
    assert {p.width: p.ms for p in record.curves.target.points} == pytest.approx(CHEAP)
    assert measured(run(bundle)) == 0


def test_a_capped_run_may_add_the_draft_to_what_is_known_of_the_target(shop, bundle):
    run(bundle, 100)
    run(bundle, draft_length=4)
    (path,) = records(bundle)
    record = read(path)
    assert record.curves.draft is not None
    assert {p.width for p in record.curves.target.points} == set(CHEAP)


def test_a_run_without_the_draft_keeps_what_it_measured(shop, bundle):
    first = run(bundle, proposers=["ngram"])
    assert shop.opened == ["target"]
    assert measured(first) > 40
    assert measured(run(bundle, proposers=["ngram"])) == 0


def test_a_capped_draft_length_is_not_taken_for_the_whole(shop, bundle):
    for _ in range(2):
        result = run(bundle, draft_length=4)
        assert measured(result) > 0
        assert max(report.drafted for report in result.rounds) <= 4
        assert not records(bundle)
    run(bundle)
    (path,) = records(bundle)
    result = run(bundle, draft_length=4)
    assert measured(result) == 0
    assert max(report.drafted for report in result.rounds) == 4
    assert {p.width for p in read(path).curves.target.points} == set(CHEAP)


@pytest.mark.parametrize("speculation", ["on", "off"])
def test_a_forced_mode_neither_measures_nor_stores(shop, bundle, speculation):
    result = run(bundle, speculation=speculation)
    assert measured(result) == 0
    assert not records(bundle)
    reasons = {report.reason for report in result.rounds}
    if speculation == "off":
        assert reasons == {"plain step: turned off by request"}
        assert {report.drafted for report in result.rounds} == {0}
    else:
        assert {report.drafted for report in result.rounds[:100]} == {4}


def test_forced_speculation_does_not_ask_a_probe(shop, bundle):
    put(bundle, found())
    result = run(bundle, speculation="on")
    assert result.speculation.on
    assert result.metrics.proposed
    assert "probe" not in result.speculation.reason


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_bundle_is_kept_in_the_cache(shop, bundle, private_cache):
    bundle.chmod(0o555)
    try:
        run(bundle)
        assert not records(bundle)
        assert len(list(private_cache.rglob("*.json"))) == 1
        assert measured(run(bundle)) == 0
    finally:
        bundle.chmod(0o755)


def test_a_folder_that_cannot_be_made_sends_the_record_to_the_cache(shop, bundle, private_cache):
    (bundle / "probes").write_text("in the way")
    first = run(bundle)
    assert len(list(private_cache.rglob("*.json"))) == 1
    again = run(bundle)
    assert (measured(again), again.tokens) == (0, first.tokens)


def test_nowhere_to_keep_it_means_measuring_again(shop, bundle, private_cache):
    (bundle / "probes").write_text("in the way")
    private_cache.write_text("in the way too")
    for _ in range(2):
        result = run(bundle)
        assert measured(result) > 40
        assert result.speculation.failures == 0


def damage(path: Path, how: str, other: Path) -> None:
    said = json.loads(path.read_text())
    if how == "cut short":
        path.write_bytes(path.read_bytes()[:200])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "binary":
        path.write_bytes(b"\xff\x00\x80")
    elif how == "schema":
        path.write_text(json.dumps(said | {"schema_version": 1}))
    elif how == "times":
        said["curves"]["target"]["points"][0]["ms"] = -1.0
        path.write_text(json.dumps(said))
    elif how == "other bundle":
        said["fingerprint"]["bundle"] = "0" * 64
        path.write_text(json.dumps(said))
    elif how == "renamed":
        said["fingerprint"]["threads"] = 77
        path.write_text(json.dumps(said))
    else:
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("cut short", "not valid JSON, perhaps cut short"),
        ("empty", "not valid JSON"),
        ("binary", "not valid JSON"),
        ("schema", "schema 1, this specedge reads 2"),
        ("times", "curves.target.points.0.ms"),
        ("other bundle", "of another bundle"),
        ("renamed", "its fingerprint is not the one it is named after"),
        ("folder", "not a regular file"),
    ],
)
def test_a_record_that_cannot_be_used_says_why_and_is_measured_again(
    shop, bundle, how, why, tmp_path
):
    first = run(bundle)
    (path,) = records(bundle)
    damage(path, how, tmp_path)
    with load(bundle) as model:
        (note,) = model.notes
        assert note.startswith("the stored probe does not count here: ")
        assert why in note
        assert "\n" not in note
        result = model.generate("hello world", max_tokens=LONG, ignore_eos=True, explain=True)
    assert measured(result) > 40
    assert result.tokens == first.tokens
    assert why in result.speculation.reason
    if how != "folder":
        assert measured(run(bundle)) == 0
        assert read(path).curves.draft is not None


def test_a_record_of_other_settings_says_what_changed(shop, bundle):
    run(bundle)
    with load(bundle, context=300) as model:
        (note,) = model.notes
        assert "target context 512 -> 300" in note
        assert "draft context 512 -> 300" in note
    assert measured(run(bundle, context=300)) > 40
    assert len(records(bundle)) == 2
    assert measured(run(bundle)) == 0


def test_a_bundle_that_moved_keeps_its_record(shop, bundle, tmp_path):
    run(bundle)
    shutil.move(bundle, tmp_path / "elsewhere")
    assert measured(run(tmp_path / "elsewhere")) == 0


def test_a_draft_that_was_ruled_out_is_never_opened(shop, bundle):
    put(bundle, found("ngram"))
    shop.opened.clear()
    result = run(bundle)
    assert "draft" not in shop.opened
    assert "the probe says: ngram " in result.speculation.reason
    assert measured(result) == 0
    assert {report.proposer for report in result.rounds} <= {None, "ngram"}
    # asking for it by name does not overrule a probe; "on" does
    shop.opened.clear()
    assert "the probe says: " in run(bundle, proposers=["draft"]).speculation.reason
    assert "draft" not in shop.opened
    run(bundle, proposers=["draft"], speculation="on")
    assert "draft" in shop.opened


def test_a_lookup_that_was_ruled_out_leaves_the_draft(shop, bundle):
    put(bundle, found("draft"))
    result = run(bundle)
    assert {report.proposer for report in result.rounds} <= {None, "draft"}


def test_all_ruled_out_is_plain_decoding_with_the_reason(shop, bundle):
    plain = run(bundle, speculation="off")
    put(bundle, found())
    shop.opened.clear()
    result = run(bundle)
    assert "draft" not in shop.opened
    assert not result.speculation.on
    assert "the probe says: speculation off: slow" in result.speculation.reason
    assert result.tokens == plain.tokens
    assert result.metrics.proposed == 0
    assert not result.speculation.failures


def test_a_proposer_that_no_probe_has_judged_may_draft(shop, bundle):
    judged = found("draft")
    kept = tuple(each for each in judged.findings if each.proposer == "draft")
    put(bundle, judged.model_copy(update={"findings": kept}))
    result = run(bundle)
    assert {report.proposer for report in result.rounds} & {"ngram"}


def test_what_a_probe_decided_is_not_written_over(shop, bundle):
    """Its curves lack the draft, which the run then measures for itself."""
    costs = CostCurves(
        plan="full",
        target=by_hand("target", CHEAP),
        draft=None,
        passes=4,
        seconds=1.0,
        converged=True,
    )
    path = put(bundle, found("ngram", "draft"), costs)
    before = path.read_bytes()
    result = run(bundle)
    assert 0 < measured(result) < 10
    assert path.read_bytes() == before


def test_what_somebody_else_stored_meanwhile_is_not_written_over_by_less(shop, bundle):
    """A probe in another window, or another run that got further."""
    for findings in (found("ngram", "draft"), None):
        shutil.rmtree(bundle / "probes", ignore_errors=True)
        with load(bundle) as slow:
            path = put(bundle, findings)
            before = path.read_bytes()
            result = slow.generate(
                "hello world",
                max_tokens=LONG if findings else 100,
                ignore_eos=True,
                explain=True,
            )
            assert measured(result) > 40
        assert path.read_bytes() == before


def test_a_draft_that_cannot_be_opened_does_not_spoil_the_record(shop, bundle):
    shop.broken = {"draft"}
    result = run(bundle)
    assert "the draft model was left out: engine: no room for it" in result.speculation.reason
    shop.broken = set()
    result = run(bundle)
    assert 0 < measured(result) < 10  # the draft's
    assert measured(run(bundle)) == 0


def test_an_interrupt_while_the_record_is_written_leaves_the_bundle_usable(
    shop, bundle, monkeypatch
):
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", interrupted)
        patched.setattr(Path, "replace", interrupted)
        with load(bundle) as model, pytest.raises(KeyboardInterrupt):
            model.generate("hello world", max_tokens=LONG)
    assert not records(bundle)
    assert measured(run(bundle)) > 40

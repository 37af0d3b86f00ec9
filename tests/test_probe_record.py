"""What a measurement depends on, and where it is kept."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest

import report_samples as samples
from specedge.bundle import Bundle
from specedge.engines.fake import FakeEngine, fake_spec
from specedge.errors import ProbeError
from specedge.probe import fingerprint
from specedge.probe.curves import CostCurves, Curve, Point
from specedge.probe.fingerprint import changed, short_hash, take
from specedge.probe.record import NO_RECORD, Record, find, folders, store
from tiny import write_bundle

pytestmark = pytest.mark.usefixtures("private_cache")


def curves(plan: str = "full") -> CostCurves:
    point = Point(width=1, past=0, count=1, ms=1.0, low_ms=1.0, high_ms=1.0)
    target = Curve(role="target", width_step=1, points=(point,))
    return CostCurves(plan=plan, target=target, draft=None, passes=1, seconds=1.0, converged=True)  # type: ignore[arg-type]


def made(parts: fingerprint.Fingerprint) -> Record:
    """By a whole probe."""
    costs = samples.curves()
    return Record.of(parts, costs, samples.findings(costs))


class Described(FakeEngine):
    """As an engine of some runtime describes itself."""

    def __init__(self, description: str, **given: int) -> None:
        super().__init__(fake_spec(), **given)
        self.description = description


CPU = "onnxruntime 1.32.0, cpu, 2 threads"


@pytest.fixture
def bundle(tiny_bundle) -> Bundle:
    return Bundle.open(tiny_bundle)


@pytest.fixture
def parts(bundle) -> fingerprint.Fingerprint:
    return take(bundle, Described(CPU), context=64)


def test_a_fingerprint_names_everything_that_costs_depend_on(bundle, parts):
    assert parts["bundle"] == bundle.hash
    said = (parts["engine"], parts["provider"], parts["threads"])
    assert said == ("onnxruntime 1.32.0", "cpu", 2)
    assert (parts["exact"], parts["width_step"], parts["target_context"]) == (True, 1, 64)
    assert parts["draft_context"] is None
    assert parts["processor"]
    assert parts["gpu_driver"] is None
    assert json.loads(json.dumps(parts)) == parts


def test_the_hash_is_short_and_does_not_depend_on_the_order_of_parts(parts):
    backwards = dict(reversed(parts.items()))
    assert short_hash(parts) == short_hash(backwards)
    assert len(short_hash(parts)) == 16


def test_every_part_changes_the_hash(parts):
    hashes = {short_hash(parts | {name: "other"}) for name in parts}
    assert len(hashes | {short_hash(parts)}) == len(parts) + 1


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"target": Described("onnxruntime 1.32.0, cpu, 1 threads")}, ["threads 2 -> 1"]),
        ({"exact": False}, ["exact True -> False"]),
        ({"context": 32}, ["target context 64 -> 32"]),
        ({"draft_context": 16}, ["draft context no draft -> 16"]),
        (
            {"draft_context": 16, "draft_engine": "cuda"},
            ["draft context no draft -> 16", "draft engine no draft -> cuda"],
        ),
        ({}, []),
    ],
)
def test_what_changed_is_named_and_nothing_else(bundle, parts, given, names):
    assert (
        list(changed(parts, take(bundle, **{"target": Described(CPU), "context": 64, **given})))
        == names
    )


def test_a_hash_that_changed_is_shown_short(parts):
    (line,) = changed(parts, parts | {"bundle": "f" * 64})
    assert line == f"bundle {str(parts['bundle'])[:12]}… -> ffffffffffff…"


def test_a_part_that_only_one_of_two_has_is_named():
    assert changed({"a": 1, "b": 2}, {"a": 1, "c": 3}) == ("c unknown -> 3", "b 2 -> unknown")


def test_threads_are_those_asked_for_where_the_engine_says_nothing(bundle):
    fake = FakeEngine(fake_spec())
    assert take(bundle, fake, context=64, threads=3)["threads"] == 3
    assert take(bundle, fake, context=64)["threads"] == fingerprint.usable_cores()


def test_an_engine_with_a_driver_is_asked_for_it(bundle):
    target = Described("onnxruntime-gpu 1.31.0, cuda, H200")
    target.driver = "575.1"  # type: ignore[attr-defined]
    parts = take(bundle, target, context=64)
    assert (parts["provider"], parts["gpu_driver"]) == ("cuda, H200", "575.1")


def test_a_quota_of_the_control_group_is_a_part(bundle, monkeypatch):
    assert take(bundle, Described(CPU), context=64).keys() >= {"cpu_quota"}
    monkeypatch.setattr(fingerprint, "cpu_quota", lambda: 1.5)
    assert take(bundle, Described(CPU), context=64)["cpu_quota"] == "1.5 cores"


def test_settings_of_the_machine_are_parts(bundle, tmp_path):
    cpu = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq"
    profile = tmp_path / "sys/firmware/acpi/platform_profile"
    mains = tmp_path / "sys/class/power_supply/AC"
    for folder in (cpu, profile.parent, mains):
        folder.mkdir(parents=True)
    (cpu / "scaling_governor").write_text("powersave\n")
    profile.write_text("balanced\nmore\n")
    (mains / "type").write_text("Mains\n")
    (mains / "online").write_text("1\n")
    parts = take(bundle, Described(CPU), context=64, root=tmp_path)
    assert (parts["governor"], parts["power_mode"]) == ("powersave", "balanced")
    assert parts["power"] == "mains"
    parts = take(bundle, Described(CPU), context=64, root=tmp_path / "nowhere")
    assert {parts[name] for name in ("governor", "power_mode", "power")} == {None}


def test_a_gpu_without_a_driver_of_its_engines_is_asked_itself(bundle, monkeypatch):
    class Asked:
        name = "NVIDIA H200"
        closed = False

        def driver(self) -> str:
            return "575.2"

        def limit_watts(self) -> float:
            return 699.6

        def close(self) -> None:
            self.closed = True

    gpu = Asked()
    monkeypatch.setattr(fingerprint, "Gpu", Asked)
    monkeypatch.setattr(fingerprint, "open_gpu", lambda: gpu)
    parts = take(bundle, Described("onnxruntime-gpu 1.31.0, cuda, H200"), context=64)
    assert (parts["gpu_driver"], parts["gpu_power_limit"]) == ("575.2", "700 W")
    assert parts["gpu"] == "NVIDIA H200"
    assert gpu.closed
    parts = take(bundle, Described(CPU), context=64)
    assert (parts["gpu_driver"], parts["gpu_power_limit"]) == (None, None)
    pair = {"context": 64, "draft_context": 64, "draft_engine": "cuda"}
    assert take(bundle, Described(CPU), **pair)["gpu_driver"] == "575.2"
    assert take(bundle, Described("tensorrt 11.4, SM90"), context=64)["gpu"] == "NVIDIA H200"


def test_what_is_stored_is_found_again_beside_the_bundles_files(bundle, parts):
    assert find(bundle, parts).reason == NO_RECORD
    record = made(parts)
    path = store(bundle, record)
    assert path == bundle.path / "probes" / f"{short_hash(parts)}.json"
    found = find(bundle, parts)
    assert (found.record, found.path, found.reason) == (record, path, "")
    assert find(bundle, parts, "startup") == found
    assert Bundle.open(bundle.path).hash == bundle.hash


def test_numbers_and_flags_survive_being_stored(bundle, parts):
    store(bundle, made(parts))
    found = find(bundle, parts).record
    assert found is not None
    assert {name: type(part) for name, part in found.fingerprint.items()} == {
        name: type(part) for name, part in parts.items()
    }


def test_a_bundle_that_cannot_be_written_keeps_its_record_in_the_cache(
    bundle, parts, private_cache
):
    (bundle.path / "probes").write_text("a file, where a folder cannot be made")
    path = store(bundle, made(parts))
    assert path.parent == private_cache / "probes" / bundle.hash
    assert find(bundle, parts).path == path


def test_without_any_place_to_write_the_error_names_both(bundle, parts, private_cache):
    (bundle.path / "probes").write_text("")
    private_cache.write_text("")
    with pytest.raises(ProbeError, match="cannot be kept") as caught:
        store(bundle, Record.of(parts, curves()))
    assert str(bundle.path / "probes") in str(caught.value)
    assert str(private_cache) in str(caught.value)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_is_stopped_leaves_nothing_behind(bundle, parts, monkeypatch, error):
    def replace(self, target):
        raise error

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises((ProbeError, KeyboardInterrupt)):
        store(bundle, Record.of(parts, curves()))
    assert [path for folder in folders(bundle) for path in folder.glob(".*")] == []
    assert find(bundle, parts).reason == NO_RECORD


def damage(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def empty_a_curve(path: Path) -> None:
    said = json.loads(path.read_text())
    said["curves"]["target"]["points"] = []
    path.write_text(json.dumps(said))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-40]), "not valid JSON, perhaps cut"),
        (lambda path: path.write_bytes(b""), "not valid JSON, perhaps cut"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "not valid JSON"),
        (lambda path: path.write_text("[" * 100_000), "not valid JSON"),
        (lambda path: path.write_text("[]"), "schema None, this specedge reads 2"),
        (lambda path: damage(path, schema_version=1), "schema 1, this specedge reads 2"),
        (lambda path: damage(path, curves={}), "curves.plan: Field required"),
        (lambda path: damage(path, more=1), "more: Extra inputs are not permitted"),
        (lambda path: path.write_text(path.read_text().replace("1.0", "NaN")), "ms: Input should"),
        (empty_a_curve, "curves.target.points: Tuple should have at least 1 item"),
        (lambda path: damage(path, fingerprint={"bundle": "0" * 64}), "of another bundle"),
        (lambda path: (path.unlink(), path.mkdir()), "not a regular file"),
    ],
)
def test_a_record_that_cannot_be_believed_is_ignored_with_its_reason(bundle, parts, spoil, reason):
    path = store(bundle, Record.of(parts, curves()))
    spoil(path)
    found = find(bundle, parts)
    assert found.record is None
    assert reason in found.reason
    assert str(path) in found.reason
    assert "\n" not in found.reason


def test_a_record_that_may_not_be_read_is_ignored_with_its_reason(bundle, parts, monkeypatch):
    store(bundle, Record.of(parts, curves()))

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert find(bundle, parts).reason.endswith("cannot be read: Permission denied")


def test_a_fingerprint_that_is_no_text_is_not_believed(bundle, parts):
    path = store(bundle, Record.of(parts, curves()))
    damage(path, fingerprint=parts | {"processor": "\ud800"})
    assert "not the one it is named after" in find(bundle, parts).reason


def test_a_record_under_another_name_is_not_believed(bundle, parts):
    path = store(bundle, Record.of(parts, curves()))
    other = parts | {"threads": 7}
    path.rename(path.with_name(f"{short_hash(other)}.json"))
    assert "not the one it is named after" in find(bundle, other).reason


def test_the_records_of_another_bundle_are_not_taken_over(tmp_path, parts, bundle):
    path = store(bundle, Record.of(parts, curves()))
    other = Bundle.open(write_bundle(tmp_path / "other", context=128))
    theirs = take(other, Described(CPU), context=128)
    (other.path / "probes").mkdir()
    shutil.copy(path, other.path / "probes" / f"{short_hash(theirs)}.json")
    assert "of another bundle" in find(other, theirs).reason


def test_a_changed_part_is_told_against_the_newest_record(bundle, parts):
    for threads, created in ((4, "2026-01-02"), (2, "2026-01-03"), (8, "2026-01-01")):
        changed = parts | {"threads": threads}
        store(bundle, Record(created=created, fingerprint=changed, curves=curves()))
    assert find(bundle, parts | {"threads": 1}).reason == "threads 2 -> 1"


@pytest.mark.parametrize("plan", ["startup", "full"])
def test_costs_that_a_run_measured_are_enough_for_a_run_and_not_for_a_probe(bundle, parts, plan):
    record = Record.of(parts, curves(plan))
    path = store(bundle, record)
    found = find(bundle, parts)
    assert found.record is None
    assert found.reason == f"{path}: holds only the costs that a run measured in its stream"
    assert find(bundle, parts, "startup").record == record


def test_a_usable_record_in_the_cache_counts_behind_a_damaged_one_in_the_bundle(bundle, parts):
    damaged = store(bundle, made(parts))
    damaged.write_bytes(b"{")
    record = made(parts)
    (cached,) = folders(bundle)[1:]
    cached.mkdir(parents=True)
    (cached / damaged.name).write_text(record.model_dump_json())
    assert find(bundle, parts).record == record


def test_a_record_cut_short_anywhere_is_ignored_with_a_reason(bundle, parts):
    path = store(bundle, made(parts))
    whole = path.read_bytes()
    assert len(whole) > 97 * 20
    for length in range(0, len(whole) - 2, 97):
        path.write_bytes(whole[:length])
        found = find(bundle, parts, "startup")
        assert found.record is None
        assert found.reason == f"{path}: not valid JSON, perhaps cut short"


def at(said: dict, place: str, value: object) -> None:
    """Set what stands at "findings.findings.0.tokens"."""
    *way, last = (int(part) if part.isdigit() else part for part in place.split("."))
    for part in way:
        said = said[part]
    said[last] = value


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("findings.margin", 0.5),
        ("findings.margin", float("nan")),
        ("findings.margin", "dear"),
        ("findings.findings", None),
        ("findings.findings", {}),
        ("findings.findings.0", []),
        ("findings.findings.0.tokens", -1),
        ("findings.findings.0.tokens", 1.5),
        ("findings.findings.0.tokens", 10**400),
        ("findings.findings.0.reached", [-3] * 15),
        ("findings.findings.0.reached.0", 0),
        ("findings.findings.0.stood", [1]),
        ("findings.findings.0.best_k", -1),
        ("findings.findings.0.verdict", "perhaps"),
        ("findings.findings.0.workload", 7),
        ("findings.findings.0.expected.0.k", 0),
        ("findings.findings.0.expected.0.estimate.gain", float("nan")),
        ("findings.findings.0.expected.0.estimate.gain", float("inf")),
        ("findings.findings.0.expected.0.estimate.gain", 0),
        ("findings.findings.0.expected.0.estimate.low", -1.0),
        ("findings.findings.0.expected.0.estimate.prompts", 0),
        ("findings.findings.0.expected.0.acceptance_rate", 1.01),
        ("findings.findings.0.expected.0.acceptance_length", 0.9),
        ("findings.proposers", "ngram"),
        ("findings.proposers.0", 1),
        ("findings.texts_equal", -1),
        ("findings.steadiness", None),
        ("findings.steadiness.drift", float("nan")),
        ("findings.seconds", float("inf")),
        ("findings.complete", "perhaps"),
        ("findings.energy.plain", -1),
        ("curves.target.points.0.ms", 0),
        ("curves.target.points.0.width", 2),
        ("curves.target.width_step", 1 << 31),
        ("curves.draft.points.0.past", -1),
        ("curves.passes", 0),
    ],
)
@pytest.mark.parametrize("plan", ["startup", "full"])
def test_nonsense_written_into_a_record_is_ignored_with_its_place(
    bundle, parts, place, value, plan
):
    path = store(bundle, made(parts))
    said = json.loads(path.read_text())
    at(said, place, value)
    path.write_text(json.dumps(said))
    found = find(bundle, parts, plan)
    assert found.record is None
    assert found.reason.startswith(f"{path}: {'.'.join(place.split('.')[:2])}")
    assert "\n" not in found.reason


@pytest.mark.parametrize(
    "junk", [b"\0", b"{", b"[", b'{"schema_version": 2, "created": "', b"\xff"]
)
def test_ten_megabytes_of_junk_are_ignored_with_a_reason(bundle, parts, junk):
    path = store(bundle, made(parts))
    path.write_bytes(junk * (10_000_000 // len(junk)))
    assert find(bundle, parts).reason == f"{path}: not valid JSON, perhaps cut short"


def test_deep_nesting_inside_a_record_is_ignored_with_a_reason(bundle, parts):
    path = store(bundle, made(parts))
    deep = "[" * 900 + "]" * 900
    text = path.read_text().replace('"proposers":', f'"proposers":{deep},"proposers_before":', 1)
    path.write_text(text)
    assert find(bundle, parts).reason.startswith(f"{path}: ")


def test_threads_that_store_at_once_all_find_the_record_in_the_bundle(bundle, parts, monkeypatch):
    """Each has written its scratch file before the first puts it in place."""
    both, replace, kept = threading.Barrier(2), Path.replace, []

    def together(path: Path, target: Path) -> Path:
        both.wait(10)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", together)
    threads = [
        threading.Thread(target=lambda: kept.append(store(bundle, made(parts)))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.parent for path in kept] == [bundle.path / "probes"] * 2
    assert len(list((bundle.path / "probes").iterdir())) == 1

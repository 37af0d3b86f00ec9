"""What a measurement depends on, and where it is kept."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from specedge.bundle import Bundle
from specedge.engines.fake import FakeEngine, fake_spec
from specedge.errors import BundleError, EngineError, OptionError, ProbeError
from specedge.probe import fingerprint, probing
from specedge.probe.curves import CostCurves, Curve, Point
from specedge.probe.fingerprint import changed, short_hash, take
from specedge.probe.probing import probe
from specedge.probe.record import NO_RECORD, Record, find, folders, store
from tiny import edit_manifest, write_bundle

pytestmark = pytest.mark.usefixtures("private_cache")


def curves(plan: str = "full") -> CostCurves:
    point = Point(width=1, past=0, count=1, ms=1.0, low_ms=1.0, high_ms=1.0)
    target = Curve(role="target", width_step=1, points=(point,))
    return CostCurves(plan=plan, target=target, draft=None, passes=1, seconds=1.0, converged=True)  # type: ignore[arg-type]


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
        ({"draft_context": 16}, ["draft context unknown -> 16"]),
        ({}, []),
    ],
)
def test_what_changed_is_named_and_nothing_else(bundle, parts, given, names):
    assert list(changed(parts, take(bundle, **{"target": Described(CPU), "context": 64, **given}))) == names


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
    assert gpu.closed
    parts = take(bundle, Described(CPU), context=64)
    assert (parts["gpu_driver"], parts["gpu_power_limit"]) == (None, None)


def test_what_is_stored_is_found_again_beside_the_bundles_files(bundle, parts):
    assert find(bundle, parts).reason == NO_RECORD
    made = Record.of(parts, curves())
    path = store(bundle, made)
    assert path == bundle.path / "probes" / f"{short_hash(parts)}.json"
    found = find(bundle, parts)
    assert (found.record, found.path, found.reason) == (made, path, "")
    assert Bundle.open(bundle.path).hash == bundle.hash


def test_numbers_and_flags_survive_being_stored(bundle, parts):
    store(bundle, Record.of(parts, curves()))
    found = find(bundle, parts).record
    assert found is not None
    assert {name: type(part) for name, part in found.fingerprint.items()} == {
        name: type(part) for name, part in parts.items()
    }


def test_a_bundle_that_cannot_be_written_keeps_its_record_in_the_cache(
    bundle, parts, private_cache
):
    (bundle.path / "probes").write_text("a file, where a folder cannot be made")
    path = store(bundle, Record.of(parts, curves()))
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
        (lambda path: (path.unlink(), path.mkdir()), "cannot be read: Is a directory"),
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
    theirs = take(other, Described(CPU))
    (other.path / "probes").mkdir()
    shutil.copy(path, other.path / "probes" / f"{short_hash(theirs)}.json")
    assert "of another bundle" in find(other, theirs).reason


def test_a_changed_part_is_told_against_the_newest_record(bundle, parts):
    for threads, created in ((4, "2026-01-02"), (2, "2026-01-03"), (8, "2026-01-01")):
        made = Record(created=created, fingerprint=parts | {"threads": threads}, curves=curves())
        store(bundle, made)
    assert find(bundle, parts | {"threads": 1}).reason == "threads 2 -> 1"


def test_the_points_of_a_start_are_not_enough_for_the_whole_table(bundle, parts):
    store(bundle, Record.of(parts, curves("startup")))
    assert "few points of a start" in find(bundle, parts).reason
    assert find(bundle, parts, "startup").record is not None
    store(bundle, Record.of(parts, curves("full")))
    assert find(bundle, parts, "startup").record == find(bundle, parts).record


QUICK = {"engine": "fake", "budget_s": 0.05}


def test_a_probe_measures_once_and_then_shows_what_it_stored(tmp_path):
    path = write_bundle(tmp_path / "pair", draft=True, max_verify=4)
    first = probe(path, **QUICK)
    assert (first.measured, first.reason) == (True, NO_RECORD)
    assert first.record.curves.draft is not None
    second = probe(path, **QUICK)
    assert (second.measured, second.record, second.path) == (False, first.record, first.path)
    third = probe(path, **QUICK, again=True)
    assert (third.measured, third.path) == (True, first.path)
    fourth = probe(path, **QUICK, context=64)
    assert fourth.reason == "target context 256 -> 64, draft context 256 -> 64"


def test_engines_are_opened_as_a_run_opens_them_and_closed_in_the_end(tmp_path, monkeypatch):
    path = write_bundle(tmp_path / "pair", draft=True, max_verify=2)
    create, opened, asked = probing.registry.create, [], {}

    def noting(name, folder, spec, **options):
        asked[spec.role] = options
        opened.append(create(name, folder, spec, **options))
        return opened[-1]

    monkeypatch.setattr(probing.registry, "create", noting)
    probe(path, **QUICK, threads=3, context=99, exact=True)
    common = {"threads": 3, "context": 99, "takes_turns": True}
    assert asked == {"target": common | {"exact": True}, "draft": common | {"exact": False}}
    probe(path, **QUICK, exact=False)
    assert asked["target"]["exact"] is False
    assert len(opened) == 4
    for engine in opened:
        with pytest.raises(EngineError, match="closed"):
            engine.new_slot()
    probe(write_bundle(tmp_path / "alone"), **QUICK)
    assert asked["target"]["takes_turns"] is False


def test_a_draft_that_cannot_be_opened_is_left_out_with_a_note(tmp_path, monkeypatch):
    path = write_bundle(tmp_path / "pair", draft=True, max_verify=2)
    create = probing.registry.create

    def failing(name, folder, spec, **options):
        if spec.role == "draft":
            raise EngineError("its graph\ndoes not load")
        return create(name, folder, spec, **options)

    monkeypatch.setattr(probing.registry, "create", failing)
    probed = probe(path, **QUICK)
    assert probed.notes == ("the draft model was left out: its graph does not load",)
    assert probed.record.curves.draft is None


def test_a_record_with_nowhere_to_go_is_a_note_and_no_error(tiny_bundle, private_cache):
    (tiny_bundle / "probes").write_text("")
    private_cache.write_text("")
    probed = probe(tiny_bundle, **QUICK)
    assert (probed.measured, probed.path) == (True, None)
    assert "cannot be kept" in probed.notes[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"context": 0}, "context: expected 1..256"),
        ({"context": 257}, "context: expected 1..256"),
        ({"threads": 0}, "threads: expected 1..1024"),
        ({"budget_s": -1.0}, "budget: expected more than 0"),
    ],
)
def test_an_argument_out_of_range_is_refused_before_anything_is_opened(tiny_bundle, given, said):
    with pytest.raises(OptionError, match=said):
        probe(tiny_bundle, **(QUICK | given))


def test_a_damaged_bundle_is_not_measured(tiny_bundle):
    edit_manifest(tiny_bundle, contract=9)
    with pytest.raises(BundleError):
        probe(tiny_bundle, **QUICK)


def test_too_little_memory_is_one_clear_error(tiny_bundle, monkeypatch):
    def none_left(*args, **options):
        raise MemoryError

    monkeypatch.setattr(probing, "measure", none_left)
    with pytest.raises(EngineError, match="choose a smaller context"):
        probe(tiny_bundle, **QUICK)


def test_a_clock_that_goes_back_stores_nothing(tiny_bundle):
    readings = iter([*range(20), 3])
    with pytest.raises(ProbeError, match="went back"):
        probe(tiny_bundle, engine="fake", clock=lambda: float(next(readings)))
    assert not (tiny_bundle / "probes").exists()


@pytest.mark.model
def test_sixteen_tokens_of_smollm2_cost_more_than_one_and_are_measured_once(
    smollm2, tmp_path, private_cache
):
    folder = tmp_path / "smollm2"
    folder.mkdir()
    for entry in smollm2.iterdir():  # its own probes folder, and links to everything else
        if entry.name != "probes":
            os.symlink(entry, folder / entry.name)
    first = probe(folder, budget_s=3.0, context=512)
    target = first.record.curves.target
    assert target.cost_ms(16, 128) > 1.2 * target.cost_ms(1, 128)
    assert first.measured
    again = probe(folder, budget_s=3.0, context=512)
    assert (again.measured, again.record) == (False, first.record)

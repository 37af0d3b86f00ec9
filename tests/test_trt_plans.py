"""Plans on disk: kept whole, found when they serve, and refused with what differs."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from specedge.bundle import Bundle
from specedge.contract import GraphSpec
from specedge.engines.trt import plans
from specedge.engines.trt.building import check_buildable
from specedge.engines.trt.plans import BuildReport, Plan, PlanKey, Widths
from specedge.errors import PlanError
from tiny import edit_manifest, write_bundle

DATA = bytes(range(256)) * 40


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path / "cache"))
    return write_bundle(tmp_path / "bundle", draft=True)


def spec_of(bundle: Path, role: str = "target") -> GraphSpec:
    manifest = Bundle.open(bundle).manifest
    found = manifest.target if role == "target" else manifest.draft
    assert found is not None
    return found


def key_of(bundle: Path, role: str = "target", **changes: Any) -> PlanKey:
    said: dict[str, Any] = {
        "backend": "tensorrt-rtx",
        "version": "1.7.1",
        "compute_capability": 89,
        "device": "NVIDIA L4",
    }
    return plans.key_for(bundle, spec_of(bundle, role), **(said | changes))


def report(key: PlanKey) -> BuildReport:
    return BuildReport(
        seconds=1.5,
        parse_seconds=0.5,
        plan_bytes=len(DATA),
        weight_bytes=4,
        kv_bytes=64,
        device_bytes=None,
        peak_host_bytes=None,
        layers=3,
        profiles=[Widths(name="verify", widest=key.max_verify, tuned=5, rows=key.max_verify)],
    )


def stored(bundle: Path, role: str = "target", **changes: Any) -> Plan:
    key = key_of(bundle, role, **changes)
    return plans.store(bundle, key, DATA, report(key))


def test_a_plan_comes_back_as_it_was_stored(bundle: Path) -> None:
    plan = stored(bundle)
    found = plans.find(bundle, key_of(bundle))
    assert (found.path, found.record) == (plan.path, plan.record)
    assert found.read() == DATA
    assert found.path.parent == bundle / "plans/sm89"
    assert found.path.name.startswith("target-tensorrt-rtx-1.7.1-sm89-")
    assert found.path.name.endswith("-T256.plan")


def test_the_bundle_stays_the_same_bundle(bundle: Path) -> None:
    before = Bundle.open(bundle).hash
    stored(bundle)
    assert Bundle.open(bundle).hash == before


def test_tensorrt_plans_lie_under_the_gpu_and_rtx_ones_under_the_capability(bundle: Path) -> None:
    named = stored(bundle, backend="tensorrt", device="NVIDIA RTX 6000 Ada / x8")
    assert named.path.parent.name == "NVIDIA-RTX-6000-Ada-x8"
    assert stored(bundle).record.key.device is None


@pytest.mark.parametrize(
    ("built", "asked", "said"),
    [
        ({"version": "1.6"}, {}, "built by version 1.6, installed is 1.7.1"),
        (
            {"compute_capability": 86},
            {},
            "for compute capability 86, this is compute capability 89",
        ),
        ({"context": 64}, {"context": 128}, "holds a context of 64, asked for are 128"),
        (
            {"backend": "tensorrt", "device": "NVIDIA L4"},
            {"backend": "tensorrt", "device": "NVIDIA L40"},
            "for NVIDIA L4, compute capability 89, this is NVIDIA L40",
        ),
        ({"backend": "tensorrt"}, {}, "there is none"),
    ],
)
def test_a_plan_that_does_not_serve_is_refused_with_what_differs(
    built: dict[str, Any], asked: dict[str, Any], said: str, bundle: Path
) -> None:
    stored(bundle, **built)
    with pytest.raises(PlanError, match=said) as caught:
        plans.find(bundle, key_of(bundle, **asked))
    text = str(caught.value)
    assert "\n" not in text
    backend = asked.get("backend", "tensorrt-rtx")
    assert f"run: specedge build {bundle} --backend {backend}" in text
    assert ("--compute-capability 89" in text) == (backend == "tensorrt-rtx")


def test_a_plan_of_an_older_graph_is_stale(bundle: Path) -> None:
    stored(bundle)
    files = json.loads((bundle / "specedge.json").read_text())["files"]
    files["target/weights.bin"]["sha256"] = "0" * 64
    edit_manifest(bundle, files=files)
    spec = json.loads((bundle / "specedge.json").read_text())["target"]
    wanted = plans.key_for(
        bundle,
        GraphSpec.model_validate(spec),
        backend="tensorrt-rtx",
        version="1.7.1",
        compute_capability=89,
        device=None,
    )
    with pytest.raises(PlanError, match="of an older or another graph"):
        plans.find(bundle, wanted)
    assert plans.current(bundle, wanted) is None  # it is named after another graph


def test_a_larger_context_serves_a_smaller_and_the_nearest_is_taken(bundle: Path) -> None:
    for context in (256, 64, 128):
        stored(bundle, context=context)
    for asked, found in ((32, 64), (64, 64), (65, 128), (200, 256)):
        assert plans.find(bundle, key_of(bundle, context=asked)).record.key.context == found


def test_how_a_plan_was_tuned_matters_to_a_build_and_not_to_a_run(bundle: Path) -> None:
    stored(bundle, options={"tune_for": 5})
    wanted = key_of(bundle, options={"tune_for": 3})
    assert plans.find(bundle, wanted).record.key.options == {"tune_for": 5}
    assert plans.current(bundle, wanted) == "built with tune_for = 5, now tune_for = 3"


def test_what_is_current_is_kept(bundle: Path) -> None:
    assert plans.current(bundle, key_of(bundle)) is None
    plan = stored(bundle)
    assert plans.current(bundle, key_of(bundle)) == plan


@pytest.mark.parametrize("role", ["target", "draft"])
def test_the_draft_has_plans_of_its_own(role: str, bundle: Path) -> None:
    stored(bundle, "target")
    stored(bundle, "draft")
    assert plans.find(bundle, key_of(bundle, role)).record.key.role in ("target", "draft")
    assert len(list(bundle.glob("plans/sm89/*.plan"))) == 2


def test_a_cut_plan_is_refused_before_it_is_read(bundle: Path) -> None:
    path = stored(bundle).path
    path.write_bytes(DATA[:-1])
    with pytest.raises(PlanError, match=f"{len(DATA) - 1} bytes, expected {len(DATA)}: damaged"):
        plans.find(bundle, key_of(bundle))
    assert "damaged" in str(plans.current(bundle, key_of(bundle)))


def test_an_altered_plan_is_refused_when_it_is_read(bundle: Path) -> None:
    plan = stored(bundle)
    plan.path.write_bytes(DATA[:-1] + b"!")
    with pytest.raises(PlanError, match=r"damaged.*build --force"):
        plans.find(bundle, key_of(bundle)).read()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema_version": 9}', '{"schema_version": 1}', "[" * 9000]
)
def test_a_record_that_cannot_be_believed_is_no_record(text: str, bundle: Path) -> None:
    path = stored(bundle).path.with_suffix(".json")
    path.write_text(text)
    with pytest.raises(PlanError, match="the nearest is target-"):
        plans.find(bundle, key_of(bundle))
    assert isinstance(plans.current(bundle, key_of(bundle)), str)


def test_a_plan_without_a_record_is_half_a_plan(bundle: Path) -> None:
    stored(bundle).path.with_suffix(".json").unlink()
    with pytest.raises(PlanError, match="there is none"):
        plans.find(bundle, key_of(bundle))


def test_a_missing_plan_leaves_its_record_without_worth(bundle: Path) -> None:
    stored(bundle).path.unlink()
    with pytest.raises(PlanError, match="its plan is missing"):
        plans.find(bundle, key_of(bundle))


def test_where_the_bundle_cannot_be_written_the_cache_takes_the_plan(
    bundle: Path, tmp_path: Path
) -> None:
    (bundle / "plans").write_text("a file, so that no folder can be made")
    plan = stored(bundle)
    assert plan.path.is_relative_to(tmp_path / "cache/plans" / Bundle.open(bundle).hash)
    assert plans.find(bundle, key_of(bundle)).read() == DATA


def test_where_nothing_can_be_written_it_says_so(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (bundle / "plans", tmp_path / "nowhere"):
        folder.write_text("a file, so that no folder can be made")
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path / "nowhere"))
    with pytest.raises(PlanError, match=r"cannot be kept.*set SPECEDGE_CACHE"):
        stored(bundle)


def test_a_full_disk_leaves_the_old_plan_and_no_half_one(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = stored(bundle)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("specedge.engines.trt.plans.os.fsync", full)
    key = key_of(bundle, options={"tune_for": 9})
    with pytest.raises(PlanError, match="No space left on device"):
        plans.store(bundle, key, b"new", report(key))
    assert plans.find(bundle, key_of(bundle)).read() == DATA
    assert {path.name for path in plan.path.parent.iterdir()} == {
        plan.path.name,
        plan.path.with_suffix(".json").name,
    }


def test_two_builders_at_once_leave_one_whole_plan(bundle: Path) -> None:
    key = key_of(bundle)
    threads = [
        threading.Thread(target=plans.store, args=(bundle, key, DATA, report(key)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert plans.find(bundle, key).read() == DATA
    assert len(list((bundle / "plans/sm89").iterdir())) == 2


def test_two_builds_that_differ_never_share_a_record(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def slowly(self: Path, target: Path) -> Path:
        time.sleep(random.random() / 100)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", slowly)
    key = key_of(bundle)
    threads = [
        threading.Thread(target=plans.store, args=(bundle, key, bytes([n]) * 99, report(key)))
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(plans.find(bundle, key).read()) == 99


def test_what_a_killed_build_left_goes_with_the_next_and_a_running_ones_stays(
    bundle: Path,
) -> None:
    folder = stored(bundle).path.parent
    dead, running = folder / ".target-T9.plan.12.34", folder / ".target-T9.json.12.35"
    for path in (dead, running):
        path.write_bytes(b"half")
    os.utime(dead, (0, 0))
    stored(bundle, "draft")
    assert (dead.exists(), running.exists()) == (False, True)


def test_a_plan_whose_record_cannot_be_written_does_not_stay(bundle: Path, tmp_path: Path) -> None:
    """A folder stands where the record belongs."""
    path = stored(bundle).path
    path.unlink()
    path.with_suffix(".json").unlink()
    path.with_suffix(".json").mkdir()
    plan = stored(bundle)
    assert plan.path.is_relative_to(tmp_path / "cache")
    assert list(bundle.glob("plans/**/*.plan")) == []


def test_a_plan_that_cannot_be_kept_leaves_no_folders(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plans.writing, "keep", full)
    with pytest.raises(PlanError, match="No space left"):
        stored(bundle)
    assert not (bundle / "plans").exists()


@pytest.mark.parametrize("damaged", [False, True])
def test_what_lies_read_only_in_a_bundle_gives_way_to_what_was_built_since(
    damaged: bool, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = stored(bundle, options={"tune_for": 5})
    record = shipped.path.with_suffix(".json")
    record.write_text(record.read_text().replace(shipped.record.created, "2020-01-01T00:00:00Z"))
    if damaged:
        shipped.path.write_bytes(DATA[:-1] + b"!")
    keep = plans.writing.keep

    def read_only(path: Path, *args: Any) -> None:
        if path.is_relative_to(bundle):
            raise OSError(30, "Read-only file system")
        keep(path, *args)

    monkeypatch.setattr(plans.writing, "keep", read_only)
    key = key_of(bundle, options={"tune_for": 2})
    assert plans.current(bundle, key) == "built with tune_for = 5, now tune_for = 2"
    built = plans.store(bundle, key, DATA, report(key))
    assert plans.current(bundle, key) == built
    assert plans.find(bundle, key_of(bundle)).read() == DATA
    assert plans.find(bundle, key_of(bundle)).path.is_relative_to(tmp_path / "cache")


def test_where_nothing_can_be_written_no_disk_is_called_full(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (plans.free_bytes(bundle) or 0) > 0
    monkeypatch.setattr("specedge.engines.trt.plans.os.access", lambda *args: False)
    assert plans.free_bytes(bundle) is None
    with pytest.raises(PlanError, match="neither the bundle nor the user's cache can be written"):
        check_buildable(
            bundle, spec_of(bundle).model_copy(update={"lowering": "standard"}), key_of(bundle)
        )


def test_damage_is_found_without_reading_a_plan_whole(bundle: Path) -> None:
    plan = stored(bundle)
    assert plan.damage() is None
    plan.path.write_bytes(DATA[:-1] + b"!")
    assert "damaged" in str(plan.damage())
    plan.path.unlink()
    assert "cannot be read" in str(plan.damage())


def test_a_manifest_that_lists_no_hash_has_no_graph_hash(bundle: Path) -> None:
    spec = spec_of(bundle).model_copy(update={"weights": "elsewhere.bin"})
    with pytest.raises(PlanError, match=r"lists no sha256 of target/model.onnx and elsewhere.bin"):
        plans.graph_hash(bundle, spec)

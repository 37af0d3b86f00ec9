"""`specedge build`: what it builds, what it keeps, and what it refuses with a remedy."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

import trt_graphs
import trt_stub
from commands import Said, runner
from specedge.bundle import Bundle
from specedge.cli.build import tables
from specedge.engines import cuda
from specedge.engines.trt import library, plans
from specedge.engines.trt.making import Made
from specedge.engines.trt.plans import Plan
from specedge.errors import EngineError
from test_trt_plans import report
from tiny import edit_manifest, record, write_bundle

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None,
    reason='tensorrt-rtx is not installed; pip install "specedge[tensorrt-rtx]" runs these builds',
)

RTX = ("--backend", "tensorrt-rtx", "--compute-capability", "89")


@pytest.fixture(autouse=True)
def _fresh_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path / "cache"))
    trt_stub.forget()
    yield
    trt_stub.forget()


@pytest.fixture
def said(capfd: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    return runner(capfd, monkeypatch)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Its target is a hand-made graph of lowering `standard`, and so is its draft."""
    folder = write_bundle(tmp_path / "bundle", draft=True)
    files = json.loads((folder / "specedge.json").read_text())["files"]
    graphs = {}
    for role in ("target", "draft"):
        model = folder / role / "model.onnx"
        trt_graphs.write_graph(model)
        files[f"{role}/model.onnx"] = record(model.read_bytes()).model_dump()
        spec = trt_graphs.spec(64, role=role, model=f"{role}/model.onnx")
        graphs[role] = spec.model_dump() | {"weights": f"{role}/weights.bin"}
    edit_manifest(folder, files=files, **graphs)
    return folder


def edit(bundle: Path, role: str, **changes: Any) -> None:
    said = json.loads((bundle / "specedge.json").read_text())
    edit_manifest(bundle, **{role: said[role] | changes})


def sized(plan: Plan) -> Plan:
    """As large as plans become."""
    report = plan.record.report.model_copy(
        update={
            "plan_bytes": 16_123_456_789,
            "kv_bytes": 16_123_456_789,
            "device_bytes": 16_123_456_789,
            "peak_host_bytes": 16_123_456_789,
            "seconds": 1234.5,
        }
    )
    return Plan(plan.path, plan.record.model_copy(update={"report": report}))


def stored_plans(bundle: Path, opened: Bundle) -> list[Plan]:
    made = []
    for capability in (75, 80, 86, 89, 120):
        key = plans.key_for(
            bundle,
            opened.manifest.target,
            backend="tensorrt-rtx",
            version="1",
            compute_capability=capability,
            device=None,
        )
        made.append(plans.store(bundle, key, b"plan", report(key)))
    return made


def test_it_builds_what_is_missing_and_says_what_it_takes(
    said: Callable[..., Said], bundle: Path
) -> None:
    code, out, err = said("build", str(bundle), *RTX, "--compute-capability", "120")
    assert code == 0
    rows = table(out)
    assert rows[""] == ["target", "target", "draft", "draft"]
    assert rows["for"] == ["sm89", "sm120"] * 2
    assert (rows["context"], rows["state"]) == (["64"] * 4, ["built"] * 4)
    # 2 parts, 2 heads, 72 rows, 16 wide, 2 bytes
    assert rows["GPU: KV of a sequence"] == ["9.0 KiB"] * 4
    assert set(rows) >= {"seconds to build", "host memory to build", "plan on disk"}
    assert err.count("built: there was none") == 4
    assert "every call attends over all 72 rows" in err
    assert err.splitlines()[-1].startswith("next: specedge run ")
    assert len(list(bundle.glob("plans/sm*/*.plan"))) == 4


def table(out: str) -> dict[str, list[str]]:
    """Cells by the name of their row; a size is one cell."""
    rows = {}
    for line in out.splitlines()[1:]:
        name, cells = line[:22].strip(), line[22:]
        rows[name] = re.findall(r"[\d.]+ (?:B|[KMG]iB)|\S+", cells)
    return rows


def test_many_plans_read_at_80_columns(bundle: Path) -> None:
    opened = Bundle.open(bundle)
    made = [Made(sized(plan), None) for plan in stored_plans(bundle, opened)]
    stream = io.StringIO()
    console = Console(file=stream, width=80)
    for found in tables(made):
        console.print(found)
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert "…" not in stream.getvalue()
    assert max(map(len, lines)) <= 80
    assert len(lines) == 2 * 11  # a title, roles and nine rows, and nothing is folded
    folders = [line.split()[1:] for line in lines if line.startswith("for ")]
    assert folders == [["sm75", "sm80", "sm86", "sm89"], ["sm120"]]


def test_it_keeps_what_is_current_and_builds_what_is_not(
    said: Callable[..., Said], bundle: Path
) -> None:
    build = ("build", str(bundle), *RTX, "--role", "target")
    said(*build)
    (path,) = bundle.glob("plans/sm89/*.plan")
    first = path.stat().st_mtime_ns
    assert "kept" in said(*build)[1]
    assert path.stat().st_mtime_ns == first
    assert "built: asked for" in said(*build, "--force")[2]
    assert "now tune_for = 2" in said(*build, "--tune-for", "2")[2]
    path.write_bytes(path.read_bytes()[:-1])
    assert "damaged" in said(*build, "--tune-for", "2")[2]
    flipped = bytearray(path.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    path.write_bytes(flipped)
    assert "damaged" in said(*build, "--tune-for", "2")[2]
    assert "kept" in said(*build, "--tune-for", "2")[1]


def test_json_is_one_object_with_the_whole_record(said: Callable[..., Said], bundle: Path) -> None:
    code, out, _ = said("build", str(bundle), *RTX, "--context", "32", "--json")
    made = json.loads(out)["plans"]
    assert code == 0
    assert [(each["key"]["role"], each["key"]["context"]) for each in made] == [
        ("target", 32),
        ("draft", 32),
    ]
    assert all(
        each["built"] and Path(each["path"]).stat().st_size == each["bytes"] for each in made
    )
    assert [each["report"]["profiles"][0]["tuned"] for each in made] == [5, 1]


def test_a_context_below_the_widest_verification_bounds_what_is_tuned_for(
    said: Callable[..., Said], bundle: Path
) -> None:
    _, out, _ = said("build", str(bundle), *RTX, "--context", "2", "--json")
    for each in json.loads(out)["plans"]:
        profiles = each["report"]["profiles"]
        assert [profile["widest"] for profile in profiles] == [2, 2]
        assert all(profile["tuned"] <= 2 for profile in profiles)
        assert all(profile["device_bytes"] is not None for profile in profiles)  # both are built
    code, _, err = said("build", str(bundle), *RTX, "--context", "2", "--tune-for", "3")
    assert code == 1
    assert "--tune-for 3: expected a whole number from 1 to 2" in err


def test_options_of_the_config_reach_the_build(said: Callable[..., Said], bundle: Path) -> None:
    edit_manifest(bundle, engines={"tensorrt-rtx": {"tune_for": 3, "device": 0}})
    _, out, _ = said("build", str(bundle), *RTX, "--json")
    tuned = [each["key"]["options"]["tune_for"] for each in json.loads(out)["plans"]]
    assert tuned == [3, 1]  # a draft makes its tokens one by one


@pytest.mark.parametrize("given", ["8.9", "89", "sm89", "SM89", "sm_89", " 8.9"])
def test_a_capability_is_named_in_every_usual_way(
    given: str, said: Callable[..., Said], bundle: Path
) -> None:
    build = ("build", str(bundle), "--backend", "tensorrt-rtx", "--compute-capability", given)
    _, out, _ = said(*build, "--role", "draft", "--json")
    assert [each["key"]["compute_capability"] for each in json.loads(out)["plans"]] == [89]


@pytest.mark.parametrize("given", ["", "ada", "8,9", "8.90", "sm", "1200", "-89", "89a"])
def test_what_is_no_capability_is_one_line_with_those_that_are_known(
    given: str, said: Callable[..., Said], bundle: Path
) -> None:
    build = ("build", str(bundle), "--backend", "tensorrt-rtx", f"--compute-capability={given}")
    code, out, err = said(*build)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"--compute-capability {given!r}: expected one as in 8.9, 89 or sm89" in err
    assert "knows 75, 80, 86, 89" in err


@pytest.mark.parametrize(
    ("options", "following"),
    [
        ([], 'specedge run {} "..." --engine tensorrt-rtx'),
        (["--context", "64"], 'specedge run {} "..." --engine tensorrt-rtx'),
        (["--context", "32"], 'specedge run {} "..." --engine tensorrt-rtx --context 32'),
        (["--role", "draft"], 'specedge run {} "..." --draft-engine tensorrt-rtx'),
        (
            ["--role", "target"],
            'specedge run {} "..." --engine tensorrt-rtx --draft-engine cpu',
        ),
    ],
)
def test_what_is_said_to_come_next_uses_the_plans_that_are_there(
    options: list[str], following: str, said: Callable[..., Said], bundle: Path
) -> None:
    err = said("build", str(bundle), *RTX, *options)[2]
    assert err.splitlines()[-1] == "next: " + following.format(bundle)
    if "--role" in options:  # the other one completes the pair
        other = "draft" if "target" in options else "target"
        err = said("build", str(bundle), *RTX, "--role", other)[2]
        assert err.endswith('"..." --engine tensorrt-rtx\n')


def test_a_target_that_no_cpu_runs_is_built_next(said: Callable[..., Said], bundle: Path) -> None:
    edit(bundle, "target", kv_dtype="bfloat16")
    err = said("build", str(bundle), *RTX, "--role", "draft", "--context", "32")[2]
    assert err.splitlines()[-1] == (
        f"next: specedge build {bundle} --backend tensorrt-rtx --compute-capability 89 "
        "--context 32 --role target"
    )


def test_a_draft_that_nobody_asks_for_is_asked_for(said: Callable[..., Said], bundle: Path) -> None:
    edit_manifest(bundle, speculation={"mode": "auto", "proposers": ["ngram"]})
    err = said("build", str(bundle), *RTX, "--role", "draft")[2]
    assert err.endswith("--draft-engine tensorrt-rtx --speculation on --proposers ngram,draft\n")
    err = said("build", str(bundle), *RTX, "--role", "target", "--context", "32")[2]
    assert err.endswith('"..." --engine tensorrt-rtx --context 32\n')


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--backend", "tensorrt-rtx", "--compute-capability", "90"], "compute capability 90; it"),
        ([*RTX, "--context", "65"], "context 65 is above 64"),
        ([*RTX, "--tune-for", "9"], "--tune-for 9: expected a whole number from 1 to 8"),
        (["--backend", "tensorrt-rtx"], "name what to build for, as in --compute-capability 89"),
        (["--backend", "tensorrt"], "not installed here; build on the machine with the GPU, or"),
    ],
)
def test_what_cannot_be_built_is_one_line_and_nothing_is_written(
    options: list[str], line: str, said: Callable[..., Said], bundle: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(cuda, "find", lambda ordinal=0: "the NVIDIA driver is not installed here")
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    code, out, err = said("build", str(bundle), *options)
    assert (code, out) == (1, "")
    assert line in err
    assert err.count("\n") == 1
    assert not (bundle / "plans").exists()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"draft": None}, "has no draft to build a plan of"),
        ({"engines": {"tensorrt-rtx": {"tune_fro": 3}}}, "did you mean tune_for?"),
        ({"engines": {"tensorrt-rtx": {"optimization_level": 9}}}, "from 0 to 5"),
        ({"engines": {"tensorrt-rtx": {"tune_for": 3.0}}}, "[engines.tensorrt-rtx] tune_for = 3.0"),
        ({"engines": {"tensorrt-rtx": {"tune_for": 9}}}, "[engines] tune_for = 9: expected"),
    ],
)
def test_a_bundle_that_asks_for_the_impossible_is_refused(
    changes: dict[str, Any], line: str, said: Callable[..., Said], bundle: Path
) -> None:
    edit_manifest(bundle, **changes)
    role = "draft" if "draft" in changes else "target"
    code, _, err = said("build", str(bundle), *RTX, "--role", role)
    assert code == 1
    assert line in err


def test_a_draft_is_not_tuned_for_verification(said: Callable[..., Said], bundle: Path) -> None:
    code, _, err = said("build", str(bundle), *RTX, "--role", "draft", "--tune-for", "3")
    assert code == 2
    assert "--tune-for is of the target" in err


def test_a_second_build_that_fails_leaves_the_first_plan(
    said: Callable[..., Said], bundle: Path
) -> None:
    trt_graphs.write_graph(bundle / "draft/model.onnx", "lengths as nonpad_kv_seqlen")
    files = json.loads((bundle / "specedge.json").read_text())["files"]
    model = (bundle / "draft/model.onnx").read_bytes()
    edit_manifest(bundle, files=files | {"draft/model.onnx": record(model).model_dump()})
    code, _, err = said("build", str(bundle), *RTX)
    assert code == 1
    assert "has no mask: its lengths were dropped" in err
    assert [path.name[:6] for path in bundle.glob("plans/sm89/*.plan")] == ["target"]
    Bundle.open(bundle)


def test_tensorrt_builds_for_the_gpu_at_hand_and_names_it(
    said: Callable[..., Said], bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trt_stub.install(monkeypatch)
    code, out, _ = said("build", str(bundle), "--backend", "tensorrt", "--json")
    assert code == 0
    for each in json.loads(out)["plans"]:
        assert each["key"]["device"] == trt_stub.GPU.name
        assert each["key"]["version"] == trt_stub.VERSION
        assert "/plans/NVIDIA-Stub-4000/" in each["path"]


def test_tensorrt_takes_no_other_capability_than_the_gpus(
    said: Callable[..., Said], bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trt_stub.install(monkeypatch)
    code, _, err = said("build", str(bundle), "--backend", "tensorrt", "--compute-capability", "86")
    assert code == 1
    assert "leave out --compute-capability" in err


def test_tensorrt_without_a_driver_says_what_it_needs(
    said: Callable[..., Said], bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trt_stub.install(monkeypatch, gpu=False)
    code, _, err = said("build", str(bundle), "--backend", "tensorrt")
    assert code == 1
    assert "CUDA initialization failure with error: 35; it needs the NVIDIA driver" in err


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (ModuleType("tensorrt"), "is empty, a placeholder of the package index"),
        (None, 'tensorrt is not installed; pip install "specedge[tensorrt]"'),
    ],
)
def test_a_placeholder_is_not_the_library(
    module: ModuleType | None, line: str, said: Callable[..., Said], bundle: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(cuda, "find", lambda ordinal=0: trt_stub.GPU)
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    code, _, err = said("build", str(bundle), "--backend", "tensorrt")
    assert code == 1
    assert line in err


def test_libraries_that_do_not_load_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise OSError(f"libnvinfer.so.10: cannot open shared object file, for {name}")

    monkeypatch.setattr(library.importlib, "import_module", broken)
    with pytest.raises(EngineError, match=r"does not load: libnvinfer\.so\.10.*for tensorrt"):
        library.load("tensorrt")


def test_a_library_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = trt_stub.face(gpu=True)
    module.LayerType = object  # type: ignore[attr-defined]
    module.__version__ = "10.14.1"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    with pytest.raises(EngineError, match=r"tensorrt 10\.14\.1 is too old.*--upgrade"):
        library.load("tensorrt").check_recent()


def test_what_was_built_is_found_by_a_run(said: Callable[..., Said], bundle: Path) -> None:
    said("build", str(bundle), *RTX)
    spec = Bundle.open(bundle).manifest.target
    version = library.load("tensorrt-rtx").version
    wanted = plans.key_for(
        bundle,
        spec,
        backend="tensorrt-rtx",
        version=version,
        compute_capability=89,
        device="whatever GPU",
        context=40,
    )
    assert plans.find(bundle, wanted).record.key.context == 64

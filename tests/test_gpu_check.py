"""The check of a GPU box, its stages as processes, and on a tiny model with engine "cpu"."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import gpu_check
from gpu import box, cases, fast, planning, report, right, shape
from gpu.running import Running, Stage

TINY = shape.SMALL | {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 512}
HERE: dict[str, object] = {  # a box with everything
    "python": "3.12",
    "cpus": 16,
    "specedge": "0",
    "gpu": {"name": "G", "capability": [8, 9], "memory_mb": 1, "cuda": [13, 0], "driver": "580"},
    "onnxruntime": {
        "version": "1",
        "providers": ["TensorrtExecutionProvider", "CUDAExecutionProvider"],
    },
    "tensorrt": {"version": "11"},
    "tensorrt_rtx": {"version": "1.7", "capabilities": ["SM89", "SM120"]},
    "cuda_bindings": "13",
    "torch": {"version": "2", "cuda": "13", "sees_gpu": True},
}

# --- stages ---------------------------------------------------------------------------------------

WORKER = """
import json, subprocess, sys, time
asked = json.load(open(sys.argv[3]))
def record(**said):
    with open(sys.argv[4], "a") as file:
        file.write(json.dumps(said) + "\\n")
record(case="a", status="passed", reason="", figures={})
if asked["does"] == "hangs":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    record(case="child", status="measured", reason="", figures={"pid": child.pid})
    open(sys.argv[4], "a").write('{"broken')
    time.sleep(60)
if asked["does"] == "crashes":
    raise RuntimeError("out of device memory")
"""


def run(tmp_path, does, budget_s=20.0, left_s=None):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    stage = Stage("logits cuda", "logits", budget_s, {"does": does, "engine": "cuda"})
    return Running(stage, budget_s if left_s is None else left_s, script, tmp_path).finish()


def test_a_stage_that_hangs_is_stopped_with_its_children_and_keeps_its_records(tmp_path):
    began = time.perf_counter()
    said, records = run(tmp_path, "hangs", budget_s=1.5)
    assert time.perf_counter() - began < 10
    assert (said["status"], said["reason"]) == ("out of time", "stopped at 2 s")
    assert [record["case"] for record in records] == ["a", "child"]
    assert records[0]["engine"] == "cuda"
    pid = records[1]["figures"]["pid"]
    deadline = time.perf_counter() + 5
    while is_running(pid) and time.perf_counter() < deadline:
        time.sleep(0.05)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_a_stage_that_crashes_says_its_last_words_and_keeps_its_records(tmp_path):
    said, records = run(tmp_path, "crashes")
    assert said["status"] == "crashed"
    assert said["reason"] == "exit code 1: RuntimeError: out of device memory"
    assert len(records) == 1


def test_records_of_an_earlier_run_in_the_same_folder_are_not_taken_for_new_ones(tmp_path):
    run(tmp_path, "ends")
    said, records = run(tmp_path, "ends")
    assert (said["status"], len(records)) == ("done", 1)


def test_a_stage_for_which_no_time_is_left_does_not_start(tmp_path):
    said, records = run(tmp_path, "hangs", left_s=0.5)
    assert (said["status"], said["seconds"], records) == ("out of time", 0.0, [])


def test_an_interrupted_check_leaves_no_process(tmp_path):
    folder = shape.draw_checkpoint(TINY, tmp_path / "tiny")
    work = tmp_path / "work"
    command = [sys.executable, gpu_check.__file__, "--provider", "cpu", "--work", str(work)]
    with subprocess.Popen([*command, "--source", str(folder)], stderr=subprocess.PIPE) as check:
        deadline = time.perf_counter() + 60
        while not (work / "full" / "export.json").exists() and time.perf_counter() < deadline:
            time.sleep(0.02)
        assert any(str(work) in line for line in command_lines(but=check.pid))
        check.send_signal(signal.SIGINT)
        check.communicate(timeout=20)
    assert check.returncode == 130
    assert not any(str(work) in line for line in command_lines())


def command_lines(but: int = 0) -> list[str]:
    """Of every process that runs now."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        if path.parent.name != str(but):
            with contextlib.suppress(OSError):
                found.append(path.read_text())
    return found


# --- what runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "lacks", "reason"),
    [
        ("cuda", {}, None),
        ("tensorrt-rtx", {}, None),
        ("cuda", {"gpu": {"missing": "no driver"}}, "no GPU: no driver"),
        ("cpu", {"gpu": {"missing": "no driver"}}, None),
        ("cpu", {"onnxruntime": {"missing": "not there"}}, "ONNX Runtime: not there"),
        (
            "ort-tensorrt",
            {"onnxruntime": {"version": "1.30", "providers": ["CPUExecutionProvider"]}},
            "onnxruntime 1.30 has no TensorrtExecutionProvider; it wants onnxruntime-gpu",
        ),
        ("tensorrt", {"tensorrt": {"missing": "no module"}}, "tensorrt: no module"),
        ("tensorrt", {"cuda_bindings": None}, "tensorrt: cuda-bindings is not installed"),
        (
            "tensorrt-rtx",
            {"gpu": {"name": "H200", "capability": [9, 0]}},
            "tensorrt-rtx 1.7 does not list SM90",
        ),
    ],
)
def test_an_engine_that_cannot_run_has_its_reason(engine, lacks, reason):
    assert box.why_not(engine, HERE | lacks) == reason


def plan(found, **asked):
    given = {"provider": "gpu", "quick": True, "source": "s", "work": "w"} | asked
    return planning.Planner(planning.Asked(**given), found).stages()


def test_every_engine_is_checked_before_any_is_timed():
    kinds = [stage.kind for stage in plan(HERE)]
    last_check = max(place for place, kind in enumerate(kinds) if kind in report.CHECKED)
    assert last_check < min(kinds.index("curves"), kinds.index("speed"), kinds.index("torch"))
    for engine in box.ENGINES:
        assert {"logits", "greedy", "curves", "speed"} <= {
            stage.kind for stage in plan(HERE) if stage.request.get("engine") == engine
        }


def test_plans_are_built_of_standard_graphs_alone():
    for stage in plan(HERE):
        if stage.request.get("engine") in ("tensorrt", "tensorrt-rtx", "ort-tensorrt"):
            assert {case["lowering"] for case in stage.request["cases"]} == {"standard"}


def test_what_is_timed_waits_for_the_export_that_runs_beside():
    stages = plan(HERE)
    beside = [stage.name for stage in stages if stage.beside]
    assert beside == [planning.LARGE]
    timed = [stage for stage in stages if stage.kind in ("curves", "speed")]
    assert timed
    assert all(stage.needs == planning.LARGE for stage in timed)


def test_a_box_without_a_runtime_says_so_once_an_engine_and_only_torch_is_timed():
    stages = plan(HERE | {"gpu": {"missing": "none"}, "torch": {"missing": "none"}})
    assert [stage.kind for stage in stages] == ["engine"] * 4 + ["torch"]
    assert all(stage.skip for stage in stages)


def stage_row(kind, status="done", seconds=1.0):
    return {"name": kind, "kind": kind, "status": status, "seconds": seconds}


@pytest.mark.parametrize(
    ("stages", "statuses", "code"),
    [
        ([stage_row("logits")], ["passed", "refused", "measured"], 0),
        ([stage_row("logits")], ["passed", "failed"], 1),
        ([stage_row("greedy", "crashed")], ["passed"], 1),
        ([stage_row("greedy", "out of time")], ["passed"], 1),
        ([stage_row("greedy", "out of time", 0.0)], ["passed"], 0),
        ([stage_row("speed", "crashed")], ["passed"], 0),
        ([stage_row("engine", "skipped", 0.0)], ["measured"], 3),
        ([stage_row("logits")], ["refused", "skipped"], 3),
        ([], [], 3),
    ],
)
def test_the_exit_code_is_zero_only_when_what_ran_was_right(stages, statuses, code):
    records = [{"status": status} for status in statuses]
    assert report.verdict({"stages": stages, "records": records}) == code


# --- is it right ----------------------------------------------------------------------------------


def test_the_error_is_that_of_the_worst_row():
    rng = np.random.default_rng(3)
    expected = rng.standard_normal((4, 50)).astype(np.float32)
    found = expected + rng.standard_normal((4, 50)).astype(np.float32) * 0.01
    worst = 0.0
    for mine, its in zip(found.tolist(), expected.tolist(), strict=True):
        mean = sum(its) / 50
        spread = math.sqrt(sum((x - mean) ** 2 for x in its) / 50)
        off = math.sqrt(sum((x - y) ** 2 for x, y in zip(mine, its, strict=True)) / 50)
        worst = max(worst, off / spread)
    figures = right.compare(found, found.argmax(axis=1), expected)
    assert figures["error"] == pytest.approx(worst, rel=1e-5)
    assert figures["wrong_ids"] == 0


def test_ids_that_are_not_the_argmax_and_logits_that_are_no_numbers_are_seen():
    logits = np.eye(3, 5, dtype=np.float32)
    assert right.compare(logits, np.array([0, 1, 4]), logits)["wrong_ids"] == 1
    damaged = logits.copy()
    damaged[1, 1] = np.nan
    assert right.compare(damaged, np.array([0, 1, 2]), logits)["error"] is None


@pytest.mark.parametrize("precision", sorted(right.BOUNDS))
def test_an_error_a_little_above_the_bound_of_each_dtype_is_above_it(precision):
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((3, 400)).astype(np.float32)
    bound = right.BOUNDS[precision]
    ids = logits.argmax(axis=1)
    assert right.compare(right.plant(logits, 1.2 * bound), ids, logits)["error"] > bound
    assert right.compare(right.plant(logits, 0.8 * bound), ids, logits)["error"] < bound


# --- on a tiny model ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return shape.draw_checkpoint(TINY, tmp_path_factory.mktemp("drawn") / "tiny")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work") / "quick"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def checked(checkpoint, work):
    """What a check of engine "cpu" says; its bundles stay in `work`."""
    result = work / "result.json"
    code = gpu_check.main(
        [
            *(
                "--provider",
                "cpu",
                "--quick",
                "--source",
                str(checkpoint),
                "--work",
                str(work.parent),
            ),
            *("--json", str(result), "--only", "logits", "accept"),
        ]
    )
    return code, json.loads(result.read_text())


def test_a_drawn_checkpoint_keeps_its_whole_vocabulary(checkpoint):
    from specedge.export.sources import open_source

    opened = open_source(str(checkpoint))
    try:
        assert opened.tokenizer.vocab == TINY["vocab_size"]
        assert np.isfinite(opened.tensors.rows("model.embed_tokens.weight", 0, 8)).all()
    finally:
        opened.tensors.close()


def test_both_lowerings_of_every_precision_pass_on_the_cpu(checked):
    code, result = checked
    assert code == 0
    assert result["passed"]
    by_case = {r["case"]: r for r in result["records"] if r["kind"] == "logits"}
    assert set(by_case) == {case.name for case in cases.ON_CPU}
    for record in by_case.values():
        assert record["status"] == "passed", record
        assert record["figures"]["error"] <= record["figures"]["bound"]
    assert by_case["std-fp32"]["figures"]["error"] > 0  # not held against itself
    assert {s["name"]: s["status"] for s in result["stages"]}["accept cpu"] == "done"


def test_wrong_logits_fail_the_check(checked, checkpoint, work, capsys):
    code = gpu_check.main(
        [
            *(
                "--provider",
                "cpu",
                "--quick",
                "--source",
                str(checkpoint),
                "--work",
                str(work.parent),
            ),
            *("--only", "logits", "--plant", "0.5"),
        ]
    )
    assert code == 1
    assert "NOT RIGHT" in capsys.readouterr().out


def test_a_saved_result_is_shown_with_its_exit_code(checked, work, capsys):
    assert gpu_check.main(["--show", str(work / "result.json")]) == 0
    said = capsys.readouterr().out
    assert "every correctness part that ran has passed" in said
    assert "say nothing of a GPU" in said


def ask(work, kind, *names, **more):
    """A stage in this process; its records."""
    chosen = [case for case in cases.ON_CPU if case.name in names]
    request = planning.QUICK | {"work": str(work), "engine": "cpu", "plant": 0.0}
    request |= {"cases": [vars(case) for case in chosen]} | more
    records = []

    def emit(status, case="", reason="", figures=None):
        records.append({"status": status, "case": case, "reason": reason, "figures": figures})

    gpu_check.KINDS[kind](request, emit)
    return records


def test_greedy_text_speed_and_curves_of_a_case_are_measured(checked, work):
    small = {"tokens": 6, "characters": 60, "repeats": 2, "seconds": 0.3, "ks": [2]}
    (greedy,) = ask(work, "greedy", "std-fp32", **small)
    assert greedy["status"] == "passed"
    assert greedy["figures"]["runs"] == greedy["figures"]["equal"]
    ways = ask(work, "speed", "std-fp32", **small)
    assert [r["figures"]["way"] for r in ways] == ["plain", "ngram K=2", "draft K=2"]
    plain = ways[0]["figures"]
    assert (plain["ratio"], plain["ratio_low"], plain["ratio_high"]) == (1, 1, 1)
    assert all(r["figures"]["outside_us"] > 0 and r["figures"]["runs"] == 2 for r in ways)
    (curve,) = ask(work, "curves", "std-fp32", **small)
    points = curve["figures"]["points"]
    assert {1, 16} <= {point["N"] for point in points}
    assert len({point["past"] for point in points}) > 1


def test_a_case_that_was_not_exported_or_does_not_open_leaves_the_others(checked, work):
    lost = cases.Case("lost", "ort", "fp32", "ort-fp32")
    broken = cases.Case("broken", "ort", "fp32", "ort-fp32")
    good = (work / "ort-fp32" / "specedge.json").read_text()
    for folder in (work / "broken" / "target", work / "broken"):
        folder.mkdir(exist_ok=True, parents=True)
    (work / "broken" / "specedge.json").write_text(good)
    told = [vars(case) for case in (lost, broken, cases.EXACT)]
    records = ask(work, "logits", cases=told)
    assert [r["status"] for r in records] == ["skipped", "refused", "passed"]
    assert records[1]["reason"]


def test_torch_is_timed_at_every_width_and_past():
    figures = shape.torch_baseline(TINY, on_gpu=False, pasts=(8, 32), samples=3)
    assert [(p["N"], p["past"]) for p in figures["points"]] == [
        (n, past) for past in (8, 32) for n in shape.STEP_WIDTHS
    ]
    assert all(0 < p["low_ms"] <= p["ms"] <= p["high_ms"] for p in figures["points"])


def test_time_outside_engines_is_what_is_left_of_the_phases():
    phases = {"propose_ms": 1.0, "verify_ms": 5.0, "accept_ms": 0.5, "other_ms": 0.25}
    metrics = type("Metrics", (), phases | {"engine_ms": 5.5})
    assert fast._outside_ms(metrics) == pytest.approx(1.25)


def test_wrong_usage_is_refused(tmp_path, capsys):
    for wrong in (["--source", str(tmp_path / "none.gguf")], ["--minutes", "0", "--source", "."]):
        with pytest.raises(SystemExit) as ended:
            gpu_check.main(wrong)
        assert ended.value.code == 2
    assert "--minutes must be above 0" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_a_plan_that_cannot_be_built_is_refused_with_what_build_says(checked, work):
    (record,) = ask(work, "build", "ort-fp32", engine="tensorrt-rtx")
    assert record["status"] == "refused"
    assert record["reason"].startswith(("build: ", "engine"))


def test_the_bundles_of_a_gpu_are_exported_and_right_where_the_cpu_can_run_them(
    checked, checkpoint, work
):
    told = [vars(case) for case in cases.ON_GPU]
    exported = ask(work, "export", cases=told, source=str(checkpoint), shape=None)
    assert [record["status"] for record in exported] == ["measured"] * len(told)
    records = {record["case"]: record for record in ask(work, "logits", cases=told)}
    assert records.pop("std-bf16")["status"] == "refused"  # the CPU has no kernels for it
    assert {record["status"] for record in records.values()} == {"passed"}


def test_cases_of_one_name_are_one_bundle():
    bundles = {}
    for case in (*cases.ON_CPU, *cases.ON_GPU):
        made_of = (case.lowering, case.precision, case.activations, case.draft)
        assert bundles.setdefault(case.name, made_of) == made_of

"""The check of a GPU box, its stages as processes, and on a tiny model with engine "cpu"."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import gpu_check
from gpu import box, cases, fast, planning, report, right, shape, sources
from gpu.running import Running, Stage

from specedge.engines.base import Scored

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


def test_an_engine_that_opens_nothing_fails_a_check_that_another_passes():
    passed = {"status": "passed", "engine": "cuda"}
    partly = [passed, {"status": "refused", "engine": "cuda"}]
    wholly = [passed, {"status": "refused", "engine": "tensorrt"}]
    assert report.verdict({"stages": [], "records": partly}) == 0
    assert report.verdict({"stages": [], "records": wholly}) == 1


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


# --- what is said ---------------------------------------------------------------------------------

MEGABYTE = 1 << 20
TAKES = """
import subprocess, sys, time
code = "import time; x = bytearray(90 << 20); time.sleep(2)"
children = [subprocess.Popen([sys.executable, "-c", code], start_new_session=n > 0) for n in (0, 1)]
subprocess.run(["sh", "-c", '"$0" -c "$1" &', sys.executable, code])  # has lost its parent
for child in children:
    child.wait()
"""


def test_the_memory_of_a_stage_is_that_of_all_its_processes_together(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(TAKES)
    said, _ = Running(Stage("export", "export", 30, {}), 30, script, tmp_path).finish()
    assert said["status"] == "done"
    assert 3 * 90 * MEGABYTE / 1e6 < said["peak_rss_mb"] < 3 * 90 * MEGABYTE / 1e6 + 100


def test_without_specedge_one_line_says_what_is_missing_and_how_it_is_found(tmp_path):
    bench = Path(gpu_check.__file__).parent
    shutil.copy(bench / "gpu_check.py", tmp_path)
    shutil.copytree(bench / "gpu", tmp_path / "gpu")
    command = [sys.executable, "-S", "gpu_check.py", "--source", "smollm2"]

    def said():
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30
        )
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("error: specedge, ")
        return done.stderr

    assert "make install" in said()
    (tmp_path / "kit.json").touch()
    assert "--target site wheels/*.whl, and then run PYTHONPATH=site python3" in said()
    (tmp_path / "site").mkdir()
    assert "; run PYTHONPATH=site python3 gpu_check.py" in said()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file"),
        ("{", "Expecting"),
        ('{"name": "x"}', "expected a result of gpu_check.py of schema 1"),
        ("[1]", "expected a result of gpu_check.py of schema 1"),
        ('{"schema": 1, "box": {}}', "a part is missing"),
        ('{"schema": 1, "box": {}, "records": [3], "stages": [], "provider": "cpu"}', "a part"),
    ],
)
def test_what_is_no_result_is_not_shown_and_one_line_says_so(text, reason, tmp_path, capsys):
    path = tmp_path / "other.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit) as ended:
        gpu_check.main(["--show", str(path)])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"error: --show: {path}: {reason}")


def test_places_that_cannot_be_written_are_refused_before_anything_runs(tmp_path, capsys):
    (tmp_path / "file").touch()
    for wrong in (
        ["--json", str(tmp_path / "none" / "out.json")],
        ["--json", str(tmp_path)],
        ["--work", str(tmp_path / "file")],
        ["--work", str(tmp_path / "file" / "below")],
        ["--minutes", "nan"],
    ):
        with pytest.raises(SystemExit) as ended:
            gpu_check.main(["--source", str(tmp_path), *wrong])
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: {wrong[0]}")
        assert said.count("\n") == 1


def test_a_damaged_model_is_one_line(tmp_path, capsys):
    (tmp_path / "model.gguf.gz").write_bytes(b"no gzip")
    assert gpu_check.main(["--source", str(tmp_path / "model.gguf.gz")]) == 3
    said = capsys.readouterr().err
    assert said.startswith("error: source ")
    assert said.count("\n") == 1


def test_a_config_is_what_a_kit_has_of_its_model(tmp_path, monkeypatch):
    import gpu_kit

    from gguf_writing import write

    whole = write(tmp_path / "whole.gguf")
    monkeypatch.setattr(sources, "of_config", lambda name: whole)
    monkeypatch.setattr(sources, "LAYERS", 1)
    monkeypatch.chdir(tmp_path)
    taken = []
    monkeypatch.setattr(gpu_check, "check", lambda given, source, work: taken.append(source) or {})
    monkeypatch.setattr(gpu_check, "render", str)
    monkeypatch.setattr(gpu_check, "verdict", lambda result: 0)
    assert gpu_check.main(["--source", "smollm2", "--work", str(tmp_path / "work")]) == 0
    gpu_kit.truncate(whole, tmp_path / "cut.gguf", 1, gpu_kit.EMBEDDING)
    assert taken[0].read_bytes() == (tmp_path / "cut.gguf").read_bytes()


def test_help_speaks_in_words(capsys):
    with pytest.raises(SystemExit):
        gpu_check.main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "[default: 7.7, or 25 with --provider cpu]" in said
    assert "{'" not in said


def test_a_reason_is_given_once_and_then_said_where_it_stands(capsys):
    why = "the driver is not installed here; " + "and a person can do a lot about it " * 4
    found = HERE | {"gpu": {"missing": why}}
    stages = [vars(stage) | {"status": "skipped", "seconds": 0.0} for stage in plan(found)]
    stages = [{**stage, "reason": stage["skip"] or ""} for stage in stages]
    broken = "the runtime has ended in a way that it tells at length"
    record = {"stage": "logits cuda", "kind": "logits", "status": "refused", "figures": {}}
    records = [record | {"case": case, "reason": broken} for case in ("a", "b", "c")]
    result = {"box": found, "stages": stages, "records": records, "provider": "gpu"}
    said = report.render(result)
    assert said.count(why.strip()) == 1
    assert said.count("no GPU: see gpu, above") == len(box.ENGINES)
    assert said.count(broken) == 1
    assert said.count("see logits cuda a, above") == 2
    reasons = report.Reasons(found)
    for stage in stages:
        report.tell(stage, [], reasons)
    assert why.strip() not in capsys.readouterr().err


def test_of_one_sample_no_range_is_shown():
    def point(n, calls):
        return {"N": n, "past": 8, "calls": calls, "ms": 2.0, "low_ms": 1.5, "high_ms": 2.5}

    figures = {"points": [point(1, 1), point(2, 3)]}
    (row,) = report._curve_rows({"engine": "cuda", "case": "a", "figures": figures})
    assert (row["N=1"], row["N=2"]) == ("2.00", "2.00 (1.50 to 2.50)")
    figures = {"way": "plain", "tokens_per_second": 1.0, "acceptance_length": None}
    figures |= {"ratio": 1.2, "ratio_low": 1.1, "ratio_high": 1.3, "outside_us": 1.0}
    for runs, shown in ((1, "1.20"), (2, "1.20 (1.10 to 1.30)")):
        record = {"engine": "cuda", "case": "a", "figures": figures | {"runs": runs}}
        assert report._speed_row(record)["over plain"] == shown


def test_what_engines_note_and_what_they_allocated_is_in_the_report():
    figures = {"error": 0.0, "bound": 1.0, "notes": ["no graph of width 3"], "engine_mb": 12.3}
    record = {"stage": "logits tensorrt", "kind": "logits", "status": "passed", "reason": ""}
    records = [record | {"case": case, "figures": figures, "engine": "tensorrt"} for case in "ab"]
    said = report.render({"box": {}, "stages": [], "records": records, "provider": "gpu"})
    assert said.count("no graph of width 3") == 1
    assert "logits tensorrt a  no graph of width 3" in said
    assert "of the engine" in said
    assert "12" in said


# --- CUDA graphs ----------------------------------------------------------------------------------


class Replaying:
    """An engine whose second and later calls of a width are answered as the first was."""

    notes = ("a note",)
    device_bytes = 3_000_000

    def __init__(self, inner, stale=False):
        self._inner, self._stale, self._kept = inner, stale, {}

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def forward(self, slot, tokens, n_cached, rows):
        scored = self._inner.forward(slot, tokens, n_cached, rows)
        if not self._stale:
            return scored
        mine = Scored(scored.greedy_ids.copy(), scored.logits.copy(), scored.run_ms)
        return self._kept.setdefault((len(tokens), rows), mine)


@pytest.fixture
def on_cpu(monkeypatch):
    """Every engine is the CPU's; yields the options that were asked for, and which are stale."""
    from specedge.engines import registry

    real, asked, stale = registry.create, [], []

    def create(name, path, spec, options=None):
        asked.append((path.name, options))
        return Replaying(real("cpu", path, spec), stale=options in stale)

    monkeypatch.setattr(registry, "create", create)
    return asked, stale


@pytest.mark.parametrize(
    ("engine", "options", "said"),
    [
        ("cuda", {"enable_cuda_graph": True}, "CUDA graphs"),
        ("tensorrt", {"cuda_graphs": False}, "no CUDA graphs"),
        ("tensorrt-rtx", {"cuda_graphs": False}, "no CUDA graphs"),
    ],
)
def test_an_engine_is_checked_and_timed_with_cuda_graphs_and_without(
    checked, work, on_cpu, engine, options, said
):
    asked, _ = on_cpu
    for kind in ("logits", "curves"):
        asked.clear()
        records = ask(work, kind, "ort-fp32", "std-fp32", engine=engine, seconds=0.2)
        assert asked == [("ort-fp32", None), ("std-fp32", None), ("std-fp32", options)]
        assert [r["case"] for r in records] == ["ort-fp32", "std-fp32", f"std-fp32, {said}"]
        for record in records:
            assert record["status"] == ("passed" if kind == "logits" else "measured")
            assert record["figures"]["notes"] == ["a note"]
            assert record["figures"]["engine_mb"] == 3


def test_a_graph_that_answers_with_an_earlier_call_fails_the_check(checked, work, on_cpu):
    options = {"enable_cuda_graph": True}
    on_cpu[1].append(options)
    eager, replayed = ask(work, "logits", "std-fp32", engine="cuda")
    assert eager["status"] == "passed"
    assert replayed["status"] == "failed"
    assert replayed["reason"] == "the logits are not those of the CPU"


def test_the_options_of_cuda_graphs_are_those_that_the_engines_take():
    from specedge.engines import ort_options
    from specedge.engines.trt import options

    for engine, (_, said) in cases.CAPTURED.items():
        if engine == "cuda":
            assert ort_options.split("cuda", said).provider == {"enable_cuda_graph": "1"}
        else:
            assert said.keys() <= options._KINDS.keys()

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest

from commands import runner
from machines import CPU, FakeNvml, install, put, zone
from specedge import doctor
from specedge.engines import cuda

GPU = cuda.Device("NVIDIA H200", (9, 0), 143 << 30, (13, 0))
NEEDS = "for --engine tensorrt"
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def installed(monkeypatch):
    """Pretend that exactly these distributions are installed."""

    def pretend(**versions: str) -> None:
        known = {name.replace("_", "-"): number for name, number in versions.items()}
        monkeypatch.setattr(doctor, "version", known.get)
        monkeypatch.setattr(doctor, "_providers", lambda name: doctor.Row("providers", "ok", name))

    return pretend


def rows(check) -> dict[str, doctor.Row]:
    return {row.check: row for row in check()}


def test_this_environment_can_run_bundles():
    assert {row.check: row for row in doctor.examine() if row.status == "fail"} == {}


def test_no_runtime_is_a_failure_that_names_the_extra(installed):
    installed()
    (row,) = doctor.check_runtime()
    assert (row.status, row.found) == ("fail", "not installed")
    assert "specedge[cpu]" in row.remedy


def test_two_runtimes_are_a_failure_with_the_way_out(installed):
    installed(onnxruntime="1.32.0", onnxruntime_gpu="1.31.0")
    (row,) = doctor.check_runtime()
    assert row.status == "fail"
    assert row.found == "several: onnxruntime 1.32.0, onnxruntime-gpu 1.31.0"
    assert row.remedy.startswith("pip uninstall -y onnxruntime onnxruntime-gpu; then")


@pytest.mark.parametrize(("device", "extra"), [(GPU, "gpu"), ("no driver; install it", "cpu")])
def test_of_two_runtimes_the_one_for_this_machine_is_kept(installed, monkeypatch, device, extra):
    monkeypatch.setattr(cuda, "find", lambda ordinal=0: device)
    installed(onnxruntime="1.32.0", onnxruntime_gpu="1.31.0")
    (row,) = doctor.check_runtime()
    assert row.remedy.endswith(f'pip install "specedge[{extra}]"')


def test_an_extra_for_a_gpu_is_missed_only_where_there_is_one(installed, monkeypatch):
    installed()
    monkeypatch.setattr(cuda, "find", lambda ordinal=0: "no driver; install it")
    row = rows(doctor.check_extras)["[tensorrt]"]
    assert row == doctor.Row("[tensorrt]", "ok", "not installed; of no use without a GPU")
    assert rows(doctor.check_extras)["[tensorrt-rtx]"].status == "warn"  # builds without one
    monkeypatch.setattr(cuda, "find", lambda ordinal=0: GPU)
    row = rows(doctor.check_extras)["[tensorrt]"]
    assert (row.status, row.remedy) == ("warn", f'{NEEDS}: pip install "specedge[tensorrt]"')


@pytest.mark.parametrize(
    ("versions", "status"),
    [
        ({"onnxruntime": "1.32.0"}, "ok"),
        ({"onnxruntime": "1.31.9"}, "warn"),
        ({"onnxruntime": "1.33.0"}, "warn"),
        ({"onnxruntime": "2.0"}, "warn"),
        ({"onnxruntime_gpu": "1.31.0"}, "ok"),
        ({"onnxruntime_openvino": "1.32.0"}, "warn"),
    ],
)
def test_a_runtime_outside_the_tried_range_is_a_warning(installed, versions, status):
    installed(**versions)
    row = rows(doctor.check_runtime)["onnxruntime"]
    assert row.status == status
    assert bool(row.remedy) == (status != "ok")


def test_a_runtime_that_does_not_import_is_a_failure_with_its_last_line(monkeypatch):
    monkeypatch.setattr(doctor, "_PROBE", "raise ImportError('libfoo.so is missing')")
    row = doctor._providers("onnxruntime")
    assert row.status == "fail"
    assert "ImportError: libfoo.so is missing" in row.found


def test_a_runtime_that_kills_its_process_is_a_failure(monkeypatch):
    monkeypatch.setattr(doctor, "_PROBE", "import os; os.abort()")
    assert doctor._providers("onnxruntime").status == "fail"


def test_missing_extras_are_warnings(installed):
    installed(gguf="1")
    found = rows(doctor.check_extras)
    assert found["[export]"].status == found["[hub]"].status == "warn"
    assert "onnx-ir" in found["[export]"].found
    assert 'pip install "specedge[hub]"' in found["[hub]"].remedy


def test_every_extra_that_a_command_asks_for_is_looked_at(installed):
    installed()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {f"[{name}]" for name in extras["optional-dependencies"]}
    assert set(rows(doctor.check_extras)) == named - {
        *("[cpu]", "[gpu]", "[power]"),  # checks of their own
        *("[test]", "[dev]"),
    }


def test_a_cpu_quota_below_the_cores_suggests_threads(monkeypatch):
    monkeypatch.setattr(doctor, "usable_cores", lambda: 8)
    monkeypatch.setattr(
        doctor, "_lines", lambda path: ["200000 100000"] if path.endswith("cpu.max") else []
    )
    row = rows(doctor.check_cpu)["threads"]
    assert (row.status, row.remedy) == ("warn", "run with --threads 2")


def test_a_memory_limit_of_the_control_group_counts(monkeypatch):
    files = {
        "/proc/meminfo": ["MemTotal: 16777216 kB", "MemAvailable: 8388608 kB"],
        "/sys/fs/cgroup/memory.max": [str(512 << 20)],
    }
    monkeypatch.setattr(doctor, "_lines", lambda path: files.get(path, []))
    (row,) = doctor.check_memory()
    assert (row.status, row.found) == ("warn", "512.0 MiB available of 512.0 MiB")


def test_a_power_meter_and_the_clocks_are_shown_with_the_settings(installed, tmp_path):
    installed(onnxruntime="1.32.0")
    zone(tmp_path, "0", "package-0", 5)
    put(tmp_path, {f"{CPU}/cpu0/cpufreq/scaling_cur_freq": 3_000_000})
    put(tmp_path, {f"{CPU}/cpu0/cpufreq/scaling_governor": "performance"})
    found = rows(lambda: doctor.check_power(tmp_path))
    assert found["power meter"] == doctor.Row("power meter", "ok", "RAPL package-0")
    assert found["clocks"] == doctor.Row("clocks", "ok", "CPU 3000 MHz, governor performance")


def test_a_machine_without_a_meter_is_no_worse_for_it(installed, tmp_path):
    installed(onnxruntime="1.32.0")
    found = rows(lambda: doctor.check_power(tmp_path))
    assert found["power meter"].found.startswith("none: RAPL: no package")
    assert {row.status for row in found.values()} == {"ok"}
    assert found["clocks"].found == "unreadable"


def test_a_meter_that_only_root_may_read_has_a_remedy(installed, tmp_path, monkeypatch):
    installed(onnxruntime="1.32.0")
    counter = zone(tmp_path, "0", "package-0", 5)

    monkeypatch.setattr("specedge.power.rapl.files.trouble", lambda path: "Permission denied")
    row = rows(lambda: doctor.check_power(tmp_path))["power meter"]
    assert (row.status, counter.name in row.remedy) == ("warn", True)


def test_a_gpu_is_asked_where_its_runtime_is_installed(installed, tmp_path, monkeypatch):
    installed(onnxruntime_gpu="1.31.0")
    nvml = FakeNvml()
    install(monkeypatch, nvml)
    found = rows(lambda: doctor.check_power(tmp_path))
    assert found["power meter"].found == "NVML NVIDIA H200"
    assert found["clocks"].found == "GPU 1980 MHz"
    assert nvml.users == 0
    install(monkeypatch, None)
    row = rows(lambda: doctor.check_power(tmp_path))["power meter"]
    assert (row.status, "specedge[power]" in row.remedy) == ("warn", True)


def test_a_laptop_on_its_battery_is_a_warning(installed, tmp_path):
    installed(onnxruntime="1.32.0")
    put(tmp_path, {"sys/class/power_supply/BAT0/type": "Battery"})
    row = rows(lambda: doctor.check_power(tmp_path))["clocks"]
    assert (row.status, row.remedy[:7]) == ("warn", "plug in")


def test_a_cache_that_cannot_be_written_is_a_warning(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path / "file" / "cache"))
    (row,) = doctor.check_cache()
    assert row.status == "warn"
    assert "SPECEDGE_CACHE" in row.remedy


def test_looking_creates_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path / "absent"))
    assert [row.status for row in doctor.check_cache()] in (["ok"], ["warn"])
    assert os.listdir(tmp_path) == []


def test_the_command_exits_with_1_on_a_failure_and_shows_the_remedy(
    capfd, monkeypatch, tmp_path: Path
):
    said = runner(capfd, monkeypatch)
    bad = doctor.Row("onnxruntime", "fail", "not installed", 'pip install "specedge[cpu]"')
    monkeypatch.setattr(doctor, "examine", lambda: [doctor.Row("python", "ok", "3"), bad])
    code, out, _ = said("doctor")
    assert code == 1
    assert 'pip install "specedge[cpu]"' in out
    code, out, _ = said("doctor", "--json")
    report = json.loads(out)
    assert (code, report["ok"]) == (1, False)
    assert report["rows"][1]["remedy"] == bad.remedy
    monkeypatch.setattr(doctor, "examine", lambda: [doctor.Row("hub", "warn", "no", "x")])
    assert said("doctor")[0] == 0

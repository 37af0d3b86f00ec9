"""What doctor says of a GPU and of the runtimes for one."""

from __future__ import annotations

import pytest

from machines import FakeNvml, install
from specedge import device_checks
from specedge.doctor_row import Row
from specedge.engines import cuda

H200 = cuda.Device("NVIDIA H200", (9, 0), 143 << 30, (13, 0))
NO_DRIVER = "the driver is missing; install it"


@pytest.fixture
def machine(monkeypatch):
    """Say which GPU there is, what is installed, and what children find."""

    def made(device=NO_DRIVER, installed=(), *, ort=((13, 0), (None, None)), trt=None, nvml=None):
        known = dict.fromkeys(installed, "1.0")
        children = {device_checks._ORT: ort, device_checks._TENSORRT: trt}
        monkeypatch.setattr(cuda, "find", lambda ordinal=0: device)
        monkeypatch.setattr(device_checks, "version", known.get)
        monkeypatch.setattr(device_checks, "_child", lambda code, *_: children[code])
        install(monkeypatch, nvml)
        return {row.check: row for row in device_checks.check_gpu()}

    return made


def test_a_machine_without_a_gpu_is_no_worse_for_it(machine):
    assert machine() == {"gpu": Row("gpu", "ok", "none: the driver is missing")}


@pytest.mark.parametrize("name", device_checks.ON_GPU)
def test_a_package_that_needs_a_gpu_makes_a_missing_one_a_warning(machine, name):
    row = machine(installed=[name], trt=["11.4", [], ""])["gpu"]
    assert (row.status, row.remedy) == ("warn", f"for {name}: install it")


def test_a_gpu_is_shown_with_what_a_person_asks_about_it(machine):
    row = machine(H200, nvml=FakeNvml())["gpu"]
    assert row.status == "ok"
    assert row.found == (
        "NVIDIA H200, compute capability 9.0; 140.0 GiB free of 143.0 GiB; driver 575.57.08 for "
        "CUDA 13.0"
    )
    assert "143.0 GiB of memory; driver of unknown version" in machine(H200)["gpu"].found


def test_a_gpu_that_others_fill_is_a_warning(machine):
    small = cuda.Device("NVIDIA H200", (9, 0), 1500 << 30, (13, 0))
    row = machine(small, nvml=FakeNvml())["gpu"]
    assert (row.status, "nvidia-smi" in row.remedy) == ("warn", True)


@pytest.mark.parametrize(
    ("device", "ort", "cuda_row", "tensorrt_row"),
    [
        (H200, ((13, 0), (None, None)), "ok", "ok"),
        (NO_DRIVER, ((13, 0), (None, None)), "ok", "ok"),
        (H200, (None, (None, None)), "ok", "ok"),
        (H200, ((14, 0), (None, None)), "warn", "warn"),
        (H200, ((13, 0), ("needs libcublas.so.13; install it", None)), "warn", "ok"),
        (H200, ((13, 0), (None, "needs libnvinfer.so.10; get it")), "ok", "warn"),
        (NO_DRIVER, ((13, 0), ("needs libcublas.so.13; install it",) * 2), "ok", "ok"),
        (H200, "importing the libraries of cuda: exit -6", "warn", None),
    ],
)
def test_each_engine_of_onnxruntime_is_looked_at(machine, device, ort, cuda_row, tensorrt_row):
    rows = machine(device, ["onnxruntime-gpu"], ort=ort)
    statuses = {name: row.status for name, row in rows.items()}
    assert statuses["engine cuda"] == cuda_row
    assert statuses.get("engine ort-tensorrt") == tensorrt_row
    for row in rows.values():
        assert bool(row.remedy) == (row.status != "ok")


def test_without_a_gpu_an_engine_is_unusable_for_that_and_for_nothing_else(machine):
    lacks = ((13, 0), (None, "needs libnvinfer.so.10; get it"))
    rows = machine(NO_DRIVER, ["onnxruntime-gpu"], ort=lacks)
    assert rows["engine ort-tensorrt"] == Row("engine ort-tensorrt", "ok", "not usable: no GPU")
    assert rows["engine cuda"].found == "not usable: no GPU; its libraries are here"


def test_tensorrt_that_onnxruntime_cannot_use_is_a_warning_where_it_is_installed(machine):
    ort = ((13, 0), (None, "needs libnvinfer.so.10; get it"))
    rows = machine(
        H200, ["onnxruntime-gpu", "tensorrt", "cuda-bindings"], ort=ort, trt=["11", [], ""]
    )
    assert rows["engine ort-tensorrt"] == Row(
        "engine ort-tensorrt", "warn", "needs libnvinfer.so.10", "get it"
    )
    assert rows["tensorrt"].status == "ok"


@pytest.mark.parametrize(
    ("device", "trt", "bindings", "status", "said"),
    [
        (NO_DRIVER, ["1.7", [89, 120], ""], True, "ok", "builds for compute capability 89, 120"),
        (H200, ["1.7", [89, 120], ""], True, "warn", "not for NVIDIA H200"),
        (H200, ["1.7", [89, 90], ""], True, "ok", "1.7, cuda-bindings 1.0; builds for"),
        (H200, ["1.7", [], ""], True, "ok", "1.7, cuda-bindings 1.0"),
        (H200, ["1.7", [90], ""], False, "warn", "cuda-bindings not installed"),
        (H200, ["", [], "engine: it is empty; get another"], True, "warn", "it is empty"),
        (H200, "importing the libraries of tensorrt-rtx: no", True, "warn", "importing the"),
    ],
)
def test_tensorrt_rtx_says_what_it_builds_for_and_what_it_lacks(
    machine, device, trt, bindings, status, said
):
    packages = ["tensorrt-rtx", *(["cuda-bindings"] if bindings else [])]
    row = machine(device, packages, trt=trt)["tensorrt-rtx"]
    assert row.status == status
    assert said in row.found
    assert bool(row.remedy) == (status != "ok")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print('noise'); print('[1]')", [1]),
        ("import os; os.abort()", "importing the libraries of x: exit -6"),
        ("raise ImportError('libx is missing')", "importing the libraries of x: ImportError: libx"),
    ],
)
def test_a_child_that_ends_badly_is_a_line(code, said):
    found = device_checks._child(code, "x")
    assert found == said if isinstance(said, list) else found.startswith(said)


def test_what_is_installed_here_is_imported_and_described():
    rows = {row.check: row for row in device_checks.check_gpu()}
    assert rows["gpu"].status in ("ok", "warn")
    for name in ("tensorrt", "tensorrt-rtx"):
        if name in rows:
            assert rows[name].status == "ok", rows[name]

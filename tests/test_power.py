"""Meters over file trees of machines that are not at hand."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from machines import ORIN_NANO, FakeNvml, NVMLError, Ticks, failing, install, orin_nano, put, zone
from specedge.power import files, jetson, open_meter, settings, why_no_meter
from specedge.power.counting import LONGEST_GAP_S, CounterMeter, SampledMeter, Wrapping
from specedge.power.nvml import Gpu, open_gpu

GARBAGE = ["", "\0", "12 34", "1e3", "-5", "nan", "0x10", "9" * 40, "١٢", "x" * 5000]


def test_packages_and_memories_are_summed_and_what_lies_inside_them_is_not(tmp_path):
    package = zone(tmp_path, "0", "package-0", 1_000_000)
    zone(tmp_path, "0:0", "core", 500)
    memory = zone(tmp_path, "0:1", "dram", 7_000_000)
    other = zone(tmp_path, "1", "package-1", 0)
    zone(tmp_path, "2", "psys", 500)
    meter = open_meter(tmp_path)
    assert meter is not None
    assert meter.source == "RAPL package-0 + package-1 + dram"
    assert meter.joules() == 0
    for path, value in ((package, 3_000_000), (memory, 7_500_000), (other, 250_000)):
        path.write_text(str(value))
    assert meter.joules() == pytest.approx(2.75)
    assert meter.joules() == pytest.approx(2.75)


def test_a_counter_that_starts_again_goes_on_counting(tmp_path):
    counter = zone(tmp_path, "0", "package-0", 900, range_uj=1000)
    meter = open_meter(tmp_path)
    assert meter is not None
    for value, joules in ((990, 90e-6), (40, 140e-6), (400, 500e-6), (800, 900e-6), (30, 1130e-6)):
        counter.write_text(str(value))
        assert meter.joules() == pytest.approx(joules)


@pytest.mark.parametrize("range_uj", ["garbage", 0, -1, 500, 100_000])
def test_a_counter_that_falls_without_having_been_full_has_lost_count(tmp_path, range_uj):
    counter = zone(tmp_path, "0", "package-0", 900, range_uj=range_uj)
    meter = open_meter(tmp_path)
    assert meter is not None
    counter.write_text("100")
    assert meter.joules() is None
    counter.write_text("2000")
    assert meter.joules() is None


def test_a_sum_that_lacks_a_part_is_none_until_the_part_is_back(tmp_path):
    zone(tmp_path, "0", "package-0", 0)
    counter = zone(tmp_path, "1", "package-1", 0)
    meter = open_meter(tmp_path)
    assert meter is not None
    counter.unlink()
    assert meter.joules() is None
    counter.write_text("3000000")
    assert meter.joules() == pytest.approx(3.0)
    meter.close()
    meter.close()
    assert meter.joules() is None


def test_a_counter_that_never_moves_is_not_believed():
    ticks = Ticks()
    meter = CounterMeter("still", [Wrapping(lambda: 5.0, None)], ticks)
    ticks.now += 0.5
    assert meter.joules() == 0
    ticks.now += 1
    assert meter.joules() is None


@pytest.mark.parametrize("value", GARBAGE)
def test_a_counter_of_garbage_gives_no_meter_and_says_why(tmp_path, value):
    counter = zone(tmp_path, "0", "package-0", value)
    assert open_meter(tmp_path) is None
    assert str(counter) in why_no_meter(tmp_path)
    assert "expected a count" in why_no_meter(tmp_path)


@pytest.mark.parametrize("value", GARBAGE)
def test_garbage_is_no_count(tmp_path, value):
    assert files.count(put(tmp_path, {"file": value}) / "file") is None


def test_one_package_that_cannot_be_read_leaves_no_meter(tmp_path):
    zone(tmp_path, "0", "package-0", 5)
    counter = zone(tmp_path, "1", "package-1", "garbage")
    assert open_meter(tmp_path) is None
    assert str(counter) in why_no_meter(tmp_path)


def test_a_counter_that_turns_into_garbage_reads_as_none(tmp_path):
    counter = zone(tmp_path, "0", "package-0", 5)
    meter = open_meter(tmp_path)
    assert meter is not None
    for value in (b"\xff\xfe", *(each.encode() for each in GARBAGE)):
        counter.write_bytes(value)
        assert meter.joules() is None


def test_a_counter_for_root_only_gives_no_meter_and_says_so(tmp_path, monkeypatch):
    zone(tmp_path, "0", "package-0", 5)
    monkeypatch.setattr(files.os, "open", _forbidding("energy_uj"))
    assert open_meter(tmp_path) is None
    why = why_no_meter(tmp_path)
    assert why.startswith("RAPL: ")
    assert why.endswith("energy_uj: Permission denied")


def _forbidding(name: str):
    opened = os.open

    def maybe(path, *more, **given):
        if str(path).endswith(name):
            raise PermissionError(13, "Permission denied")
        return opened(path, *more, **given)

    return maybe


def test_a_machine_without_any_meter_says_where_it_looked(tmp_path):
    assert open_meter(tmp_path) is None
    assert why_no_meter(tmp_path) == f"RAPL: no package under {tmp_path}/sys/class/powercap"
    assert open_meter(tmp_path / "nowhere") is None


def test_a_machine_with_a_meter_has_no_reason_for_none(tmp_path):
    zone(tmp_path, "0", "package-0", 5)
    assert why_no_meter(tmp_path) == ""


def test_a_pipe_or_a_folder_in_place_of_a_file_is_unreadable_and_holds_nobody_up(tmp_path):
    counter = zone(tmp_path, "0", "package-0", 5)
    counter.unlink()
    os.mkfifo(counter)
    assert open_meter(tmp_path) is None
    counter.unlink()
    counter.mkdir()
    assert open_meter(tmp_path) is None
    (tmp_path / "round").symlink_to(tmp_path / "round")
    assert files.text(tmp_path / "round") is None
    assert files.text(Path("a\0b")) is None


def test_the_input_rail_of_a_jetson_is_integrated_over_time(tmp_path):
    orin_nano(tmp_path, in_mv=5000, in_ma=2000)  # 10 W
    ticks = Ticks()
    meter = open_meter(tmp_path, every_s=0, clock=ticks)
    assert meter is not None
    assert meter.source == "INA3221 VDD_IN"
    assert meter.joules() == 0
    ticks.now += 2
    assert meter.joules() == pytest.approx(20)
    put(tmp_path, {f"{ORIN_NANO}/curr1_input": 4000})  # 20 W
    ticks.now += 2
    assert meter.joules() == pytest.approx(20 + 30)
    put(tmp_path, {f"{ORIN_NANO}/in1_input": "gone"})
    ticks.now += 1
    assert meter.joules() == pytest.approx(50)
    ticks.now += LONGEST_GAP_S
    assert meter.joules() is None
    put(tmp_path, {f"{ORIN_NANO}/in1_input": 5000})
    assert meter.joules() is None


@pytest.mark.parametrize(
    ("rails", "watts", "source"),
    [
        ({"POM_5V_IN": 4, "POM_5V_GPU": 1, "POM_5V_CPU": 1}, 4, "INA3221 POM_5V_IN"),
        (
            {"VDD_GPU_SOC": 8, "VDD_CPU_CV": 4, "VIN_SYS_5V0": 2, "VDDQ_VDD2_1V8AO": 1},
            14,
            "INA3221 VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0",
        ),
        (
            {"GPU": 6, "CPU": 5, "SOC": 4, "CV": 3, "VDDRQ": 2, "SYS5V": 1},
            21,
            "INA3221 GPU + CPU + SOC + CV + VDDRQ + SYS5V",
        ),
    ],
)
@pytest.mark.parametrize("older", [True, False])
def test_rails_that_make_up_the_module_are_added_and_others_are_not(
    tmp_path, rails, watts, source, older
):
    for n, (name, each) in enumerate(rails.items()):
        device, channel = divmod(n, 3)
        if older:
            folder = f"sys/bus/i2c/drivers/ina3221x/1-004{device}/iio:device{device}"
            files_of = {f"rail_name_{channel}": name, f"in_power{channel}_input": each * 1000}
        else:
            folder = f"sys/bus/i2c/drivers/ina3221/1-004{device}/hwmon/hwmon{device}"
            files_of = {f"in{channel + 1}_label": name, f"in{channel + 1}_input": 4000}
            files_of[f"curr{channel + 1}_input"] = each * 250
        put(tmp_path, {f"{folder}/{file}": value for file, value in files_of.items()})
    ticks = Ticks()
    meter = open_meter(tmp_path, every_s=0, clock=ticks)
    assert meter is not None
    ticks.now += 1
    assert (meter.joules(), meter.source) == (pytest.approx(watts), source)


def test_unknown_rails_are_not_added_up_and_another_meter_is_looked_for(tmp_path):
    put(tmp_path, {f"{ORIN_NANO}/in1_label": "VDD_MYSTERY", f"{ORIN_NANO}/in1_input": 1})
    why = why_no_meter(tmp_path)
    assert why.startswith("INA3221: no known sum of the rails VDD_MYSTERY; RAPL: no package")
    zone(tmp_path, "0", "package-0", 5)
    meter = open_meter(tmp_path)
    assert meter is not None
    assert meter.source == "RAPL package-0"


def test_an_input_rail_that_is_switched_off_gives_no_meter(tmp_path):
    orin_nano(tmp_path)
    (tmp_path / ORIN_NANO / "curr1_input").unlink()
    assert "INA3221: VDD_IN cannot be read" in why_no_meter(tmp_path)


def test_one_rail_of_a_sum_that_cannot_be_read_leaves_no_meter(tmp_path):
    folder = "sys/bus/i2c/drivers/ina3221x/1-0040/iio:device0"
    for n, name in enumerate(("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")):
        put(tmp_path, {f"{folder}/rail_name_{n}": name, f"{folder}/in_power{n}_input": 1000})
    meter = open_meter(tmp_path, every_s=0)
    assert meter is not None
    put(tmp_path, {f"{folder}/in_power1_input": "-1"})
    assert "cannot be read" in why_no_meter(tmp_path)


def test_a_rail_that_two_sensors_name_is_not_trusted(tmp_path):
    orin_nano(tmp_path)
    put(tmp_path, {f"{ORIN_NANO.replace('1-0040', '1-0041')}/in1_label": "VDD_IN"})
    assert "VDD_IN" not in jetson.rails(tmp_path)


def test_a_thread_takes_samples_until_the_meter_is_closed():
    read = threading.Event()

    def watts() -> float:
        if threading.current_thread() is not threading.main_thread():
            read.set()
        return 3.0

    meter = SampledMeter("thread", watts, every_s=0.001)
    assert read.wait(5)
    joules = meter.joules()
    assert joules is not None
    assert joules > 0
    meter.close()
    meter.close()
    assert not [each for each in threading.enumerate() if each.name == "specedge-power"]
    assert meter.joules() is None


def test_a_gap_in_the_samples_loses_count():
    ticks = Ticks()
    meter = SampledMeter("gap", lambda: 1.0, every_s=0, clock=ticks)
    ticks.now += LONGEST_GAP_S + 1
    assert meter.joules() is None
    ticks.now += 1
    assert meter.joules() is None


def test_a_clock_that_goes_back_loses_count():
    ticks = Ticks()
    meter = SampledMeter("back", lambda: 1.0, every_s=0, clock=ticks)
    ticks.now -= 1
    assert meter.joules() is None


def test_the_energy_counter_of_a_gpu_is_taken_before_its_power(tmp_path, monkeypatch):
    nvml = FakeNvml()
    install(monkeypatch, nvml)
    zone(tmp_path, "0", "package-0", 5)
    meter = open_meter(tmp_path, on_gpu=True)
    assert meter is not None
    assert meter.source == "NVML NVIDIA H200"
    assert why_no_meter(tmp_path, on_gpu=True) == ""
    nvml.energy += 2500
    assert meter.joules() == pytest.approx(2.5)
    assert nvml.users == 1
    meter.close()
    meter.close()
    assert nvml.users == 0
    assert meter.joules() is None


def test_a_gpu_without_an_energy_counter_is_sampled(tmp_path, monkeypatch):
    nvml = FakeNvml(lacks=("nvmlDeviceGetTotalEnergyConsumption",))
    install(monkeypatch, nvml)
    ticks = Ticks()
    meter = open_meter(tmp_path, on_gpu=True, every_s=0, clock=ticks)
    assert meter is not None
    assert meter.source == "NVML NVIDIA H200, sampled"
    ticks.now += 2
    assert meter.joules() == pytest.approx(600)
    meter.close()


def test_a_gpu_that_tells_nothing_gives_no_meter(tmp_path, monkeypatch):
    lacks = ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage")
    nvml = FakeNvml(lacks)
    install(monkeypatch, nvml)
    assert why_no_meter(tmp_path, on_gpu=True).endswith("tells neither energy nor power")
    assert nvml.users == 0


def test_a_jetson_is_measured_whole_even_when_its_gpu_works(tmp_path, monkeypatch):
    install(monkeypatch, FakeNvml())
    meter = open_meter(orin_nano(tmp_path), on_gpu=True, every_s=0)
    assert meter is not None
    assert meter.source == "INA3221 VDD_IN"


def test_without_the_package_or_the_driver_there_is_a_reason(tmp_path, monkeypatch):
    install(monkeypatch, None)
    assert why_no_meter(tmp_path, on_gpu=True) == "NVML: nvidia-ml-py is not installed"
    nvml = FakeNvml()
    nvml.nvmlInit = failing(NVMLError("NVML Shared Library Not Found"))
    install(monkeypatch, nvml)
    assert why_no_meter(tmp_path, on_gpu=True) == "NVML: NVML Shared Library Not Found"


@pytest.mark.parametrize(
    ("visible", "asked", "reason"),
    [
        (None, 0, ""),
        ("1", 1, ""),
        (" 1 ,0", 1, ""),
        ("GPU-8932f937", "GPU-8932f937", ""),
        ("", None, "shows no GPU"),
        ("-1", None, "shows no GPU"),
        ("7", None, "GPU 7: Invalid Argument"),
    ],
)
def test_the_gpu_is_the_one_that_this_process_computes_on(monkeypatch, visible, asked, reason):
    nvml = FakeNvml()
    install(monkeypatch, nvml)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    gpu = open_gpu()
    assert nvml.asked_for == asked
    if reason:
        assert isinstance(gpu, str)
        assert reason in gpu
    else:
        assert isinstance(gpu, Gpu)
        gpu.close()
    assert nvml.users == 0


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0x000, ()),
        (0x113, ()),  # idle, clocks that were asked for, sync boost, display
        (0x004, ("power limit",)),
        (0x048, ("thermal slowdown by hardware",)),
        (0x088, ("power brake",)),
        (0x008, ("hardware slowdown",)),
        (0x024, ("power limit", "thermal slowdown")),
    ],
)
@pytest.mark.parametrize("lacks", [(), ("nvmlDeviceGetCurrentClocksEventReasons",)])
def test_reasons_of_a_gpu_are_words_under_either_name_of_the_call(monkeypatch, mask, words, lacks):
    nvml = FakeNvml(lacks)
    nvml.reasons = mask
    install(monkeypatch, nvml)
    gpu = open_gpu()
    assert isinstance(gpu, Gpu)
    assert gpu.throttled() == words


def test_what_a_driver_does_not_support_is_none_and_the_rest_is_told(monkeypatch):
    names = [name for name in dir(FakeNvml) if name.startswith("nvmlDeviceGetC")]
    install(monkeypatch, FakeNvml(tuple(names)))
    gpu = open_gpu()
    assert isinstance(gpu, Gpu)
    assert (gpu.throttled(), gpu.mhz()) == (None, None)
    assert (gpu.driver(), gpu.limit_watts()) == ("575.57.08", 700)
    gpu.close()
    assert (gpu.driver(), gpu.watts()) == (None, None)


def test_the_real_package_is_asked_by_names_that_it_has():
    pynvml = pytest.importorskip("pynvml")
    names = [name for name in dir(FakeNvml) if name.startswith("nvml")]
    assert len(names) == 13
    assert [name for name in names if not hasattr(pynvml, name)] == []
    assert issubclass(pynvml.NVMLError, Exception)


def test_the_mode_of_a_jetson_is_named_as_its_table_names_it(tmp_path):
    put(tmp_path, {"var/lib/nvpmodel/status": "pmode:0001 fmode:quiet"})
    assert settings.power_mode(tmp_path) == "mode 1"
    table = "# < POWER_MODEL ID=id NAME=n >\n< POWER_MODEL ID=0 NAME=15W >\nCPU 1\n"
    put(tmp_path, {"etc/nvpmodel.conf": table + "< POWER_MODEL ID=1 NAME=7W >"})
    assert settings.power_mode(tmp_path) == "7W"
    put(tmp_path, {"var/lib/nvpmodel/status": "garbage"})
    assert settings.power_mode(tmp_path) is None


def test_the_release_of_a_jetson_is_its_driver(tmp_path):
    assert jetson.release(tmp_path) is None
    put(tmp_path, {"etc/nv_tegra_release": "# R36 (release), REVISION: 4.3, GCID: 38968081"})
    assert jetson.release(tmp_path) == "L4T R36.4.3"


@pytest.mark.parametrize(
    ("supplies", "source"),
    [
        ({}, None),
        ({"AC": ("Mains", 1)}, "mains"),
        ({"AC": ("Mains", 1), "BAT0": ("Battery", None)}, "mains"),
        ({"AC": ("Mains", 0), "BAT0": ("Battery", None)}, "battery"),
        ({"BAT0": ("Battery", None)}, "battery"),
        ({"usb1": ("USB", 1), "BAT0": ("Battery", None)}, "mains"),
        ({"usb1": ("USB_PD", 0), "BAT0": ("Battery", None)}, "battery"),
        ({"usb1": ("USB", 0)}, None),
    ],
)
def test_power_comes_from_the_mains_or_a_battery(tmp_path, supplies, source):
    put(tmp_path, {"sys/class/power_supply/mouse/type": "Battery"})
    put(tmp_path, {"sys/class/power_supply/mouse/scope": "Device"})
    for name, (kind, online) in supplies.items():
        put(tmp_path, {f"sys/class/power_supply/{name}/type": kind})
        if online is not None:
            put(tmp_path, {f"sys/class/power_supply/{name}/online": online})
    assert settings.power_source(tmp_path) == source


def test_the_real_machine_is_asked_without_an_error():
    for on_gpu in (False, True):
        began = time.monotonic()
        meter = open_meter(on_gpu=on_gpu)
        if meter is None:
            assert why_no_meter(on_gpu=on_gpu)
        else:
            meter.close()
        assert time.monotonic() - began < 5

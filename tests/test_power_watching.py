"""What is said of a machine that changed while it was watched."""

from __future__ import annotations

from pathlib import Path

import pytest

from machines import CPU, FakeNvml, Ticks, install, put
from specedge.power import Seen, Watcher
from specedge.power.clocks import CpuClocks, DevfreqClocks
from specedge.power.events import RASPBERRY
from specedge.power.watching import EVERY_S, MOST_CHANGES, clock_fell

MODE = "sys/firmware/acpi/platform_profile"
NVPMODEL = "var/lib/nvpmodel/status"
GOVERNOR = f"{CPU}/cpu0/cpufreq/scaling_governor"
CLOCK = f"{CPU}/cpu0/cpufreq/scaling_cur_freq"
COOLING = "sys/class/thermal/cooling_device0"


class Watched:
    """A machine under a watcher whose checks are due whenever they are made."""

    def __init__(self, root: Path, *, on_gpu: bool = False) -> None:
        self.root = root
        self.ticks = Ticks()
        self.watcher = Watcher(root, on_gpu=on_gpu, clock=self.ticks)
        self.watcher.start()

    def check(self, **changes: object) -> None:
        self.ticks.now += EVERY_S
        self.watcher.check()

    def put(self, files: dict[str, object]) -> None:
        put(self.root, files)

    def end(self) -> Seen:
        return self.watcher.end()


def test_a_steady_machine_has_nothing_to_say_but_its_clocks(tmp_path):
    put(tmp_path, {MODE: "balanced", GOVERNOR: "powersave", CLOCK: 3_000_000})
    put(tmp_path, {f"{CPU}/cpu0/thermal_throttle/core_throttle_count": 7})
    put(tmp_path, {f"{COOLING}/type": "thermal-cpufreq-0", f"{COOLING}/cur_state": 2})
    put(tmp_path, {"sys/class/hwmon/hwmon3/oc3_event_cnt": 50, RASPBERRY: "50000"})
    watched = Watched(tmp_path)
    for khz in (3_000_000, 3_200_000, 2_900_000) * 5:
        watched.put({CLOCK: khz})
        watched.check()
    assert watched.end() == Seen((), (2900.0, 3200.0))


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ({MODE: "balanced"}, {MODE: "low-power"}, "power mode changed from balanced to low-power"),
        ({GOVERNOR: "performance"}, {GOVERNOR: "powersave"}, "governor changed from performance"),
        (
            {NVPMODEL: "pmode:0000", "etc/nvpmodel.conf": "< POWER_MODEL ID=0 NAME=15W >"},
            {NVPMODEL: "pmode:0001"},
            "power mode changed from 15W to mode 1",
        ),
        (
            {
                "sys/class/power_supply/AC/type": "Mains",
                "sys/class/power_supply/AC/online": 1,
                "sys/class/power_supply/BAT0/type": "Battery",
            },
            {"sys/class/power_supply/AC/online": 0},
            "went from mains to battery",
        ),
    ],
)
@pytest.mark.parametrize("checked", [True, False])
def test_a_changed_setting_is_said_with_both_values(tmp_path, before, after, line, checked):
    watched = Watched(put(tmp_path, before))
    watched.check()
    watched.put(after)
    if checked:
        watched.check()
    (said,) = watched.end().throttled
    assert said.startswith(line)
    assert said.endswith("during the probe")


def test_a_setting_that_went_there_and_back_is_said_both_ways_once(tmp_path):
    watched = Watched(put(tmp_path, {MODE: "a"}))
    for mode in "babab":
        watched.put({MODE: mode})
        watched.check()
    said = watched.end().throttled
    assert [line.split("changed ")[1][:11] for line in said] == ["from a to b", "from b to a"]


def test_a_setting_that_changes_all_the_time_does_not_fill_the_report(tmp_path):
    watched = Watched(put(tmp_path, {MODE: "start"}))
    for n in range(50):
        watched.put({MODE: f"mode{n}"})
        watched.check()
    assert len(watched.end().throttled) == MOST_CHANGES


def test_a_setting_that_cannot_be_read_for_a_while_has_not_changed(tmp_path):
    watched = Watched(put(tmp_path, {MODE: "balanced"}))
    (tmp_path / MODE).write_bytes(b"\xff\0\x01\n")
    watched.check()
    (tmp_path / MODE).unlink()
    watched.check()
    watched.put({MODE: "balanced"})
    watched.check()
    assert watched.end().throttled == ()


def test_throttle_counts_that_rose_are_said_once_a_package(tmp_path):
    def counts(core: int, package: int) -> dict[str, object]:
        folder = f"{CPU}/cpu{{}}/thermal_throttle"
        return {
            f"{folder.format(n)}/{kind}_throttle_count": count
            for n in (0, 1)
            for kind, count in (("core", core), ("package", package))
        }

    watched = Watched(put(tmp_path, counts(5, 100)))
    watched.put(counts(11, 130))
    assert watched.end().throttled == (
        "CPU throttle count rose by 12",
        "CPU package throttle count rose by 30",
    )


def test_a_count_that_was_set_back_did_not_rise(tmp_path):
    count = f"{CPU}/cpu0/thermal_throttle/core_throttle_count"
    watched = Watched(put(tmp_path, {count: 5}))
    watched.put({count: 0})
    assert watched.end().throttled == ()


def test_a_core_that_went_off_line_makes_no_count_rise_or_fall(tmp_path):
    counts = {f"{CPU}/cpu{n}/thermal_throttle/core_throttle_count": 5 for n in (0, 1)}
    watched = Watched(put(tmp_path, counts))
    put(tmp_path, {f"{CPU}/cpu0/thermal_throttle/core_throttle_count": 50})
    (tmp_path / f"{CPU}/cpu1/thermal_throttle/core_throttle_count").unlink()
    assert watched.end().throttled == ()


def test_cooling_that_came_and_went_is_said_with_its_highest_state(tmp_path):
    put(tmp_path, {f"{COOLING}/type": "thermal-cpufreq-0", f"{COOLING}/cur_state": 1})
    fan = "sys/class/thermal/cooling_device1"
    put(tmp_path, {f"{fan}/type": "pwm-fan", f"{fan}/cur_state": 0})
    watched = Watched(tmp_path)
    for state in (4, 2, 1):
        watched.put({f"{COOLING}/cur_state": state, f"{fan}/cur_state": 255})
        watched.check()
    assert watched.end().throttled == ("slowed down to cool (thermal-cpufreq: state 4, before 1)",)


def test_over_current_events_of_a_jetson_are_counted(tmp_path):
    events = "sys/class/hwmon/hwmon3/oc{}_event_cnt"
    watched = Watched(put(tmp_path, {events.format(1): 0, events.format(3): 20}))
    watched.put({events.format(3): 179})
    assert watched.end().throttled == ("throttled by over-current: 159 events",)


def test_bits_of_a_raspberry_pi_hold_when_they_were_seen_at_any_check(tmp_path):
    watched = Watched(put(tmp_path, {RASPBERRY: "0"}))
    for bits in ("50005", "50000", "not hex"):
        watched.put({RASPBERRY: bits})
        watched.check()
    assert watched.end().throttled == ("Raspberry Pi: low voltage", "Raspberry Pi: throttled")


def test_a_clock_that_fell_is_said_and_the_range_is_told(tmp_path):
    watched = Watched(put(tmp_path, {CLOCK: 3_200_000}))
    for khz in [3_200_000] * 8 + [1_400_000] * 8:
        watched.put({CLOCK: khz})
        watched.check()
    said = watched.end()
    assert said.throttled == ("CPU clock fell from 3200 to 1400 MHz",)
    assert said.clocks_mhz == (1400.0, 3200.0)


@pytest.mark.parametrize(
    "mhz",
    [
        [],
        [3000, 1000],
        [3000, 2700, 3000, 1000, 3000, 2600, 3000, 1000, 3000],
        [1000, 1000, 1000, 2000, 2000, 2000, 3000, 3000, 3000],
        [3000.0] * 6 + [2560.0] * 6,
    ],
)
def test_a_clock_that_wanders_rises_or_was_hardly_read_did_not_fall(mhz):
    assert clock_fell(mhz) is None


def test_checks_closer_than_the_interval_look_at_nothing(tmp_path):
    watched = Watched(put(tmp_path, {CLOCK: 1_000_000}))
    watched.watcher.check()
    put(tmp_path, {CLOCK: 2_000_000})
    watched.ticks.now += EVERY_S / 2
    watched.watcher.check()
    assert watched.end().clocks_mhz == (1000.0, 1000.0)


def test_a_gpu_is_watched_and_let_go(tmp_path, monkeypatch):
    nvml = FakeNvml()
    install(monkeypatch, nvml)
    put(tmp_path, {CLOCK: 1_000_000})
    watched = Watched(tmp_path, on_gpu=True)
    assert nvml.users == 1
    for n in range(12):
        nvml.clock = 1980 if n < 6 else 1200
        nvml.reasons = 0x60 if n >= 9 else 0x1
        watched.check()
    nvml.limit = 400_000
    seen = watched.end()
    assert seen.throttled == (
        "GPU power limit changed from 700 W to 400 W during the probe",
        "GPU throttled: thermal slowdown (at 3 of 12 checks)",
        "GPU throttled: thermal slowdown by hardware (at 3 of 12 checks)",
        "GPU clock fell from 1980 to 1200 MHz",
    )
    assert seen.clocks_mhz == (1200.0, 1980.0)
    assert nvml.users == 0


def test_without_nvml_the_clock_of_a_jetsons_gpu_is_read(tmp_path, monkeypatch):
    install(monkeypatch, None)
    put(tmp_path, {CLOCK: 1_000_000, "sys/class/devfreq/17000000.gpu/cur_freq": 918_000_000})
    watched = Watched(tmp_path, on_gpu=True)
    watched.check()
    assert watched.end().clocks_mhz == (918.0, 918.0)


@pytest.mark.parametrize(
    "path",
    [
        "sys/devices/gpu.0/devfreq/57000000.gpu/cur_freq",
        "sys/class/devfreq/17000000.gpu/cur_freq",
        "sys/class/devfreq/17000000.ga10b/cur_freq",
        "sys/class/devfreq/17000000.gv11b/cur_freq",
    ],
)
def test_the_clock_of_a_jetsons_gpu_has_several_places(tmp_path, path):
    put(tmp_path, {path: 306_000_000, "sys/class/devfreq/154c0000.nvenc/cur_freq": 999_000_000})
    assert DevfreqClocks(tmp_path).mhz() == 306.0


def test_the_fastest_core_counts_and_without_cpufreq_the_processors_own_word(tmp_path):
    clocks = CpuClocks(tmp_path)
    assert clocks.mhz() is None
    put(tmp_path, {"proc/cpuinfo": "cpu MHz\t\t: 2596.122\nflags: x\ncpu MHz\t\t: 1200.5"})
    assert clocks.mhz() == 2596.122
    put(tmp_path, {CLOCK: 1_000_000, CLOCK.replace("cpu0", "cpu1"): 3_600_000})
    assert CpuClocks(tmp_path).mhz() == 3600.0
    put(tmp_path, {CLOCK: "garbage", CLOCK.replace("cpu0", "cpu1"): 0})
    (tmp_path / "proc/cpuinfo").write_text("cpu MHz : fast\n")
    assert CpuClocks(tmp_path).mhz() is None


def test_files_that_disappear_while_watched_are_no_news(tmp_path):
    put(tmp_path, {MODE: "balanced", GOVERNOR: "powersave", CLOCK: 3_000_000, RASPBERRY: "0"})
    put(tmp_path, {f"{CPU}/cpu0/thermal_throttle/core_throttle_count": 7})
    put(tmp_path, {f"{COOLING}/type": "Processor", f"{COOLING}/cur_state": 0})
    watched = Watched(tmp_path)
    watched.check()
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    watched.check()
    assert watched.end() == Seen((), (3000.0, 3000.0))


def test_a_watcher_that_was_not_started_or_has_ended_sees_nothing(tmp_path):
    watcher = Watcher(put(tmp_path, {MODE: "a", CLOCK: 1}))
    watcher.check()
    assert watcher.end() == Seen()
    watcher.start()
    put(tmp_path, {MODE: "b"})
    assert watcher.end().throttled
    watcher.check()
    assert watcher.end() == Seen()


def test_the_real_machine_is_watched_without_an_error():
    watcher = Watcher(on_gpu=True)
    watcher.start()
    watcher.check()
    assert isinstance(watcher.end(), Seen)

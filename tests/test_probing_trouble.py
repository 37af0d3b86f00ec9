"""What spoils a probe: clocks, throttling, Ctrl-C, disks, other probes. A bundle stays usable."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import specedge
from probe_desk import Desk, bundle, cheap, install, prompts
from specedge.bundle import Bundle
from specedge.cli._probe_tables import verdict_lines
from specedge.errors import EngineError, ProbeError
from specedge.probe import probing
from specedge.probe.curves import CostCurves
from specedge.probe.probing import COSTS, DRAFTS, Probed, probe
from specedge.probe.record import folders

pytestmark = pytest.mark.usefixtures("private_cache", "desk")


@pytest.fixture
def desk(monkeypatch) -> Desk:
    return install(monkeypatch)


@pytest.fixture
def pair(tmp_path) -> Path:
    return bundle(tmp_path / "pair")


def asker(desk: Desk, folder: Path) -> Callable[..., Probed]:
    twelve = prompts(folder / "twelve.jsonl", *({"prompt": f"call {n}"} for n in range(12)))

    def ask(path: Path, **given: object) -> Probed:
        usual = {"engine": "fake", "clock": desk.clock, "prompts": twelve}
        return probe(path, **(usual | given))  # type: ignore[arg-type]

    return ask


@pytest.fixture
def ask(desk, tmp_path):
    """`probe` of twelve prompts of one class in the desk's time, unless told otherwise."""
    return asker(desk, tmp_path)


def left_behind(path: Path) -> list[Path]:
    """Records and temporary files, wherever they may lie."""
    return [each for folder in folders(Bundle.open(path)) for each in folder.glob("**/*")]


def says(path: Path) -> str:
    with specedge.load(path, engine="fake") as model:
        return model.generate("abc", max_tokens=5).text


class Stages:
    """Where a probe is: numbers of engine calls at the first and last report of each stage."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.shares: list[float] = []

    def __call__(self, stage: str, share: float) -> None:
        assert 0 <= share <= 1
        self.first.setdefault(stage, self.desk.calls)
        self.last[stage] = self.desk.calls
        self.shares.append(share)


@pytest.fixture(scope="module")
def moments(tmp_path_factory) -> dict[str, int]:
    """Numbers of engine calls in the middle of each stage; every probe here makes the same."""
    folder = tmp_path_factory.mktemp("moments")
    with pytest.MonkeyPatch.context() as patch:
        desk = install(patch)
        stages = Stages(desk)
        asker(desk, folder)(bundle(folder / "first"), report=stages)
    assert list(stages.first) == [COSTS, DRAFTS]
    middle = (stages.first[DRAFTS] + desk.calls) // 2
    return {COSTS: stages.first[COSTS] + 20, DRAFTS: middle, "last": desk.calls - 1}


MOMENTS = [COSTS, DRAFTS, "last"]


# Clocks


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda now: now - 50.0, "went back by"),
        (lambda now: now - 5000.0, "went back by"),
        (lambda now: float("nan"), "expected seconds, found nan"),
        (lambda now: float("inf"), "expected seconds, found inf"),
        (lambda now: float("-inf"), "expected seconds, found -inf"),
    ],
)
def test_a_clock_that_cannot_be_believed_ends_the_probe_and_nothing_is_kept(
    pair, ask, desk, moments, moment, wrong, said
):
    def clock() -> float:
        return wrong(desk.now) if desk.calls > moments[moment] else desk.now

    with pytest.raises(ProbeError, match=said) as error:
        ask(pair, clock=clock)
    assert "\n" not in str(error.value)
    assert left_behind(pair) == []
    assert says(pair) == "defgh"


@pytest.mark.parametrize("moment", [COSTS, DRAFTS])
def test_a_clock_that_stands_still_ends_the_probe_and_nothing_is_kept(
    pair, ask, desk, moments, moment
):
    stopped: list[float] = []

    def clock() -> float:
        if desk.calls > moments[moment]:
            stopped.append(desk.now)
            return stopped[0]
        return desk.now

    with pytest.raises(ProbeError, match=r"took 0\.0 ms.*the clock is too coarse"):
        ask(pair, clock=clock)
    assert left_behind(pair) == []


def test_a_clock_that_went_back_between_costs_and_drafts_is_found_out(pair, ask, desk, monkeypatch):
    measured: list[CostCurves] = []

    def measure(*args, **given):
        measured.append(original(*args, **given))
        return measured[0]

    original = probing.measure
    monkeypatch.setattr(probing, "measure", measure)
    with pytest.raises(ProbeError, match="went back by"):
        ask(pair, clock=lambda: desk.now - (4000.0 if measured else 0.0))
    assert len(measured) == 1
    assert left_behind(pair) == []


# A device that is slower in the end


def test_progress_begins_before_the_first_call_of_each_stage(pair, ask, desk):
    stages = Stages(desk)
    ask(pair, report=stages)
    assert stages.first[COSTS] == 0
    assert stages.first[DRAFTS] == stages.last[COSTS]
    assert stages.shares[0] == 0.0


def slower_from(desk: Desk, number: int, factor: float) -> None:
    desk.cost = lambda role, width: cheap(role, width) * (factor if desk.calls > number else 1.0)


def test_a_device_that_throttles_in_the_middle_is_said_to_have_done_so(pair, ask, desk, moments):
    slower_from(desk, moments[DRAFTS], 1.5)
    findings = ask(pair).record.findings
    assert findings.steadiness.drift == pytest.approx(1.5)
    (line,) = findings.steadiness.throttled
    assert "1.50x" in line
    notes = [line for line in verdict_lines(findings) if line.startswith("note: Not steady")]
    assert len(notes) == 2
    assert "50% slower" in notes[1]


def test_when_it_became_slower_is_told_in_seconds_of_the_probe(pair, ask, desk):
    since = desk.now + 150.0  # of a model ten times as slow as usual

    def cost(role: str, width: int) -> float:
        return 10 * cheap(role, width) * (1.5 if desk.now > since else 1.0)

    desk.cost = cost
    findings = ask(pair, budget_s=600.0).record.findings
    (line,) = findings.steadiness.throttled
    seconds = int(line.split(" s into the probe")[0].split()[-1])
    assert seconds == pytest.approx(150, abs=12)  # a pair takes some seconds
    assert findings.complete


def test_a_throttled_pair_is_no_loss(pair, ask, desk, moments):
    steady = ask(pair).record.findings
    desk.calls = 0
    slower_from(desk, moments[DRAFTS], 1.5)
    throttled = ask(pair, again=True).record.findings
    verdicts = [(each.proposer, each.verdict) for each in steady.findings]
    assert [(each.proposer, each.verdict) for each in throttled.findings] == verdicts


def test_a_steady_device_is_not_accused(pair, ask):
    findings = ask(pair).record.findings
    assert findings.steadiness.drift == pytest.approx(1.0)
    assert findings.steadiness.throttled == ()


# Interrupted


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_leaves_nothing_and_the_bundle_runs(pair, ask, desk, moments, moment):
    def before(number: int) -> None:
        if number == moments[moment]:
            raise KeyboardInterrupt

    desk.before = before
    with pytest.raises(KeyboardInterrupt):
        ask(pair)
    assert left_behind(pair) == []
    assert len(desk.opened) == 2
    for engine, _ in desk.opened:
        with pytest.raises(EngineError, match="closed"):
            engine.new_slot()
    assert says(pair) == "defgh"
    desk.before = lambda number: None
    assert ask(pair).measured


def test_ctrl_c_while_measuring_again_keeps_the_record_there_was(pair, ask, desk):
    first = ask(pair)
    desk.calls = 0

    def before(number: int) -> None:
        if number == 40:
            raise KeyboardInterrupt

    desk.before = before
    with pytest.raises(KeyboardInterrupt):
        ask(pair, again=True)
    assert left_behind(pair) == [first.path]
    assert ask(pair).record == first.record


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_engine_that_fails_ends_the_probe_in_one_line(pair, ask, desk, moments, moment):
    def before(number: int) -> None:
        if number >= moments[moment]:
            raise EngineError("fake: out of luck")

    desk.before = before
    with pytest.raises(specedge.SpecedgeError, match="out of luck") as error:
        ask(pair)
    assert "\n" not in str(error.value)
    assert left_behind(pair) == []


# Nowhere to keep it


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), OSError(30, "Read-only")]
)
def test_a_disk_that_takes_nothing_is_a_note_and_the_findings_are_there(
    pair, ask, monkeypatch, error
):
    write = Path.write_bytes

    def refuse(self, *args, **given):
        if self.suffix == ".jsonl":
            return write(self, *args, **given)
        raise error

    monkeypatch.setattr(Path, "write_bytes", refuse)
    probed = ask(pair)
    assert (probed.measured, probed.path) == (True, None)
    (note,) = probed.notes
    assert note.startswith("the record cannot be kept (")
    assert note.count(error.strerror) == 2
    assert probed.record.findings.speculates
    monkeypatch.undo()
    assert [path for path in left_behind(pair) if path.is_file()] == []


def test_a_bundle_that_cannot_be_written_keeps_its_record_in_the_cache_for_its_runs(
    pair, ask, private_cache
):
    (pair / "probes").write_text("no folder can be made here")
    probed = ask(pair)
    assert probed.path.parent.parent == private_cache / "probes"
    assert probed.notes == ()
    assert not ask(pair).measured
    with specedge.load(pair, engine="fake") as model:
        assert any(note.startswith("the probe says: ngram pays on") for note in model.notes)


def test_two_probes_at_once_leave_one_whole_record(pair, desk, tmp_path):
    file = prompts(tmp_path / "one.jsonl", {"prompt": "hello"})
    inside = threading.Barrier(2, timeout=10)
    done: list[Probed] = []

    def run() -> None:
        waited: list[str] = []

        def report(stage: str, share: float) -> None:
            if stage == DRAFTS and not waited:  # both are in the middle of it
                waited.append(stage)
                inside.wait()

        done.append(probe(pair, engine="fake", prompts=file, budget_s=0.5, report=report))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [probed.measured for probed in done] == [True, True]
    assert left_behind(pair) == [done[0].path] == [done[1].path]
    assert json.loads(done[0].path.read_text())["findings"]["complete"] in (True, False)
    stored = probe(pair, engine="fake", prompts=file, budget_s=0.5).record
    assert stored in [probed.record for probed in done]

"""From what a person asks for to prompts, loads and ways."""

from __future__ import annotations

import hashlib
import json

import pytest

from load_time import open_desk
from specedge.desk import Desk
from specedge.errors import BenchError, OptionError, PromptError
from specedge.loadtest.arrivals import closed
from specedge.loadtest.planning import Settings, asking, plan
from specedge.probe.probing import probe

pytestmark = pytest.mark.usefixtures("private_cache")


@pytest.fixture
def desk(tmp_path):
    with open_desk(tmp_path / "b") as desk:
        yield desk


def planned(desk, **given):
    return plan(desk, asking(Settings(**given)))


def test_classes_take_turns_and_prompts_begin_again(tmp_path):
    with open_desk(tmp_path / "b", context=2048) as desk:
        found = planned(desk, classes=("chat", "summarising"), per_class=2, requests=6)
    assert [job.asked.name for job in found.plan.jobs] == [
        "chat 1",
        "summarising 1",
        "chat 2",
        "summarising 2",
        "chat 1",
        "summarising 1",
    ]
    assert found.plan.loads == [closed(1, 6)]


def test_each_request_has_a_seed_of_its_own(desk, tmp_path):
    lines(tmp_path / "p", {"prompt": "hi"}, {"prompt": "ho"})
    found = planned(desk, prompts=tmp_path / "p", seed=40, temperature=1.0, max_tokens=9)
    assert [job.options["seed"] for job in found.plan.jobs] == [40, 41]
    assert {job.options["temperature"] for job in found.plan.jobs} == {1.0}
    assert found.options == {"temperature": 1.0, "acceptance": "auto", "seed": 40}


def lines(path, *items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def test_a_trace_brings_its_prompts_and_limits(desk, tmp_path):
    trace = lines(
        tmp_path / "t",
        {"at": 3, "prompt": "hi", "class": "chat", "max_tokens": 2},
        {"at": 3.5, "text": "ho"},
    )
    found = planned(desk, trace=trace, concurrency=(2,), max_tokens=9)
    assert [job.asked.name for job in found.plan.jobs] == ["trace 1", "trace 2"]
    assert [job.options["max_tokens"] for job in found.plan.jobs] == [2, 9]
    assert [each.load.name for each in found.plan.loads] == ["2 clients", "trace"]
    assert found.plan.loads[1].times_s == (0.0, 0.5)
    assert found.notes[1:] == ["requests of the trace have output limits of their own"]


@pytest.mark.parametrize(
    ("given", "said"),
    [({"prompts": "p"}, "prompts"), ({"classes": ("chat",)}, "class"), ({"per_class": 1}, "per-")],
)
def test_choosing_prompts_for_a_trace_that_brings_its_own_is_refused(tmp_path, given, said):
    trace = lines(tmp_path / "t", {"at": 1, "prompt": "hi"}, {"at": 2, "prompt": "ho"}, {"at": 3})
    with pytest.raises(OptionError, match=f"{said}.*: not asked for, every request of the trace"):
        asking(Settings(trace=trace, requests=2, **given))
    assert asking(Settings(trace=trace, classes=("chat",))).workloads


def test_a_trace_of_times_asks_the_prompts_in_turn(desk, tmp_path):
    prompts = lines(tmp_path / "p", {"prompt": "hi"}, {"prompt": "ho"})
    (tmp_path / "t").write_text("0\n1\n2\n3\n")
    found = planned(desk, trace=tmp_path / "t", prompts=prompts, requests=3)
    assert [job.asked.name for job in found.plan.jobs] == ["user 1", "user 2", "user 1"]
    assert found.plan.loads[0].times_s == (0.0, 1.0, 2.0)
    prompts_from, times_from = asking(Settings(trace=tmp_path / "t", prompts=prompts)).source.split(
        "; "
    )
    assert prompts_from == asking(Settings(prompts=prompts)).source
    digest = hashlib.sha256(b"0\n1\n2\n3\n").hexdigest()
    assert times_from == f"times of the trace t, sha256 {digest[:12]}"
    with pytest.raises(BenchError, match=r"requests: the trace .* has 4, found 5"):
        planned(desk, trace=tmp_path / "t", prompts=prompts, requests=5)


def test_prompts_that_leave_no_room_are_left_out_and_none_is_an_error(desk, tmp_path):
    long = {"prompt": "z" * 200}
    n_tokens = len(desk.model.encode([{"role": "user", "content": long["prompt"]}])[0])
    room = desk.model.context - n_tokens
    two = lines(tmp_path / "p", long, {"prompt": "hi"})
    found = planned(desk, prompts=two, max_tokens=room)
    assert [job.asked.name for job in found.plan.jobs] == ["user 1", "user 2"]
    assert found.notes[1:] == []
    found = planned(desk, prompts=two, max_tokens=room + 1)
    assert [job.asked.name for job in found.plan.jobs] == ["user 2"]
    _, note = found.notes
    assert note.startswith(
        f"left out: user 1: the prompt has {n_tokens} tokens, the context of 256"
    )
    with pytest.raises(PromptError, match=r"no prompt fits; left out: user 1: .*fewer"):
        planned(desk, prompts=lines(tmp_path / "q", long), max_tokens=room + 1)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"requests": 0}, BenchError, r"requests: expected 1\.\.1,000,000, found 0"),
        ({"requests": 10**30}, BenchError, r"requests: expected 1\.\.1,000,000, found 10"),
        ({"per_class": 0}, BenchError, "per-class: expected 1 or more, found 0"),
        ({"repeats": 1001}, BenchError, r"repeat: expected 1\.\.1,000, found 1001"),
        ({"repeats": 0}, BenchError, r"repeat: expected 1\.\.1,000, found 0"),
        ({"warmup": -1}, BenchError, r"warmup: expected 0\.\.1,000,000, found -1"),
        ({"warmup": 10**30}, BenchError, r"warmup: expected 0\.\.1,000,000, found 10"),
        ({"max_tokens": 0}, BenchError, "max-tokens: expected 1 or more, found 0"),
        (
            {"concurrency": (1, 0)},
            BenchError,
            r"concurrency: expected 1\.\.1,000,000 clients, found 0",
        ),
        ({"rates": (0.0,)}, BenchError, "rate: expected .* above 0, found 0"),
        ({"classes": ("chess",)}, OptionError, "class: no workload 'chess'; there are chat, "),
    ],
)
def test_settings_that_cannot_be_run_are_refused_before_a_bundle_is_opened(given, error, said):
    with pytest.raises(error, match=said):
        asking(Settings(**given))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ks": (9,)}, r"ngram K=9: expected a proposer and a draft length of 1\.\.3"),
        ({"ks": (0,)}, "found K=0"),
        ({"temperature": -1.0}, "temperature"),
        ({"seed": -1}, "seed"),
    ],
)
def test_options_that_the_bundle_cannot_honour_are_refused(desk, tmp_path, given, said):
    with pytest.raises(OptionError, match=said):
        planned(desk, prompts=lines(tmp_path / "p", {"prompt": "hi"}), max_tokens=9, **given)


def test_auto_without_a_probe_is_noted(tmp_path):
    with open_desk(tmp_path / "b", context=2048) as desk:
        (note,) = planned(desk, classes=("chat",), per_class=1).notes
    assert note.startswith("auto measures in the stream, which slows its first requests (there is")
    probe(tmp_path / "b", engine="fake", budget_s=0.05)
    with Desk(tmp_path / "b", engine="fake") as desk:
        assert planned(desk, classes=("chat",), per_class=1).notes == []

"""`specedge bench`: what it prints, what it keeps, and where."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from commands import alphabet, runner
from specedge import cli
from specedge.cli.bench import _Timed
from specedge.engines.fake import FakeEngine
from specedge.loadtest.keeping import read
from tiny import write_bundle

pytestmark = pytest.mark.usefixtures("private_cache")

COMMANDS = tuple(dict.fromkeys((*cli.COMMANDS, "bench")))
QUICK = ("--engine", "fake", "--max-tokens", "6", "--repeat", "1")


@pytest.fixture
def said(capfd, monkeypatch):
    monkeypatch.setattr("specedge.cli.COMMANDS", COMMANDS)
    return runner(capfd, monkeypatch)


@pytest.fixture
def pair(tmp_path):
    return write_bundle(tmp_path / "pair", draft=True, max_verify=4, rule=alphabet())


@pytest.fixture
def two(tmp_path):
    lines = [{"prompt": "hello", "class": "greeting"}, {"prompt": "say it", "class": "asking"}]
    path = tmp_path / "two.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_tables_go_to_stdout_and_the_rest_to_stderr(said, pair, two):
    code, out, err = said("bench", pair, "--prompts", two, *QUICK)
    assert code == 0
    assert out.startswith("1 client: ")
    assert "The engine serves one request at a time" in out
    for way in ("plain", "auto", "ngram K=3", "draft K=3"):
        assert any(line.startswith(way) for line in out.splitlines())
    assert f"opening {pair}" in err
    assert "warming up" in err
    assert "1 client, repetition 1 of 1, about " in err
    assert "result: not kept; --output FOLDER keeps it" in err


def test_a_kept_result_holds_the_command_and_every_request(said, pair, two, tmp_path, monkeypatch):
    line = ["bench", str(pair), "--prompts", str(two), *QUICK, "--k", "1,3", "--concurrency", "1,2"]
    line += ["--rate", "500", "--output", str(tmp_path / "kept")]
    monkeypatch.setattr(sys, "argv", ["specedge", *line])
    code, _, err = said(*line)
    assert code == 0
    assert f"result: {tmp_path / 'kept'}" in err
    kept = read(tmp_path / "kept")
    assert kept.header.command == f"specedge {' '.join(line)}"
    assert kept.header.ways == [
        *("plain", "auto", "ngram K=1", "ngram K=3", "draft K=1", "draft K=3"),
    ]
    assert kept.header.prompts.startswith("two.jsonl, sha256 ")
    assert len(kept.requests) == 3 * 6 * 2
    assert kept.header.complete
    assert kept.rounds


def test_json_is_one_object(said, pair, two, tmp_path):
    code, out, _ = said(
        *("bench", pair, "--prompts", two, *QUICK, "--json", "--output", tmp_path / "kept")
    )
    assert code == 0
    found = json.loads(out)
    assert found["folder"] == str(tmp_path / "kept")
    assert found["header"]["ways"][0] == "plain"
    assert {cell["way"] for cell in found["cells"]} == set(found["header"]["ways"])


def test_a_page_is_written(said, pair, two, tmp_path):
    page = tmp_path / "page.html"
    code, _, err = said("bench", pair, "--prompts", two, *QUICK, "--html", page)
    assert code == 0
    assert f"report: {page}" in err
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_a_page_that_cannot_be_written_does_not_cost_the_figures(said, pair, two):
    code, out, err = said("bench", pair, "--prompts", two, *QUICK, "--html", "/dev/full")
    assert code == 1
    assert out.startswith("1 client: ")
    assert err.splitlines()[-1].startswith("error: report: /dev/full: cannot be written: No space")


def test_two_results_are_compared(said, pair, two, tmp_path):
    for name in ("a", "b"):
        said("bench", pair, "--prompts", two, *QUICK, "--output", tmp_path / name)
    code, out, _ = said("bench", "compare", tmp_path / "a", tmp_path / "b")
    assert code == 0
    assert "1 client" in out
    code, out, _ = said("bench", "compare", tmp_path / "a", tmp_path / "b", "--json")
    assert code == 0
    assert isinstance(json.loads(out), dict)
    code, _, err = said("bench", "compare", tmp_path / "a", tmp_path / "none")
    assert code == 1
    assert "none: expected the result of a benchmark" in err
    code, _, err = said("bench", "compare", tmp_path / "a")
    assert code == 2
    assert "Usage: specedge bench compare [OPTIONS] A B" in err


def test_help_is_there_for_both(said):
    code, out, _ = said("bench", "-h")
    assert code == 0
    assert "Usage: specedge bench [OPTIONS] BUNDLE" in out
    assert "specedge bench compare A B" in " ".join(out.split())
    code, out, _ = said("bench", "compare", "--help")
    assert code == 0
    assert "Usage: specedge bench compare [OPTIONS] A B" in out


def test_a_bundle_named_compare_is_given_with_its_folder(said, two, tmp_path, monkeypatch):
    write_bundle(tmp_path / "compare", max_verify=4, rule=alphabet())
    monkeypatch.chdir(tmp_path)
    code, _, err = said("bench", "./compare", "--prompts", two, *QUICK)
    assert code == 0
    assert "opening compare" in err


def test_a_recorded_load_is_served(said, pair, tmp_path):
    trace = tmp_path / "trace"
    trace.write_text('{"at": 9, "prompt": "hello"}\n{"at": 9.01, "text": "one", "max_tokens": 2}\n')
    code, out, err = said("bench", pair, "--trace", trace, *QUICK)
    assert code == 0
    assert out.startswith("trace: ")
    assert "note: requests of the trace have output limits of their own" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rate", "0"), "rate: expected a number of requests a second above 0, found 0"),
        (("--rate", "nan"), "rate: expected a number of requests a second above 0, found nan"),
        (("--rate=-2"), "rate: expected a number of requests a second above 0, found -2"),
        (("--concurrency", "0"), "concurrency: expected 1..1,000,000 clients, found 0"),
        (("--requests", "0"), "requests: expected 1..1,000,000, found 0"),
        (("--class", "chess"), "class: no workload 'chess'; there are greeting, asking"),
        (("--k", "9"), "ngram K=9: expected a proposer and a draft length of 1..3, found K=9"),
        (("--proposers", "eagle"), "eagle"),
        (("--context", "8"), "no prompt fits"),
        (("--acceptance", "greedy", "--temperature", "1"), "acceptance"),
    ],
)
def test_what_cannot_be_run_is_one_clear_line(said, pair, two, tmp_path, options, message):
    given = [options] if isinstance(options, str) else options
    code, out, err = said(
        *("bench", pair, "--prompts", two, *QUICK, *given, "--output", tmp_path / "kept")
    )
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (code, out, len(errors)) == (1, "", 1)
    assert message in errors[0]
    assert "kept" not in "".join(names(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "trace: an empty trace"),
        ("1\n0.5\n", "trace, line 2: the time 0.5 comes before the 1 of line 1; sort the lines"),
    ],
)
def test_a_bad_trace_is_one_clear_line(said, pair, tmp_path, text, message):
    (tmp_path / "trace").write_text(text)
    code, _, err = said("bench", pair, "--trace", tmp_path / "trace", *QUICK)
    assert code == 1
    assert message in err.splitlines()[-1]


@pytest.mark.parametrize("options", [("--k", "1,x"), ("--concurrency", ","), ("--rate", "fast")])
def test_a_list_that_is_none_is_a_usage_error(said, pair, options):
    code, _, err = said("bench", pair, *options)
    assert code == 2
    assert "expected" in err


def test_a_result_is_replaced_only_with_force(said, pair, two, tmp_path):
    line = ("bench", pair, "--prompts", two, *QUICK, "--output", tmp_path / "kept")
    assert said(*line)[0] == 0
    code, out, err = said(*line)
    assert (code, out) == (1, "")
    assert "a result is there already" in err
    assert "warming up" not in err
    assert said(*line, "--force")[0] == 0


def test_a_failing_request_is_counted_and_the_rest_goes_on(said, pair, two, tmp_path, monkeypatch):
    forward, calls = FakeEngine.forward, iter(range(10**6))

    def failing(self, *args):
        if next(calls) == 3:
            raise RuntimeError("gone")
        return forward(self, *args)

    monkeypatch.setattr(FakeEngine, "forward", failing)
    code, out, _ = said(
        *("bench", pair, "--prompts", two, *QUICK, "--warmup", "0", "--output", tmp_path / "kept")
    )
    assert code == 0
    kept = read(tmp_path / "kept")
    (failed,) = [each for each in kept.requests if each.failure]
    assert failed.failure == "RuntimeError: gone"
    assert len(kept.requests) == 8
    assert "RuntimeError: gone" in out


def test_a_load_of_which_nothing_was_served_is_kept_and_fails(said, pair, tmp_path):
    trace = tmp_path / "trace"
    trace.write_text('{"at": 0, "prompt": "' + "z" * 999 + '"}\n')
    code, out, _ = said("bench", pair, "--trace", trace, *QUICK, "--output", tmp_path / "kept")
    assert code == 1
    assert "Nothing to compare: No request was served" in out
    assert all(each.failure for each in read(tmp_path / "kept").requests)


def test_names_of_files_need_not_be_unicode(said, pair, two, tmp_path):
    prompts, output = (tmp_path / os.fsdecode(name) for name in (b"p\xff", b"kept\xff"))
    prompts.write_bytes(two.read_bytes())
    program = "from specedge.cli import main; main()"
    line = ["bench", pair, "--prompts", prompts, *QUICK, "--output", output]
    ran = subprocess.run(
        [sys.executable, "-c", program, *map(str, line)], capture_output=True, timeout=60
    )
    assert (ran.returncode, b"error" in ran.stderr) == (0, False)
    found = read(output).header
    assert found.command.endswith("kept?'")
    assert found.prompts.startswith("p?, sha256 ")


def test_force_without_a_folder_is_refused(said, pair, two):
    code, out, err = said("bench", pair, "--prompts", two, *QUICK, "--force")
    assert (code, out) == (1, "")
    assert err.startswith("error: force: there is nothing to replace without --output")


def test_ctrl_c_keeps_what_there_is_and_says_so(said, pair, two, tmp_path, monkeypatch):
    forward, calls = FakeEngine.forward, iter(range(10**6))

    def stopping(self, *args):
        if next(calls) == 30:
            raise KeyboardInterrupt
        return forward(self, *args)

    monkeypatch.setattr(FakeEngine, "forward", stopping)
    line = ("bench", pair, "--prompts", two, *QUICK, "--warmup", "0")
    code, out, err = said(*line, "--output", tmp_path / "kept")
    assert code == 130
    assert out.startswith("1 client: ")
    kept = read(tmp_path / "kept")
    assert not kept.header.complete
    said_last = err.splitlines()[-1]
    assert said_last.startswith(f"interrupted after {len(kept.requests)} requests; incomplete: ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_waiting_for_an_arrival_ends_it_at_once(pair, tmp_path, number, code):
    trace = tmp_path / "trace"
    trace.write_text('{"at": 0, "prompt": "hello"}\n{"at": 1e300, "prompt": "hello"}\n')
    args = ["bench", pair, "--trace", trace, *QUICK, "--warmup", "0", "--output", tmp_path / "kept"]
    said = f"from specedge import cli; cli.COMMANDS = {COMMANDS}; cli.main()"
    command = [sys.executable, "-c", said, *map(str, args)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        until = time.monotonic() + 30
        while not any(path.stat().st_size for path in tmp_path.glob(".kept.*/requests.jsonl")):
            assert time.monotonic() < until
            time.sleep(0.02)
        os.kill(process.pid, number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == code
    if number == signal.SIGINT:
        assert "interrupted after 1 requests" in err
        assert len(read(tmp_path / "kept").requests) == 1
    assert [name for name in names(tmp_path) if "kept" in name] == ["kept"] * (code == 130)


def test_the_time_that_is_left_is_said_as_a_stage_begins():
    titles, now = [], [100.0]

    class Stages:
        def stage(self, title, total=None, unit=""):
            titles.append(title)

        def advance(self, amount): ...

    told = _Timed(Stages(), lambda: now[0])
    told("warming up", 0.0, 0.0)
    now[0] = 110.0
    told("first", 0.0, 0.25)
    told("first", 0.5, 0.5)
    now[0] = 400.0
    told("second", 0.0, 0.5)
    assert titles == ["warming up", "first, about 30 s left", "second, about 5 min left"]


def test_nothing_is_drawn_while_a_request_is_timed(monkeypatch):
    import threading

    from specedge.cli import _progress

    monkeypatch.setattr(
        _progress, "Console", lambda **_: Console(file=io.StringIO(), force_terminal=True)
    )
    threads = threading.active_count()
    with _progress.reporting(still=True) as progress:
        progress.stage("1 client", 100, "%")
        assert threading.active_count() == threads
        drawn = progress._drawn.console.file.getvalue()
        assert "1 client" in drawn
        progress.advance(40)
        assert "40%" in progress._drawn.console.file.getvalue()

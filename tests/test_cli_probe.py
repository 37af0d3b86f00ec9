"""`specedge probe`: what it prints, and where."""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from commands import alphabet, runner
from probe_desk import prompts
from specedge.cli._progress import _Amount
from specedge.cli._tables import print_sentences
from specedge.engines.fake import FakeEngine
from specedge.probe import pairs
from tiny import write_bundle

pytestmark = pytest.mark.usefixtures("private_cache")

QUICK = ("--engine", "fake", "--budget", "0.05")


@pytest.fixture
def said(capfd, monkeypatch):
    monkeypatch.setattr(pairs, "STEPS_MS", 1.0)  # fake steps are steady
    return runner(capfd, monkeypatch)


@pytest.fixture
def pair(tmp_path):
    return write_bundle(tmp_path / "pair", draft=True, max_verify=4, rule=alphabet())


@pytest.fixture
def two(tmp_path):
    return prompts(
        tmp_path / "two.jsonl",
        {"prompt": "hello", "class": "greeting"},
        {"prompt": "say it again", "class": "asking"},
    )


def test_tables_go_to_stdout_and_the_rest_to_stderr(said, pair):
    code, out, err = said("probe", pair, *QUICK)
    assert code == 0
    assert "target: ms of N tokens after P rows, over N = 1" in out
    assert "draft: ms of N tokens after P rows, of a target step" in out
    assert "at best, all K drafted tokens accepted: speed over plain decoding" in out
    heads = next(line for line in out.splitlines() if "lookup" in line)
    assert heads.split()[:2] == ["lookup", "draft"]
    assert "speed over plain decoding, 90% intervals" in out
    assert "measuring for at most 0.05 s: what calls cost" in err
    assert "measuring for at most 0.05 s: drafts on prompts" in err
    assert "measured: there is no record yet" in err
    assert str(pair / "probes") in err


def test_a_stored_record_is_shown_without_measuring(said, pair):
    first = said("probe", pair, *QUICK)
    code, out, err = said("probe", pair, *QUICK)
    assert (code, out) == (0, first[1])
    # on a busy machine there is a note about few repetitions too
    opening, stored = (line for line in err.splitlines() if not line.startswith("note: "))
    assert opening.endswith(f"opening {pair}")
    assert stored.startswith("stored on 20")
    assert "--again measures again" in err


def test_again_and_a_changed_setting_say_why(said, pair):
    said("probe", pair, *QUICK, "--threads", "2")
    _, _, err = said("probe", pair, *QUICK, "--threads", "1")
    assert "measured again: threads 2 -> 1" in err
    _, _, err = said("probe", pair, *QUICK, "--threads", "1", "--again")
    assert "measured again: asked for" in err


def test_json_is_one_object_with_curves_fingerprint_and_gains(said, pair):
    code, out, _ = said("probe", pair, *QUICK, "--json", "--context", "64", "--no-exact")
    shown = json.loads(out)
    assert code == 0
    assert shown["measured"]
    assert shown["findings"]["prompts_from"] == "built in"
    assert "chat" in shown["findings"]["workloads"]
    assert (shown["fingerprint"]["target_context"], shown["fingerprint"]["exact"]) == (64, False)
    points = shown["curves"]["target"]["points"]
    cost = {(point["width"], point["past"]): point["ms"] for point in points}
    assert {width for width, _ in cost} == {1, 2, 3, 4}
    steps = shown["curves"]["draft"]["points"]
    for gain in shown["best_gains"]:
        k, past = gain["draft_length"], gain["past"]
        plain, wide = cost[1, past], cost[k + 1, past]
        assert gain["lookup"] == pytest.approx((k + 1) * plain / wide)
        step = [each["ms"] for each in steps if (each["width"], each["past"]) == (1, past)]
        if step:
            assert gain["draft"] == pytest.approx((k + 1) * plain / (wide + k * step[0]))


def test_a_bundle_without_a_draft_has_lookups_only(said, tiny_bundle):
    code, out, _ = said("probe", tiny_bundle, *QUICK)
    assert code == 0
    assert "lookup" in out
    assert "draft:" not in out
    code, out, _ = said("probe", tiny_bundle, *QUICK, "--json")
    assert all(gain["draft"] is None for gain in json.loads(out)["best_gains"])


def test_a_bundle_that_verifies_one_token_has_no_gains_to_show(said, tmp_path):
    bundle = write_bundle(tmp_path / "one", max_verify=1, draft=True)
    code, out, _ = said("probe", bundle, *QUICK)
    assert code == 0
    assert "at best" not in out


@pytest.mark.parametrize(
    ("args", "code", "line"),
    [
        (("--budget", "soon"), 2, "is not a valid float"),
        (("--budget", "0"), 1, "error: budget: expected more than 0"),
        (("--budget", "nan"), 1, "error: budget: expected more than 0"),
        (("--threads", "0"), 1, "error: threads: expected 1.."),
        (("--context", "999"), 1, "error: context: expected 1..256"),
        (("--engine", "cpuu"), 1, "error: engine: no engine 'cpuu'"),
    ],
)
def test_a_wrong_option_is_one_line(said, tiny_bundle, args, code, line):
    got = said("probe", tiny_bundle, "--engine", "fake", *args)
    assert got[:2] == (code, "")
    assert line in got[2]
    assert not (tiny_bundle / "probes").exists()


def test_a_damaged_record_is_measured_again_and_replaced(said, pair):
    said("probe", pair, *QUICK)
    (path,) = (pair / "probes").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    code, _, err = said("probe", pair, *QUICK)
    assert code == 0
    assert f"measured again: {path}: not valid JSON, perhaps cut short" in err
    assert "stored on" in said("probe", pair, *QUICK)[2]


def test_interrupting_leaves_the_bundle_as_it_was(said, pair, monkeypatch):
    forward = FakeEngine.forward

    def interrupted(self, *args):
        if len(self.calls) == 12:
            raise KeyboardInterrupt
        return forward(self, *args)

    monkeypatch.setattr(FakeEngine, "forward", interrupted)
    code, out, err = said("probe", pair, *QUICK)
    assert (code, out) == (130, "")
    assert err.endswith("interrupted\n")
    assert not (pair / "probes").exists()
    monkeypatch.undo()
    assert said("run", pair, "hi", "--engine", "fake", "--max-tokens", "3")[0] == 0


def test_too_few_repetitions_are_called_that(said, pair, monkeypatch):
    code, out, err = said("probe", pair, "--engine", "fake", "--budget", "0.0001")
    assert code == 0
    assert "note: 1 of the 3 repetitions" in err
    assert "±?" in out
    assert "±0%" not in out


def lines(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(start)]


def test_json_holds_the_findings_as_they_are_stored(said, pair, two):
    code, out, _ = said("probe", pair, *QUICK, "--json", "--prompts", two)
    assert code == 0
    shown = json.loads(out)
    (path,) = (pair / "probes").iterdir()
    stored = json.loads(path.read_text())
    assert {key: shown[key] for key in stored} == stored
    assert stored["findings"]["workloads"] == ["greeting", "asking"]
    assert stored["findings"]["prompts_from"].startswith("two.jsonl, sha256 ")
    again = json.loads(said("probe", pair, *QUICK, "--json", "--prompts", two)[1])
    changed = {"measured": False, "reason": ""}
    assert again == shown | changed


def test_the_decision_is_printed_below_its_table(said, pair, two):
    _, out, _ = said("probe", pair, *QUICK, "--prompts", two)
    table, _, below = out.partition("90% intervals")
    assert "at best" in table
    (decision,) = lines(below, "speculation ")
    (path,) = (pair / "probes").iterdir()
    assert decision == json.loads(path.read_text())["findings"]["reason"]


def test_a_run_names_what_the_probe_decided(said, pair, two):
    said("probe", pair, *QUICK, "--prompts", two)
    code, out, _ = said("run", pair, "abc", "--engine", "fake", "--max-tokens", "30", "--json")
    assert code == 0
    assert (
        "the probe says: ngram may try, draft may try"
        in json.loads(out.splitlines()[-1])["speculation"]["reason"]
    )


def test_other_prompts_and_other_classes_say_why_they_are_measured(said, pair, two):
    said("probe", pair, *QUICK, "--prompts", two, "--class", "asking")
    _, _, err = said("probe", pair, *QUICK, "--prompts", two)
    assert "measured again: workloads that were not tried before: greeting (" in err
    prompts(two, {"prompt": "something else"})
    _, _, err = said("probe", pair, *QUICK, "--prompts", two)
    assert "measured again: other prompts than before (" in err


def test_prompts_that_do_not_fit_are_named_a_few_at_a_time(said, pair, two):
    prompts(two, {"prompt": "hello"}, *({"prompt": "x" * 300} for _ in range(5)))
    code, _, err = said("probe", pair, *QUICK, "--prompts", two)
    assert code == 0
    said_so = lines(err, "note: left out: two.jsonl, line ")
    assert [line.split()[5].rstrip(":") for line in said_so] == ["2", "3", "4"]
    assert "note: 2 more prompts were left out; --json names them all" in err
    shown = json.loads(said("probe", pair, *QUICK, "--prompts", two, "--again", "--json")[1])
    assert len(shown["left_out"]) == 5


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "two.jsonl: it holds no prompt"),
        ('{"prompt": "fine"}\n{"prompt": ""}\n', 'two.jsonl, line 2: "prompt" is empty'),
        ('{"prompt": "fine"}\nhello\n', "two.jsonl, line 2: invalid JSON at character 1"),
        (f'{{"prompt": "{"x" * 300}"}}\n', "not one of 1 prompts fits: two.jsonl, line 1: "),
        ('{"prompt": "fine", "class": "ours"}\n', "class: no workload 'chat'; there are ours"),
    ],
)
def test_prompts_that_cannot_be_used_are_one_line_and_nothing_is_kept(said, pair, two, text, line):
    two.write_text(text)
    options = ("--class", "chat") if "ours" in text else ()
    code, out, err = said("probe", pair, *QUICK, "--prompts", two, *options)
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1 or err.splitlines()[-1].startswith("error: ")
    (error,) = lines(err, "error: ")
    assert line in error
    assert not (pair / "probes").exists()


def test_no_prompts_at_all_is_one_line(said, pair, tmp_path):
    code, out, err = said("probe", pair, *QUICK, "--prompts", tmp_path / "nowhere.jsonl")
    assert (code, out) == (1, "")
    assert "nowhere.jsonl: no such file" in err


@pytest.mark.parametrize("budget", ["-1", "inf", "-inf", "1e9"])
def test_a_budget_out_of_range_is_one_line(said, pair, budget):
    code, out, err = said("probe", pair, "--engine", "fake", f"--budget={budget}")
    assert (code, out) == (1, "")
    (error,) = lines(err, "error: ")
    assert error.startswith("error: budget: expected more than 0 and at most 3600 seconds, found ")


def test_a_budget_of_nothing_still_tells_costs(said, pair, two):
    code, out, err = said("probe", pair, "--engine", "fake", "--budget", "1e-9", "--prompts", two)
    assert code == 0
    assert "target: ms of N tokens" in out
    assert "as far as the budget went" in err
    assert "Incomplete" in out


# On a terminal


def test_progress_is_shown_in_per_cent():
    with Progress(console=Console(file=io.StringIO())) as drawn:
        drawn.advance(drawn.add_task("drafts", total=100, unit="%"), 22)
        assert _Amount().render(drawn.tasks[0]).plain.strip() == "22%"


def test_sentences_are_wrapped_between_words_on_a_terminal_only(capsys, monkeypatch):
    sentence = "speculation off: one drafted token costs a third of a target step [bold]"
    print_sentences([sentence])
    assert capsys.readouterr().out == f"{sentence}\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "30")
    print_sentences([sentence])
    wrapped = capsys.readouterr().out.splitlines()
    assert max(map(len, wrapped)) <= 30
    assert [word for line in wrapped for word in line.split()] == sentence.split()


# Files


def test_a_page_is_written_beside_the_tables(said, pair, two, tmp_path):
    page = tmp_path / "report.html"
    code, out, err = said("probe", pair, *QUICK, "--prompts", two, "--html", page)
    assert code == 0
    assert "target: ms of N tokens" in out
    assert f"report: {page}" in err
    text = page.read_text()
    assert text.startswith("<!doctype html>") or text.startswith("<!DOCTYPE html>")
    assert "greeting" in text
    page.write_text("before")
    code, out, _ = said("probe", pair, *QUICK, "--prompts", two, "--html", page, "--json")
    assert (code, json.loads(out)["measured"]) == (0, False)
    assert "greeting" in page.read_text()


def test_a_page_that_has_no_place_is_refused_before_anything_is_measured(said, pair, two, tmp_path):
    for place, why in [
        (tmp_path / "no" / "page.html", "there is no folder"),
        (tmp_path, "expected a file, found a folder"),
        (tmp_path / ("x" * 300), "cannot be written: File name too long"),
    ]:
        code, out, err = said("probe", pair, *QUICK, "--prompts", two, "--html", place)
        assert (code, out) == (1, "")
        assert err.startswith("error: report: ")
        assert why in err
    assert not (pair / "probes").exists()


def test_metrics_that_have_no_place_are_refused_before_anything_is_measured(
    said, pair, two, tmp_path
):
    for place in (tmp_path / "no" / "x.prom", tmp_path, tmp_path / ("x" * 300)):
        code, out, err = said("probe", pair, *QUICK, "--prompts", two, "--prometheus", place)
        assert (code, out) == (1, "")
        assert "metrics cannot be written" in err
    assert not (pair / "probes").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("option", ["--html", "--prometheus"])
def test_a_file_that_is_interrupted_leaves_the_one_before(
    said, pair, two, tmp_path, monkeypatch, error, option
):
    if option == "--prometheus":
        pytest.importorskip("prometheus_client")
    said("probe", pair, *QUICK, "--prompts", two)
    place = tmp_path / "out" / "file"
    place.parent.mkdir()
    place.write_text("before")

    def replace(self, target):
        raise error

    monkeypatch.setattr(Path, "replace", replace)
    code, out, err = said("probe", pair, *QUICK, "--prompts", two, option, place)
    assert code == (130 if isinstance(error, KeyboardInterrupt) else 1)
    assert "target: ms of N tokens" in out
    assert isinstance(error, KeyboardInterrupt) or "No space left on device" in err
    assert [path.name for path in place.parent.iterdir()] == ["file"]
    assert place.read_text() == "before"


def test_the_figures_are_written_for_prometheus(said, pair, two, tmp_path):
    parser = pytest.importorskip("prometheus_client.parser")
    place = tmp_path / "specedge.prom"
    assert said("probe", pair, *QUICK, "--prompts", two, "--prometheus", place)[0] == 0
    families = list(parser.text_string_to_metric_families(place.read_text()))
    assert families
    labels = {sample.labels["bundle"] for family in families for sample in family.samples}
    assert labels == {"tiny"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_bundle_that_may_not_be_written_is_probed_into_the_cache(said, pair, two, private_cache):
    pair.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        code, _, err = said("probe", pair, *QUICK, "--prompts", two)
    finally:
        pair.chmod(stat.S_IRWXU)
    assert code == 0
    assert str(private_cache / "probes") in err


# In a process of its own


@pytest.fixture
def command(tmp_path, private_cache):
    """Starts `specedge ...` as a shell does, with stderr to be read."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", "import specedge.cli; specedge.cli.main()", *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("stage", ["what calls cost", "drafts on prompts"])
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_any_stage_leaves_nothing_and_the_bundle_runs(
    said, command, pair, two, private_cache, stage, sent, code
):
    # a fake engine is through with its prompts in no time, so there are many
    prompts(two, *({"prompt": f"hello {n}", "class": f"{n % 40}"} for n in range(4000)))
    probing = command("probe", pair, "--engine", "fake", "--budget", "60", "--prompts", two)
    assert probing.stderr is not None
    assert any(stage in line for line in probing.stderr)
    probing.send_signal(sent)
    out, err = probing.communicate(timeout=20)
    assert (probing.returncode, out) == (code, "")
    assert "Traceback" not in err
    if sent == signal.SIGINT:
        assert err.splitlines()[-1] == "interrupted"
    left = [path for folder in (pair / "probes", private_cache) for path in folder.glob("**/*")]
    assert left == []
    assert said("run", pair, "abc", "--engine", "fake", "--max-tokens", "3")[:2] == (0, "abc\n")

"""The whole of `specedge verify`: gates in order, a failure that does not stop the others."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

import tiny
from commands import runner
from specedge.errors import EngineError, OptionError, PromptError
from specedge.gates import verifying
from specedge.gates.findings import Case, Gate

PASSED = Gate("g", "G", "fine", [Case("c", "passed", "seen")])
FAILED = Gate("g", "G", "not fine", [Case("c", "failed", "expected a, found b")])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verifying")
    return tiny.write_bundle(folder, draft=True, rule={"rule": "hashed", "last": 2})


@pytest.fixture
def gates(monkeypatch):
    """Each gate answers as told; what they were given is written down."""
    answers: dict[str, object] = {}
    given: dict[str, dict[str, object]] = {}

    class Module:
        def __init__(self, name):
            self.name = name

        def check(self, desk, prompts, *, report, **own):
            given[self.name] = {"prompts": prompts, "own": own, "desk": desk}
            report("inside", 0.5)
            answer = answers.get(self.name, PASSED)
            if isinstance(answer, BaseException):
                raise answer
            return answer

    real = verifying.importlib.import_module

    def imported(module, package=None):
        name = next((n for n, (path, _) in verifying.GATES.items() if path == module), None)
        return real(module, package) if name is None else Module(name)

    monkeypatch.setattr(verifying.importlib, "import_module", imported)
    answers["given"] = given
    return answers


def verify(bundle, **options):
    return verifying.verify(bundle, engine="fake", **options)


def test_all_gates_run_in_order_and_pass(bundle, gates):
    stages: list[tuple[str, float]] = []
    verified = verify(bundle, report=lambda stage, share: stages.append((stage, share)))
    assert list(gates["given"]) == list(verifying.GATES)
    assert verified.passed
    assert verified.left_out == []
    assert stages == [(title, 0.5) for _, title in verifying.GATES.values()]
    assert verified.versions["specedge"]
    assert verified.fingerprint["engine"] == "fake"
    json.dumps(verified.to_dict())


def test_a_gate_that_breaks_fails_and_the_others_still_run(bundle, gates):
    gates["greedy"] = EngineError("target: it\nbroke")
    verified = verify(bundle)
    assert len(gates["given"]) == len(verifying.GATES)
    assert not verified.passed
    broken = verified.gates[1]
    assert (broken.name, broken.outcome) == ("greedy", "failed")
    assert broken.cases[0].said == "target: it broke"


def test_an_error_of_any_kind_fails_its_gate_alone(bundle, gates):
    gates["quality"] = RuntimeError("the tokenizers\nlibrary broke")
    verified = verify(bundle)
    assert [gate.outcome for gate in verified.gates].count("passed") == len(verifying.GATES) - 1
    (case,) = verified.gates[3].cases
    assert (case.outcome, case.said) == ("failed", "RuntimeError: the tokenizers library broke")


def test_ctrl_c_keeps_the_gates_that_have_ended_and_is_no_go(said, bundle, gates, tmp_path):
    gates["quality"] = KeyboardInterrupt()
    junit = tmp_path / "v.xml"
    code, out, _ = said("verify", bundle, "--engine", "fake", "--junit", junit)
    assert code == 130
    assert out.splitlines()[-1] == (
        "no go: interrupted before quality, structured and limits had ended"
    )
    assert len(ET.parse(junit).findall("testsuite")) == 3
    code, out, _ = said("verify", bundle, "--engine", "fake", "--json")
    assert code == 130
    found = json.loads(out)
    assert found["interrupted"] == ["quality", "structured", "limits"]
    assert found["passed"] is False
    gates["compatibility"] = KeyboardInterrupt()
    assert said("verify", bundle, "--engine", "fake")[:2] == (130, "")


def test_one_failed_gate_is_no_go(bundle, gates):
    gates["limits"] = FAILED
    assert not verify(bundle).passed


def test_a_gate_that_could_not_apply_is_not_passed(bundle, gates):
    gates["structured"] = Gate("g", "G", "no", [Case("c", "skipped", "why")])
    assert not verify(bundle).passed


def test_gates_are_chosen_by_name(bundle, gates):
    verified = verify(bundle, gates=["limits", "greedy"], without=["limits"])
    assert list(gates["given"]) == ["greedy"]
    assert verified.passed
    assert set(verified.left_out) == set(verifying.GATES) - {"greedy"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gates": ["gredy"]}, "no gate 'gredy'; there are compatibility, greedy"),
        ({"without": list(verifying.GATES)}, "none is left to run"),
        ({"per_class": 0}, "per-class: expected 1 or more, found 0"),
        ({"max_tokens": -1}, "max-tokens: expected 1 or more, found -1"),
        ({"max_tokens": 9, "gates": ["limits"]}, "max-tokens: is for the gate greedy"),
    ],
)
def test_what_cannot_be_run_is_refused_before_a_bundle_is_opened(tmp_path, options, said):
    with pytest.raises(OptionError, match=said):
        verify(tmp_path / "no bundle", **options)


def test_prompts_and_tasks_of_ones_own_reach_their_gates(bundle, gates, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n{"prompt": "two"}\n', encoding="utf-8")
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"prompt": "1 + 1 =", "expect": "2"}\n', encoding="utf-8")
    verify(bundle, prompts_file=prompts, tasks_file=tasks, max_tokens=7)
    given = gates["given"]
    assert [len(each["prompts"]) for each in given.values()] == [2] * len(given)
    assert given["greedy"]["own"] == {"max_tokens": 7}
    assert len(given["quality"]["own"]["tasks"]) == 1
    with pytest.raises(OptionError, match="gate quality, which is left out"):
        verify(bundle, tasks_file=tasks, without=["quality"])


def test_an_empty_file_of_prompts_is_one_error(bundle, gates, tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(b"")
    with pytest.raises(PromptError, match=r"empty\.jsonl"):
        verify(bundle, prompts_file=empty)
    assert not gates["given"]


@pytest.fixture
def said(capfd, monkeypatch):
    return runner(capfd, monkeypatch)


def test_the_command_writes_every_form_and_exits_by_the_verdict(said, bundle, gates, tmp_path):
    junit, html = tmp_path / "v.xml", tmp_path / "v.html"
    args = ("verify", bundle, "--engine", "fake", "--junit", junit, "--html", html)
    code, out, err = said(*args)
    assert code == 0
    assert "go" in out
    assert str(junit) in err
    assert ET.parse(junit).getroot().tag == "testsuites"
    assert "<html" in html.read_text(encoding="utf-8")
    gates["greedy"] = FAILED
    code, out, _ = said(*args)
    assert code == 1
    assert "expected a, found b" in out
    code, out, _ = said("verify", bundle, "--engine", "fake", "--json")
    assert code == 1
    assert json.loads(out)["passed"] is False
    assert json.loads(out)["gates"][1]["outcome"] == "failed"


def test_a_place_that_cannot_be_written_is_found_before_anything_runs(
    said, bundle, gates, tmp_path
):
    code, out, err = said("verify", bundle, "--engine", "fake", "--html", tmp_path / "no" / "x")
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert not gates["given"]


@pytest.mark.parametrize("stdout", ["closed", "full", "nobody reads"])
def test_files_are_written_though_stdout_cannot_be(bundle, tmp_path, stdout):
    junit, html = tmp_path / "v.xml", tmp_path / "v.html"
    program = "from specedge.cli import main; main()"
    command = [sys.executable, "-c", program, "verify", bundle, "--engine", "fake"]
    command += ["--gate", "compatibility", "--junit", junit, "--html", html]
    line = shlex.join(map(str, command))
    how = {"closed": ">&-", "full": ">/dev/full", "nobody reads": "| true"}[stdout]
    script = ["bash", "-c", f"set -o pipefail; {line} {how}"]
    ran = subprocess.run(script, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert ran.returncode == {"closed": 0, "full": 1, "nobody reads": 141}[stdout]
    assert ("No space left on device" in ran.stderr) == (stdout == "full")
    assert junit.exists()
    assert html.exists()


def test_a_file_that_cannot_be_written_does_not_cost_the_others(said, bundle, gates, tmp_path):
    args = ("verify", bundle, "--engine", "fake", "--html", "/dev/full")
    code, out, err = said(*args, "--junit", tmp_path / "v.xml")
    assert code == 1
    assert out.splitlines()[-1] == "go: 6 gates passed"
    assert err.splitlines()[-1].startswith("error: report: /dev/full: cannot be written: No space")
    assert (tmp_path / "v.xml").exists()


def test_two_reports_do_not_share_a_file(said, bundle, gates, tmp_path):
    one, same = tmp_path / "v", tmp_path / "." / "v"
    code, _, err = said("verify", bundle, "--engine", "fake", "--junit", one, "--html", same)
    assert code == 1
    assert "junit, html: both are" in err
    assert not gates["given"]


def test_a_tiny_bundle_goes_through_the_real_gates(bundle):
    verified = verify(bundle, gates=["compatibility", "greedy"], per_class=1, max_tokens=8)
    assert [gate.outcome for gate in verified.gates] == ["passed", "passed"]

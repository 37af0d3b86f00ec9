"""The whole of `specedge verify`: gates in order, a failure that does not stop the others."""

from __future__ import annotations

import json
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

    def imported(module):
        name = next((n for n, (path, _) in verifying.GATES.items() if path == module), None)
        return real(module) if name is None else Module(name)

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


def test_a_tiny_bundle_goes_through_the_real_gates(bundle):
    verified = verify(bundle, gates=["compatibility", "greedy"], per_class=1, max_tokens=8)
    assert [gate.outcome for gate in verified.gates] == ["passed", "passed"]

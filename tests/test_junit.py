"""JUnit XML: what every parser of it reads is what was found."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

import verify_samples as samples
from specedge.errors import ProbeError
from specedge.gates.findings import Case, Gate
from specedge.gates.junit import xml
from specedge.report.writing import write


def read(verified) -> ET.Element:
    return ET.fromstring(xml(verified).encode())


def test_a_suite_a_gate_and_a_test_a_case_with_their_counts_and_times():
    verified = samples.verified(samples.greedy(failed=True), samples.limits())
    root = read(verified)
    assert (root.tag, root.attrib) == (
        "testsuites",
        {
            "name": "specedge verify smollm2",
            "tests": "5",
            "failures": "1",
            "skipped": "1",
            "time": "42.000",
        },
    )
    assert [suite.tag for suite in root] == ["testsuite", "testsuite"]
    for suite, gate in zip(root, verified.gates, strict=True):
        outcomes = [case.outcome for case in gate.cases]
        assert suite.attrib == {
            "name": gate.name,
            "tests": str(len(outcomes)),
            "failures": str(outcomes.count("failed")),
            "skipped": str(outcomes.count("skipped")),
            "errors": "0",
            "time": f"{gate.seconds:.3f}",
            "timestamp": "2026-11-30T12:48:12",
        }
        assert [part.tag for part in suite] == [
            "properties",
            *["testcase"] * len(gate.cases),
            "system-out",
        ]
        assert suite.find("system-out").text.splitlines()[1:] == [gate.said, *gate.notes]
        for test, case in zip(suite.iter("testcase"), gate.cases, strict=True):
            assert test.attrib == {
                "classname": f"specedge.verify.{gate.name}",
                "name": case.name,
                "time": f"{case.seconds:.3f}",
            }
            (said,) = test
            tags = {"failed": "failure", "skipped": "skipped", "passed": "system-out"}
            assert said.tag == tags[case.outcome]
            found = said.text if case.outcome == "passed" else said.attrib["message"]
            assert found == case.said


def test_a_failure_holds_its_line_and_its_figures():
    root = read(samples.verified(samples.greedy(failed=True)))
    lines = root.find(".//failure").text.splitlines()
    assert lines[0] == root.find(".//failure").attrib["message"]
    assert lines[1:3] == ["prompts: 20", "equal: 19"]
    assert '"position": 17' in lines[3]


def test_versions_fingerprint_and_command_are_properties_of_every_suite():
    root = read(samples.verified(left_out=["quality"], notes=["first", "second"]))
    for suite in root:
        found = {each.attrib["name"]: each.attrib["value"] for each in suite.iter("property")}
        assert found == {
            "bundle": "smollm2",
            "created": "2026-11-30T12:48:12+00:00",
            "command": "specedge verify bundles/smollm2 --html page.html",
            "verdict": "go",
            "left_out": "quality",
            "version.specedge": "0.1.0",
            "version.python": "3.11.9",
            "version.onnxruntime": "1.32.0",
            "fingerprint.bundle": "5f" * 32,
            "fingerprint.engine": "ONNX Runtime 1.32.0",
            "fingerprint.threads": "2",
            "fingerprint.exact": "True",
            "fingerprint.governor": "unknown",
            "note.1": "first",
            "note.2": "second",
        }
    failing = read(samples.verified(samples.greedy(failed=True)))
    assert failing.find(".//property[@name='verdict']").attrib["value"] == "no go"


def test_text_of_a_model_stays_text_and_loses_only_what_xml_cannot_hold():
    root = read(samples.verified(samples.hostile()))
    expected = samples.HOSTILE
    for bad in "\0\x1b\ud800\uffff":
        expected = expected.replace(bad, "\ufffd")
    assert "</td><script>" in expected
    assert expected.endswith("é漢\n\tend")
    names = [test.attrib["name"] for test in root.iter("testcase")]
    assert names == [f"{outcome} {expected}" for outcome in ("failed", "skipped", "passed")]
    assert root.find(".//failure").attrib["message"] == expected
    assert root.find(".//failure").text.startswith(expected)
    assert root.find(".//testcase/system-out").text == expected
    assert root.find(".//script") is None


@pytest.mark.parametrize("code", [*range(0x20), 0x7F, 0x85, 0xD800, 0xDFFF, 0xFFFE, 0xFFFF])
def test_every_character_gives_a_document_that_parses(code):
    gate = Gate("greedy", "t", chr(code), [Case(chr(code), "failed", f"a{chr(code)}b")])
    said = read(samples.verified(gate)).find(".//failure").attrib["message"]
    legal = code in (9, 10, 13, 0x7F, 0x85)
    assert said == (f"a{chr(code)}b" if legal else "a\ufffdb")


def test_a_time_that_is_none_is_left_out_and_another_zone_is_utc():
    assert "timestamp" not in read(samples.verified(created="some day"))[0].attrib
    suite = read(samples.verified(created="2026-11-30T14:48:12.5+02:00"))[0]
    assert suite.attrib["timestamp"] == "2026-11-30T12:48:12"


def test_a_long_figure_is_cut():
    case = Case("x", "failed", "said", 0.0, {"numbers": list(range(5000)), "after": 1})
    text = read(samples.verified(Gate("greedy", "t", "s", [case]))).find(".//failure").text
    assert len(text) < 2100
    assert text.endswith("...\nafter: 1")


def test_the_file_is_written_whole_and_the_same_each_time(tmp_path):
    path = tmp_path / "junit.xml"
    write(path, xml(samples.verified()))
    first = path.read_bytes()
    write(path, xml(samples.verified()))
    assert path.read_bytes() == first == xml(samples.verified()).encode()
    assert first.startswith(b'<?xml version="1.0" encoding="utf-8"?>\n<testsuites ')
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ProbeError, match="there is no folder"):
        write(tmp_path / "missing" / "junit.xml", "text")

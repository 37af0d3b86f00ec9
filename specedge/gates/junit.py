"""A verification as JUnit XML, which build servers read: a suite a gate, a test a case.

testsuites   name, tests, failures, skipped, time
testsuite    the same, timestamp; properties (bundle, command, versions, fingerprint)
testcase     classname "specedge.verify.GATE", name, time; failure or skipped with what was said
system-out   the certificate and the notes of a gate, the line of a case that passed
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from specedge.gates.findings import Case, Gate, Verified

_MOST = 2000  # characters of one figure under a failure
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, 2.2


def xml(verified: Verified) -> str:
    """The whole document; the same verification gives the same text.

    Characters that XML 1.0 cannot hold, escaped or not, become U+FFFD.
    """
    cases = [case for gate in verified.gates for case in gate.cases]
    root = ET.Element(
        "testsuites",
        {"name": _clean(f"specedge verify {verified.bundle}")} | _counts(cases),
        time=_seconds(sum(gate.seconds for gate in verified.gates)),
    )
    for gate in verified.gates:
        _suite(root, gate, verified)
    ET.indent(root, " ")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _suite(root: ET.Element, gate: Gate, verified: Verified) -> None:
    suite = ET.SubElement(
        root,
        "testsuite",
        {"name": _clean(gate.name)} | _counts(gate.cases),
        errors="0",
        time=_seconds(gate.seconds),
    )
    when = _timestamp(verified.created)
    if when is not None:
        suite.set("timestamp", when)
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(verified):
        ET.SubElement(properties, "property", name=_clean(name), value=_clean(value))
    for case in gate.cases:
        _test(suite, gate, case)
    said = [f"{gate.title}: {gate.outcome}", gate.said, *gate.notes]
    ET.SubElement(suite, "system-out").text = _clean("\n".join(said))


def _test(suite: ET.Element, gate: Gate, case: Case) -> None:
    test = ET.SubElement(
        suite,
        "testcase",
        classname=_clean(f"specedge.verify.{gate.name}"),
        name=_clean(case.name),
        time=_seconds(case.seconds),
    )
    if case.outcome == "failed":
        kind = _clean(f"{gate.name} failed")
        failure = ET.SubElement(test, "failure", message=_clean(case.said), type=kind)
        failure.text = _clean("\n".join([case.said, *_figures(case)]))
    elif case.outcome == "skipped":
        ET.SubElement(test, "skipped", message=_clean(case.said))
    else:
        ET.SubElement(test, "system-out").text = _clean(case.said)


def _properties(verified: Verified) -> Iterable[tuple[str, str]]:
    yield "bundle", verified.bundle
    yield "created", verified.created
    yield "command", verified.command
    yield "verdict", "go" if verified.passed else "no go"
    if verified.left_out:
        yield "left_out", ", ".join(verified.left_out)
    for name, version in verified.versions.items():
        yield f"version.{name}", version
    for name, part in verified.fingerprint.items():
        yield f"fingerprint.{name}", "unknown" if part is None else str(part)
    for place, note in enumerate(verified.notes, 1):
        yield f"note.{place}", note


def _figures(case: Case) -> Iterable[str]:
    """Name and value, a line each; long ones are cut."""
    for name, value in case.figures.items():
        said = json.dumps(value, ensure_ascii=False, default=str)
        yield f"{name}: {said if len(said) <= _MOST else f'{said[:_MOST]}...'}"


def _counts(cases: Iterable[Case]) -> dict[str, str]:
    outcomes = [case.outcome for case in cases]
    return {
        "tests": str(len(outcomes)),
        "failures": str(outcomes.count("failed")),
        "skipped": str(outcomes.count("skipped")),
    }


def _seconds(amount: float) -> str:
    return f"{amount:.3f}"


def _timestamp(created: str) -> str | None:
    """To the second and without a zone, as the schemas of build servers ask; None: it is none."""
    try:
        when = datetime.fromisoformat(created)
    except ValueError:
        return None
    if when.tzinfo is not None:
        when = when.astimezone(UTC).replace(tzinfo=None)
    return when.isoformat(timespec="seconds")


def _clean(said: str) -> str:
    return _FORBIDDEN.sub("\ufffd", said)

"""A verification as tables and sentences of a terminal 80 columns wide."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import verify_samples as samples
from specedge.cli._verify_tables import verdict_lines, verify_tables
from specedge.gates.findings import Case, Gate


def lines_of(verified) -> list[list[str]]:
    """Of each table."""
    found = []
    for table in verify_tables(verified):
        console = Console(width=80, file=io.StringIO())
        console.print(table)
        found.append([line.rstrip() for line in console.file.getvalue().splitlines()])
    return found


def gate(name: str, *outcomes: str) -> Gate:
    cases = [Case(f"case {n}", outcome, f"said {n}") for n, outcome in enumerate(outcomes)]
    return Gate(name, name.title(), f"{name} said", cases, 75.0)


def test_a_row_holds_gate_verdict_cases_time_and_its_line():
    (lines,) = lines_of(samples.verified(left_out=["quality"]))
    assert lines[0] == "gates of smollm2"
    assert lines[1].split() == ["gate", "verdict", "cases", "took", "what", "was", "found"]
    assert lines[2].split(maxsplit=5) == [
        *("greedy", "passed", "2/2", "11", "s"),
        "equal on 40 of 40 prompts",
    ]
    assert lines[3].split()[:5] == ["limits", "passed", "2/3", "31", "s"]
    assert lines[4].split() == ["quality", *"–––", "not", "asked", "for"]


def test_gates_that_were_interrupted_are_rows_and_no_go():
    stopped = samples.verified(interrupted=["quality", "limits"], left_out=["structured"])
    (lines,) = lines_of(stopped)
    assert [line.split()[0] for line in lines[4:]] == ["quality", "limits", "structured"]
    assert lines[4].endswith("interrupted")
    assert verdict_lines(stopped)[-1] == "no go: interrupted before quality and limits had ended"


def test_failed_cases_follow_with_where_expected_and_found():
    first, second = lines_of(samples.verified(samples.greedy(failed=True), samples.limits()))
    assert "failed" in first[2]
    assert second[0] == "failed cases"
    text = " ".join(" ".join(line.split()) for line in second[2:])
    assert text.startswith("greedy draft K=7 chat 3: token 17: expected 402, found 11; margin")
    assert "beyond the noise of 0" in text
    assert "ngram" not in text


@pytest.mark.parametrize("width", [60, 80])
def test_long_and_hostile_text_is_folded_to_the_width_and_obeyed_by_no_terminal(width):
    long = Gate("greedy", "t", "word " * 60, [Case("þ" * 90, "failed", "ß" * 300)], 5000.0)
    for table in verify_tables(samples.verified(samples.hostile(), long, bundle="b" * 200)):
        console = Console(width=width, file=io.StringIO())
        console.print(table)
        said = console.file.getvalue()
        assert all(len(line) <= width for line in said.splitlines())
        assert "\x1b" not in said
        assert "\0" not in said
        said.encode()
    assert said.count("ß") == 300
    assert said.count("þ") == 90


@pytest.mark.parametrize(
    ("gates", "left_out", "said"),
    [
        (("passed", "passed"), (), "go: 2 gates passed"),
        (("passed",), (), "go: 1 gate passed"),
        (("passed",), ("limits", "quality"), "go: 1 gate passed; limits and quality not asked for"),
        (("passed", "failed"), (), "no go: gate 1 failed"),
        (("failed", "failed", "failed"), (), "no go: gate 0, gate 1 and gate 2 failed"),
        (("skipped", "passed"), (), "no go: gate 0 was skipped"),
        (
            ("skipped", "failed", "skipped"),
            ("limits",),
            "no go: gate 1 failed, gate 0 and gate 2 were skipped",
        ),
    ],
)
def test_the_verdict_is_the_last_line_and_agrees_with_passed(gates, left_out, said):
    named = [gate(f"gate {n}", outcome) for n, outcome in enumerate(gates)]
    verified = samples.verified(*named, left_out=left_out)
    assert verdict_lines(verified)[-1] == said
    assert said.startswith("go") is verified.passed


def test_without_a_gate_it_is_no_go():
    assert verdict_lines(samples.verified(gates=()))[-1] == "no go: no gate was run"
    assert not samples.verified(gates=()).passed


def test_notes_and_skipped_cases_are_a_line_each_before_the_verdict():
    verified = samples.verified(samples.greedy(), gate("b", *["skipped"] * 5), notes=["all of it"])
    assert verdict_lines(verified)[:-1] == [
        "note: greedy: Prompts: 20, 4 of each class.",
        "skipped: b: case 0 (said 0), case 1 (said 1), case 2 (said 2), and 2 more",
        "note: all of it",
    ]
    (line, *_) = verdict_lines(samples.verified(samples.hostile()))
    assert line.isprintable()


def test_of_many_failures_a_dozen_is_shown():
    _, lines = lines_of(samples.verified(gate("greedy", *["failed"] * 20, "passed")))
    assert len(lines) == 2 + 13
    assert lines[-1].split(maxsplit=2) == ["greedy", "...", "and 8 more; 1 of 21 passed, 20 failed"]

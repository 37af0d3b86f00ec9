"""The page of a verification: whole, closed, escaped, and whatever the gates found."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

import verify_samples as samples
from specedge.gates.findings import Case, Gate
from specedge.report.verification import render_verified
from specedge.report.verify_figures import beyond, brief, full

VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Fails on a tag left open; keeps words, rows of tables, and what stood in which tag."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.words: list[str] = []
        self.folded: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert len({name for name, _ in attrs}) == len(attrs)
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        inside = {tag for tag, _ in self.open}
        if "style" not in inside:
            self.words.append(data)
        if "details" in inside and "summary" not in inside:
            self.folded.append(data)
        if inside & {"td", "th"}:
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def with_figures(**figures: object) -> Gate:
    case = Case("a case", "failed", "it failed", 0.5, figures)
    return Gate("greedy", "Greedy equality", "said", [case], 1.0, figures)


ODD = with_figures(
    none=None,
    yes=True,
    whole=1234567,
    part=0.123456,
    nan=float("nan"),
    huge=10**400,
    text="two\nlines " + "x" * 5000,
    empty=[],
    empty_object={},
    mixed=[1, [2, {"a": 3}], "b"],
    deep={"a": {"b": [1, 2]}},
    many=list(range(500)),
    objects=[{"a": 1, "b": [1, 2]}, {"b": 3, "c": None}],
    many_objects=[{"number": n} for n in range(100)],
    flat_by_step=[[0, 5.0], [1, 5.0], [2, 5.0]],
    zero_by_step=[[0, 0], [1, 0], [2, 0]],
    far_by_step=[[-1e9, -1e12], [0, 1e-9], [1e9, 1e12]],
    falling=[[3, 1], [2, 1], [1, 1]],
    two_points=[[1, 1], [2, 2]],
)
MANY = Gate(
    "structured",
    "Structured output",
    "said",
    [Case(f"schema {n}", "failed" if n % 2 else "passed", f"said {n}") for n in range(200)],
)
PAGES = {
    "go": samples.verified(),
    "no go": samples.verified(samples.greedy(failed=True), samples.limits(), notes=["mind this"]),
    "left out": samples.verified(left_out=["quality", "structured"]),
    "hostile": samples.verified(
        samples.hostile(),
        bundle=samples.HOSTILE,
        created=samples.HOSTILE,
        command=samples.HOSTILE,
        versions={samples.HOSTILE: samples.HOSTILE},
        fingerprint={samples.HOSTILE: samples.HOSTILE},
        left_out=[samples.HOSTILE],
        notes=[samples.HOSTILE],
    ),
    "odd figures": samples.verified(ODD),
    "many cases": samples.verified(MANY),
    "no gate": samples.verified(gates=()),
    "bare": samples.verified(command="", versions={}, fingerprint={}, created="", bundle=""),
}


@pytest.mark.parametrize("name", PAGES)
def test_every_verification_gives_a_closed_page_that_loads_nothing(name):
    html = render_verified(PAGES[name])
    page = Reader(html)
    html.encode()
    assert html.startswith("<!DOCTYPE html>\n<html")
    assert not re.search(r"https?://|url\(|@import", html)
    assert not {"script", "link", "img", "iframe", "object", "a", "use"} & set(page.tags)
    loading = {"src", "href", "xlink:href", "srcset", "style", "data"}
    assert not [each for each in page.attributes if each[1] in loading or each[1].startswith("on")]
    ids = [value for _, key, value in page.attributes if key == "id"]
    assert len(set(ids)) == len(ids)
    assert {value for _, key, value in page.attributes if key == "aria-labelledby"} <= set(ids)
    assert not re.search("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", html)
    if name not in ("hostile", "bare"):
        assert html == render_verified(PAGES[name])


def test_the_verdict_comes_first_and_agrees_with_passed():
    for name, said in {
        "go": "Go 2 gates passed .",
        "no go": "No go greedy failed .",
        "no gate": "No go no gate was run .",
        "left out": "Go 2 gates passed; quality and structured not asked for .",
    }.items():
        html = render_verified(PAGES[name])
        text = Reader(html).text
        assert said.removesuffix(" .") + "." in text
        assert text.index(said.split()[0]) < text.index("Gates")
        kind = "good" if PAGES[name].passed else "bad"
        assert f'class="card decision {kind}"' in html
        assert (f"<title>smollm2: {'go' if PAGES[name].passed else 'no go'}</title>") in html


def test_the_table_of_gates_holds_their_verdicts_and_lines():
    rows = Reader(render_verified(PAGES["no go"])).rows
    assert rows[:3] == [
        ["Gate", "Verdict", "Cases", "Took", "What was found"],
        [
            *("Greedy equality", "✗ failed", "1 of 2 passed, 1 failed", "11 s"),
            "1 of 40 texts differs beyond the width noise of this engine",
        ],
        [
            *("Limits", "✓ passed", "2 of 3 passed, 1 skipped", "31 s"),
            "2 limits hold in 5 ways, T = 1024",
        ],
    ]
    rows = Reader(render_verified(PAGES["left out"])).rows
    assert ["quality", "–", "–", "–", "not asked for"] in rows


def test_a_failed_case_stands_open_and_one_that_passed_is_folded():
    page = Reader(render_verified(PAGES["no go"]))
    folded = " ".join(page.folded)
    failed = "chat 3: token 17: expected 402, found 11; margin 0.031, beyond the noise of 0"
    assert failed in page.text
    assert failed not in folded
    assert ["chat 3", "17", "402, 11", "0.031"] in page.rows
    assert "prompts 20, equal 20, acceptance rate 0.6125" in folded
    assert "context filled to the last slot" in folded
    assert "there is no draft model" in page.text
    assert "there is no draft model" not in folded
    assert "Prompts: 20, 4 of each class." in page.text
    assert "Read with care mind this" in page.text


def test_every_case_is_on_the_page_however_many_failed():
    page = Reader(render_verified(PAGES["many cases"]))
    words = set(page.words)
    for case in MANY.cases:
        assert {case.name, case.said} & words or f"{case.name} " in words
        assert case.said in words
    assert "60 more failed" in words
    assert "100 cases passed" in words


def test_what_comes_from_a_model_is_text_and_never_markup():
    page = Reader(render_verified(PAGES["hostile"]))
    shown = samples.HOSTILE
    for bad in "\0\x1b\ud800":
        shown = shown.replace(bad, "\ufffd")
    # bundle, created, command, left out, notes; title, line, note of the gate; three cases
    assert page.text.count("<script>alert('1')</script>") >= 18
    assert " ".join(shown.split()) in page.text
    assert "script" not in page.tags


def test_versions_fingerprint_and_command_are_shown():
    page = Reader(render_verified(PAGES["go"]))
    for row in (
        ["onnxruntime", "1.32.0"],
        ["bundle", "5f" * 32],
        ["exact", "yes"],
        ["threads", "2"],
        ["governor", "unknown"],
    ):
        assert row in page.rows
    said = "Made by specedge 0.1.0 on 2026-11-30T12:48:12+00:00 with "
    assert f"{said}specedge verify bundles/smollm2 --html page.html" in page.text.replace("  ", " ")


def test_figures_are_shown_by_what_they_are():
    page = Reader(full(ODD.figures, "figures"))
    rows = {row[0]: row[1] for row in page.rows if len(row) == 2}
    assert rows["none"] == "–"
    assert rows["yes"] == "yes"
    assert rows["whole"] == "1,234,567"
    assert rows["part"] == "0.1235"
    assert rows["empty object"] == "{}"
    assert rows["mixed"] == json.dumps(ODD.figures["mixed"])
    assert rows["many"] == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, … (500 in all)"
    assert rows["two points"] == "[[1, 1], [2, 2]]"
    assert rows["text"].startswith("two\nlines xxx")
    assert len(rows["text"]) <= 601
    assert [row for row in page.rows if len(row) == 3] == [
        ["a", "b", "c"],
        ["1", "1, 2", "–"],
        ["–", "3", "–"],
    ]
    assert "figures: many objects, 100 entries, the first 60 shown" in page.words
    assert [row[0] for row in page.rows if len(row) == 1] == ["number", *map(str, range(60))]
    assert page.tags.count("svg") == 3


def test_the_short_form_of_figures_leaves_out_what_has_no_line():
    figures = {"rss_end_bytes": 300_131_072, "small_bytes": 12, "ways": ["a", 1], "p": 0.00012}
    assert brief(figures) == "rss end bytes 300.1 MB, small bytes 12 B, ways a, 1, p 0.00012"
    assert beyond(figures) == {}
    others = {"empty": [], "nothing": {}, "many": list(range(13)), "deep": [[1]]}
    assert brief(others) == ""
    assert beyond(others) == {"many": list(range(13)), "deep": [[1]]}
    assert set(beyond(ODD.figures)) | {"none", "yes", "empty"} <= set(ODD.figures)
    assert len(brief({"said": "x" * 5000})) <= 610


def test_a_chart_draws_each_pair_at_its_place_and_keeps_noise_flat():
    points = [[200, 100.0], [300, 150.0], [600, 200.0]]
    html = full({"rss_by_request": points}, "memory")
    drawn = re.search(r'class="line s0" points="([^"]*)"', html)[1]
    at = [tuple(map(float, pair.split(","))) for pair in drawn.split()]
    (x0, y0), (x1, y1), (x2, y2) = at
    assert (x1 - x0) / (x2 - x0) == pytest.approx(0.25, abs=0.001)
    assert y0 > y1 > y2
    assert (y0 - y1) == pytest.approx(y1 - y2, abs=0.02)
    width, height = map(float, re.search(r'viewBox="0 0 (\S+) (\S+)"', html).groups())
    assert all(0 <= x <= width and 0 <= y <= height for x, y in at)
    assert 'aria-label="memory: rss by request"' in html
    quiet = full({"rss_by_request": [[1, 1_000_000], [2, 1_000_100], [3, 1_000_000]]}, "")
    drawn = re.search(r'class="line s0" points="([^"]*)"', quiet)[1]
    ys = [float(pair.split(",")[1]) for pair in drawn.split()]
    assert max(ys) - min(ys) < 3

"""The page of a benchmark: whole, closed, escaped, and every number that of the data."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser

import pytest

import bench_samples as samples
from specedge.loadtest import sentences
from specedge.loadtest.keeping import Kept
from specedge.loadtest.records import HEADER, REQUESTS, ROUNDS, Load
from specedge.loadtest.summary import summarise
from specedge.report.bench_plots import Spread, cumulative, cut_off, grouped
from specedge.report.benchmark import render_benchmark

VOID = {"meta", "br"}
HOSTILE = "<script>alert('1')</script>\"&\x00\ud800"


class Reader(HTMLParser):
    """Fails on a tag left open; keeps texts, cells and attributes."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.words: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def failed() -> Kept:
    return samples.replaced(
        samples.kept(repeats=1),
        lambda each: each.model_copy(update={"failure": HOSTILE, "first_s": None, "tokens": 0}),
    )


def hostile() -> Kept:
    """Names and words from outside hold markup."""
    result = samples.kept(
        ways={"plain": 1.0, HOSTILE: 1.2},
        classes=(HOSTILE, "chat"),
        bundle=HOSTILE,
        command=f"specedge bench {HOSTILE}",
        notes=[HOSTILE],
        prompts=HOSTILE,
        options={HOSTILE: HOSTILE},
        versions={HOSTILE: HOSTILE},
        fingerprint={HOSTILE: HOSTILE},
        created=HOSTILE,
    )
    return samples.replaced(
        result,
        lambda each: each.model_copy(update={"failure": HOSTILE}) if each.number == 0 else each,
    )


def straggling() -> Kept:
    """One request takes a hundred times as long."""
    return samples.replaced(
        samples.kept(repeats=1),
        lambda each: (
            each.model_copy(update={"ended_s": 100 * each.ended_s}) if each.number == 19 else each
        ),
    )


PAGES = {
    "one load": lambda: samples.kept(options={"temperature": 0.0, "seed": None}),
    "three loads": lambda: samples.kept(
        loads=(samples.ONE, samples.FOUR, Load(kind="closed", concurrency=8))
    ),
    "rates": lambda: samples.kept(
        loads=tuple(Load(kind="poisson", rate=rate) for rate in (0.5, 1.0, 2.0))
    ),
    "trace": lambda: samples.kept(loads=(Load(kind="trace", rate=0.7),)),
    "plain only": lambda: samples.kept(ways={"plain": 1.0}),
    "no plain": lambda: samples.kept(ways={"auto": 1.3, "draft K=3": 1.2}),
    "fourteen ways": lambda: samples.kept(
        repeats=1,
        ways={"plain": 1.0}
        | {f"a proposer of long name K={k}": 1.0 + k / 20 for k in range(1, 14)},
    ),
    "one request": lambda: samples.kept(per_class=1, classes=("chat",), repeats=1),
    "all failed": failed,
    "interrupted": lambda: samples.replaced(
        samples.kept(complete=False), lambda each: None if each.way == "ngram K=7" else each
    ),
    "straggling": straggling,
    "hostile": hostile,
}


@cache
def kept_of(name: str) -> Kept:
    return PAGES[name]()


@cache
def html_of(name: str) -> str:
    result = kept_of(name)
    return render_benchmark(result, summarise(result))


@pytest.mark.parametrize("name", PAGES)
def test_every_benchmark_gives_a_closed_page_that_loads_nothing(name):
    html = html_of(name)
    page = Reader(html)
    assert html.startswith("<!DOCTYPE html>\n<html")
    html.encode()
    for link in ("http://", "https://", "url(", "@import"):
        assert link not in html
    assert not {"script", "link", "img", "iframe", "object", "a", "use", "image"} & set(page.tags)
    loading = {"src", "href", "xlink:href", "srcset", "style", "data"}
    assert not [each for each in page.attributes if each[1] in loading or each[1].startswith("on")]
    ids = [value for _, key, value in page.attributes if key == "id"]
    assert len(set(ids)) == len(ids)
    assert {value for _, key, value in page.attributes if key == "aria-labelledby"} <= set(ids)
    assert "nan" not in re.findall(r"\w+", page.text)
    assert "None" not in page.text


@pytest.mark.parametrize("name", PAGES)
def test_every_mark_lies_in_its_drawing_or_is_cut_off(name):
    drawings = re.findall(r"<svg.*?</svg>(?:</svg>)?", html_of(name))
    assert drawings
    for drawing in drawings:
        whole = re.sub(r'<svg [^>]*class="cut".*?</svg>', "", drawing)
        width, height = map(float, re.search(r'viewBox="0 0 (\S+) (\S+)"', whole).groups())
        for key in ("x", "x1", "x2", "cx"):
            assert all(0 <= float(at) <= width for at in re.findall(rf' {key}="(\S+)"', whole))
        for key in ("y", "y1", "y2", "cy"):
            assert all(0 <= float(at) <= height for at in re.findall(rf' {key}="(\S+)"', whole))
        for x, bar in re.findall(r'<rect class="mark[^>]* x="(\S+)"[^>]* width="(\S+)"', whole):
            assert float(x) + float(bar) <= width


@pytest.mark.parametrize("name", PAGES)
def test_every_drawing_says_what_it_shows_and_has_a_caption(name):
    html = html_of(name)
    labels = [
        value for tag, key, value in Reader(html).attributes if (tag, key) == ("svg", "aria-label")
    ]
    assert len(labels) == html.count('role="img"') == html.count("<figcaption")
    assert all(labels)


@pytest.mark.parametrize("name", PAGES)
def test_the_page_names_every_way_load_and_raw_file_and_the_command(name):
    result = kept_of(name)
    text = Reader(html_of(name)).text
    clean = [each for each in (*result.header.ways, result.header.command) if each.isprintable()]
    for said in (*clean, HEADER, REQUESTS, ROUNDS, result.header.bundle_hash):
        assert said in text
    assert all(each.name in text for each in result.header.loads)
    assert sentences.SERIAL in text


def test_the_same_result_gives_the_same_page():
    first, second = samples.kept(), samples.kept()
    assert render_benchmark(first, summarise(first)) == render_benchmark(second, summarise(second))


def test_the_verdict_comes_first():
    result = kept_of("one load")
    text = Reader(html_of("one load")).text
    said = sentences.headline(summarise(result)).said
    assert text.index("Speculation pays") < text.index(said) < text.index("What pays")


def test_what_comes_from_data_is_text_and_never_markup():
    page = Reader(html_of("hostile"))
    shown = "<script>alert('1')</script>\"&\ufffd\ufffd"
    assert page.text.count(shown) > 12
    assert "\x00" not in html_of("hostile")
    rows = {row[0]: row[1:] for row in page.rows if row}
    assert rows[shown]


def test_figures_in_tables_are_those_of_the_summary():
    summary = summarise(kept_of("three loads"))
    rows = Reader(html_of("three loads")).rows
    cell = summary.of(1, "draft K=3")
    spread = ["draft K=3", "to the last token", "60"]
    values = (cell.e2e.mean, cell.e2e.p50, cell.e2e.p90, cell.e2e.p99, cell.e2e.largest)
    assert [*spread, *(f"{value:.0f}" for value in values)] in rows
    stood = cell.acceptance
    pairs = zip(stood.accepted_by_position, stood.proposed_by_position, strict=True)
    parts = [f"{accepted}/{proposed}" for accepted, proposed in pairs]
    assert any(row[: 1 + len(parts)] == ["draft K=3", *parts] for row in rows)
    assert any(
        row[0] == "draft K=3" and f"{cell.acceptance.length:.2f}" in row and "Rounds" not in row
        for row in rows
    )


def test_doubts_stand_before_the_figures():
    text = Reader(html_of("interrupted")).text
    assert text.index("Read with careInterrupted") < text.index("What pays")
    assert "No request was made by ngram K=7 with 1 client" in text
    assert "Read with care" not in Reader(html_of("one load")).text
    assert "80 of 80 requests failed" in Reader(html_of("all failed")).text


def test_load_is_drawn_only_where_it_was_varied():
    assert "clients at a time" in html_of("three loads")
    assert "requests/s that arrive" in html_of("rates")
    for name in ("one load", "trace"):
        assert "Too few loads of one kind" in html_of(name)


def test_a_stray_request_does_not_squeeze_the_curves():
    rising = [float(ms) for ms in range(100, 200)]
    assert not cut_off([Spread(("plain", 0), rising)])
    far = [*rising, 50_000.0]
    assert cut_off([Spread(("plain", 0), far)])
    chart = cumulative("label", [Spread(("plain", 0), far)])
    assert ">500<" in chart
    assert "50" not in re.findall(r">(\d+)<", chart)


def test_a_curve_climbs_a_step_for_every_request():
    chart = cumulative("label", [Spread(("plain", 0), [10.0, 20.0, 40.0])])
    points = re.search(r'class="line s0" points="([^"]*)"', chart).group(1).split()
    heights = [float(point.split(",")[1]) for point in points]
    assert heights == sorted(heights, reverse=True)
    top, bottom = min(heights), max(heights)
    shares = sorted({round((bottom - each) / (bottom - top), 3) for each in heights})
    assert shares == [0, 0.333, 0.667, 1]


def test_plain_stands_in_every_chart_and_no_chart_has_more_ways_than_colours():
    groups = grouped(["plain", *map(str, range(13))], "plain")
    assert [len(group) for group in groups] == [6, 6, 4]
    assert all(group[0] == ("plain", 0) for group in groups)
    assert grouped(["a", "b"], "plain") == [[("a", 0), ("b", 1)]]
    assert grouped(["plain"], "plain") == [[("plain", 0)]]


def test_an_unequal_output_is_a_doubt_on_the_page():
    result = samples.kept()
    changed = samples.replaced(
        result,
        lambda each: (
            each.model_copy(update={"output": "x"})
            if (each.way, each.number, each.repeat) == ("auto", 3, 0)
            else each
        ),
    )
    html = render_benchmark(changed, summarise(changed))
    text = Reader(html).text
    assert "Outputs equal plain's in 179 of 180 requests: they differ for auto" in text

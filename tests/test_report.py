"""The page of a probe: whole, closed, escaped, and every number that of the data."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from math import log

import pytest

import report_samples as samples
from specedge.probe.curves import CostCurves, Curve, Point
from specedge.probe.findings import Energy, Estimate, Finding, Steadiness
from specedge.probe.record import Record
from specedge.report import render
from specedge.report.markup import Markup, element

VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Fails on a tag left open; keeps texts, tables and what a page could load."""

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
        assert len({name for name, _ in attrs}) == len(attrs)
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


def read(page) -> Reader:
    return Reader(page.html())


def with_findings(**changed):
    costs = samples.curves()
    return samples.page(curves=costs, findings=samples.findings(costs, **changed))


def of_one(**changed) -> Finding:
    """Code editing by lookups, changed."""
    found = samples.findings(samples.curves()).findings
    (one,) = (
        each for each in found if each.workload == "code editing" and each.proposer == "ngram"
    )
    return Finding.model_validate(one.model_dump() | changed)


def narrow_curves() -> CostCurves:
    """A bundle that verifies one token, timed twice after one past."""
    point = Point(width=1, past=128, count=2, ms=0.02, low_ms=0.01, high_ms=0.5)
    curve = Curve(role="target", width_step=1, points=(point,))
    return CostCurves(
        plan="startup", target=curve, draft=None, passes=2, seconds=0.2, converged=False
    )


def one_draft_curves() -> CostCurves:
    """Six pasts, and a draft that was timed for one token only."""
    pasts = (0, 64, 128, 512, 2048, 4000)
    point = {"width": 1, "count": 9, "ms": 8.0, "low_ms": 7.9, "high_ms": 8.1}
    points = tuple(Point(past=past, **point) for past in pasts)
    draft = Curve(role="draft", width_step=1, points=points)
    return samples.curves(pasts=pasts).model_copy(update={"draft": draft})


PAGES = {
    "complete": samples.page,
    "troubled": samples.troubled,
    "costs only": lambda: samples.page(findings=None),
    "one width": lambda: samples.page(curves=narrow_curves(), findings=None),
    "one past": lambda: samples.page(curves=samples.curves(pasts=(256,))),
    "many pasts": lambda: samples.page(curves=one_draft_curves(), findings=None),
    "no draft": lambda: samples.page(
        curves=samples.curves(draft=False),
        findings=samples.findings(samples.curves(draft=False), ("ngram",)),
    ),
    "no finding": lambda: with_findings(findings=(), proposers=(), texts_equal=0, texts_compared=0),
    "proposer never tried": lambda: with_findings(findings=(), proposers=("ngram",)),
    "one K": lambda: with_findings(
        findings=(
            of_one(
                expected=(of_one().expected[0],),
                best_k=1,
                reached=(9,),
                stood=(9,),
                measured=Estimate(gain=80.0, low=0.01, high=400.0, prompts=2),
            ),
        )
    ),
    "nothing drafted": lambda: with_findings(
        findings=(
            of_one(reached=(0, 0), stood=(0, 0), expected=(), best_k=0, measured=None),
            of_one(workload="", reached=(), stood=(), expected=(), best_k=0, measured=None),
        )
    ),
    "no interval": lambda: with_findings(
        findings=(
            of_one(
                expected=tuple(
                    each.model_copy(update={"estimate": Estimate(gain=0.001 * each.k, prompts=1)})
                    for each in of_one().expected
                ),
                measured=Estimate(gain=1.0, prompts=1),
            ),
        )
    ),
    "many classes": lambda: with_findings(
        findings=tuple(of_one(workload=f"class {number} of the user") for number in range(14))
    ),
    "measured without a best K": lambda: with_findings(
        findings=(of_one(best_k=0, measured=Estimate(gain=0.9, prompts=12)),)
    ),
    "margin of one": lambda: with_findings(margin=1.0),
    "no meter, no clocks": lambda: with_findings(
        energy=None, steadiness=Steadiness(drift=0.7, clocks_mhz=None)
    ),
    "metered plainly only": lambda: with_findings(
        energy=Energy(source="board", idle_watts=None, plain=0.0, speculative=None)
    ),
    "free plain tokens": lambda: with_findings(
        energy=Energy(source="board", idle_watts=0.0, plain=0.0, speculative=0.0)
    ),
    "bare fingerprint": lambda: samples.page(fingerprint={}, created="some day", bundle_name=""),
}


@cache
def html_of(name: str) -> str:
    return PAGES[name]().html()


@pytest.mark.parametrize("name", PAGES)
def test_every_probe_gives_a_closed_page_that_loads_nothing(name):
    html = html_of(name)
    page = Reader(html)
    assert html.startswith("<!DOCTYPE html>\n<html")
    assert "http://" not in html
    assert "https://" not in html
    assert "url(" not in html
    assert "@import" not in html
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
    for drawing in re.findall(r"<svg.*?</svg>(?:</svg>)?", html_of(name)):
        whole = re.sub(r'<svg [^>]*class="cut".*?</svg>', "", drawing)
        width, height = map(float, re.search(r'viewBox="0 0 (\S+) (\S+)"', whole).groups())
        for key, most in (("x", width), ("x1", width), ("x2", width), ("cx", width)):
            assert all(0 <= float(at) <= most for at in re.findall(rf' {key}="(\S+)"', whole))
        for key in ("y", "y1", "y2", "cy"):
            assert all(0 <= float(at) <= height for at in re.findall(rf' {key}="(\S+)"', whole))
        numbers = [
            at for points in re.findall(r'points="([^"]*)"', drawing) for at in points.split()
        ]
        assert all(re.fullmatch(r"-?\d+\.\d\d,-?\d+\.\d\d", at) for at in numbers)


@pytest.mark.parametrize("name", PAGES)
def test_every_drawing_says_what_it_shows_and_has_a_caption(name):
    page = html_of(name)
    read = Reader(page)
    drawings = page.count('role="img"')
    labels = [value for tag, key, value in read.attributes if (tag, key) == ("svg", "aria-label")]
    assert len(labels) == drawings
    assert all(labels)
    assert page.count("<figure") == page.count("<figcaption")
    assert drawings - page.count("<figure") == page.count('class="key"')


def test_the_same_record_gives_the_same_page():
    assert samples.page().html() == samples.page().html()
    costs = samples.curves()
    record = Record(
        created=samples.CREATED,
        fingerprint=samples.fingerprint(),
        curves=costs,
        findings=samples.findings(costs),
    )
    assert render(record, title="qwen2.5-coder") == samples.page().html()


def test_what_comes_from_data_is_text_and_never_markup():
    page = samples.troubled()
    hostile = samples.page(
        curves=page.curves,
        findings=page.findings,
        bundle_name="<script>alert('1')</script>",
        fingerprint={"<i>part</i>": '"><img src=x onerror=alert(1)>', "engine": "<engine>"},
        created="</title><script>",
        command='specedge probe "<b>"',
    )
    read_page = read(hostile)
    assert not {"script", "img", "b", "i", "engine"} - {"b"} & set(read_page.tags)
    for said in (
        "<script>alert('1')</script>",
        '"><img src=x onerror=alert(1)>',
        "<i>part</i>",
        "<engine>",
        "</title><script>",
        'specedge probe "<b>"',
        '<b>questions & "answers"</b>',
    ):
        assert said in read_page.text


def test_characters_that_no_page_may_hold_are_replaced():
    page = samples.page(bundle_name="a\0b\x1bc\ud800d\x85e")
    assert "a\ufffdb\ufffdc\ufffdd\ufffde" in page.html()
    page.html().encode()


def test_the_headline_says_the_decision_and_each_proposers_state():
    text = read(samples.page()).text
    assert "Speculation onngram pays for code writing (1.21x, 1.16 to 1.25)" in text
    assert "ngram ✓ pays for 4 of 5 workloads, open for 1, at best 3.37x (code editing" in text
    assert "draft ✓ pays for 4 of 5 workloads, does not pay for 1, at best 1.54x" in text
    text = read(samples.troubled()).text
    assert "Speculation off1 drafted token costs 37% of a target step" in text
    assert "draft ✗ ruled out does not pay for 5 of 5 workloads, at best 0.83x (code" in text
    assert "Not decidedOnly the costs of calls" in read(samples.page(findings=None)).text


def test_what_may_only_be_tried_is_not_called_on():
    reason = "speculation on trial: ngram open for code editing (1.01x)"
    one = of_one(verdict="open")
    text = read(with_findings(findings=(one,), proposers=("ngram",), reason=reason)).text
    assert "Speculation on trialngram open for code editing (1.01x)" in text
    assert "ngram ? may try open for 1 of 1 workload, at best 3.37x (code editing, K=" in text
    text = read(with_findings(findings=(), proposers=("ngram",), reason="no time")).text
    assert "Speculation on trialno time" in text
    assert "ngram ? may try not tried" in text


def test_doubts_stand_in_a_box_and_only_where_there_are_any():
    assert "Read with care" not in read(samples.page()).text
    text = read(samples.troubled()).text
    for doubt in (
        "Incomplete: the budget ended the calibration after 40 s; a larger one tells more.",
        "1 of 24 speculative texts differed from the plain one",
        "Not steady: core clock fell from 3700 to 2100 MHz after 22 s",
        "Not steady: power mode 15W -> 7W",
        "at the end a plain step was 31% slower than at the beginning",
        "Costs rest on 2 repetitions; 3 tell noise from cost.",
    ):
        assert doubt in text
    faster = with_findings(steadiness=Steadiness(drift=0.7))
    assert "at the end a plain step was 30% faster than at the beginning" in read(faster).text
    hurried = samples.page(curves=samples.curves(converged=False))
    assert "Costs were still changing" in read(hurried).text
    assert "Costs only" in read(samples.page(findings=None)).text


def test_the_decision_table_holds_the_findings():
    page = samples.page()
    rows = [row for row in read(page).rows if len(row) == 9]
    assert rows[0][0] == "Workload"
    for each, row in zip(page.findings.findings, rows[1:], strict=True):
        best = each.best or max(each.expected, key=lambda some: some.estimate.gain)
        assert row[:2] == [each.workload, each.proposer]
        assert row[2].split(maxsplit=1)[1] == each.verdict
        assert row[3] == (str(each.best_k) if each.best_k else f"none (K={best.k})")
        low, high = best.estimate.low, best.estimate.high
        assert row[4] == f"{best.estimate.gain:.2f}x {low:.2f} to {high:.2f}"
        live = each.measured
        shown = f"{live.gain:.2f}x {live.low:.2f} to {live.high:.2f}" if live else "–"
        assert row[5] == shown
        assert row[6:8] == [f"{best.acceptance_rate:.0%}", f"{best.acceptance_length:.2f}"]
        assert row[8].startswith(f"{each.reason} (1536 tokens of text)")


def test_tables_under_the_figures_hold_every_number():
    page = samples.page()
    rows = read(page).rows
    for curve in (page.curves.target, page.curves.draft):
        for width in curve.widths:
            cells = []
            for past in curve.pasts:
                at = curve.point(width, past)
                ratio = at.ms / page.curves.target.cost_ms(1, past)
                digits = [f"{ms:.3g}" for ms in (at.ms, at.low_ms, at.high_ms)]
                cells.append([float(each) for each in digits])
                shown = f"{ratio:.2f}x" if curve.role == "target" else f"{ratio:.0%}"
                cells[-1].append(shown)
            found = [row for row in rows if row[0] == str(width) and len(row) == 7]
            assert any(_costs_of(row) == [each for cell in cells for each in cell] for row in found)
    for each in page.findings.findings:
        parts = [part for row in rows if row[:2] == [each.workload, each.proposer] for part in row]
        for k in each.expected:
            assert (
                f"{k.estimate.gain:.2f}x ({k.estimate.low:.2f} to {k.estimate.high:.2f})" in parts
            )
        places = next(
            row
            for row in rows
            if row[:2] == [each.workload, each.proposer] and len(row) == 3 + len(each.reached)
        )
        assert places[2] == str(each.reached[0])
        known, unknown = places[3 : 3 + len(each.survival)], places[3 + len(each.survival) :]
        assert set(unknown) <= {"–"}
        for part, shown in zip(each.survival, known, strict=True):
            assert shown == ("<1%" if 0 < part < 0.005 else f"{part:.0%}")


def test_what_was_measured_stands_beside_the_k_that_it_was_measured_at():
    one = of_one()
    rows = read(with_findings(findings=(one,))).rows
    by_k = [row for row in rows if len(row) == 7 and row[0] == one.workload]
    assert [row[2] for row in by_k] == [str(each.k) for each in one.expected]
    live = one.measured
    shown = f"{live.gain:.2f}x ({live.low:.2f} to {live.high:.2f})"
    assert [row[6] for row in by_k] == [shown if k == one.best_k else "–" for k in range(1, 16)]


def test_the_largest_measured_speed_is_named_with_its_workload():
    text = read(samples.page()).text
    best = max(
        (each for each in samples.page().findings.findings if each.measured),
        key=lambda each: each.measured.gain,
    )
    where = f"{best.workload}, {best.proposer}, K={best.best_k}"
    said = f"largest measured speed{best.measured.gain:.2f}x{where}"
    assert said in text
    assert f"{said}, of " not in text


def test_a_largest_measured_speed_without_an_interval_says_on_how_little_it_rests():
    page = samples.page()
    few = Estimate(gain=9.0, prompts=1)
    first, *rest = page.findings.findings
    first = first.model_copy(update={"best_k": 3, "measured": few})
    findings = page.findings.model_copy(update={"findings": (first, *rest)})
    text = read(replace(page, findings=findings)).text
    assert f"9.00x{first.workload}, {first.proposer}, K=3, of 1 paired run only" in text


def _costs_of(row):
    """Numbers of a row of costs, "lowest to highest" taken apart."""
    found = []
    for ms, spread, ratio in zip(row[1::3], row[2::3], row[3::3], strict=True):
        found += [float(ms), *map(float, spread.split(" to ")), ratio]
    return found


def test_a_staircase_is_flat_from_one_measured_width_to_the_next():
    html = samples.page().html()
    target = html[html.index("Milliseconds of one call of the target") :]
    stair = re.search(r'class="line s0" points="([^"]*)"', target)[1]
    at = [tuple(map(float, pair.split(","))) for pair in stair.split()]
    heights = [y for _, y in at]
    assert len(at) == 2 * 16
    assert all(heights[n] == heights[n + 1] for n in range(0, 32, 2))
    by_width = heights[::2]
    bottom, top = 244, 46
    for width in (1, 2, 3, 4, 9, 15, 16):
        ms = samples.curves().target.cost_ms(width, 256)
        assert by_width[width - 1] == pytest.approx(bottom - (bottom - top) * ms / 200, abs=0.01)
    assert by_width[2] == by_width[3] != by_width[1]


def test_survival_is_drawn_at_its_height_place_by_place():
    one = of_one()
    html = with_findings(findings=(one,)).html()
    drawing = html[html.index("Chance that a draft of ngram stands up to each place") :]
    drawn = re.search(r'class="line s0" points="([^"]*)"', drawing)[1].split()
    heights = [float(pair.split(",")[1]) for pair in drawn]
    rules = [float(y) for y in re.findall(r'class="rule" x1="\S+" y1="(\S+)"', drawing)[:5]]
    bottom, top = rules[0], rules[-1]
    shown = [(bottom - y) / (bottom - top) for y in heights]
    assert shown == pytest.approx(list(one.survival), abs=0.001)
    lefts = [float(pair.split(",")[0]) for pair in drawn]
    assert lefts == sorted(lefts)


def test_a_draft_token_is_said_as_a_share_of_a_step():
    curves = samples.curves()
    shares = {f"{curves.draft_share(past):.0%}" for past in curves.target.pasts}
    (only,) = shares
    assert f"a draft token costs {only} of a target step" in read(samples.page()).text
    assert "a draft token costs" not in read(PAGES["no draft"]()).text


def test_energy_and_steadiness_are_said_or_why_not():
    text = read(samples.page()).text
    assert "by RAPL package-0; 11.8 W when idle, not subtracted" in text
    assert "plain decoding1.21 J1.00xwith speculation0.846 J0.70x" in text
    assert "Clocks between 3247 and 3702 MHz." in text
    text = read(PAGES["no meter, no clocks"]()).text
    assert "no meter of this device could be read" in text
    assert "Clocks could not be read" in text
    text = read(PAGES["metered plainly only"]()).text
    assert "idle power not read" in text
    assert "No speculative run was metered" in text


def test_the_fingerprint_is_shown_part_by_part():
    rows = read(samples.page()).rows
    for row in (["exact", "yes"], ["gpu driver", "unknown"], ["threads", "2"], ["margin", "1.03x"]):
        assert row in rows


def test_a_gain_is_drawn_at_its_height_and_the_best_k_is_ringed():
    one = of_one()
    html = with_findings(findings=(one,)).html()
    drawing = html[html.index("Speed over plain decoding by K: ngram on code editing") :]
    rule = float(re.search(r'class="unit" x1="\S+" y1="(\S+)"', drawing)[1])
    margin = float(re.search(r'class="margin" x1="\S+" y1="(\S+)"', drawing)[1])
    dots = [float(y) for y in re.findall(r'class="dot" cx="\S+" cy="(\S+)"', drawing)]
    gains = [each.estimate.gain for each in one.expected]
    assert len(dots) == len(gains)
    unit = (rule - margin) / log(samples.MARGIN)
    for gain, y in zip(gains, dots, strict=True):
        assert rule - y == pytest.approx(unit * log(gain), rel=0.02)
    ring = re.search(r'class="best" cx="(\S+)" cy="(\S+)"', drawing)
    assert float(ring[2]) == min(dots) == dots[one.best_k - 1]


def test_elements_escape_attributes_and_keep_markup():
    made = element(
        "td", 'a<"b"', Markup("<br>"), class_='"x"', data_label="y & z", x=1.5, none=None
    )
    assert made == (
        '<td class="&quot;x&quot;" data-label="y &amp; z" x="1.5">a&lt;&quot;b&quot;<br></td>'
    )

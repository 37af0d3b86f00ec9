"""A trace of rounds as an SVG: K by proposer over the text, and tokens per second beside plain."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

from specedge.report.charts import Frame, line, path, words
from specedge.report.markup import Markup, element
from specedge.report.scales import Scale, round_ticks
from specedge.result import RoundReport

WIDTH, PANEL = 960, 230
LEFT, RIGHT, TOP = 52, 940, 54
SMOOTH = 16  # tokens before and after, over which a speed is taken
LEGEND = 400  # px between edge and the first name
COLOURS = {"ngram": "#1f5fa8", "draft": "#c2410c", "padding": "#8a94a1"}
STYLE = """
svg{background:#fff;font-family:system-ui,"Noto Sans","DejaVu Sans",sans-serif}
text{fill:#576373;font-size:12px}text.label{fill:#1b2430;font-weight:600}text.title{font-size:12px}
.rule{stroke:#e6e9ee}.axis{stroke:#8a94a1}.turn{stroke:#576373;stroke-dasharray:4 4}
.auto,.plain{fill:none;stroke-width:1.8}.auto{stroke:#0f766e}.plain{stroke:#8a94a1}
.k{stroke-width:1.6}.wide{opacity:.28}.zero{stroke:#8a94a1;stroke-width:1.6}
"""
Rounds = Sequence[Sequence[RoundReport]]  # by turn


def plot(kinds: Sequence[str], auto: Rounds, plain: Rounds, title: str) -> str:
    """The whole drawing.

    Args:
        kinds: name of each turn.
        auto, plain: rounds by turn; both say the same text.
        title: over it.
    """
    bounds = [0]
    for turn in auto:
        bounds.append(bounds[-1] + sum(each.committed for each in turn))
    x = Scale(0, max(1, bounds[-1]), LEFT, RIGHT)
    parts = [
        element("style", Markup(STYLE)),
        words(title, LEFT, 20, "label"),
        _lengths(kinds, bounds, auto, x),
        element("g", _speeds(bounds, auto, plain, x), transform=f"translate(0 {PANEL + TOP})"),
    ]
    height = 2 * (PANEL + TOP) + 10
    whole = element(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        width=str(WIDTH),
        height=str(height),
    )
    return f"{whole}\n"


def _frame(label: str) -> Frame:
    return Frame(WIDTH, TOP + PANEL, LEFT, RIGHT, TOP, TOP + PANEL - 52, label)


def _group(frame: Frame) -> Markup:
    return element("g", *frame.drawn, *frame.cut, aria_label=frame.label)


def _turns(frame: Frame, bounds: Sequence[int], x: Scale) -> None:
    for place in bounds[1:-1]:
        frame.add(line("turn", (x(place), frame.top - 8), (x(place), frame.bottom)))


def _x_axis(frame: Frame, bounds: Sequence[int], x: Scale) -> None:
    ticks = [(int(tick), x(tick)) for tick in round_ticks(bounds[-1], 10) if tick <= bounds[-1]]
    frame.x_axis(ticks, "tokens of output so far")


def _lengths(kinds: Sequence[str], bounds: Sequence[int], auto: Rounds, x: Scale) -> Markup:
    """A bar a round: drafted pale, accepted dark."""
    frame = _frame("Draft length K of each round, by proposer")
    most = max((each.drafted for turn in auto for each in turn), default=1)
    y = Scale(0, max(4, most), frame.bottom, frame.top)
    frame.y_axis([tick for tick in round_ticks(max(4, most), 5) if tick <= most], y, "{:g}".format)
    _x_axis(frame, bounds, x)
    _turns(frame, bounds, x)
    for kind, (start, end) in zip(kinds, pairwise(bounds), strict=True):
        frame.add(words(kind, x((start + end) / 2), frame.top - 12, "label", "middle"))
    frame.add(words("K", LEFT - 8, frame.top - 12, "title", "end"))
    for start, turn in zip(bounds, auto, strict=False):
        at = start
        for each in turn:
            middle = x(at + each.committed / 2)
            frame.plot(*_bar(each, middle, y))
            at += each.committed
    used = {each.proposer for turn in auto for each in turn if each.drafted}
    place = LEFT + float(LEGEND)
    for name in COLOURS:
        if name in used:
            swatch = element("rect", x=place, y=11, width=10, height=10, fill=COLOURS[name])
            frame.add(swatch, words(name, place + 15, 20))
            place += 80
    frame.add(words("pale: drafted, dark: accepted", place + 10, 20))
    return _group(frame)


def _bar(each: RoundReport, middle: float, y: Scale) -> list[Markup]:
    if not each.drafted:
        return [line("zero", (middle, y(0)), (middle, y(0) - 3))]
    colour = COLOURS.get(each.proposer or "", "#6b5b00")

    def bar(kind: str, top: float) -> Markup:
        ends = {"x1": middle, "x2": middle, "y1": y(0), "y2": top}
        return element("line", class_=kind, stroke=colour, **ends)

    return [bar("k wide", y(each.drafted)), bar("k", y(each.accepted))]


def _speeds(bounds: Sequence[int], auto: Rounds, plain: Rounds, x: Scale) -> Markup:
    frame = _frame("Tokens per second, auto and plain")
    lines = {
        "plain": [_smoothed(start, turn) for start, turn in zip(bounds, plain, strict=False)],
        "auto": [_smoothed(start, turn) for start, turn in zip(bounds, auto, strict=False)],
    }
    highest = max((speed for its in lines.values() for turn in its for _, speed in turn), default=1)
    ticks = round_ticks(highest)
    y = Scale(0, ticks[-1], frame.bottom, frame.top)
    frame.y_axis(ticks, y, "{:g}".format)
    _x_axis(frame, bounds, x)
    _turns(frame, bounds, x)
    for kind, its in lines.items():
        for turn in its:
            frame.plot(path(kind, [(x(at), y(speed)) for at, speed in turn]))
    frame.add(words("tokens/s", LEFT - 44, frame.top - 12, "title"))
    place = LEFT + float(LEGEND)
    for kind, its in (("plain", plain), ("auto", auto)):
        spent = sum(each.ms for turn in its for each in turn)
        tokens = sum(each.committed for turn in its for each in turn)
        said = f"{kind}, {tokens * 1e3 / spent:.0f} in all" if spent else kind
        frame.add(path(kind, [(place, frame.top - 16), (place + 22, frame.top - 16)]))
        frame.add(words(said, place + 28, frame.top - 12))
        place += 150
    frame.add(words(f"over {2 * SMOOTH} tokens", place + 10, frame.top - 12))
    return _group(frame)


def _smoothed(start: int, rounds: Sequence[RoundReport]) -> list[tuple[float, float]]:
    """(tokens so far, tokens per second) for each round of a turn."""
    ends = [start + total for total in accumulate(each.committed for each in rounds)]
    middles = [end - each.committed / 2 for end, each in zip(ends, rounds, strict=True)]
    made = []
    for middle in middles:
        low, high = bisect_left(middles, middle - SMOOTH), bisect_right(middles, middle + SMOOTH)
        near = rounds[low:high]
        spent = sum(one.ms for one in near)
        if spent:
            made.append((middle, sum(one.committed for one in near) * 1e3 / spent))
    return made

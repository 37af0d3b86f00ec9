"""A benchmark's charts: how latencies are spread, what load does, what rounds do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specedge.loadtest.quantiles import nearest, nearest_rank
from specedge.loadtest.records import RequestRecord
from specedge.loadtest.summary import Cell
from specedge.report.charts import (
    SERIES,
    Frame,
    Series,
    drawn_line,
    label_room,
    marker,
    words,
)
from specedge.report.markup import Markup, element
from specedge.report.scales import Scale, round_ticks, thinned
from specedge.words import three_digits

_WIDTH, _HEIGHT = 440, 280
_LEFT, _TOP, _BOTTOM = 46, 46, 232
_RIGHT = 426
_LETTER = 6.3  # mean width of a letter of a label, px
_LONGEST_NAME = 17  # letters
_MOST_POINTS = 200  # of a curve; more would not be seen
_FAR = 2.5  # the axis ends at so many times the largest p90: a stray request squeezes nothing
_SECONDS_FROM = 2000.0  # ms
_BAR, _PART_GAP = 15.0, 25.0
PARTS = ("verifier", "proposer", "accept", "other")

Way = tuple[str, int]
"""Name and which colour, dash and marker; the same in every chart of a page."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Times of one way, ms, rising."""

    way: Way
    rising: list[float]


def spread(
    way: Way, requests: Sequence[RequestRecord], of: Callable[[RequestRecord], float | None]
) -> Spread:
    """Of the requests that were served and have that time."""
    values = [of(each) for each in requests if each.failure is None]
    return Spread(way, sorted(each for each in values if each is not None))


def cumulative(label: str, spreads: Sequence[Spread]) -> Markup:
    """Share of requests done within a time, a curve for each way; marks at p50 and p90."""
    frame = Frame(_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM, label)
    y = Scale(0, 1, _BOTTOM, _TOP)
    frame.y_axis((0, 0.25, 0.5, 0.75, 0.9, 1), y, lambda part: f"{part:.0%}")
    drawn = [each for each in spreads if each.rising]
    if not drawn:
        frame.note("No request was served")
        return frame.svg()
    _key(frame, [each.way for each in drawn])
    high = min(max(each.rising[-1] for each in drawn), _FAR * max(_p90(each) for each in drawn))
    high = max(high, 1e-3)
    in_seconds = high >= _SECONDS_FROM
    unit = 1e3 if in_seconds else 1.0
    ticks = round_ticks(high / unit)
    x = Scale(0, ticks[-1] * unit, _LEFT, _RIGHT)
    frame.x_axis(
        [(tick, x(tick * unit)) for tick in ticks],
        f"{'seconds' if in_seconds else 'ms'} from arrival",
        lambda value: f"{value:g}",
    )
    for each in drawn:
        at = tuple((x(ms), y(part)) for ms, part in _stairs(each.rising, ticks[-1] * unit))
        frame.plot(drawn_line(Series(short(each.way[0]), each.way[1], at)))
    for each in drawn:
        count = len(each.rising)
        for percent in (50, 90):
            at_ms, part = x(nearest(each.rising, percent)), y(nearest_rank(count, percent) / count)
            frame.plot(marker(each.way[1], at_ms, part))
    return frame.svg()


def cut_off(spreads: Sequence[Spread]) -> bool:
    """Whether a curve goes on beyond its chart."""
    drawn = [each for each in spreads if each.rising]
    return bool(drawn) and max(each.rising[-1] for each in drawn) > _FAR * max(
        _p90(each) for each in drawn
    )


def _p90(each: Spread) -> float:
    return nearest(each.rising, 90)


def _stairs(rising: Sequence[float], end: float) -> list[tuple[float, float]]:
    """Corners of the cumulative share, to the right edge."""
    count = len(rising)
    step = max(1, count // _MOST_POINTS)
    corners = [(0.0, 0.0)]
    for rank in [*range(0, count - 1, step), count - 1]:
        corners += [(rising[rank], corners[-1][1]), (rising[rank], (rank + 1) / count)]
    return [*corners, (max(end, rising[-1]), 1.0)]


def against_load(
    label: str,
    title: str,
    lines: Sequence[tuple[Way, Sequence[tuple[float, float]]]],
    say: Callable[[float], str] = lambda value: f"{value:g}",
) -> Markup:
    """A value by concurrency or rate, a line for each way.

    Args:
        label: what it shows.
        title: of the axis along.
        lines: way and its (load, value), rising in load; one point at least.
        say: a value as the axis says it.
    """
    names = [short(way[0]) for way, _ in lines]
    right = _WIDTH - label_room(names)
    frame = Frame(_WIDTH, _HEIGHT - 34, _LEFT, right, 12, _BOTTOM - 34, label)
    ticks = round_ticks(max(max(value for _, value in points) for _, points in lines) or 1.0)
    y = Scale(0, ticks[-1], frame.bottom, frame.top)
    loads = sorted({load for _, points in lines for load, _ in points})
    x = Scale(loads[0], max(loads[-1], loads[0] + 1e-9), _LEFT + 12, right - 8)
    frame.y_axis(ticks, y, say)
    frame.x_axis([(load, x(load)) for load in loads], title, lambda value: f"{value:g}")
    series = [
        Series(short(way[0]), way[1], tuple((x(load), y(value)) for load, value in points))
        for way, points in lines
    ]
    for each in series:
        frame.plot(drawn_line(each))
        frame.plot(*(marker(each.index, *at) for at in each.at))
    frame.label_ends(series)
    return frame.svg()


def positions(label: str, lines: Sequence[tuple[Way, Sequence[float]]]) -> Markup:
    """Acceptance rate at each position."""
    names = [short(way[0]) for way, _ in lines]
    right = _WIDTH - label_room(names)
    frame = Frame(_WIDTH, _HEIGHT - 34, _LEFT, right, 12, _BOTTOM - 34, label)
    y = Scale(0, 1, frame.bottom, frame.top)
    frame.y_axis((0, 0.25, 0.5, 0.75, 1), y, lambda part: f"{part:.0%}")
    places = max(len(parts) for _, parts in lines)
    x = Scale(1, max(places, 2), _LEFT + 12, right - 8)
    ticks = thinned([(place, x(place)) for place in range(1, places + 1)], 20)
    frame.x_axis(ticks, "position in the draft")
    series = [
        Series(
            short(way[0]), way[1], tuple((x(at), y(part)) for at, part in enumerate(parts, start=1))
        )
        for way, parts in lines
    ]
    for each in series:
        frame.plot(drawn_line(each))
        frame.plot(*(marker(each.index, *at) for at in each.at))
    frame.label_ends(series)
    return frame.svg()


def split(label: str, cells: Sequence[Cell]) -> Markup:
    """A bar for each way: ms of a round by what they went to."""
    shown = [(cell.way, cell.split) for cell in cells if cell.split is not None]
    left = 14 + _LETTER * max(len(short(way)) for way, _ in shown)
    bottom = 34 + _PART_GAP * len(shown)
    frame = Frame(_WIDTH, bottom + 40, left, _WIDTH - 44, 30, bottom, label)
    _key(frame, [(name, index) for index, name in enumerate(PARTS)])
    ticks = round_ticks(max(each.round for _, each in shown) or 1.0)
    x = Scale(0, ticks[-1], left, frame.right)
    frame.x_axis([(tick, x(tick)) for tick in ticks], "ms a round", lambda value: f"{value:g}")
    for row, (way, each) in enumerate(shown):
        top = 34 + _PART_GAP * row
        frame.add(words(short(way), left - 8, top + 12, "label", "end"))
        reached = 0.0
        for index, part in enumerate((each.verifier, each.proposer, each.accept, each.other)):
            width = max(part, 0.0)
            place = {"x": x(reached), "y": top, "width": x(width) - left, "height": _BAR}
            frame.add(element("rect", class_=f"mark s{index}", **place))
            reached += width
        frame.add(words(three_digits(each.round), x(reached) + 6, top + 12))
    return frame.svg()


def short(name: str) -> str:
    """A name as long as a chart has room for; ways differ at their ends, so the middle goes."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:9]}…{name[-7:]}"


def grouped(ways: Sequence[str], first: str | None) -> list[list[Way]]:
    """Ways in groups that can be told apart in one chart.

    Args:
        ways: names, in order.
        first: that stands in every group, if it is among them.
    """
    others = [way for way in ways if way != first]
    base = [first] if first is not None and first in ways else []
    room = SERIES - len(base)
    groups = [others[start : start + room] for start in range(0, max(len(others), 1), room)]
    return [[(way, index) for index, way in enumerate([*base, *group])] for group in groups]


def _key(frame: Frame, series: Sequence[Way]) -> None:
    """Marker and name of each, in one row or two over the plot."""
    x, y = frame.left + 6, 11.0
    for name, index in series:
        width = 24 + _LETTER * len(short(name))
        if x + width > _WIDTH + 10 and x > frame.left + 6:
            x, y = frame.left + 6, y + 16
        frame.add(marker(index, x, y), words(short(name), x + 9, y + 4, "label"))
        x += width

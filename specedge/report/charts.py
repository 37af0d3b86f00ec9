"""Charts as SVG: a frame with axes, and what is drawn in it. Colours and fonts are the style's.

A series has a colour, a dash and a marker of its own, so that it is told apart without colour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from specedge.report.markup import Markup, element
from specedge.report.scales import Scale, apart

SERIES = 6  # colours; twice as many series would not be told apart
_DASHES = (None, "7 3", "2 3", "9 3 2 3", "5 2", "1 2")
_LETTER = 6.3  # mean width of a letter of a label, px
_LONGEST_LABEL = 17
_OVER = 8  # marks on an edge of the plot are not halved, but at its bottom

Xy = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """A line.

    Args:
        name: for the label.
        index: which colour, dash and marker.
        at: its points in pixels.
    """

    name: str
    index: int
    at: tuple[Xy, ...]


@dataclass(slots=True)
class Frame:
    """A chart under way.

    Args:
        width, height: of the drawing.
        left, right, top, bottom: edges of the plot in it.
        label: what it shows, for those who do not see it.
    """

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    label: str
    drawn: list[Markup] = field(default_factory=list)
    cut: list[Markup] = field(default_factory=list)

    def add(self, *parts: Markup) -> None:
        """Anywhere in the drawing."""
        self.drawn.extend(parts)

    def plot(self, *parts: Markup) -> None:
        """Over the others, cut off at the edges of the plot."""
        self.cut.extend(parts)

    def svg(self) -> Markup:
        top, width = self.top - _OVER, self.right - self.left + 2 * _OVER
        height = self.bottom - top
        place = {"x": self.left - _OVER, "y": top, "width": width, "height": height}
        box = f"{self.left - _OVER:g} {top:g} {width:g} {height:g}"
        return element(
            "svg",
            *self.drawn,
            element("svg", *self.cut, viewBox=box, class_="cut", **place) if self.cut else "",
            viewBox=f"0 0 {self.width:g} {self.height:g}",
            role="img",
            aria_label=self.label,
        )

    def x_axis(
        self, ticks: Iterable[tuple[float, float]], title: str, say: Callable[[float], str] = str
    ) -> None:
        """A line, a number under each tick, the title under them."""
        self.add(line("axis", (self.left, self.bottom), (self.right, self.bottom)))
        for value, x in ticks:
            self.add(line("axis", (x, self.bottom), (x, self.bottom + 4)))
            self.add(words(say(value), x, self.bottom + 16, anchor="middle"))
        self.add(words(title, (self.left + self.right) / 2, self.bottom + 32, "title", "middle"))

    def y_axis(self, ticks: Iterable[float], scale: Scale, say: Callable[[float], str]) -> None:
        """A rule across the plot for each tick, its number to the left."""
        for value in ticks:
            y = scale(value)
            self.add(line("rule", (self.left, y), (self.right, y)))
            self.add(words(say(value), self.left - 6, y + 4, anchor="end"))

    def right_axis(self, ticks: Iterable[float], scale: Scale, say: Callable[[float], str]) -> None:
        """Short marks and numbers at the right edge."""
        for value in ticks:
            y = scale(value)
            self.add(line("axis", (self.right, y), (self.right + 4, y)))
            self.add(words(say(value), self.right + 7, y + 4))

    def label_ends(self, series: Sequence[Series]) -> None:
        """The name of each line to the right of the plot, at the height where it ends."""
        heights = [each.at[-1][1] for each in series]
        for each, y in zip(series, apart(heights, 15, self.top, self.bottom), strict=True):
            end = (self.right + 4, each.at[-1][1])
            self.add(line(f"lead s{each.index}", end, (self.right + 13, y)))
            self.add(marker(each.index, self.right + 19, y))
            self.add(words(shortened(each.name), self.right + 27, y + 4, "label"))

    def legend(self, names: Sequence[str], x: float, y: float) -> None:
        """Marker and name of each series in a row."""
        for index, name in enumerate(names):
            self.add(marker(index % SERIES, x, y), words(name, x + 9, y + 4, "label"))
            x += 24 + _LETTER * len(name)

    def note(self, said: str) -> None:
        """A sentence in the middle of an empty plot."""
        middle = (self.left + self.right) / 2
        self.add(words(said, middle, (self.top + self.bottom) / 2, "title", "middle"))


def label_room(names: Iterable[str]) -> float:
    """Pixels that `label_ends` needs right of the plot."""
    return 32 + _LETTER * max((len(shortened(name)) for name in names), default=0)


def shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_LABEL else f"{name[: _LONGEST_LABEL - 1]}…"


def line(kind: str, start: Xy, end: Xy) -> Markup:
    return element("line", class_=kind, x1=start[0], y1=start[1], x2=end[0], y2=end[1])


def words(said: str, x: float, y: float, kind: str = "tick", anchor: str | None = None) -> Markup:
    return element("text", said, class_=kind, x=x, y=y, text_anchor=anchor)


def path(kind: str, at: Sequence[Xy], dash: str | None = None) -> Markup:
    return element("polyline", class_=kind, points=_points(at), stroke_dasharray=dash)


def drawn_line(series: Series) -> Markup:
    return path(f"line s{series.index}", series.at, _DASHES[series.index])


def steps(series: Series, half: float) -> Markup:
    """Flat for `half` a unit to both sides of each point, then up or down to the next."""
    at = [(x + side, y) for x, y in series.at for side in (-half, half)]
    return path(f"line s{series.index}", at, _DASHES[series.index])


def band(upper: Sequence[Xy], lower: Sequence[Xy]) -> Markup:
    return element("polygon", class_="band", points=_points([*upper, *reversed(lower)]))


def whisker(kind: str, x: float, low: float, high: float, half: float = 3) -> Markup:
    """From low to high, a short bar at both ends."""
    said = f"M{x - half:.2f} {low:.2f}h{2 * half:g}M{x - half:.2f} {high:.2f}h{2 * half:g}"
    return element("path", class_=f"whisker {kind}", d=f"{said}M{x:.2f} {low:.2f}V{high:.2f}")


def marker(index: int, x: float, y: float) -> Markup:
    """Circle, square, triangle, diamond, triangle on its head, hexagon."""
    kind = f"mark s{index}"
    if index == 0:
        return element("circle", class_=kind, cx=x, cy=y, r=3.6)
    return _shape(index, kind, x, y)


def diamond(kind: str, x: float, y: float) -> Markup:
    return _shape(3, kind, x, y)


def _shape(index: int, kind: str, x: float, y: float) -> Markup:
    points = _points((x + across, y + down) for across, down in _SHAPES[index])
    return element("polygon", class_=kind, points=points)


_SHAPES: tuple[tuple[Xy, ...], ...] = (
    (),
    ((-3.3, -3.3), (3.3, -3.3), (3.3, 3.3), (-3.3, 3.3)),
    ((0, -4.4), (4.2, 3.2), (-4.2, 3.2)),
    ((0, -4.8), (4.8, 0), (0, 4.8), (-4.8, 0)),
    ((0, 4.4), (4.2, -3.2), (-4.2, -3.2)),
    ((-4, 0), (-2, -3.6), (2, -3.6), (4, 0), (2, 3.6), (-2, 3.6)),
)


def _points(at: Iterable[Xy]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in at)

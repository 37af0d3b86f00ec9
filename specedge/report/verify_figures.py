"""Figures of any gate or case: names and JSON values as tables, pairs of numbers as a chart.

Nothing here knows a gate. What a value is decides how it is shown:

    a number, a text, true, none      in a cell
    a list of few of these            in a cell, with commas
    objects with plain values         a table, a column a key
    rising [x, y] pairs               a chart; its name, "Y_by_X", names the axes
    anything else                     JSON, cut where it is long
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any

from specedge.report.charts import Frame, Series, drawn_line, marker
from specedge.report.figures import folded, panel, table
from specedge.report.markup import Child, Markup, element, joined
from specedge.report.scales import Scale, thinned
from specedge.words import NOTHING, counted

_MOST_ROWS = 60
_MOST_ITEMS = 12
_LONGEST = 600  # characters of a value
_MOST_POINTS = 500
_FEWEST_POINTS = 3
_MOST_BITS = 200  # of a whole number; more is no finding
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 480.0, 200.0, 84.0, 460.0, 16.0, 152.0
_FLAT = 0.01  # a chart covers this share of its values at least: noise must not look like a slope


def brief(figures: Mapping[str, Any]) -> Markup:
    """What fits a line: "prompts 20, acceptance rate 0.6125"."""
    plain = [(name, value) for name, value in figures.items() if _fits(value)]
    said = ", ".join(f"{label(name)} {_cell_text(name, value)}" for name, value in plain)
    return joined(said[:_LONGEST] + ("…" if len(said) > _LONGEST else ""))


def beyond(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Those that `brief` leaves out; empty ones say nothing."""
    return {
        name: value for name, value in figures.items() if not _fits(value) and value not in ([], {})
    }


def full(figures: Mapping[str, Any], owner: str) -> Markup:
    """All of them: one table of what fits a cell, then tables and charts of their own.

    Args:
        figures: by name.
        owner: whose they are, for the captions.
    """
    rows: list[tuple[Child, ...]] = []
    own: list[Markup] = []
    for name, value in figures.items():
        if _pairs(value):
            own.append(_chart(owner, name, value))
        elif _objects(value):
            own.append(_objects_table(owner, name, value))
        else:
            rows.append((label(name), _cell(name, value)))
    parts = [table((), rows, f"{owner}: figures", "facts")] if rows else []
    return joined(*parts, *own)


def label(name: str) -> str:
    """A figure's name for a person."""
    return name.replace("_", " ")


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _is_plain_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_plain, value))


def _fits(value: Any) -> bool:
    """Into a line, with others."""
    return _is_plain(value) or (_is_plain_list(value) and 0 < len(value) <= _MOST_ITEMS)


def _cell_text(name: str, value: Any) -> str:
    return _plain(name, value) if _is_plain(value) else _listed(name, value)


def _listed(name: str, value: Sequence[Any]) -> str:
    said = ", ".join(_plain(name, each) for each in value[:_MOST_ITEMS])
    return f"{said}, … ({len(value)} in all)" if len(value) > _MOST_ITEMS else said or NOTHING


def _plain(name: str, value: Any) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…"
    if not isinstance(value, float) and value.bit_length() > _MOST_BITS:
        return f"a number of {value.bit_length():,} bits"
    if "bytes" in name.split("_") and isfinite(value):
        return f"{value / 1e6:,.1f} MB" if abs(value) >= 1e6 else f"{value:,.0f} B"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if abs(value) < 1e4 or not isfinite(value) else f"{value:,.0f}"


def _cell(name: str, value: Any) -> Child:
    if isinstance(value, str):
        return element("span", _plain(name, value), class_="told")
    if _is_plain(value):
        return _plain(name, value)
    if _is_plain_list(value):
        return _listed(name, value)
    return element("code", _cut(json.dumps(value, ensure_ascii=False, default=str)))


def _cut(said: str) -> str:
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}… ({len(said):,} characters)"


def _objects(value: Any) -> bool:
    """Objects with plain values, or lists of them, in a list."""
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(each, Mapping) and each for each in value)
    )


def _objects_table(owner: str, name: str, value: Sequence[Mapping[str, Any]]) -> Markup:
    keys = list(dict.fromkeys(key for each in value[:_MOST_ROWS] for key in each))
    rows: list[tuple[Child, ...]] = [
        tuple(_cell(key, each[key]) if key in each else NOTHING for key in keys)
        for each in value[:_MOST_ROWS]
    ]
    caption = f"{owner}: {label(name)}, {counted(len(value), 'entry', 'entries')}"
    if len(value) > _MOST_ROWS:
        caption += f", the first {_MOST_ROWS} shown"
    shown = table([label(key) for key in keys], rows, caption, "facts")
    return shown if len(value) <= _MOST_ITEMS else folded(caption, shown)


def _pairs(value: Any) -> bool:
    """Points whose x rises, enough for a line and not too many."""
    return (
        isinstance(value, list | tuple)
        and _FEWEST_POINTS <= len(value) <= _MOST_POINTS
        and all(isinstance(each, list | tuple) and len(each) == 2 for each in value)
        and all(_is_number(part) for each in value for part in each)
        and all(sooner[0] < later[0] for sooner, later in pairwise(value))
    )


def _is_number(value: Any) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and value.bit_length() <= _MOST_BITS
    return isinstance(value, float) and isfinite(value)


def _chart(owner: str, name: str, points: Sequence[Sequence[float]]) -> Markup:
    what, _, along = name.partition("_by_")
    low, high = min(y for _, y in points), max(y for _, y in points)
    spare = (_FLAT * max(abs(low), abs(high)) or 1.0) - (high - low)
    if spare > 0:
        low, high = low - spare / 2, high + spare / 2
    across = Scale(points[0][0], points[-1][0], _LEFT + 8, _RIGHT - 8)
    up = Scale(low, high, _BOTTOM, _TOP)
    title = f"{owner}: {label(name)}"
    frame = Frame(_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM, title)
    frame.y_axis((low, (low + high) / 2, high), up, lambda value: _plain(what, float(value)))
    ticks = [(round(x), across(x)) for x, _ in points]
    frame.x_axis(thinned(ticks, 64), label(along) or "place")
    at = tuple((across(x), up(y)) for x, y in points)
    frame.add(drawn_line(Series(what, 0, at)))
    if len(points) <= _MOST_ROWS:
        frame.add(*(marker(0, x, y) for x, y in at))
    return panel(frame.svg(), title)

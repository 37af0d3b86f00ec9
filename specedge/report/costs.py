"""Figure 1: what a call of N tokens costs, as the staircase that it is."""

from __future__ import annotations

from collections.abc import Callable

from specedge.probe.curves import CostCurves, Curve
from specedge.report.charts import Frame, Series, marker, steps, whisker, words
from specedge.report.figures import folded, panel, panels, paragraph, section, table
from specedge.report.markup import Markup
from specedge.report.scales import Scale, round_ticks, thinned
from specedge.report.summary import FEW_PASSES
from specedge.words import counted, share, three_digits, times

_WIDTH, _HEIGHT = 440, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 392, 46, 244
_MOST_PASTS = 4  # more staircases would not be told apart


def costs(curves: CostCurves) -> Markup:
    """Both curves, and what follows from them."""
    target, draft = curves.target, curves.draft
    parts = [panel(_chart(target, curves), _target_caption(curves))]
    if draft is not None:
        parts.append(panel(_chart(draft, curves), _draft_caption(curves)))
    tables = [_table(curve, curves) for curve in (target, draft) if curve is not None]
    return section(
        "costs",
        "What a call costs",
        paragraph(
            "Milliseconds of one call of N new tokens after P tokens that are cached already. "
            "Points are medians, whiskers reach from the 10th to the 90th percentile; between "
            "two points a call costs what the next wider one does."
        ),
        panels("wide", parts),
        folded("These numbers as tables", *tables),
    )


def draft_share(curves: CostCurves) -> str | None:
    """ "31% to 38%" over the measured pasts; None: there is no draft."""
    shares = [curves.draft_share(past) for past in curves.target.pasts]
    known = [each for each in shares if each is not None]
    if not known:
        return None
    low, high = share(min(known)), share(max(known))
    return low if low == high else f"{low} to {high}"


def _target_caption(curves: CostCurves) -> str:
    target = curves.target
    past, widest = target.pasts[0], target.widths[-1]
    said = f"Target: one token takes {three_digits(target.cost_ms(1, past))} ms after {past} cached"
    if widest > 1:
        ratio = times(target.cost_ms(widest, past) / target.cost_ms(1, past))
        said += f", a call of {widest} costs {ratio} as much"
    if target.width_step > 1:
        said += f"; calls are padded to multiples of {target.width_step}"
    return f"{said}."


def _draft_caption(curves: CostCurves) -> str:
    return f"Draft: a draft token costs {draft_share(curves)} of a target step."


def _chart(curve: Curve, curves: CostCurves) -> Markup:
    pasts = _shown(curve.pasts)
    named = ", ".join(map(str, pasts))
    label = f"Milliseconds of one call of the {curve.role} by N, after {named} cached tokens"
    frame = Frame(_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM, label)
    points = [point for point in curve.points if point.past in pasts]
    highest = max(point.ms for point in points)
    highest = max(highest, min(max(point.high_ms for point in points), 1.5 * highest))
    ticks = round_ticks(highest)
    y = Scale(0, ticks[-1], _BOTTOM, _TOP)
    x = Scale(0.5, curve.widths[-1] + 0.5, _LEFT, _RIGHT)
    frame.y_axis(ticks, y, lambda value: f"{value:g}")
    frame.x_axis(thinned([(n, x(n)) for n in curve.widths], 20), "N, new tokens in the call")
    unit = curves.target.cost_ms(1, pasts[0])
    times_unit = [tick for tick in round_ticks(ticks[-1] / unit)[1:] if tick * unit <= ticks[-1]]
    frame.right_axis(times_unit, Scale(0, ticks[-1] / unit, _BOTTOM, _TOP), _ratio(curve.role))
    frame.add(words("ms", _LEFT - 6, _TOP - 14, "title", "end"))
    over = f"of target step, P={pasts[0]}" if curve.role == "draft" else f"× T(1), P={pasts[0]}"
    frame.add(words(over, _WIDTH - 4, _TOP - 14, "title", "end"))
    half = (_RIGHT - _LEFT) / curve.widths[-1] / 2
    for index, past in enumerate(pasts):
        stair = tuple((x(n), y(curve.cost_ms(n, past))) for n in range(1, curve.widths[-1] + 1))
        frame.plot(steps(Series(f"P={past}", index, stair), half))
    for index, past in enumerate(pasts):
        aside = (index - (len(pasts) - 1) / 2) * min(8, 2 * half / (len(pasts) + 1))
        for n in curve.widths:
            point = curve.point(n, past)
            if point.count >= FEW_PASSES:
                frame.plot(whisker(f"s{index}", x(n) + aside, y(point.low_ms), y(point.high_ms)))
            frame.plot(marker(index, x(n) + aside, y(point.ms)))
    frame.legend([f"P={past}" for past in pasts], _LEFT + 12, 12)
    return frame.svg()


def _ratio(role: str) -> Callable[[float], str]:
    return (lambda tick: f"{tick:.0%}") if role == "draft" else (lambda tick: f"{tick:g}x")


def _shown(pasts: tuple[int, ...]) -> tuple[int, ...]:
    """As many as can be told apart, first and last among them."""
    if len(pasts) <= _MOST_PASTS:
        return pasts
    last, most = len(pasts) - 1, _MOST_PASTS - 1
    return tuple(pasts[round(index * last / most)] for index in range(_MOST_PASTS))


def _table(curve: Curve, curves: CostCurves) -> Markup:
    heads, rows = ["N"], []
    for past in curve.pasts:
        over = "of a target step" if curve.role == "draft" else "over N=1"
        heads += [f"P={past}: ms", "10th to 90th", over]
    for width in curve.widths:
        row = [str(width)]
        for past in curve.pasts:
            point = curve.point(width, past)
            ratio = point.ms / curves.target.cost_ms(1, past)
            spread = f"{three_digits(point.low_ms)} to {three_digits(point.high_ms)}"
            shown = share(ratio) if curve.role == "draft" else times(ratio)
            row += [three_digits(point.ms), spread if point.count >= FEW_PASSES else "?", shown]
        rows.append(row)
    fewest = min(point.count for point in curve.points)
    caption = f"{curve.role.capitalize()}, medians of {counted(fewest, 'call')} or more"
    return table(heads, rows, caption)

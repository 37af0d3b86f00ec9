"""Figure 3: the speed expected of each K, and what was measured at the best one."""

from __future__ import annotations

from specedge.probe.findings import Estimate, Expected, Finding, Findings
from specedge.report.charts import Frame, band, diamond, line, path, whisker, words
from specedge.report.figures import folded, panel, panels, paragraph, section, table
from specedge.report.markup import Markup, element, joined
from specedge.report.scales import Scale, ratio_ticks, thinned
from specedge.report.summary import Standing, leading, standings
from specedge.report.verdicts import pill
from specedge.words import interval, share, times

_WIDTH, _HEIGHT = 330, 196
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 320, 12, 154
_DEEPEST = 0.7  # what is slower is cut off, unless the best K is
_FURTHEST = 1.6  # an interval end is drawn up to this much beyond every gain


def gains(findings: Findings) -> Markup:
    """A chart for each workload class, proposer by proposer."""
    parts = []
    for standing in standings(findings):
        if not standing.findings:
            continue
        low, high = _range(standing, findings.margin)
        drawn = [
            panel(_chart(each, findings.margin, low, high), *_caption(each))
            for each in standing.findings
        ]
        parts += [element("h3", standing.proposer), panels("narrow", drawn)]
    return section(
        "gains",
        "Expected against measured speed",
        paragraph(
            "Speed over plain decoding by K, the number of drafted tokens in a round. Expected: "
            "replayed on texts that were decoded plainly, at the costs above. Measured: runs with "
            "and without speculation in turn. The solid rule is plain decoding, the dashed one the "
            f"margin of {times(findings.margin)}: in the shaded part speculation is not worth it. "
            "The charts of a proposer share a scale and cut off what is far below."
        ),
        _key(),
        joined(*parts),
        folded("These numbers as tables", _table(findings)),
    )


def _key() -> Markup:
    """Which mark is which."""
    drawn = Frame(470, 24, 0, 470, 0, 24, "Key: line expected, circle best K, diamond measured")
    drawn.add(band(((4, 5), (34, 5)), ((4, 19), (34, 19))), path("line gain", ((4, 12), (34, 12))))
    drawn.add(words("expected, 90% interval", 42, 16, "label"))
    drawn.add(element("circle", class_="best", cx=200, cy=12, r=6))
    drawn.add(words("best K", 212, 16, "label"))
    drawn.add(whisker("live", 282, 4, 20), diamond("point", 282, 12))
    drawn.add(words("measured, 90% interval", 294, 16, "label"))
    return element("div", drawn.svg(), class_="key")


def _caption(finding: Finding) -> list[Markup]:
    best = leading(finding)
    if best is None:
        said = "nothing was drafted"
    else:
        said = "" if finding.best_k else "no K gains; "
        said += f"K={best.k}: expected {times(best.estimate.gain)}"
    if finding.measured is not None:
        said += f", measured {interval(finding.measured)}".replace(" to ", "–")
    elif best is not None:
        said += ", not measured"
    name = element("strong", finding.workload)
    return [joined(name, " ", pill(finding.verdict)), element("span", said, class_="said")]


def _range(standing: Standing, margin: float) -> tuple[float, float]:
    """Of the gain axis, over all charts of a proposer."""
    estimates = [each.estimate for finding in standing.findings for each in finding.expected]
    estimates += [each.measured for each in standing.findings if each.measured is not None]
    gains = [each.gain for each in estimates] + [0.9, 1.1 * margin]
    ends = [end for each in estimates for end in (each.low, each.high) if end is not None]
    low = max(min(gains + ends), min(gains) / _FURTHEST)
    high = min(max(gains + ends), max(gains) * _FURTHEST)
    leads = [each.estimate.gain for finding in standing.findings if (each := leading(finding))]
    return max(low, min([_DEEPEST, *leads]) / 1.1) / 1.03, high * 1.03


def _chart(finding: Finding, margin: float, low: float, high: float) -> Markup:
    label = f"Speed over plain decoding by K: {finding.proposer} on {finding.workload}"
    frame = Frame(_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM, label)
    y = Scale(low, high, _BOTTOM, _TOP, logarithmic=True)
    shade = {"x": _LEFT, "y": y(margin), "width": _RIGHT - _LEFT, "height": _BOTTOM - y(margin)}
    frame.add(element("rect", class_="loss", **shade))
    frame.y_axis(ratio_ticks(low, high), y, lambda ratio: f"{ratio:g}x")
    frame.add(line("margin", (_LEFT, y(margin)), (_RIGHT, y(margin))))
    frame.add(line("unit", (_LEFT, y(1)), (_RIGHT, y(1))))
    if not finding.expected:
        frame.note("Nothing was drafted")
        return frame.svg()
    ks = [each.k for each in finding.expected]
    x = Scale(min(ks), max(max(ks), min(ks) + 1), _LEFT + 14, _RIGHT - 18)
    frame.x_axis(thinned([(k, x(k)) for k in ks], 18), "K, drafted tokens")
    _expected(frame, finding.expected, x, y)
    best = finding.best
    if best is not None:
        at = (x(best.k), y(best.estimate.gain))
        frame.plot(element("circle", class_="best", cx=at[0], cy=at[1], r=6.5))
        if finding.measured is not None:
            _measured(frame, finding.measured, at[0] + (12 if at[0] < _RIGHT - 24 else -12), y)
    return frame.svg()


def _expected(frame: Frame, expected: tuple[Expected, ...], x: Scale, y: Scale) -> None:
    upper, lower = [], []
    for each in expected:
        estimate = each.estimate
        if estimate.low is not None and estimate.high is not None:
            upper.append((x(each.k), y(estimate.high)))
            lower.append((x(each.k), y(estimate.low)))
    if len(upper) > 1:
        frame.plot(band(upper, lower))
    for top, under in zip(upper, lower, strict=True) if len(upper) == 1 else ():
        frame.plot(whisker("gain", top[0], under[1], top[1]))
    at = [(x(each.k), y(each.estimate.gain)) for each in expected]
    frame.plot(path("line gain", at))
    frame.plot(*(element("circle", class_="dot", cx=each[0], cy=each[1], r=2.6) for each in at))


def _measured(frame: Frame, measured: Estimate, x: float, y: Scale) -> None:
    if measured.low is not None and measured.high is not None:
        frame.plot(whisker("live", x, y(measured.low), y(measured.high)))
    frame.plot(diamond("point", x, y(measured.gain)))


def _table(findings: Findings) -> Markup:
    heads = (
        "Workload",
        "Proposer",
        "K",
        "Expected",
        "Acceptance rate",
        "Acceptance length",
        "Measured",
    )
    rows = []
    for finding in findings.findings:
        for each in finding.expected:
            live = finding.measured if each.k == finding.best_k else None
            rows.append(
                (
                    finding.workload,
                    finding.proposer,
                    str(each.k),
                    interval(each.estimate),
                    share(each.acceptance_rate),
                    f"{each.acceptance_length:.2f}",
                    interval(live),
                )
            )
    return table(heads, rows, "Speed over plain decoding by K")

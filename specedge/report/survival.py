"""Figure 2: how far drafts stand, by place."""

from __future__ import annotations

from specedge.probe.findings import Finding, Findings
from specedge.report.charts import SERIES, Frame, Series, drawn_line, label_room, marker
from specedge.report.figures import folded, panel, panels, paragraph, section, table
from specedge.report.markup import Markup
from specedge.report.scales import Scale, thinned
from specedge.report.summary import standings
from specedge.words import NOTHING, counted, listed, share

_WIDTH, _HEIGHT = 440, 270
_LEFT, _TOP, _BOTTOM = 46, 12, 226


def survival(findings: Findings) -> Markup:
    """A chart for each proposer, a line in it for each workload class."""
    places = max((len(each.survival) for each in findings.findings), default=0)
    parts = []
    for standing in standings(findings):
        if not standing.findings:
            continue
        drew = [each for each in standing.findings if each.survival]
        silent = [each.workload for each in standing.findings if not each.survival]
        for start in range(0, max(len(drew), 1), SERIES):
            caption = f"{standing.proposer}: drafts that stand up to a place."
            if silent and start == 0:
                caption += f" Nothing was drafted for {listed(silent)}."
            shown = drew[start : start + SERIES]
            parts.append(panel(_chart(standing.proposer, shown, places), caption))
    return section(
        "survival",
        "How far drafts stand",
        paragraph(
            "Chance that every token of a draft up to a place is what the target writes. A lookup "
            "drafts only where it finds a match, and not always as many tokens: each place is "
            "judged by the drafts that came to it."
        ),
        panels("wide", parts),
        folded("These numbers as tables", _table(findings, places)),
    )


def _chart(proposer: str, findings: list[Finding], places: int) -> Markup:
    names = [each.workload for each in findings]
    label = f"Chance that a draft of {proposer} stands up to each place, by workload"
    right = _WIDTH - max(label_room(names), 24)
    frame = Frame(_WIDTH, _HEIGHT, _LEFT, right, _TOP, _BOTTOM, label)
    y = Scale(0, 1, _BOTTOM, _TOP)
    frame.y_axis((0, 0.25, 0.5, 0.75, 1), y, lambda part: f"{part:.0%}")
    if not findings:
        frame.note("Nothing was drafted")
        return frame.svg()
    x = Scale(1, max(places, 2), _LEFT + 10, right - 6)
    ticks = [(place, x(place)) for place in range(1, places + 1)]
    frame.x_axis(thinned(ticks, 20), "place in the draft")
    series = [
        Series(
            each.workload,
            index,
            tuple((x(place), y(part)) for place, part in enumerate(each.survival, start=1)),
        )
        for index, each in enumerate(findings)
    ]
    for each in series:
        frame.plot(drawn_line(each))
        frame.plot(*(marker(each.index, *at) for at in each.at))
    frame.label_ends(series)
    return frame.svg()


def _table(findings: Findings, places: int) -> Markup:
    heads = ["Workload", "Proposer", "Drafts", *(str(place) for place in range(1, places + 1))]
    rows = []
    for each in findings.findings:
        parts = [share(part) for part in each.survival]
        drafts = str(each.reached[0]) if each.reached else "0"
        parts += [NOTHING] * (places - len(parts))
        rows.append([each.workload, each.proposer, drafts, *parts])
    return table(heads, rows, f"Survival by place, up to {counted(places, 'place')}")

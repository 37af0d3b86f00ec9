"""The page of a verification: go or no-go first, then gate by gate what it rests on.

It shows `Verified` and nothing else, whatever gates there are; see `verify_figures`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specedge.gates.findings import Case, Gate, Outcome, Verified
from specedge.report.document import device, document, fact, origin, signed, with_care
from specedge.report.figures import cards, folded, paragraph, section, table
from specedge.report.markup import Child, Markup, element, joined
from specedge.report.verify_figures import beyond, brief, full
from specedge.report.verify_words import cases_of, final, tally
from specedge.words import NOTHING, counted, seconds

_SIGNS: dict[Outcome, tuple[str, str]] = {
    "passed": ("good", "✓"),
    "failed": ("bad", "✗"),
    "skipped": ("open", "–"),
}
_HEADS = ("Gate", "Verdict", "Cases", "Took", "What was found")
_MOST_FAILED = 40  # cases of one gate with all their figures; the rest are rows

_STYLE = """
.case{border-left:4px solid var(--bad);padding:2px 0 2px 14px;margin:14px 0}
.case h3{margin:0 0 4px}.case h3,.said-so,.told,td code{overflow-wrap:anywhere}
.told,.said-so{white-space:pre-wrap}.said-so{margin-bottom:8px}
.certificate{font-size:1.08rem}.notes{margin:0 0 12px;padding-left:20px}
.notes li{overflow-wrap:anywhere;max-width:78ch}h2 .pill{margin-left:8px;vertical-align:2px}
"""


def render_verified(verified: Verified) -> str:
    """One HTML page that needs nothing else: no network, no script, no file.

    The same verification gives the same page, byte for byte.
    """
    parts = [_headline(verified), _gates(verified)]
    parts += [_gate(gate, place) for place, gate in enumerate(verified.gates)]
    parts += [_origin(verified), _footer(verified)]
    title = f"{verified.bundle}: {'go' if verified.passed else 'no go'}"
    return document(title, parts, _STYLE)


def _headline(verified: Verified) -> Markup:
    kind = "good" if verified.passed else "bad"
    state, _, reason = final(verified).partition(": ")
    card = [
        element("p", state.capitalize(), class_=f"state {kind}"),
        element("p", f"{reason}.", class_="reason"),
    ]
    wrong = [gate for gate in verified.gates if gate.outcome != "passed"]
    if wrong:
        rows = [
            element("li", element("strong", gate.title), " ", _pill(gate.outcome), " ", gate.said)
            for gate in wrong
        ]
        card.append(element("ul", *rows, class_="standings"))
    took = f"{seconds(sum(gate.seconds for gate in verified.gates))} long"
    parts = [
        element("p", "specedge verify", class_="eyebrow"),
        element("h1", verified.bundle),
        element("p", device(verified.fingerprint, verified.created, took), class_="dim"),
        element("div", *card, class_=f"card decision {kind}"),
    ]
    if verified.notes:
        parts.append(with_care(verified.notes))
    return element("header", *parts)


def _pill(outcome: Outcome) -> Markup:
    return signed(outcome, _SIGNS[outcome])


def _gates(verified: Verified) -> Markup:
    """The table of gates; a row becomes a card where it finds no room."""
    rows: list[tuple[Child, ...]] = [
        (gate.title, _pill(gate.outcome), tally(gate), seconds(gate.seconds), gate.said)
        for gate in verified.gates
    ]
    rows += [(name, NOTHING, NOTHING, NOTHING, "interrupted") for name in verified.interrupted]
    rows += [(name, NOTHING, NOTHING, NOTHING, "not asked for") for name in verified.left_out]
    if not rows:
        return section("gates", "Gates", paragraph("No gate was run."))
    return section("gates", "Gates", cards(_HEADS, rows, "Gates and their verdicts"))


def _gate(gate: Gate, place: int) -> Markup:
    anchor = f"gate-{place}"
    head = element("h2", gate.title, _pill(gate.outcome), id=anchor)
    parts = [head, element("p", gate.said, class_="certificate")]
    if gate.notes:
        notes = (element("li", note) for note in gate.notes)
        parts.append(element("ul", *notes, class_="notes dim"))
    failed, skipped = cases_of(gate, "failed"), cases_of(gate, "skipped")
    parts += [_failed(gate, case) for case in failed[:_MOST_FAILED]]
    if failed[_MOST_FAILED:]:
        rest = failed[_MOST_FAILED:]
        parts.append(folded(f"{len(rest)} more failed", _cases(rest, f"{gate.title}: more failed")))
    if skipped:
        rows = ((case.name, element("span", case.said, class_="told")) for case in skipped)
        caption = f"{counted(len(skipped), 'case')} skipped, not applicable here"
        parts.append(table(("Case", "Why"), rows, caption, "facts"))
    passed = cases_of(gate, "passed")
    if passed:
        summary = f"{counted(len(passed), 'case')} passed"
        parts.append(folded(summary, _cases(passed, f"{gate.title}: {summary}"), *_beyond(passed)))
    if gate.figures:
        parts.append(folded("Figures over all cases", full(gate.figures, gate.title)))
    return element("section", *parts, aria_labelledby=anchor)


def _failed(gate: Gate, case: Case) -> Markup:
    """Open, with every figure behind it."""
    parts: list[Child] = [
        element("h3", case.name, " ", _pill(case.outcome)),
        element("p", case.said, class_="said-so"),
    ]
    if case.figures:
        parts.append(full(case.figures, case.name))
    return element("div", *parts, class_="case")


def _cases(cases: Sequence[Case], said: str) -> Markup:
    rows: list[tuple[Child, ...]] = []
    for case in cases:
        figures = brief(case.figures)
        found = element("span", case.said, class_="told")
        dim = element("span", figures, class_="said") if figures else ""
        rows.append((case.name, seconds(case.seconds), joined(found, dim)))
    return cards(("Case", "Took", "What was found"), rows, said)


def _beyond(cases: Iterable[Case]) -> list[Markup]:
    """What of the figures of cases that passed does not fit a line."""
    nested = ((case.name, beyond(case.figures)) for case in cases)
    return [full(figures, name) for name, figures in nested if figures]


def _origin(verified: Verified) -> Markup:
    made: list[tuple[Child, ...]] = [
        (name, element("code", version)) for name, version in verified.versions.items()
    ]
    known: list[tuple[Child, ...]] = [
        (name.replace("_", " "), fact(part)) for name, part in verified.fingerprint.items()
    ]
    return section(
        "fingerprint",
        "What this holds for",
        paragraph("When one of these changes, verify again."),
        joined(
            table((), made, "Versions", "facts") if made else "",
            table((), known, "Fingerprint", "facts") if known else "",
        ),
    )


def _footer(verified: Verified) -> Markup:
    command = verified.command or "specedge verify BUNDLE --html report.html"
    return origin(verified.versions.get("specedge"), verified.created, command)

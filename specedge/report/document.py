"""What every page has: its frame, the device in a line, verdicts, numbers to remember, its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from specedge.probe.fingerprint import Part
from specedge.report.figures import paragraph
from specedge.report.markup import Child, Markup, element
from specedge.report.style import STYLE
from specedge.words import counted, moment

Sign = tuple[str, str]
"""Class and sign of a verdict: ("good", "✓")."""


def document(title: str, parts: Iterable[Child], style: str = "") -> str:
    """One HTML page that needs nothing else: no network, no script, no file.

    Args:
        title: of the window.
        parts: of the body, in order.
        style: CSS beyond what all pages share.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(STYLE + style)),
    )
    body = element("body", element("main", *parts))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def device(known: Mapping[str, Part], created: str, *more: str) -> str:
    """Machine, engine, when, and what else there is to say, in one line.

    Args:
        known: a fingerprint.
        created: ISO 8601.
        more: after these.
    """
    threads = known.get("threads")
    parts = [
        known.get("processor"),
        known.get("engine"),
        known.get("provider"),
        counted(threads, "thread") if isinstance(threads, int) else None,
        moment(created),
        *more,
    ]
    return " · ".join(str(part) for part in parts if part is not None)


def signed(verdict: str, mark: Sign) -> Markup:
    """A verdict as a sign and words, which need no colour."""
    kind, sign = mark
    shown = element("span", sign, aria_hidden="true")
    return element("span", shown, f" {verdict}", class_=f"pill {kind}")


def with_care(lines: Iterable[str]) -> Markup:
    """What casts doubt on the figures."""
    items = element("ul", *(element("li", line) for line in lines))
    return element(
        "div", element("strong", "Read with care"), items, class_="card mind", role="note"
    )


def tile(number: str, name: str, detail: str) -> Markup:
    """A number to remember."""
    said = element("dd", element("b", number), element("span", detail, class_="dim"))
    return element("div", element("dt", name), said)


def fact(part: Part | float, nothing: str = "unknown") -> str:
    """A setting, or a part of a fingerprint, for a person."""
    if part is None:
        return nothing
    return ("yes" if part else "no") if isinstance(part, bool) else str(part)


def origin(version: object, created: str, command: str) -> Markup:
    """Who made the page; `version` of specedge, None: not known."""
    said = f"Made by specedge {version} on {created} with " if version else "Made with "
    return element("footer", paragraph(said, element("code", command)))

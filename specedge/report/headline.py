"""The top of the page: what a reader in a hurry takes away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specedge.report.costs import draft_share
from specedge.report.document import device, tile, with_care
from specedge.report.markup import Markup, element
from specedge.report.summary import Standing, doubts, standings
from specedge.report.verdicts import pill
from specedge.words import counted, seconds, three_digits, times

if TYPE_CHECKING:
    from specedge.report.page import Page

_LONG = 160  # letters of a reason that is set smaller


def headline(page: Page) -> Markup:
    """The decision in one sentence, what casts doubt on it, and four numbers."""
    findings = page.findings
    if findings is None:
        state, kind, reason = "Not decided", "open", "Only the costs of calls were measured."
    elif any(each.state == "pays" for each in standings(findings)):
        state, kind, reason = "Speculation on", "good", findings.reason
    elif findings.speculates:
        state, kind, reason = "Speculation on trial", "open", findings.reason
    else:
        state, kind, reason = "Speculation off", "bad", findings.reason
    if reason.casefold().startswith(f"{state.casefold()}: "):
        reason = reason[len(state) + 2 :]
    card = [
        element("p", state, class_=f"state {kind}"),
        element("p", reason, class_="reason long" if len(reason) > _LONG else "reason"),
    ]
    if findings is not None and standings(findings):
        rows = [
            element("li", _strong(each.proposer), " ", pill(each.state), " ", _after(each))
            for each in standings(findings)
        ]
        card.append(element("ul", *rows, class_="standings"))
    parts = [
        element("p", "specedge probe", class_="eyebrow"),
        element("h1", page.bundle_name),
        element("p", _device(page), class_="dim"),
        element("div", *card, class_=f"card decision {kind}"),
    ]
    said = doubts(page.curves, findings)
    if said:
        parts.append(with_care(said))
    parts.append(element("dl", *_tiles(page), class_="tiles"))
    return element("header", *parts)


def _strong(said: str) -> Markup:
    return element("strong", said)


def _after(standing: Standing) -> str:
    """The sentence after the state, which begins it where the proposer pays."""
    return standing.sentence.removeprefix("pays " if standing.state == "pays" else "")


def _device(page: Page) -> str:
    """Machine, engine, when and for how long, in one line."""
    curves, findings = page.curves, page.findings
    took = seconds(curves.seconds + (findings.seconds if findings else 0))
    more = [f"{took} long"]
    if findings is not None:
        more.append("complete" if findings.complete else "incomplete")
    return device(page.fingerprint, page.created, *more)


def _tiles(page: Page) -> list[Markup]:
    """Four numbers to remember."""
    curves, findings = page.curves, page.findings
    past = curves.target.pasts[0]
    plain = curves.target.cost_ms(1, past)
    tiles = [
        tile(
            f"{1000 / plain:.1f}" if plain > 1 else f"{1000 / plain:.0f}",
            "tokens/s without speculation",
            f"one step takes {three_digits(plain)} ms after {past} tokens",
        )
    ]
    known = draft_share(curves)
    if known is not None:
        tiles.append(tile(known, "of a step for a draft token", "what the draft model costs"))
    if findings is not None:
        live = [each for each in findings.findings if each.measured is not None]
        if live:
            best = max(live, key=lambda each: each.measured.gain if each.measured else 0)
            assert best.measured is not None
            where = f"{best.workload}, {best.proposer}, K={best.best_k}"
            if best.measured.low is None:
                where += f", of {counted(best.measured.prompts, 'paired run')} only"
            tiles.append(tile(times(best.measured.gain), "largest measured speed", where))
        if findings.texts_compared:
            tiles.append(
                tile(
                    f"{findings.texts_equal} of {findings.texts_compared}",
                    "texts equal",
                    "speculative runs that gave the plain run's tokens",
                )
            )
    return tiles

"""What every figure has: a frame around a chart, a caption, its numbers as a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specedge.report.markup import Child, Markup, element, joined


def panel(chart: Markup, *caption: Child) -> Markup:
    """One chart of a figure with what it shows over it."""
    return element("figure", element("figcaption", *caption), chart, class_="panel")


def panels(kind: str, parts: Iterable[Markup]) -> Markup:
    """Side by side where there is room."""
    return element("div", *parts, class_=f"panels {kind}")


def table(
    heads: Sequence[str], rows: Iterable[Sequence[Child]], caption: str, kind: str = "numbers"
) -> Markup:
    """Plain, the first cell of a row its head; scrolls where it is wider than the page.

    Args:
        heads: of the columns; empty: they have none.
        rows: in order.
        caption: over it.
        kind: "numbers" keeps each cell on a line, "facts" does not.
    """
    names = (element("th", name, scope="col") for name in heads)
    body = [
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(element("td", cell) for cell in row[1:]),
        )
        for row in rows
    ]
    whole = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *names)) if heads else "",
        element("tbody", *body),
        class_=kind,
    )
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def cards(heads: Sequence[str], rows: Iterable[Sequence[Child]], said: str) -> Markup:
    """A table whose rows become cards where they find no room; the last cell then has no label."""
    columns = (element("th", name, scope="col", role="columnheader") for name in heads)
    body = [
        element(
            "tr",
            element("th", row[0], scope="row", role="rowheader"),
            *(
                element("td", cell, data_label=name, role="cell")
                for name, cell in zip(heads[1:], row[1:], strict=True)
            ),
            role="row",
        )
        for row in rows
    ]
    return element(
        "table",
        element("thead", element("tr", *columns), role="rowgroup"),
        element("tbody", *body, role="rowgroup"),
        class_="cards",
        role="table",
        aria_label=said,
    )


def folded(summary: str, *tables: Markup) -> Markup:
    """Tables that a click shows."""
    return element("details", element("summary", summary), *tables)


def section(anchor: str, title: str, *parts: Child) -> Markup:
    head = element("h2", title, id=anchor)
    return element("section", head, joined(*parts), aria_labelledby=anchor)


def paragraph(*parts: Child) -> Markup:
    return element("p", *parts)

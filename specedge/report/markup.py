"""Elements of a page as nested calls: what comes from data is escaped, and every tag is closed."""

from __future__ import annotations

from html import escape

_VOID = frozenset({"meta", "br", "line", "path", "rect", "circle", "polygon", "polyline"})


class Markup(str):
    """Text that is HTML already; any other string is escaped when it becomes a child."""

    __slots__ = ()


Child = Markup | str
Attribute = str | float | None


def element(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """One element.

    Args:
        name: of the tag; one without an end tag has no children.
        children: in order.
        attributes: `class_` is class, `stroke_width` is stroke-width, `viewBox` stays; None leaves
            the attribute out.
    """
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        assert not children, name
        return Markup(f"<{name}{said}>" if name in ("meta", "br") else f"<{name}{said}/>")
    return Markup(f"<{name}{said}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Markup:
    """Side by side, without an element around them."""
    return Markup("".join(map(text, children)))


def text(child: Child) -> Markup:
    """A child as it stands in the page."""
    return child if isinstance(child, Markup) else Markup(escape(_clean(child)))


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return escape(_clean(value))
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _clean(raw: str) -> str:
    """What no page may hold (control characters, halves of a surrogate pair) shown as U+FFFD."""
    return "".join("\ufffd" if _forbidden(letter) else letter for letter in raw)


def _forbidden(letter: str) -> bool:
    if letter in "\t\n\r":
        return False
    code = ord(letter)
    return code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000

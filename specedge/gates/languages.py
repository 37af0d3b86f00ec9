"""Readers for the languages of the built-in grammars, written without the grammars.

A grammar that constrains an output cannot vouch for it. Each of these decides on its own whether a
text belongs to the language, bounds included.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping

_WORDS = frozenset({"and", "or", "not"})
_ROMAN = {
    "M": 1000, "CM": 900, "D": 500, "CD": 400, "C": 100, "XC": 90,
    "L": 50, "XL": 40, "X": 10, "IX": 9, "V": 5, "IV": 4, "I": 1,
}  # fmt: skip


def arithmetic(text: str) -> bool:
    """Up to three numbers of 0..999 and operators between them; brackets stand for a number, and
    are at most two deep. They are taken away from the inside."""
    term = "(?:0|[1-9][0-9]{0,2}|x)"
    flat = f"{term}(?:[-+*/]{term}){{0,2}}"
    if "x" in text:
        return False
    for _ in range(2):
        text = re.sub(rf"\({flat}\)", "x", text)
    return re.fullmatch(flat, text) is not None


def select(text: str) -> bool:
    """SELECT of up to three columns of one table, WHERE with up to two conditions, LIMIT."""
    name, number = "[a-z]{2,8}", "(?:0|[1-9][0-9]{0,3})"
    if not text.startswith("SELECT ") or not text.endswith(";") or text.count(" FROM ") != 1:
        return False
    columns, rest = text[len("SELECT ") : -1].split(" FROM ")
    names = columns.split(", ")
    if columns != "*" and not (len(names) <= 3 and all(re.fullmatch(name, one) for one in names)):
        return False
    rest, limited, limit = rest.partition(" LIMIT ")
    if limited and not re.fullmatch(number, limit):
        return False
    table, filtered, where = rest.partition(" WHERE ")
    if not re.fullmatch(name, table):
        return False
    value = f"(?:{number}|'[A-Za-z ]{{1,10}}')"
    conditions = _outside_quotes(where)
    return not filtered or (
        len(conditions) <= 2
        and all(re.fullmatch(f"{name} (?:=|<|>|<>) {value}", one) for one in conditions)
    )


def _outside_quotes(where: str) -> list[str]:
    """Conditions between AND and OR, which a quoted text may hold as well."""
    parts, quoted = [""], False
    for piece in re.split(r"('| AND | OR )", where):
        quoted ^= piece == "'"
        if piece in (" AND ", " OR ") and not quoted:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def settings(text: str) -> bool:
    """One to four lines of a key and a number, a switch or a quoted text."""
    lines = text.split("\n")
    if lines.pop() or not 1 <= len(lines) <= 4:
        return False
    for line in lines:
        key, equals, value = line.partition("=")
        parts = key.split("_")
        if not equals or len(parts) > 2:
            return False
        if not all(part.isascii() and part.isalpha() and part.islower() for part in parts):
            return False
        if max(map(len, parts)) > 6:
            return False
        number = value.isascii() and value.isdigit() and len(value) <= 5
        quoted = re.fullmatch(r'"[a-zA-Z0-9./ ]{0,12}"', value) is not None
        if not (number or quoted or value in ("on", "off")):
            return False
    return True


def table(text: str) -> bool:
    """CSV: a head, then up to three rows of a name, an age and a city."""
    if not text.endswith("\n"):
        return False
    try:
        rows = list(csv.reader(text.split("\n")[:-1], strict=True))
    except csv.Error:  # a quote that is not closed
        return False
    if rows[0] != ["name", "age", "city"] or not 2 <= len(rows) <= 4:
        return False
    word = "[A-Z][a-z]{1,9}"
    return all(
        len(row) == 3
        and re.fullmatch(word, row[0])
        and row[1].isascii()
        and row[1].isdigit()
        and 1 <= int(row[1]) <= 99
        and str(int(row[1])) == row[1]
        and re.fullmatch(f"{word}(?:, {word})?", row[2])
        for row in rows[1:]
    )


def roman_numeral(text: str) -> bool:
    """1000..3999: the numeral is the one that its value is written as."""
    value, at = 0, 0
    while at < len(text):
        sign = text[at : at + 2] if text[at : at + 2] in _ROMAN else text[at]
        if sign not in _ROMAN:
            return False
        value += _ROMAN[sign]
        at += len(sign)
    written, left = "", value
    for sign, worth in _ROMAN.items():
        written += sign * (left // worth)
        left %= worth
    return written == text and 1000 <= value <= 3999


def logic(text: str) -> bool:
    """Names joined by "and", "or", "not"; brackets not nested, of two names each."""
    if not re.fullmatch(r"[a-z() ]+", text):
        return False
    for inner in re.findall(r"\(([^()]*)\)", text):
        first, _, rest = inner.partition(" ")
        joined, _, second = rest.partition(" ")
        if joined not in ("and", "or") or not (_is_name(first) and _is_name(second)):
            return False
    flat = re.sub(r"\([^()]*\)", "inner", text)
    alternatives = flat.split(" or ")
    if len(alternatives) > 3:
        return False
    for alternative in alternatives:
        terms = alternative.split(" and ")
        if len(terms) > 2 or not all(_is_name(term.removeprefix("not ")) for term in terms):
            return False
    return True


def _is_name(text: str) -> bool:
    return 2 <= len(text) <= 8 and text.isascii() and text.isalpha() and text not in _WORDS


def lisp(text: str) -> bool:
    """One list, at most two more inside each other, each of an operator and its operands."""
    end = _list(text, 0, depth=0)
    return end == len(text)


def _list(text: str, at: int, depth: int) -> int:
    """End of the list that starts here; -1: there is none."""
    head = re.compile(r"\((?:\+|\*|-|max)(?= )").match(text, at)
    if head is None or depth > 2:
        return -1
    at, operands = head.end(), 0
    while at < len(text) and text[at] == " ":
        number = re.compile(r"(?:-?[1-9][0-9]{0,2}|0)(?=[ )])").match(text, at + 1)
        at = number.end() if number else _list(text, at + 1, depth + 1)
        operands += 1
        if at < 0:
            return -1
    most = 3 if depth == 0 else 2
    return at + 1 if text[at : at + 1] == ")" and 1 <= operands <= most else -1


def quotation(text: str) -> bool:
    """Who speaks, and up to five French words in guillemets with their narrow custom of spaces."""
    speaker, colon, said = text.partition(" : ")
    if speaker not in ("Élodie", "Noël", "le garçon") or not colon:
        return False
    if not (said.startswith("«\u00a0") and said.endswith("\u00a0»")):
        return False
    words = said[2:-2]
    for mark in (" !", ".", "…"):
        if words.endswith(mark):
            words = words[: -len(mark)]
            break
    else:
        return False
    letters = set("abcdefghijklmnopqrstuvwxyzàâçéèêëîïôùû")
    parts = words.split(" ")
    return len(parts) <= 5 and all(1 <= len(part) <= 9 and set(part) <= letters for part in parts)


READERS: Mapping[str, Callable[[str], bool]] = {
    "arithmetic": arithmetic,
    "select": select,
    "settings": settings,
    "table": table,
    "roman numeral": roman_numeral,
    "logic": logic,
    "lisp": lisp,
    "quotation": quotation,
}
"""By the name of the grammar in schemas.json."""

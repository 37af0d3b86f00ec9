"""What a request may ask its output to be, as text: checked here, compiled elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specedge.errors import OptionError
from specedge.limits import shown

Kind = Literal["json_schema", "regex", "grammar"]
KINDS: tuple[Kind, ...] = ("json_schema", "regex", "grammar")


@dataclass(frozen=True, slots=True)
class Grammar:
    """One of the three, under the name of its option.

    Args:
        kind: "json_schema": draft 2020-12, as far as llguidance has it; "regex": of the whole
            output, in the syntax of Rust's regex crate, without look-around; "grammar": Lark.
        text: the schema as JSON, the pattern, the grammar.
    """

    kind: Kind
    text: str


def asked(given: Mapping[str, Any]) -> Grammar | None:
    """What a caller wrote; None where none of the three is given.

    Raises:
        OptionError: more than one is given, or one is not what it should be.
    """
    kinds = [kind for kind in KINDS if given.get(kind) is not None]
    if len(kinds) > 1:
        raise OptionError(f"{kinds[0]}: excludes {' and '.join(kinds[1:])}; give one of them")
    if not kinds:
        return None
    kind, value = kinds[0], given[kinds[0]]
    if kind == "json_schema":
        return Grammar(kind, _schema(value))
    if not isinstance(value, str) or not (value if kind == "regex" else value.strip()):
        raise OptionError(f"{kind}: expected some text, found {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise OptionError(f"{kind}: it holds a lone surrogate, which is not text") from None
    return Grammar(kind, value)


def _schema(value: object) -> str:
    """A schema as JSON text, the order of its keys kept: properties come out in that order."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            why = " ".join(str(error).split()) or "nested too deep"
            raise OptionError(f"json_schema: not valid JSON: {why}") from None
    if not isinstance(value, Mapping):
        raise OptionError(f"json_schema: expected an object, found {shown(value)}")
    try:
        text = json.dumps(dict(value), allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"json_schema: cannot be written as JSON: {error}") from None
    return text

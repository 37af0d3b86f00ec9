"""How long an output of a constraint can be, worked out from the constraint alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

ESCAPED = 6  # bytes of \u0001, the longest form of a character; others take 4 in UTF-8
FORMATS = {"date": 10, "uuid": 36, "ipv4": 15, "ipv6": 45}  # those that are bounded by themselves
UNBOUNDED = 10**9

Size = Callable[[str], int]


def utf8(character: str) -> int:
    return len(character.encode())


def in_json(character: str) -> int:
    return ESCAPED if character < " " else written(character) - 2


def written(value: Any) -> int:
    """Of a constant; a control character may be written in the long form too."""
    text = json.dumps(value, ensure_ascii=False)
    return len(re.sub(r"\\[bfnrt]", r"\\u0000", text).encode())


def of_pattern(pattern: str, size: Size = utf8) -> int:
    """Bytes of the longest text that matches the whole pattern."""
    return _of_parts(re._parser.parse(pattern), size)  # type: ignore[attr-defined]


def _of_parts(parts: Any, size: Size) -> int:
    return sum(_of_part(str(code), value, size) for code, value in parts)


def _of_part(code: str, value: Any, size: Size) -> int:
    if code == "LITERAL":
        return size(chr(value))
    if code == "IN":
        return max(_of_class(str(kind), item, size) for kind, item in value)
    if code == "MAX_REPEAT":
        _, most, inner = value
        return min(int(most), UNBOUNDED) * _of_parts(inner, size)
    if code == "BRANCH":
        return max(_of_parts(branch, size) for branch in value[1])
    if code == "SUBPATTERN":
        return _of_parts(value[-1], size)
    assert code == "AT", f"{code}: which characters this matches is not bounded by name"
    return 0


def _of_class(kind: str, item: Any, size: Size) -> int:
    assert kind in ("LITERAL", "RANGE"), f"{kind}: not the same in every syntax"
    ends = (item, item) if kind == "LITERAL" else item
    return max(size(chr(end)) for end in ends)


def of_schema(schema: dict[str, Any], root: dict[str, Any] | None = None) -> int:
    """Bytes of the longest value as the guided form writes it, `json.dumps` style."""
    root = schema if root is None else root
    if "$ref" in schema:
        return of_schema(_resolved(schema["$ref"], root), root)
    if "const" in schema:
        return written(schema["const"])
    if "enum" in schema:
        return max(map(written, schema["enum"]))
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return max(of_schema(one, root) for one in schema[union])
    if "allOf" in schema:
        merged = {key: value for key, value in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            both = {**merged.get("properties", {}), **part.get("properties", {})}
            merged |= {**part, "properties": both}
        return of_schema(merged, root)
    kinds = schema["type"]
    return max(
        _of_type(kind, schema, root) for kind in (kinds if isinstance(kinds, list) else [kinds])
    )


def _resolved(reference: str, root: dict[str, Any]) -> dict[str, Any]:
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    assert isinstance(found, dict)
    return found


def _of_type(kind: str, schema: dict[str, Any], root: dict[str, Any]) -> int:
    if kind in ("null", "boolean"):
        return len("null" if kind == "null" else "false")
    if kind in ("integer", "number"):
        return _of_number(kind, schema)
    if kind == "string":
        return 2 + _of_string(schema)
    if kind == "array":
        first = schema.get("prefixItems", [])
        most = schema.get("maxItems", UNBOUNDED)
        if schema.get("items") is False:
            most = min(most, len(first))
        parts = [of_schema(item, root) for item in first[:most]]
        if most > len(parts):
            parts.append((most - len(parts)) * (2 + of_schema(schema["items"], root)))
        return 2 + sum(parts) + 2 * max(0, len(parts) - 1)
    assert kind == "object"
    assert schema["additionalProperties"] is False
    named = schema.get("properties", {})
    parts = [written(key) + 2 + of_schema(it, root) for key, it in named.items()]
    if "patternProperties" in schema:
        most = schema.get("maxProperties", UNBOUNDED) - len(parts)
        keyed = schema["patternProperties"].items()
        parts += [most * max(6 + of_pattern(key) + of_schema(it, root) for key, it in keyed)]
    return 2 + sum(parts) + 2 * max(0, len(parts) - 1)


def _of_number(kind: str, schema: dict[str, Any]) -> int:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None or high is None:
        return UNBOUNDED
    whole = max(len(str(int(low))), len(str(int(high))))
    if kind == "integer":
        return whole
    step = schema.get("multipleOf")
    return UNBOUNDED if step is None else whole + len(str(step).lstrip("0"))


def _of_string(schema: dict[str, Any]) -> int:
    bounds = [FORMATS.get(schema.get("format", ""), UNBOUNDED)]
    most = schema.get("maxLength", UNBOUNDED)
    bounds.append(most * (1 if "format" in schema else ESCAPED))  # those formats are ASCII
    pattern = schema.get("pattern", "")
    if pattern.startswith("^") and pattern.endswith("$"):
        bounds.append(of_pattern(pattern, in_json))
    return min(bounds)

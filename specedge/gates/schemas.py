"""What the gate "structured" asks of an output: schemas, patterns and grammars, with their checks.

`data/schemas.json` is a list of objects with exactly these keys:

    name       unique
    covers     features of the constraint; the same word everywhere
    prompt     one sentence
    longest    bytes of UTF-8 that an output can have at most, so that it ends by itself in one
               token more than that, whatever the tokenizer: every entry is bounded
    schema | regex | grammar
               JSON schema, draft 2020-12; a pattern of the whole output, in the syntax that Python
               and Rust share; a list of lines of Lark

Three things are kept out of the schemas, because what constrains and what checks do not agree on
them: llguidance takes 29 February in every year and the year 0000 as a "date", writes a key of
`patternProperties` twice, which `minProperties` would see, and goes on for ever with the digits of
a number that has no `multipleOf`. A multiple of a decimal fraction is none to a checker that
divides floats, so that steps are binary fractions.
"""

from __future__ import annotations

import ipaddress
import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import resources
from typing import Any

from specedge.errors import PromptError
from specedge.gates.languages import READERS
from specedge.guidance.grammar import Kind

LONGEST = 256  # bytes of any output
_FILE = "schemas.json"
_KINDS: Mapping[str, Kind] = {"schema": "json_schema", "regex": "regex", "grammar": "grammar"}
_TYPES: Mapping[Kind, type] = {"json_schema": dict, "regex": str, "grammar": list}
_KEYS = {"name", "covers", "prompt", "longest"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One constraint.

    Args:
        name: unique.
        covers: features of it.
        prompt: what is asked.
        longest: bytes of an output, at most.
        kind: which request option takes it.
        asked: its value.
    """

    name: str
    covers: tuple[str, ...]
    prompt: str
    longest: int
    kind: Kind
    asked: Any

    @property
    def budget(self) -> int:
        """Tokens in which every output ends by itself: a byte each, and the end."""
        return self.longest + 1

    @property
    def options(self) -> dict[str, Any]:
        """For `Model.stream`, budget included."""
        return {self.kind: self.asked, "max_tokens": self.budget}

    def fault(self, text: str) -> str | None:
        """What is wrong with an output, in one line; None: nothing. Needs jsonschema."""
        if self.kind == "json_schema":
            fault = _json_fault(text, self.asked)
        elif self.kind == "regex":
            fault = None if re.fullmatch(self.asked, text) else "the pattern does not match"
        else:
            fault = (
                None if READERS[self.name](text) else f"not a text of the language {self.name!r}"
            )
        size = len(text.encode("utf-8", "surrogatepass"))
        if fault is None and size > self.longest:
            fault = f"{size} bytes, at most {self.longest} are possible"
        return fault


@cache
def entries() -> tuple[Entry, ...]:
    """Those that come with specedge, in the order of the file."""
    return parse(resources.files("specedge.gates.data").joinpath(_FILE).read_bytes())


def parse(raw: bytes) -> tuple[Entry, ...]:
    """The content of such a file.

    Raises:
        PromptError: it is not what the head of this module says; names the entry.
    """
    try:
        items = json.loads(raw)
    except ValueError as error:
        raise PromptError(f"{_FILE}: not valid JSON: {error}; install specedge again") from None
    if not isinstance(items, list):
        raise PromptError(f"{_FILE}: expected a list, found {type(items).__name__}")
    found: dict[str, Entry] = {}
    for number, item in enumerate(items, start=1):
        entry = _entry(item, f"{_FILE}, entry {number}")
        if entry.name in found:
            raise PromptError(f"{_FILE}, entry {number}: a second {entry.name!r}; rename it")
        found[entry.name] = entry
    return tuple(found.values())


def _entry(item: Any, where: str) -> Entry:
    kinds = [key for key in _KINDS if isinstance(item, dict) and key in item]
    if len(kinds) != 1 or set(item) != {*_KEYS, *kinds}:
        raise PromptError(
            f"{where}: expected {', '.join(sorted(_KEYS))} and one of {', '.join(_KINDS)}, found "
            f"{', '.join(item) if isinstance(item, dict) else type(item).__name__}"
        )
    name, covers, prompt, longest = (item[key] for key in ("name", "covers", "prompt", "longest"))
    kind, asked = _KINDS[kinds[0]], item[kinds[0]]
    wrong = None
    if not (isinstance(name, str) and name.strip()):
        wrong = "name: expected some text"
    elif not (isinstance(prompt, str) and prompt.strip()):
        wrong = "prompt: expected some text"
    elif not (isinstance(covers, list) and covers and all(isinstance(it, str) for it in covers)):
        wrong = "covers: expected a list of words"
    elif not isinstance(longest, int) or not 1 <= longest <= LONGEST:
        wrong = f"longest: expected 1..{LONGEST} bytes, found {longest!r}"
    elif not isinstance(asked, _TYPES[kind]):
        wrong = f"{kinds[0]}: expected {_TYPES[kind].__name__}, found {type(asked).__name__}"
    elif kind == "grammar" and name not in READERS:
        wrong = f"no reader checks the language {name!r}; add it to specedge.gates.languages"
    if wrong:
        raise PromptError(f"{where}: {wrong}")
    if kind == "grammar":
        asked = "".join(f"{line}\n" for line in asked)
    return Entry(name, tuple(covers), prompt, longest, kind, asked)


def _json_fault(text: str, schema: dict[str, Any]) -> str | None:
    import jsonschema
    from jsonschema.exceptions import best_match

    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return f"not valid JSON: {error}"
    validator = jsonschema.Draft202012Validator(schema, format_checker=_format_checker())
    worst = best_match(validator.iter_errors(value))
    return None if worst is None else f"{worst.json_path}: {' '.join(worst.message.split())}"


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


@cache
def _format_checker() -> Any:
    """jsonschema passes a format over whose package is missing; these need none."""
    import jsonschema

    checker = jsonschema.FormatChecker(formats=())
    for name, is_one in FORMATS.items():
        checker.checks(name, raises=ValueError)(_holds(is_one))
    return checker


def _holds(is_one: Callable[[str], bool]) -> Callable[[object], bool]:
    """Formats say nothing of values that are no strings."""
    return lambda value: not isinstance(value, str) or is_one(value)


def _is_date(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text) and date.fromisoformat(text))


def _is_time(text: str) -> bool:
    """RFC 3339, "full-time"; its second 60 is a leap second."""
    found = re.fullmatch(
        r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.[0-9]+)?(?:[Zz]|[+-]([0-9]{2}):([0-9]{2}))", text
    )
    if found is None:
        return False
    hours, minutes, seconds, ahead, ahead_minutes = (int(part or 0) for part in found.groups())
    return max(hours, ahead) < 24 and max(minutes, ahead_minutes) < 60 and seconds <= 60


def _is_date_time(text: str) -> bool:
    return text[10:11] in ("T", "t") and _is_date(text[:10]) and _is_time(text[11:])


def _is_duration(text: str) -> bool:
    """RFC 3339, appendix A: units fall without a gap, weeks stand alone."""
    day = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
    clock = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
    return re.fullmatch(f"P(?:{day}(?:{clock})?|{clock}|[0-9]+W)", text) is not None


def _is_hostname(text: str) -> bool:
    label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    return len(text) <= 253 and re.fullmatch(rf"{label}(?:\.{label})*", text) is not None


def _is_email(text: str) -> bool:
    """RFC 5321 without quoted local parts; the domain may be one label, or an IP address."""
    atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
    local, _, domain = text.rpartition("@")
    if not re.fullmatch(rf"{atom}(?:\.{atom})*", local):
        return False
    if not (domain.startswith("[") and domain.endswith("]")):
        return _is_hostname(domain)
    version, colon, address = domain[1:-1].partition("IPv6:")
    return bool(ipaddress.IPv6Address(address) if colon else ipaddress.IPv4Address(version))


FORMATS: Mapping[str, Callable[[str], bool]] = {
    "date": _is_date,
    "time": _is_time,
    "date-time": _is_date_time,
    "duration": _is_duration,
    "hostname": _is_hostname,
    "email": _is_email,
    "ipv4": lambda text: str(ipaddress.IPv4Address(text)) == text,
    "ipv6": lambda text: ipaddress.IPv6Address(text).version == 6,
    "uuid": lambda text: str(uuid.UUID(text)) == text.lower(),
}
"""Whether a text is of a format; a ValueError is a no."""

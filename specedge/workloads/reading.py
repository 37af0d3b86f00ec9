"""JSON lines → workloads: the built-in prompts, and a user's own file.

A line is an object with exactly one of these, and maybe a class:

    prompt     text of a user message; plain text for a model that has no chat template
    messages   [{"role": ..., "content": ...}, ...], for the chat template
    text       raw text, continued as it is
    class      what the prompt is an example of; "user" when absent

Blank lines are skipped. A file is read whole or refused with its first fault.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

from specedge.errors import PromptError
from specedge.template import check_messages
from specedge.tokenizer import check_text
from specedge.workloads.workload import Workload, WorkloadPrompt

CLASSES = ("chat", "code writing", "code editing", "summarising", "structured output")
BUILT_IN = "built in"
DEFAULT_CLASS = "user"

MAX_BYTES = 64 << 20
MAX_PROMPTS = 100_000
MAX_CLASS_CHARACTERS = 60  # a column of a table

_KINDS = ("prompt", "messages", "text")
KEYS = (*_KINDS, "class")
_JSON_TYPES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def builtin() -> tuple[Workload, ...]:
    """The prompts that come with specedge, in the order of `CLASSES`."""
    return tuple(_built_in(name) for name in CLASSES)


def read(path: str | Path) -> tuple[Workload, ...]:
    """The workloads of a user's JSON-lines file, in the order in which classes first appear.

    Raises:
        PromptError: the file cannot be read, is too large or holds no prompt, or a line of it is
            not what the head of this module says; names the file, the line and the remedy.
    """
    path = Path(path)
    raw = file_bytes(path)
    source = f"{path.name}, sha256 {hashlib.sha256(raw).hexdigest()[:12]}"
    classes: dict[str, list[WorkloadPrompt]] = {}
    for count, (number, item) in enumerate(objects(raw, str(path))):
        if count == MAX_PROMPTS:
            raise PromptError(
                f"{path}, line {number}: more than {MAX_PROMPTS:,} prompts; keep a sample of them"
            )
        name, prompt = entry(item, f"{path}, line {number}", f"{path.name}, line {number}")
        classes.setdefault(name, []).append(prompt)
    if not classes:
        raise PromptError(
            f'{path}: it holds no prompt; expected lines such as {{"prompt": "Name a river."}}'
        )
    return tuple(Workload(name, tuple(prompts), source) for name, prompts in classes.items())


def _built_in(name: str) -> Workload:
    file = resources.files("specedge.workloads.data").joinpath(f"{name.replace(' ', '_')}.jsonl")
    prompts: list[WorkloadPrompt] = []
    for number, item in objects(file.read_bytes(), file.name):
        where = f"{BUILT_IN}, {name} {len(prompts) + 1}"
        prompts.append(entry(item, f"{file.name}, line {number}", where)[1])
    return Workload(name, tuple(prompts), BUILT_IN)


def file_bytes(path: Path) -> bytes:
    """The whole file; a pipe or a device is read no further than the limit.

    Raises:
        PromptError: it cannot be read, or is too large.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            size = status.st_size if stat.S_ISREG(status.st_mode) else 0
            raw = b"" if size > MAX_BYTES else file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise PromptError(f"{path}: is a folder; expected a file of JSON lines") from None
    except FileNotFoundError:
        raise PromptError(f"{path}: no such file; expected a file of JSON lines") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = getattr(error, "strerror", None) or error
        raise PromptError(
            f"{path}: cannot be read: {why}; expected a file of JSON lines"
        ) from error
    if size > MAX_BYTES or len(raw) > MAX_BYTES:
        raise PromptError(
            f"{path}: larger than {MAX_BYTES >> 20} MiB; a probe needs a few dozen prompts of each "
            "class, keep a sample of them"
        )
    return raw


def objects(raw: bytes, file: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line that is not blank: its number from 1, and the object on it.

    Raises:
        PromptError: a line is not a JSON object; names the file, the line and the remedy.
    """
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise PromptError(f"{file}, line 1: this is UTF-16, expected UTF-8; save the file as UTF-8")
    if raw.startswith(b"\xef\xbb\xbf"):
        raise PromptError(
            f"{file}, line 1: starts with a byte order mark; save the file as UTF-8 without one"
        )
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if line.strip():
            yield number, parsed_object(line, f"{file}, line {number}")


def parsed_object(line: bytes, where: str) -> dict[str, Any]:
    """The object on one line, `where` named in the PromptError for a line that holds none."""
    if b"\0" in line:
        raise PromptError(
            f"{where}: a NUL byte at byte {line.index(0) + 1}; expected UTF-8 text, save the file "
            "as UTF-8"
        )
    try:
        item = json.loads(line.decode("utf-8"), object_pairs_hook=_no_key_twice)
    except UnicodeDecodeError as error:
        raise PromptError(
            f"{where}: invalid UTF-8 at byte {error.start + 1} (0x{line[error.start]:02x}); save "
            "the file as UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        raise PromptError(
            f"{where}: invalid JSON at character {error.colno}: {error.msg}; expected one object "
            "on a line of its own, line breaks in a prompt written as \\n"
        ) from None
    except RecursionError:
        raise PromptError(
            f"{where}: nested too deeply; expected an object with {_names(KEYS, 'or')}"
        ) from None
    except _TwiceError as error:
        raise PromptError(f"{where}: the key {_short(error)} is there twice; keep one") from None
    except ValueError as error:  # a number with too many digits
        raise PromptError(
            f"{where}: invalid JSON: {_short(error)}; expected an object with {_names(KEYS, 'or')}"
        ) from None
    if not isinstance(item, dict):
        raise PromptError(
            f'{where}: expected an object such as {{"prompt": "Name a river."}}, '
            f"found {_type(item)}"
        )
    return item


class _TwiceError(Exception):
    """An object that has a key twice; of those, JSON parsers keep whichever they like."""


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    item = dict(pairs)
    if len(item) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _TwiceError(next(key for key in keys if keys.count(key) > 1))
    return item


def entry(item: dict[str, Any], at: str, where: str) -> tuple[str, WorkloadPrompt]:
    """Class and prompt of a line. `at` names it in errors here, `where` in later ones.

    Raises:
        PromptError: a key or a value is not what the head of this module says.
    """
    for key in item:
        if key not in KEYS:
            raise PromptError(
                f"{at}: the key {_short(key)} is not known; expected {_names(KEYS, 'or')}"
            )
    kinds = [key for key in _KINDS if key in item]
    if len(kinds) != 1:
        found = _names(kinds, "and") if kinds else "none of them"
        raise PromptError(
            f"{at}: expected exactly one of {_names(_KINDS, 'and')}, found {found}; "
            f"{'keep one of them' if kinds else 'add one of them'}"
        )
    name = _class(item["class"], at) if "class" in item else DEFAULT_CLASS
    (kind,) = kinds
    if kind == "messages":
        return name, WorkloadPrompt(_messages(item[kind], at), None, where)
    text = _text(item[kind], at, kind)
    messages = ({"role": "user", "content": text},) if kind == "prompt" else None
    return name, WorkloadPrompt(messages, text, where)


def _class(name: Any, at: str) -> str:
    """A class is a label in tables and sentences: one short printable line."""
    if not isinstance(name, str):
        raise PromptError(f'{at}: "class" is {_type(name)}; expected a string such as "chat"')
    if not name.strip():
        raise PromptError(f'{at}: "class" is empty; name the class, or leave the key out')
    if not name.isprintable():
        raise PromptError(
            f'{at}: "class" holds a character that cannot be printed: {_short(name)}; '
            "expected one line of plain text"
        )
    if len(name) > MAX_CLASS_CHARACTERS:
        raise PromptError(
            f'{at}: "class" has {len(name):,} characters; expected at most {MAX_CLASS_CHARACTERS}, '
            "shorten it"
        )
    return name.strip()


def _messages(messages: Any, at: str) -> tuple[dict[str, str], ...]:
    if not isinstance(messages, list):
        raise PromptError(
            f'{at}: "messages" is {_type(messages)}; expected an array of '
            '{"role": ..., "content": ...}'
        )
    try:
        check_messages(messages)
    except PromptError as error:
        raise PromptError(f"{at}: {error}; correct this line or remove it") from None
    for place, message in enumerate(messages):
        _no_nul(message["role"] + message["content"], at, f"messages[{place}]")
    if not messages[-1]["content"].strip():
        raise PromptError(
            f"{at}: the last of the messages is empty; expected text to answer, or remove the line"
        )
    return tuple(messages)


def _text(text: Any, at: str, key: str) -> str:
    if not isinstance(text, str):
        raise PromptError(f'{at}: "{key}" is {_type(text)}; expected a string')
    if not text.strip():
        found = "holds only white space" if text else "is empty"
        raise PromptError(f'{at}: "{key}" {found}; expected some text, or remove the line')
    try:
        check_text(text, f'{at}: "{key}"')
    except PromptError as error:
        raise PromptError(f"{error}, or remove the line") from None
    _no_nul(text, at, f'"{key}"')
    return text


def _no_nul(text: str, at: str, what: str) -> None:
    if "\0" in text:
        raise PromptError(f"{at}: {what} holds a NUL (\\u0000), which is not text; remove it")


def _type(value: Any) -> str:
    return _JSON_TYPES[type(value)]


def _short(value: object) -> str:
    """Quoted for one line of a terminal, escapes included."""
    text = ascii(str(value))
    return text if len(text) <= 60 else f"{text[:56]}...'"


def _names(keys: tuple[str, ...] | list[str], last: str) -> str:
    quoted = [f'"{key}"' for key in keys]
    return f" {last} ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]]))

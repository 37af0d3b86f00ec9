"""Whether an answer is right: by the text in it, by Python that checks it, by tests, by a schema.

A judge says "right", "wrong" and why, or that it is at fault itself: a check with a misspelt name
would otherwise pass for an answer that is wrong.
"""

from __future__ import annotations

import json
import re
import unicodedata
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from specedge.errors import PromptError
from specedge.gates import sandbox

FENCE = re.compile(r"^[ \t]*```[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
# Scripts that are written without spaces: Thai to Lao, Burmese, Khmer, kana, Han.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
_OF_THE_ANSWER = {
    *("AssertionError", "ValueError", "LookupError", "TypeError", "ArithmeticError"),
    *("AttributeError", "RecursionError", "StopIteration"),
    "SyntaxError",  # of a text that it parses: the check itself was compiled before
}
_TOO_DEEP = "nested too deeply"
_MOST_SHOWN = 160  # characters of a line of a check


@dataclass(frozen=True, slots=True)
class Judgement:
    """Of one answer.

    Args:
        right: whether it is.
        said: why not; "" of a right one.
        at_fault: the judge, not the answer; nothing is known of the answer then.
    """

    right: bool
    said: str = ""
    at_fault: bool = False


RIGHT = Judgement(True)


class Judge(Protocol):
    """Tells right answers from wrong ones."""

    def unavailable(self) -> str:
        """Why it cannot work here; "" where it can."""
        ...

    def __call__(self, answer: str) -> Judgement: ...


def fenced(answer: str) -> str:
    """What stands in the first fenced block, one that was cut off too; else the whole text."""
    found = FENCE.search(answer)
    return found[1] if found else answer


@dataclass(frozen=True, slots=True)
class Expect:
    """By the text: any of `texts` is in it, is it, or is a pattern found in it.

    "contains" and "equals" ignore case and the kind of white space. "contains" looks for whole
    words and numbers: 12 is not in "12.5", "120", "-12" or "1,012".
    """

    how: Literal["contains", "equals", "regex"]
    texts: tuple[str, ...]

    def unavailable(self) -> str:
        return ""

    def __call__(self, answer: str) -> Judgement:
        if self.how == "regex":
            found = any(re.search(text, answer) for text in self.texts)
        elif self.how == "equals":
            found = _folded(answer) in map(_folded, self.texts)
        else:
            folded = _folded(answer)
            found = any(_word(_folded(text)).search(folded) for text in self.texts)
        if found:
            return RIGHT
        wanted = " or ".join(
            ascii(text) if self.how == "regex" else repr(text) for text in self.texts
        )
        verb = {"contains": "does not contain", "equals": "is not", "regex": "does not match"}
        return Judgement(False, f"the answer {verb[self.how]} {_cut(wanted)}")


def _folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def _word(text: str) -> re.Pattern[str]:
    """Finds `text` where neither a word nor a number goes on beside it."""
    before = after = ""
    if re.match(r"\w", text) and not _UNSPACED.match(text):
        before = r"(?<!\w)"
    if text[0].isdigit():
        before += r"(?<!\d[.,])(?<!(?<!\w)[-\u2212])"
    if re.search(r"\w\Z", text) and not _UNSPACED.match(text[-1]):
        after = r"(?!\w)"
    if text[-1].isdigit():
        after += r"(?![.,]\d)"
    return re.compile(before + re.escape(text) + after)


def compiles(source: str, where: str) -> None:
    """Raises PromptError, which begins with `where`, unless `source` is Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "<check>", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise PromptError(
            f"{where}, line {error.lineno} of it: not Python: {error.msg}: "
            f"{_line(source, error.lineno)}; correct it"
        ) from None
    except (ValueError, MemoryError, RecursionError) as error:
        raise PromptError(f"{where}: not Python: {error}; correct it") from None


@dataclass(frozen=True, slots=True)
class Check:
    """By Python statements that find the answer in `output`, its first fenced block in `code`.

    It is right unless they raise or set `ok` to something false. What an odd answer may well cause
    (ValueError, KeyError, IndexError, TypeError, ArithmeticError, an attribute that None lacks)
    counts as wrong, and so does whatever a text raises that the check gives to `exec`, or a name
    that such a text has not defined. Anything else is the check's own fault: any other name that is
    not defined, a module that is not there, an attribute that a module lacks, what the sandbox
    refuses.
    """

    source: str
    where: str

    def unavailable(self) -> str:
        return sandbox.unavailable()

    def __call__(self, answer: str, *, rehearsal: bool = False) -> Judgement:
        given = {"output": answer, "code": fenced(answer)}
        ran = sandbox.run([("check", self.source)], given)
        raised = ran.raised
        if ran.ok:
            return RIGHT
        if raised is None and ran.stopped and rehearsal:
            said = f"{self.where}: {ran.stopped}, on an empty answer; correct it"
            return Judgement(False, said, at_fault=True)
        if raised is None:
            return Judgement(False, ran.stopped or "the check has set ok to false")
        if raised.part != "check":
            return Judgement(False, f"{raised} in what the check gave to exec")
        said = f"{raised} at {_line(self.source, raised.line)}"
        # what exec() was to define may be missing from the answer
        undefined = raised.error == "NameError" and "exec(" in self.source
        if undefined or _of_the_answer(raised, rehearsal):
            return Judgement(False, said)
        return Judgement(
            False, f"{self.where}, line {raised.line} of it: {said}; correct it", at_fault=True
        )

    def rehearse(self) -> None:
        """Run it on an empty answer.

        Raises:
            PromptError: the check is at fault.
        """
        found = self("", rehearsal=True)
        if found.at_fault:
            raise PromptError(found.said)


def _of_the_answer(raised: sandbox.Raised, rehearsal: bool) -> bool:
    if raised.error == "AttributeError":
        # JSON may be a text where an object was asked for, but there is none in an empty answer
        return raised.attribute_of not in ({"module", "str"} if rehearsal else {"module"})
    return not _OF_THE_ANSWER.isdisjoint(raised.kinds)


@dataclass(frozen=True, slots=True)
class UnitTests:
    """By unit tests: the code of the answer is run, then these statements in its namespace."""

    source: str

    def unavailable(self) -> str:
        return sandbox.unavailable()

    def __call__(self, answer: str) -> Judgement:
        ran = sandbox.run([("answer", fenced(answer)), ("tests", self.source)])
        if ran.ok:
            return RIGHT
        raised = ran.raised
        if raised is None:
            return Judgement(False, ran.stopped or "the tests have set ok to false")
        if raised.part == "tests":
            return Judgement(False, f"{raised} at {_line(self.source, raised.line)}")
        return Judgement(False, f"{raised} in line {raised.line} of the answer's code")


@dataclass(frozen=True, slots=True)
class Schema:
    """By a JSON schema (2020-12): the first object or array of the answer is valid by it."""

    schema: Mapping[str, Any]
    where: str

    def unavailable(self) -> str:
        try:
            import jsonschema  # noqa: F401
        except ImportError:
            return "jsonschema is not installed; pip install 'specedge[guidance]'"
        return ""

    def checked(self) -> None:
        """Raises PromptError unless the schema is one."""
        from jsonschema import Draft202012Validator, SchemaError

        try:
            Draft202012Validator.check_schema(self.schema)
        except SchemaError as error:
            raise PromptError(f"{self.where}: {_cut(error.message)}; correct the schema") from None
        for answer in ("{}", "[]"):
            if self(answer).said == _TOO_DEEP:
                raise PromptError(f"{self.where}: it refers to itself without an end; correct it")

    def __call__(self, answer: str) -> Judgement:
        from jsonschema import Draft202012Validator, exceptions
        from referencing import Registry
        from referencing.exceptions import Unresolvable

        try:
            value = first_json(answer)
        except ValueError as error:
            return Judgement(False, f"no JSON in the answer: {error}")
        try:  # an empty registry: nothing is looked up elsewhere
            found = Draft202012Validator(self.schema, registry=Registry()).iter_errors(value)
            worst = exceptions.best_match(found)
        except Unresolvable as missing:
            return Judgement(False, f"{self.where}: {missing}; write it out", at_fault=True)
        except RecursionError:
            return Judgement(False, _TOO_DEEP)
        if worst is None:
            return RIGHT
        return Judgement(False, f"{worst.json_path}: {_cut(worst.message)}")


def first_json(answer: str) -> Any:
    """The first object or array, in the first fenced block if there is one.

    Raises:
        ValueError: there is none, or it is not JSON.
    """
    text = fenced(answer)
    begins = re.search(r"[\[{]", text)
    if begins is None:
        raise ValueError("neither { nor [")
    try:
        return json.JSONDecoder(parse_constant=_no_constant).raw_decode(text, begins.start())[0]
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _line(source: str, number: int | None) -> str:
    lines = source.splitlines()
    return _cut(lines[number - 1].strip()) if number and number <= len(lines) else ""


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"

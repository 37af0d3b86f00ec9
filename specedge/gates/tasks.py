"""Tasks whose answers can be checked: built in, or a person's own JSON lines. docs/tasks.md.

A line is a prompt as `specedge.workloads.reading` has it, and exactly one of these:

    expect   text, or a list of texts of which one is enough, that the answer contains;
             or {"contains" | "equals" | "regex": text or list}
    check    Python statements that find the answer in `output`
    tests    Python statements, run after the code of the answer
    schema   a JSON schema for the first object or array of the answer

and maybe `name` and `max_tokens`.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, cast

from specedge.errors import PromptError
from specedge.gates.judging import Check, Expect, Judge, Schema, UnitTests, compiles
from specedge.limits import shown
from specedge.workloads import WorkloadPrompt
from specedge.workloads.reading import BUILT_IN, KEYS, entry, file_bytes, objects

MAX_TASKS = 10_000
MAX_TOKENS = 128  # of an answer, where a task does not say
MOST_TOKENS = 32_768
MAX_NAME_CHARACTERS = 60  # a column of a table

_JUDGES = ("expect", "check", "tests", "schema")
_OWN = (*_JUDGES, "name", "max_tokens")
_HOWS = ("contains", "equals", "regex")


@dataclass(frozen=True, slots=True)
class Task:
    """A question and who judges its answer.

    Args:
        name: unique among those of one file.
        workload: its class.
        prompt: that is asked.
        judge: of the answer's text.
        max_tokens: that the answer may have.
        where: for a person, "my.jsonl, line 12".
    """

    name: str
    workload: str
    prompt: WorkloadPrompt
    judge: Judge
    max_tokens: int
    where: str


def builtin() -> tuple[Task, ...]:
    """Forty tasks that come with specedge: arithmetic, extraction, code, JSON; ten of each."""
    file = resources.files("specedge.gates.data").joinpath("tasks.jsonl")
    return _tasks(file.read_bytes(), file.name, BUILT_IN)


def read(path: str | Path) -> tuple[Task, ...]:
    """The tasks of a file; each check is run once, on an empty answer.

    Raises:
        PromptError: the file cannot be read, is too large or holds no task; a line of it is not
            what the head of this module says; a check cannot run, or what a task needs is missing
            here. Names the file, the line and the remedy.
        ProbeError: there is no memory or disk for a sandbox.
    """
    path = Path(path)
    tasks = _tasks(file_bytes(path), str(path), path.name)
    if not tasks:
        raise PromptError(
            f'{path}: it holds no task; expected lines such as {{"prompt": "What is 2 + 2?", '
            '"expect": "4"}'
        )
    for task in tasks:
        if why := task.judge.unavailable():
            raise PromptError(f"{task.where}: cannot be checked: {why}")
        if isinstance(task.judge, Schema):
            task.judge.checked()
    for task in tasks:
        if isinstance(task.judge, Check):
            task.judge.rehearse()
    return tasks


def _tasks(raw: bytes, file: str, name: str) -> tuple[Task, ...]:
    tasks: list[Task] = []
    named: dict[str, int] = {}
    counts: dict[str, int] = {}
    for number, item in objects(raw, file):
        at = f"{file}, line {number}"
        if len(tasks) == MAX_TASKS:
            raise PromptError(f"{at}: more than {MAX_TASKS:,} tasks; keep a sample of them")
        task = _task(item, at, f"{name}, line {number}", counts)
        if task.name in named:
            raise PromptError(
                f'{at}: "name" {task.name!r} is also that of line {named[task.name]}; '
                "give it another"
            )
        named[task.name] = number
        tasks.append(task)
    return tuple(tasks)


def _task(item: dict[str, Any], at: str, where: str, counts: dict[str, int]) -> Task:
    for key in item:
        if key not in KEYS and key not in _OWN:
            known = ", ".join(f'"{each}"' for each in (*KEYS, *_OWN))
            raise PromptError(f"{at}: the key {shown(key)} is not known; expected {known}")
    kinds = [key for key in _JUDGES if key in item]
    if len(kinds) != 1:
        found = " and ".join(f'"{kind}"' for kind in kinds) or "none of them"
        raise PromptError(
            f'{at}: expected exactly one of "expect", "check", "tests" and "schema", found '
            f"{found}; {'keep one of them' if kinds else 'say how the answer is checked'}"
        )
    workload, prompt = entry({key: item[key] for key in item if key in KEYS}, at, where)
    counts[workload] = counts.get(workload, 0) + 1
    return Task(
        name=_name(item.get("name", f"{workload} {counts[workload]}"), at),
        workload=workload,
        prompt=prompt,
        judge=_judge(kinds[0], item[kinds[0]], at),
        max_tokens=_max_tokens(item.get("max_tokens", MAX_TOKENS), at),
        where=at,
    )


def _judge(kind: str, said: Any, at: str) -> Judge:
    where = f'{at}: "{kind}"'
    if kind == "expect":
        return _expect(said, where)
    if kind == "schema":
        if not isinstance(said, dict):
            raise PromptError(f"{where}: expected a JSON schema, an object, found {shown(said)}")
        return Schema(said, where)
    if not isinstance(said, str) or not said.strip():
        raise PromptError(f"{where}: expected Python statements, found {shown(said)}")
    compiles(said, where)
    return Check(said, where) if kind == "check" else UnitTests(said)


def _expect(said: Any, where: str) -> Expect:
    how = "contains"
    if isinstance(said, dict):
        if len(said) != 1 or next(iter(said)) not in _HOWS:
            raise PromptError(
                f'{where}: expected one of "contains", "equals" and "regex", found {shown(said)}'
            )
        how, said = next(iter(said.items()))
    texts = [said] if isinstance(said, str) else said
    if not isinstance(texts, list) or not texts:
        raise PromptError(f"{where}: expected a text or a list of texts, found {shown(said)}")
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise PromptError(f"{where}: expected a text that is not empty, found {shown(text)}")
        if how == "regex":
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of what it may mean in a later Python
                    re.compile(text)
            except (re.error, OverflowError, RecursionError) as error:
                raise PromptError(f"{where}: {shown(text)} is not a pattern: {error}") from None
    return Expect(cast('Literal["contains", "equals", "regex"]', how), tuple(texts))


def _name(name: Any, at: str) -> str:
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise PromptError(f'{at}: "name": expected one printable line, found {shown(name)}')
    if len(name) > MAX_NAME_CHARACTERS:
        raise PromptError(
            f'{at}: "name" has {len(name):,} characters; expected at most {MAX_NAME_CHARACTERS}'
        )
    return name.strip()


def _max_tokens(given: Any, at: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MOST_TOKENS:
        raise PromptError(f'{at}: "max_tokens": expected 1..{MOST_TOKENS:,}, found {shown(given)}')
    return given

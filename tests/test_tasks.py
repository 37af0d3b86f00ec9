"""Tasks with checkable answers: those built in, a user's file, and who is right."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from specedge.errors import PromptError
from specedge.gates import judging, sandbox
from specedge.gates.judging import (
    RIGHT,
    Check,
    Expect,
    Judgement,
    Schema,
    UnitTests,
    fenced,
    first_json,
)
from specedge.gates.tasks import Task, builtin, read

CODE = {
    "code 1": "return a + b",
    "code 2": "return n % 2 == 0",
    "code 3": "return sorted(numbers)[-1]",
    "code 4": "return ''.join(reversed(text))",
    "code 5": "return sum(text.lower().count(letter) for letter in 'aeiou')",
    "code 6": "return sum(numbers) / len(numbers) if numbers else 0",
    "code 7": "return n * factorial(n - 1) if n else 1",
    "code 8": "return len(text.split())",
    "code 9": "return list(dict.fromkeys(items))",
    "code 10": "return str(n) if n % 3 else 'Fizz'",
}
JSON = [
    {"city": "Paris"},
    {"name": "Maria", "age": 34},
    [1, 2, 3],
    {"colours": ["red", "green"]},
    {"item": "red bicycle", "price": 250},
    {"id": "t-17", "active": True, "value": 21.5},
    {"sentiment": "positive"},
    [{"name": "spider", "legs": 8}, {"name": "dog", "legs": 4}],
    {"address": {"street": "Harbour Road", "number": 12}},
    {"title": "Blue Hour", "year": 1984, "tags": ["slow"]},
]
ARITHMETIC = ["5", "12", "42", "120", "30", "9", "100", "10, 12, 14", "20", "6"]
EXTRACTION = [
    *("Pier 4.", "Ingrid Solberg.", "To help@lanternworks.example.", "58213", "Lisbon", "A seal"),
    *("Herons are birds.", "6 euros", "The shed is red.", "It is on Tuesday."),
]


def answers() -> dict[str, str]:
    """A right answer to each task that is built in, as a model would write it."""
    found = {f"json {n}": f"```json\n{json.dumps(value)}\n```" for n, value in enumerate(JSON, 1)}
    for name, texts in (("arithmetic", ARITHMETIC), ("extraction", EXTRACTION)):
        found |= {f"{name} {n}": text for n, text in enumerate(texts, 1)}
    for task in builtin():
        if task.name in CODE:
            head = str(task.prompt.text).split("```python\n")[1].split(":\n")[0]
            found[task.name] = f"Here it is:\n```python\n{head}:\n    {CODE[task.name]}\n```\nBye."
    return found


@pytest.fixture
def write(tmp_path):
    """Writes a file of tasks; a line is an object, or text as it stands."""

    def written(*lines: object) -> Path:
        path = tmp_path / "my.jsonl"
        path.write_text(
            "".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines), "utf-8"
        )
        return path

    return written


def refusal(path: Path) -> str:
    """The one line with which a file is refused, without the folder."""
    with pytest.raises(PromptError) as caught:
        read(path)
    said = str(caught.value)
    assert "\n" not in said
    assert said.startswith(str(path))
    return said.removeprefix(f"{path.parent}/")


# Built in


def test_there_are_ten_tasks_of_each_class():
    tasks = builtin()
    assert Counter(task.workload for task in tasks) == dict.fromkeys(
        ["arithmetic", "extraction", "code", "json"], 10
    )
    assert len({task.prompt.text for task in tasks}) == 40
    assert all(task.max_tokens <= 128 for task in tasks)


def test_every_built_in_task_takes_a_right_answer_and_no_other():
    right = answers()
    tasks = builtin()
    assert set(right) == {task.name for task in tasks}
    for place, task in enumerate(tasks):
        assert task.judge(right[task.name]).right, task.name
        other = right[tasks[place - 1].name]  # of the task before, or of the last
        wrong = task.judge(other)
        assert (wrong.right, wrong.at_fault) == (False, False), task.name
        assert wrong.said, task.name


def test_no_built_in_task_is_solved_by_its_own_prompt():
    for task in builtin():
        if task.workload in ("arithmetic", "code"):
            assert not task.judge(str(task.prompt.text)).right, task.name


# Who is right


@pytest.mark.parametrize(
    ("wanted", "answer"),
    [
        ("12", "The answer is 12."),
        ("12", "12, I think"),
        ("12", "**12**"),
        ("12", "x=12"),
        ("12", "from 10-12"),
        ("12", r"\boxed{12}"),
        ("Paris", "it is PARIS!"),
        ("new york", "New\n  York"),
        ("café", "Le cafe\u0301."),
        ("東京", "答えは東京です"),
        (".5", "0 or .5"),
        ("C++", "C++ is one"),
    ],
)
def test_an_answer_contains_a_word_or_a_number(wanted, answer):
    assert Expect("contains", (wanted,))(answer).right


@pytest.mark.parametrize(
    ("wanted", "answer"),
    [
        *(("12", f"it is {number}") for number in ("120", "312", "12.5", "-12", "1,012", "12,000")),
        ("12", "x12"),
        ("red", "reddish"),
        ("red", "hundred"),
        ("Paris", ""),
        ("new york", "newyork"),
    ],
)
def test_a_part_of_a_word_or_of_a_number_is_not_enough(wanted, answer):
    found = Expect("contains", (wanted,))(answer)
    assert not found.right
    assert found.said == f"the answer does not contain {wanted!r}"


def test_one_of_several_texts_is_enough():
    judge = Expect("contains", ("9", "nine"))
    assert judge("Nine.").right
    assert judge("8").said == "the answer does not contain '9' or 'nine'"


def test_equals_takes_the_whole_answer_and_a_pattern_any_part():
    assert Expect("equals", ("yes",))(" Yes\n").right
    assert not Expect("equals", ("yes",))("Yes, of course").right
    assert Expect("regex", (r"\b\d{4}\b",))("in 1999").right
    assert not Expect("regex", (r"\b\d{4}\b",))("in 199").right


def test_code_is_the_first_fenced_block_or_the_whole_text():
    assert fenced("a\n```python\nx = 1\n```\nb\n```\ny\n```") == "x = 1\n"
    assert fenced("```\nx = '```'\n```") == "x = '```'\n"
    assert fenced("```py\nx = 1\ny =") == "x = 1\ny ="
    assert fenced("x = 1") == "x = 1"


def test_json_is_the_first_value_in_brackets():
    assert first_json('Sure: {"a": [1]} and more }') == {"a": [1]}
    assert first_json("{no}\n```json\n[1, 2]\n```") == [1, 2]
    for text in ("none", "{", '{"a": NaN}', "[" * 100_000):
        with pytest.raises(ValueError, match=r"."):
            first_json(text)


def test_a_schema_names_the_place_that_is_not_valid():
    judge = Schema({"properties": {"age": {"type": "integer"}}}, "a")
    assert judge('{"age": 3}').right
    assert judge('{"age": "3"}').said == "$.age: '3' is not of type 'integer'"
    assert judge("I cannot.").said == "no JSON in the answer: neither { nor ["


def test_a_schema_that_is_elsewhere_is_the_fault_of_the_task(monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda *_: pytest.fail("it was fetched"))
    found = Schema({"$ref": "https://schemas.example/a.json"}, "my.jsonl, line 1")("{}")
    assert found.at_fault
    assert found.said.startswith("my.jsonl, line 1: ")


def test_an_answer_deeper_than_can_be_checked_is_wrong():
    linked = {"type": "object", "properties": {"a": {"$ref": "#"}}}
    deep = '{"a":' * 300 + "{}" + "}" * 300
    assert Schema(linked, "w")('{"a": {"a": {}}}') == RIGHT
    assert Schema(linked, "w")(deep) == Judgement(False, "nested too deeply")


def test_tests_say_which_line_failed_or_which_line_of_the_answer():
    judge = UnitTests("assert f(1) == 1\nassert f(2) == 4")
    assert judge("def f(x): return x * x").right
    assert judge("def f(x): return x").said == "AssertionError at assert f(2) == 4"
    assert judge("def f(x):\n    return y").said == (
        "NameError: name 'y' is not defined in line 2 of the answer's code"
    )
    assert judge("No code here.").said.startswith("SyntaxError")
    assert not judge("import sys; sys.exit(0)").right
    assert not judge("").at_fault, "a function that is missing is the answer's fault"


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        ("assert 'a' in output", "a"),
        ("import json\nassert json.loads(code) == [1]", "```\n[1]\n```"),
        ("ok = len(output) > 2", "abc"),
        ("exec(code)\nassert f() == 1", "def f(): return 1"),
    ],
)
def test_a_check_is_passed_unless_it_raises_or_says_no(check, answer):
    judge = Check(check, "a")
    assert judge(answer).right
    wrong = judge("")
    assert (wrong.right, wrong.at_fault) == (False, False)
    assert wrong.said


@pytest.mark.parametrize(
    "check",
    [
        "import json; json.loads(output)['a']",
        "import ast; ast.parse(output)",
        "import re; re.search('b', output).group()",
        "int(output)",
        "output[100]",
        "1 / output.count('b')",
        "next(x for x in output if x == 'b')",
        "exec(output)",
        "while 'a' in output: pass",
    ],
)
def test_what_an_odd_answer_causes_is_a_wrong_answer(check, monkeypatch):
    monkeypatch.setattr(sandbox.run, "__defaults__", (None, sandbox.Limits(cpu_seconds=1)))
    found = Check(check, "a")("a (odd")
    assert (found.right, found.at_fault) == (False, False)


def test_whatever_a_text_raises_that_a_check_runs_is_a_wrong_answer():
    for answer in ("raise Exception('no')", "import numpy", "open('/etc/passwd', 'a')"):
        found = Check("exec(output)", "a")(answer)
        assert (found.right, found.at_fault) == (False, False), answer
        assert found.said.endswith(" in what the check gave to exec")


# A user's file


def test_a_file_of_every_kind_is_read(write):
    path = write(
        {"prompt": "2 + 2?", "expect": "4"},
        "",
        {"messages": [{"role": "user", "content": "Hi"}], "expect": ["hi", "hello"], "class": "a"},
        {"text": "def f():", "tests": "f()", "name": "mine", "max_tokens": 7},
        {"prompt": "JSON?", "schema": {"type": "array"}},
        {"prompt": "Say yes", "expect": {"equals": "yes"}},
        {"prompt": "Check", "check": "assert output"},
    )
    tasks = read(path)
    assert [(task.name, task.workload, task.max_tokens) for task in tasks] == [
        ("user 1", "user", 128),
        ("a 1", "a", 128),
        ("mine", "user", 7),
        ("user 3", "user", 128),
        ("user 4", "user", 128),
        ("user 5", "user", 128),
    ]
    assert tasks[1].where == f"{path}, line 3"
    assert tasks[0].judge == Expect("contains", ("4",))
    assert tasks[4].judge == Expect("equals", ("yes",))
    assert isinstance(tasks[0], Task)


P = '"prompt": "a"'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "invalid JSON at character"),
        (f"{{{P}}}", 'expected exactly one of "expect", "check", "tests" and "schema", found none'),
        (f'{{{P}, "expect": "a", "check": "1"}}', 'found "expect" and "check"; keep one'),
        ('{"expect": "a"}', 'expected exactly one of "prompt", "messages" and "text"'),
        (f'{{{P}, "expect": "a", "extra": 1}}', "the key 'extra' is not known"),
        (f'{{{P}, "expect": ""}}', '"expect": expected a text that is not empty'),
        (f'{{{P}, "expect": 4}}', '"expect": expected a text or a list of texts, found 4'),
        (f'{{{P}, "expect": []}}', '"expect": expected a text or a list of texts, found []'),
        (f'{{{P}, "expect": {{"is": "a"}}}}', 'one of "contains", "equals" and "regex"'),
        (f'{{{P}, "expect": {{"regex": "("}}}}', "'(' is not a pattern"),
        (f'{{{P}, "expect": {{"regex": "a{{99999999999}}"}}}}', "is not a pattern: the repetition"),
        (f'{{{P}, "expect": {{"regex": "{"(" * 2000}"}}}}', "is not a pattern: maximum recursion"),
        (f'{{{P}, "schema": {{"$ref": "#"}}}}', '"schema": it refers to itself without an end'),
        (f'{{{P}, "check": "if"}}', '"check", line 1 of it: not Python: '),
        (f'{{{P}, "tests": "x = 1\\ny ="}}', '"tests", line 2 of it: not Python: '),
        (f'{{{P}, "check": " "}}', '"check": expected Python statements'),
        (f'{{{P}, "schema": {{"type": "what"}}}}', "\"schema\": 'what' is not valid"),
        (f'{{{P}, "schema": true}}', '"schema": expected a JSON schema, an object, found True'),
        (f'{{{P}, "expect": "a", "max_tokens": 0}}', '"max_tokens": expected 1..32,768, found 0'),
        (f'{{{P}, "expect": "a", "max_tokens": true}}', '"max_tokens": expected 1..32,768'),
        (f'{{{P}, "expect": "a", "name": "user 1"}}', "'user 1' is also that of line 1"),
        (f'{{{P}, "expect": "a", "name": "a\\nb"}}', '"name": expected one printable line'),
    ],
)
def test_a_bad_line_is_named_with_its_number(write, line, said):
    found = refusal(write({"prompt": "2 + 2?", "expect": "4"}, line))
    assert found.startswith("my.jsonl, line 2: ")
    assert said in found


def test_a_file_without_a_task_is_refused(write):
    assert refusal(write("", " ")).startswith("my.jsonl: it holds no task; expected lines such as")


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ("x = 1\nassert ouput", "line 2 of it: NameError: name 'ouput' is not defined"),
        ("import numpy", "line 1 of it: ModuleNotFoundError: No module named 'numpy'"),
        ("output.uper()", "line 1 of it: AttributeError: 'str' object has no attribute 'uper'"),
        ("import json\njson.laods('')", "line 2 of it: AttributeError: module 'json'"),
        ("open('/etc/passwd', 'a')", "line 1 of it: PermissionError: the sandbox refuses"),
        ("raise Exception('no')", "line 1 of it: Exception: no"),
        ("import time; time.sleep(9)", "not done after 0.5 s, on an empty answer"),
    ],
)
def test_a_check_that_raises_is_refused_before_any_model_runs(write, monkeypatch, check, said):
    limits = sandbox.Limits(seconds=0.5 if "sleep" in check else 20)
    monkeypatch.setattr(sandbox.run, "__defaults__", (None, limits))
    good = {"prompt": "a", "check": "import json; json.loads(output)"}
    found = refusal(write(good, {"prompt": "b", "check": check}))
    assert found.startswith('my.jsonl, line 2: "check"')
    assert said in found
    assert found.endswith("; correct it")


def test_a_check_at_fault_on_some_answers_only_says_so():
    judge = Check("if output:\n    assert ouput", 'my.jsonl, line 3: "check"')
    judge.rehearse()
    found = judge("x")
    assert found.at_fault
    assert found.said == (
        "my.jsonl, line 3: \"check\", line 2 of it: NameError: name 'ouput' is not defined at "
        "assert ouput; correct it"
    )


def test_what_is_missing_here_is_named_with_the_line_that_needs_it(write, monkeypatch):
    path = write({"prompt": "a", "check": "assert output"})
    monkeypatch.setattr(judging.sandbox, "unavailable", lambda: "there is none")
    assert refusal(path) == "my.jsonl, line 1: cannot be checked: there is none"


def test_the_examples_of_the_documentation_are_tasks(write):
    text = (Path(__file__).parent.parent / "docs" / "tasks.md").read_text("utf-8")
    tasks = read(write(*text.split("```json\n")[1].split("```")[0].splitlines()))
    assert {type(task.judge) for task in tasks} == {Expect, Check, UnitTests, Schema}

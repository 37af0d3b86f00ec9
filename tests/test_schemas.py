"""The built-in constraints: bounded, walked at random, and checked by something that can say no."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest

import schema_bounds
from schema_walks import accepts, walk
from specedge.errors import PromptError
from specedge.gates import schemas
from specedge.gates.schemas import FORMATS, Entry, entries, parse

ENTRIES = entries()
BY_NAME = {entry.name: entry for entry in ENTRIES}
WALKS = 24

each = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


@each
def test_every_walk_ends_in_time_with_an_output_that_passes(entry):
    for seed in range(WALKS):
        walked = walk(entry, seed, reluctant=seed % 2 == 0)
        assert walked is not None, f"seed {seed}: longer than {entry.longest} tokens"
        text, _ = walked
        assert entry.fault(text) is None, f"seed {seed}: {text!r}"


@each
def test_no_output_can_be_longer_than_the_entry_states(entry):
    if entry.kind == "json_schema":
        assert schema_bounds.of_schema(entry.asked) <= entry.longest
    elif entry.kind == "regex":
        assert schema_bounds.of_pattern(entry.asked) <= entry.longest
    # of a grammar: the walks


@each
def test_what_the_constraint_accepts_one_edit_away_passes_and_nothing_else_does(entry):
    """Of JSON only the first half holds: it has other spellings, which the constraint has not."""
    choose = random.Random(entry.name)
    refused = 0
    for seed in range(WALKS):
        text, _ = walk(entry, seed) or ("", 0)
        broken = _edited(text, choose)
        fault = entry.fault(broken)
        refused += fault is not None
        if accepts(entry, broken):
            assert fault is None, f"{broken!r} is accepted"
        elif entry.kind != "json_schema":
            assert fault is not None, f"{broken!r} is not accepted"
    assert refused


def _edited(text: str, choose: random.Random) -> str:
    """With one character more, less, doubled, or in place of another."""
    at = choose.randrange(len(text) + 1)
    new = choose.choice([*text, *"0aZ .,;()-'\"\né"])
    return choose.choice(
        [
            text[:at] + new + text[at:],
            text[:at] + text[at + 1 :],
            text[:at] + text[at : at + 1] + text[at:],
            text[:at] + new + text[at + 1 :],
        ]
    )


@each
def test_values_of_other_kinds_are_refused(entry):
    foreign = ["[[[[]]]]", "-123456.75", '"~"', '{"unexpected": 1}', '[{"unexpected": 1}]']
    assert all(entry.fault(text) for text in foreign)


WRONG = [
    ("die", "7"),
    ("die", "1.5"),
    ("percentage", "0"),
    ("percentage", "100"),
    ("hours worked", "1.3"),
    ("step of five", "12"),
    ("a title", '"ab"'),
    ("a title", '"' + "a" * 33 + '"'),
    ("sizes by type", "1"),
    ("fixed record", '{"version": 2, "limits": [1, 10, null], "debug": true}'),
    ("city names", '"Munchen"'),
    ("product code", '"AB-1234"'),
    ("russian word", '"dom"'),
    ("text file", '"a_long_name.txt"'),
    ("text file", '"a.txt.gz"'),
    ("leap day", '"2000-02-30"'),
    ("leap day", '"2100-02-28"'),
    ("departure", '"24:00:00Z"'),
    ("timestamp", '"2024-13-01T00:00:00Z"'),
    ("identifier", '{"id": "no"}'),
    ("contact", '{"email": "a@b@c"}'),
    ("addresses", '{"v4": "1.2.3.256"}'),
    ("addresses", '{"v4": "1.2.3.4", "v6": "1::2::3"}'),
    ("host", '{"host": "-a", "port": 1}'),
    ("waiting time", '{"retry_after": "P1H"}'),
    ("person", '{"name": "Anna", "age": 34}'),
    ("person", '{"name": "Anna", "age": 34, "pets": true, "more": 1}'),
    ("profile", '{"name": "Anna", "nickname": ""}'),
    ("empty object", '{"a": 1}'),
    ("empty array", "[1]"),
    ("lucky numbers", "[1]"),
    ("lucky numbers", "[1, 2, 3, 4, 5, 6]"),
    ("matrix", "[[1, 2], [3, 4]]"),
    ("point", "[1, 2]"),
    ("point", '[1, 2, "a", 3]'),
    ("command line", '["cp", "a", "b"]'),
    ("overlapping union", "13"),
    ("shape", '{"kind": "box", "radius": 1}'),
    ("german form", '{"grosse": "klein", "gewicht_kg": 1, "straße": "Weg"}'),
    ("family tree", '{"name": "a", "children": [{"name": "b"}]}'),
    ("same as its neighbour", '{"opens": 1, "closes": 25}'),
    ("word counts", '{"a": 1, "b": 1, "c": 1, "d": 1}'),
    ("word counts", '{"A": 1}'),
    ("merged parts", '{"colour": "white"}'),
    ("narrowed range", "9"),
    ("tool call", '{"tool": "weather", "arguments": {"query": "x"}}'),
    ("scalar union", "NaN"),
    ("arithmetic", "007+1"),
    ("arithmetic", "00"),
    ("arithmetic", "1+(2"),
    ("arithmetic", "(1)(2)"),
    ("arithmetic", "2**3"),
    ("arithmetic", "(((1)))"),
    ("arithmetic", "1+(2+3+4+5)"),
    ("arithmetic", "x"),
    ("select", "SELECT id name FROM users;"),
    ("select", "SELECT id FROM users WHERE age = 1 AND id = 2 OR id = 3;"),
    ("select", "SELECT id, id, id, id FROM users;"),
    ("settings", "port 80\n"),
    ("settings", "port=80"),
    ("settings", "port=80\n" * 5),
    ("settings", "long_path_name=80\n"),
    ("table", "name,age,city\nAnna,034,Rome\n"),
    ("table", 'name,age,city\nAnna,34,"Rome\n'),
    ("table", "name,age,city\n"),
    ("table", "name,age,city\n" + "Anna,34,Rome\n" * 4),
    ("roman numeral", "MIIX"),
    ("roman numeral", "CM"),
    ("logic", "cold and and dark"),
    ("logic", "cold and dark and wet"),
    ("logic", "cold or dark or wet or late"),
    ("logic", "not (cold)"),
    ("lisp", "(+ 1 (* 2 3)"),
    ("lisp", "(+)"),
    ("lisp", "(+ 1 2 3 4)"),
    ("lisp", "(+ (+ (+ (+ 1))))"),
    ("quotation", "Noël : « bonjour. »"),
    ("quotation", "Noël : «\u00a0un un un un un un.\u00a0»"),
]
RIGHT = [
    ("arithmetic", "((1+2)*3)/4-5"),
    ("select", "SELECT id, name FROM users WHERE city = 'NY AND LA' OR age > 30 LIMIT 5;"),
    ("settings", 'port=8080\nlog_dir="/var/log"\ndebug=off\n'),
    ("table", 'name,age,city\nAnna,34,"Rome, Italy"\n'),
    ("roman numeral", "MCMXCIV"),
    ("logic", "smoke and not (test or drill) or manual"),
    ("lisp", "(+ 1 (* 2 3))"),
    ("quotation", "Élodie : «\u00a0bonjour à tous !\u00a0»"),
]


@pytest.mark.parametrize(("name", "text"), WRONG)
def test_a_near_miss_is_refused(name, text):
    assert BY_NAME[name].fault(text)


@pytest.mark.parametrize(("name", "text"), RIGHT)
def test_a_reader_takes_what_its_grammar_takes(name, text):
    assert accepts(BY_NAME[name], text)
    assert BY_NAME[name].fault(text) is None


@each
def test_a_check_bounds_what_it_lets_pass(entry):
    bounded = dataclasses.replace(entry, longest=0)
    assert "are possible" in (bounded.fault(walk(entry, 0)[0]) or "")


def test_each_language_has_a_text_of_each_kind():
    languages = {entry.name for entry in ENTRIES if entry.kind == "grammar"}
    assert languages == {name for name, _ in RIGHT}
    assert languages <= {name for name, _ in WRONG}


def test_what_a_reader_of_json_lets_pass_is_named_by_its_place():
    fault = BY_NAME["family tree"].fault('{"name": "a", "children": [{"name": 1, "children": []}]}')
    assert fault is not None
    assert fault.startswith("$.children[0].name: 1 ")
    assert "not valid JSON" in (BY_NAME["die"].fault("1 2") or "")


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("date", ["2024-02-29"], ["2023-02-29", "20240229", "2024-W01-1", "0000-01-01"]),
        (
            "time",
            ["23:59:60Z", "01:02:03.5+01:00"],
            ["24:00:00Z", "01:02:61Z", "01:02:03"],
        ),
        ("date-time", ["2024-02-29t01:02:03z"], ["2024-02-30T01:02:03Z", "2024-02-29 01:02:03Z"]),
        ("duration", ["P1Y2M3DT4H5M6S", "P3W", "PT5S"], ["P", "PT", "P1YT", "P1Y3D", "1D", "P1S"]),
        ("hostname", ["a", "a-b.example"], ["-a", "a-", "a..b", "a_b", "", "a" * 64]),
        (
            "email",
            ["a.b+c@d-e.f", "a@[1.2.3.4]", "a@[IPv6:1::2]"],
            ["a@", "@b", "a..b@c", "a b@c", "a@-b", "a@[b]"],
        ),
        ("ipv4", ["0.0.0.0", "255.1.2.3"], ["256.1.1.1", "1.2.3", "01.2.3.4"]),
        ("ipv6", ["::", "1::2", "1:2:3:4:5:6:7:8"], ["1:2", ":::", "g::"]),
        (
            "uuid",
            ["c283fefe-63f0-dd0e-7c3a-00eb0cf6d0a7"],
            ["c283fefe63f0dd0e7c3a00eb0cf6d0a7"],
        ),
    ],
)
def test_a_format_is_checked_without_further_packages(name, right, wrong):
    entry = Entry("x", ("x",), "x", 256, "json_schema", {"type": "string", "format": name})
    assert not any(entry.fault(json.dumps(text)) for text in right)
    assert all(entry.fault(json.dumps(text)) for text in wrong)


def test_every_format_in_use_is_one_that_is_checked():
    used = {
        part["format"]
        for entry in ENTRIES
        if entry.kind == "json_schema"
        for part in _parts(entry.asked)
        if isinstance(part.get("format"), str)
    }
    assert used == set(FORMATS)


def _parts(value):
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from _parts(inner)


def test_the_features_that_models_stumble_on_are_covered():
    kinds = [entry.kind for entry in ENTRIES]
    assert kinds.count("json_schema") >= 48
    assert kinds.count("regex") >= 10
    assert kinds.count("grammar") >= 6
    covered = {feature for entry in ENTRIES for feature in entry.covers}
    wanted = "nesting, enum, const, anyOf, oneOf, type list, pattern, format, array bounds, tuple"
    wanted += ", unicode, unicode keys, long keys, range, multipleOf, $ref, bounded recursion, map"
    wanted += ", maxProperties, optional, nullable, empty, allOf, escapes"
    assert set(wanted.split(", ")) <= covered


GOOD = {"name": "x", "covers": ["y"], "prompt": "z", "longest": 4, "schema": {"type": "null"}}


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ("nonsense", "not valid JSON"),
        ({}, "expected a list, found dict"),
        ([1], "entry 1: expected covers, longest"),
        ([{**GOOD, "regex": "a"}], "one of schema, regex, grammar"),
        ([{key: GOOD[key] for key in ("name", "covers", "prompt", "longest")}], "one of schema"),
        ([{**GOOD, "more": 1}], "more"),
        ([{**GOOD, "name": " "}], "name: expected some text"),
        ([{**GOOD, "prompt": ""}], "prompt: expected some text"),
        ([{**GOOD, "covers": []}], "covers: expected a list of words"),
        ([{**GOOD, "longest": 0}], "longest: expected 1..256 bytes, found 0"),
        ([{**GOOD, "longest": 257}], "found 257"),
        ([{**GOOD, "schema": "{}"}], "schema: expected dict, found str"),
        ([GOOD, GOOD], "entry 2: a second 'x'"),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_refused_by_entry(items, said):
    raw = items.encode() if isinstance(items, str) else json.dumps(items).encode()
    with pytest.raises(PromptError, match=r"schemas\.json") as caught:
        parse(raw)
    assert said in str(caught.value)


def test_a_language_without_a_reader_is_refused():
    item = {key: value for key, value in GOOD.items() if key != "schema"} | {"grammar": ["start:"]}
    with pytest.raises(PromptError, match="no reader checks the language 'x'"):
        parse(json.dumps([item]).encode())


def test_the_file_is_read_once():
    assert schemas.entries() is ENTRIES

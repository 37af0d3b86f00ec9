"""Grammars to masks: an output's place is the same whatever was drafted and refused on the way."""

from __future__ import annotations

import json
import random
import sys
import threading

import numpy as np
import pytest

import tiny
from constrained import Afresh
from specedge.errors import OptionError, SamplingError
from specedge.guidance import compiling
from specedge.guidance.compiling import KEPT, Guidance
from specedge.guidance.grammar import Grammar, asked

INNER = tiny.byte_tokenizer()
VOCAB = INNER.get_vocab_size()
EOS = tiny.EOS

PERSON = {
    "type": "object",
    "properties": {
        "hello": {"type": "string", "maxLength": 5},
        "würde": {"enum": ["é", "hell", 7, None]},
        "list": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 20},
                 "minItems": 1, "maxItems": 3},
    },
    "required": ["hello", "würde", "list"],
    "additionalProperties": False,
}  # fmt: skip
GRAMMARS = [
    Grammar("json_schema", json.dumps(PERSON)),
    Grammar("regex", r"(hello|help|he) [0-9]{2,4}(END)?"),
    Grammar("grammar", 'start: "(" start ")" | "let " WORD\nWORD: /[a-z]{1,3}/'),
]


@pytest.fixture(scope="module")
def guidance() -> Guidance:
    return Guidance(INNER.to_str(), VOCAB, [EOS])


def ids(mask) -> frozenset[int] | None:
    return None if mask is None else frozenset(np.flatnonzero(mask).tolist())


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.kind)
def test_drafts_of_all_kinds_leave_the_place_as_one_that_never_saw_them(guidance, grammar):
    draw = random.Random(5)
    ended = forbidden = forced = 0
    for _ in range(25):
        constraint = guidance.constraint(grammar)
        plain = Afresh(guidance._start(grammar), VOCAB, (EOS,))
        output: tuple[int, ...] = ()
        for _ in range(60):
            constraint.sync(np.array(output, np.int64))
            assert ids(constraint.mask()) == plain.allowed(output)
            drafted: tuple[int, ...] = ()
            for _ in range(draw.randrange(5)):
                allowed = plain.allowed(output + drafted)
                if draw.random() < 0.25:
                    token = draw.randrange(VOCAB)
                elif allowed:
                    token = draw.choice(sorted(allowed))
                else:
                    break
                assert constraint.allows(token) == (allowed is None or token in allowed)
                constraint.push(token)
                drafted += (token,)
                now = plain.allowed(output + drafted)
                forbidden += now is None
                assert ids(constraint.mask()) == now
            if draw.random() < 0.5:  # some rounds ask for the rest without a `sync` between
                constraint.sync(np.array(output, np.int64))
                forced += len(constraint.forced(4))
                assert ids(constraint.mask()) == plain.allowed(output)
            allowed = plain.allowed(output)
            assert allowed
            # a round commits some of the draft and a token of its own
            kept: tuple[int, ...] = ()
            for token in drafted[: draw.randrange(len(drafted) + 1)]:
                if token not in (plain.allowed(output + kept) or ()) or token == EOS:
                    break
                kept += (token,)
            token = draw.choice(sorted(plain.allowed(output + kept) or {EOS}))
            output += (*kept, token)
            if token == EOS:
                ended += 1
                break
    assert ended > 3
    assert forbidden > 20
    assert forced > 5


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.kind)
def test_a_forced_token_is_the_only_one_that_its_place_allows(guidance, grammar):
    draw = random.Random(8)
    seen = 0
    for _ in range(30):
        constraint = guidance.constraint(grammar)
        plain = Afresh(guidance._start(grammar), VOCAB, (EOS,))
        output: tuple[int, ...] = ()
        while output[-1:] != (EOS,) and len(output) < 40:
            constraint.sync(np.array(output, np.int64))
            tokens = constraint.forced(6)
            for n, token in enumerate(tokens):
                assert plain.allowed(output + tuple(tokens[:n])) == {token}
                seen += 1
            longer = constraint.forced(60)
            assert longer[: len(tokens)] == tokens or EOS in tokens
            output += (draw.choice(sorted(plain.allowed(output) or {EOS})),)
    assert seen > 10


def test_an_end_follows_forced_tokens_when_nothing_else_can(guidance):
    constraint = guidance.constraint(Grammar("regex", "hello|well"))
    constraint.sync(np.array([], np.int64))
    assert constraint.forced(8) == []
    word = INNER.encode("we").ids
    constraint.sync(np.array(word, np.int64))
    tokens = constraint.forced(8)
    assert tokens[-1] == EOS
    assert INNER.decode([*word, *tokens]) == "well"
    assert EOS not in constraint.forced(len(tokens) - 1)


def test_a_draft_is_cut_where_it_cannot_stand(guidance):
    constraint = guidance.constraint(Grammar("regex", "[a-z]{2,3}"))
    constraint.sync(np.array([], np.int64))
    a, digit = INNER.encode("a").ids[0], INNER.encode("1").ids[0]
    assert constraint.fits([a, a, digit, a]) == 2
    assert constraint.fits([a, a, a, a]) == 3
    assert constraint.fits([digit]) == 0
    assert constraint.fits([a, a, EOS, a]) == 3


def test_an_end_in_a_draft_is_taken_back_with_it(guidance):
    constraint = guidance.constraint(Grammar("regex", "[ab]{1,9}"))
    a, b = INNER.encode("a").ids[0], INNER.encode("b").ids[0]
    constraint.sync(np.array([a], np.int64))
    before = ids(constraint.mask())
    assert before == {a, b, EOS}
    for token in (b, EOS, a):
        constraint.push(token)
    assert constraint.mask() is None
    assert constraint.allows(0)
    constraint.sync(np.array([a], np.int64))
    assert ids(constraint.mask()) == before
    constraint.sync(np.array([a, b, EOS], np.int64))
    assert constraint.forced(4) == []
    assert constraint.fits([a]) == 0


def test_an_output_that_is_shorter_than_before_begins_anew(guidance):
    constraint = guidance.constraint(Grammar("regex", "abc"))
    a, b, c = (INNER.encode(letter).ids[0] for letter in "abc")
    constraint.sync(np.array([a, b], np.int64))
    constraint.push(c)
    constraint.sync(np.array([a], np.int64))
    assert ids(constraint.mask()) == {b}


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("json_schema", '{"type": "strin"}', "strin"),
        ("json_schema", '{"uniqueItems": true, "type": "array"}', "uniqueItems"),
        ("json_schema", '{"enum": []}', "Unsatisfiable"),
        ("regex", "[", "unclosed"),
        ("regex", "(?=a)b", "look"),
        ("grammar", "start: nothing", "nothing"),
        ("grammar", 'begin: "a"', "start"),
        ("json_schema", '{"$ref": "#"}', "no output can begin like this"),
        ("regex", "[^\\x00-\\U0010FFFF]", "no output can begin like this"),
        ("grammar", 'start: start "a"', "no output can begin like this"),
        ("regex", "a{1000000}", "no output can go on like this"),
        ("grammar", "start: x\nx[max_tokens=3]: /[a-z]+/", "drafts cannot be taken back from it"),
        ("grammar", 'start: x\nx[stop="b"]: /[a-z]+/', "drafts cannot be taken back from it"),
        ("regex", "\x1b[31m(", r"\\x1b"),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_one_line(guidance, kind, text, said):
    with pytest.raises(OptionError, match=said) as caught:
        guidance.check(Grammar(kind, text))
    assert str(caught.value).startswith(f"{kind}: ")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("inner", [INNER, tiny.space_tokenizer(strip=False)], ids=["byte", "space"])
@pytest.mark.parametrize("text", ["<eos>", "<ask>b", "a <bos>", "<tool> b", "<pad><eos><ask>"])
def test_text_that_spells_a_special_token_is_written_as_text(inner, text):
    spelled = Guidance(inner.to_str(), inner.get_vocab_size(), [EOS])
    for grammar in (Grammar("regex", text), Grammar("json_schema", json.dumps({"const": text}))):
        constraint = spelled.constraint(grammar)
        output: list[int] = []
        while output[-1:] != [EOS]:
            constraint.sync(np.array(output, np.int64))
            forced = constraint.forced(40)
            allowed = sorted(ids(constraint.mask()))
            assert not forced or [forced[0]] == allowed
            output.append(allowed[0])
        table = tiny.wrap(inner)
        said = b"".join(table.token_bytes(token) for token in output).decode()
        assert said == (text if grammar.kind == "regex" else json.dumps(text))


@pytest.mark.parametrize(
    ("grammar", "tokens"),
    [
        ("start: <ask> /b/", ["<ask>", "b", "<eos>"]),
        ("start: <ask><tool>  // <bos>\n", ["<ask>", "<tool>", "<eos>"]),
        ('start: "<ask>" <[3]>', [*"<ask>", "<ask>", "<eos>"]),
        ("start: /<ask>\\/\\/<bos>/ <ask>", [*"<ask>//<bos>", "<ask>", "<eos>"]),
        ('start: %json {"const": "<ask>"} <ask>', [*'"<ask>"', "<ask>", "<eos>"]),
        ('# "\nstart: <ask> "/" <bos> "/"', ["<ask>", "/", "<bos>", "/", "<eos>"]),
    ],
)
def test_a_special_token_of_a_grammar_is_the_token(guidance, grammar, tokens):
    constraint = guidance.constraint(Grammar("grammar", grammar))
    output: list[int] = []
    while output[-1:] != [EOS]:
        constraint.sync(np.array(output, np.int64))
        (token,) = ids(constraint.mask())
        output.append(token)
    assert [INNER.id_to_token(token) for token in output] == tokens


def test_an_unknown_special_token_is_refused_with_the_names_of_those_there_are(guidance):
    with pytest.raises(OptionError, match=r"nope.*<pad>.*<ask>"):
        guidance.check(Grammar("grammar", "start: <nope>"))


def test_no_python_runs_inside_of_llguidance(guidance):
    """Ctrl-C in it would be taken for an error of the grammar, and break its matcher."""
    matcher = guidance._start(Grammar("regex", "hello <eos> world")).deep_copy()
    seen: list[str] = []
    sys.setprofile(lambda frame, event, arg: seen.append(event))
    tokens = matcher.compute_ff_tokens()
    matcher.compute_bitmask()
    sys.setprofile(None)
    assert len(tokens) > 5
    assert "call" not in seen


def test_a_beginning_that_is_looked_for_without_end_is_refused(guidance, monkeypatch):
    over = threading.Event()

    class Lost:
        def compute_bitmask(self) -> bytes:
            over.wait(30)
            return b""

    monkeypatch.setattr(compiling, "LONGEST_S", 0.05)
    with pytest.raises(OptionError, match=r"grammar: no output .* in 0\.05 s; .* rule has an end"):
        guidance._try(Lost(), "grammar")
    over.set()


def test_what_cannot_be_followed_any_further_says_so_in_a_few_words(guidance):
    constraint = guidance.constraint(Grammar("regex", "a|ba{1000000}"))
    output = np.array(INNER.encode("ba").ids)
    with pytest.raises(SamplingError, match="regex: it cannot be followed any further: ") as caught:
        constraint.sync(output)
    assert len(str(caught.value)) < 150
    assert "<" not in str(caught.value)


def test_compiled_grammars_are_kept_up_to_a_number():
    guidance = Guidance(INNER.to_str(), VOCAB, [EOS])
    for n in range(KEPT + 3):
        guidance.check(Grammar("regex", f"a{{{n + 1}}}"))
    assert len(guidance._compiled) == KEPT


def test_without_llguidance_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(OptionError, match=r"pip install 'specedge\[guidance\]'"):
        Guidance(INNER.to_str(), VOCAB, [EOS])


@pytest.mark.parametrize("ends", [[], [VOCAB], [-1]])
def test_a_model_without_an_end_cannot_be_constrained(ends):
    with pytest.raises(OptionError, match="an id that ends the output"):
        Guidance(INNER.to_str(), VOCAB, ends)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"regex": "a", "grammar": "b"}, "regex: excludes grammar"),
        ({"json_schema": {}, "regex": "a"}, "json_schema: excludes regex"),
        ({"regex": ""}, "regex: expected some text"),
        ({"regex": 3}, "regex: expected some text, found 3"),
        ({"grammar": "  "}, "grammar: expected some text"),
        ({"json_schema": "{"}, "not valid JSON"),
        ({"json_schema": "[" * 100_000}, "not valid JSON"),
        ({"json_schema": "[]"}, "expected an object"),
        ({"json_schema": True}, "expected an object, found True"),
        ({"json_schema": {"a": object()}}, "cannot be written as JSON"),
        ({"json_schema": {"a": float("nan")}}, "cannot be written as JSON"),
        ({"regex": "\ud800"}, "lone surrogate"),
        ({"json_schema": {"const": "\ud800"}}, "surrogates not allowed"),
        ({"json_schema": '{"const": "\\ud800"}'}, "surrogates not allowed"),
    ],
)
def test_what_is_no_grammar_is_refused(given, said):
    with pytest.raises(OptionError, match=said):
        asked(given)


def test_a_schema_may_be_text_or_an_object_and_keeps_its_order():
    schema = {"properties": {"b": {}, "a": {}}}
    assert asked({"json_schema": schema}) == asked({"json_schema": json.dumps(schema)})
    assert asked({"json_schema": schema, "regex": None}) is not None
    assert asked({}) is None
    assert asked({"regex": " "}) == Grammar("regex", " ")

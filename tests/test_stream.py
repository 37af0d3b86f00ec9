"""`TextStream` against an oracle that decodes everything first."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specedge.stream import TextStream
from tests import tiny

BYTE = tiny.wrap(tiny.byte_tokenizer())
VOCAB = tiny.byte_tokenizer().get_vocab_size()


def decoded(tokens: Sequence[int], *, final: bool) -> str:
    data = b"".join(BYTE.token_bytes(token) for token in tokens)
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data, final)


def oracle(tokens: Sequence[int], stops: Sequence[str]) -> tuple[str, int, bool]:
    """Text, tokens kept, and whether a stop was found: grow the text until one is complete."""
    text = decoded(tokens, final=True)
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            cut = end - max(map(len, found))
            lengths = [len(decoded(tokens[:n], final=n == len(tokens))) for n in range(len(tokens))]
            kept = next((n for n, length in enumerate(lengths) if length >= cut), len(tokens))
            return text[:cut], kept, True
    return text, len(tokens), False


def run(tokens, stops, rounds) -> tuple[str, int, bool, list[tuple[str, int]]]:
    """Push in rounds of the given sizes, then one by one; every (text, tokens) seen on the way."""
    stream = TextStream(BYTE.stream(), tuple(stops))
    left, text, seen = list(tokens), "", []
    sizes = iter(rounds)
    while left:
        size = next(sizes, 1)
        delta = stream.push(left[:size])
        text += delta.text
        seen.append((text, delta.n_tokens))
        del left[:size]
        if delta.stopped:
            return text, delta.n_tokens, True, seen
    delta = stream.finish()
    return text + delta.text, delta.n_tokens, delta.stopped, seen


WORDS = st.lists(st.sampled_from(["hello", " wo", "END", "EN", "xE", "D", "é", "€", "<tool>", "a"]))
SPELLED = WORDS.map(lambda words: BYTE.encode("".join(words)).tolist())
ANY_IDS = st.lists(st.integers(0, VOCAB - 1), max_size=20)
STOPS = st.lists(
    st.sampled_from(
        ["END", "EN", "NX", "D", "hello", "o w", "é€", "€", "\ufffd", "ENDEN", "aa", "ENDE", "ND"]
    )
    | st.text("ENDxa", min_size=1, max_size=4),
    max_size=4,
    unique=True,
)


@given(SPELLED | ANY_IDS, STOPS, st.lists(st.integers(1, 17), max_size=20))
@example(BYTE.encode("xENX").tolist(), ["END", "NX"], [1, 1, 1])
@example(BYTE.encode("aé").tolist(), ["é"], [1, 1, 1])
@example(BYTE.encode("ENDEN").tolist(), ["ENDENDEN", "NDE"], [1])
@example([270, 266, 270], ["END"], [])
@example(BYTE.encode("aENDE").tolist(), ["ENDE", "ND"], [9])
@example(BYTE.encode("aENDE").tolist(), ["ND", "ENDE"], [9])
@example(BYTE.encode("aEND").tolist(), ["ND", "END"], [9])
@example(BYTE.encode("aEND").tolist(), ["END", "ND"], [9])
@example(BYTE.encode("aEN€").tolist()[:-1], ["END", "N\ufffd"], [9])
@example(BYTE.encode("ab€").tolist()[:-1], ["b!", "\ufffd"], [1])
def test_text_tokens_and_stop_are_those_of_the_whole_text(tokens, stops, rounds):
    want_text, want_tokens, want_stop = oracle(tokens, stops)
    text, n_tokens, stopped, seen = run(tokens, stops, rounds)
    assert (text, n_tokens, stopped) == (want_text, want_tokens, want_stop)
    for early, n_early in seen:
        assert want_text.startswith(early), "text left that had to be taken back"
        assert n_early <= want_tokens
        assert len(decoded(tokens[:n_early], final=n_early == len(tokens))) >= len(early)


@given(SPELLED, STOPS)
def test_rounds_do_not_change_what_is_found(tokens, stops):
    one_by_one = run(tokens, stops, [])[:3]
    assert run(tokens, stops, [len(tokens) or 1])[:3] == one_by_one
    assert run(tokens, stops, [2] * len(tokens))[:3] == one_by_one


@given(SPELLED)
def test_text_that_cannot_become_a_stop_leaves_at_once(tokens):
    stream = TextStream(BYTE.stream(), ("\0never",))
    plain = BYTE.stream()
    for token in tokens:
        assert stream.push([token]).text == plain.piece(token)


def test_what_may_become_a_stop_is_held_and_comes_out_when_it_does_not():
    stream = TextStream(BYTE.stream(), ("END",))
    assert stream.push(BYTE.encode("aEN").tolist()).text == "a"
    assert stream.push(BYTE.encode("Ex").tolist()).text == "ENEx"


def test_a_stop_inside_a_token_cuts_its_text_and_keeps_the_token():
    stream = TextStream(BYTE.stream(), ("ll",))
    token = BYTE.encode("hello").tolist()
    assert len(token) == 1
    delta = stream.push([*token, *token])
    assert (delta.text, delta.n_tokens, delta.stopped) == ("he", 1, True)


def test_a_stop_that_is_a_special_token_stops_at_its_id_and_keeps_the_text_before():
    stream = TextStream(BYTE.stream(), (), frozenset({tiny.ASK}))
    hello = BYTE.encode("hello").tolist()
    delta = stream.push([*hello, *BYTE.encode("€").tolist()[:1], tiny.ASK, *hello])
    assert (delta.text, delta.n_tokens, delta.stopped) == ("hello\ufffd", 2, True)


def test_a_stop_string_before_the_special_token_wins():
    stream = TextStream(BYTE.stream(), ("llo",), frozenset({tiny.ASK}))
    delta = stream.push([*BYTE.encode("hello").tolist(), tiny.ASK])
    assert (delta.text, delta.stopped) == ("he", True)


@pytest.mark.parametrize("stop", ["hello", "h"])
def test_a_stop_at_the_very_start_leaves_nothing(stop):
    stream = TextStream(BYTE.stream(), (stop,))
    delta = stream.push(BYTE.encode("hello").tolist())
    assert (delta.text, delta.n_tokens, delta.stopped) == ("", 0, True)

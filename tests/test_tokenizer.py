from __future__ import annotations

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from specedge.errors import BundleError, PromptError
from specedge.tokenizer import ByteDecoder, Tokenizer, WindowDecoder
from tests import tiny

BYTE = tiny.wrap(tiny.byte_tokenizer())
SPACED = tiny.wrap(tiny.space_tokenizer())
UNSTRIPPED = tiny.wrap(tiny.space_tokenizer(strip=False))
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=40) | st.text(
    "hello wodENx é€😀\n\t the cat", max_size=40
)
EVERY = {"byte-level": BYTE, "spaces": SPACED, "spaces, not stripped": UNSTRIPPED}


def streamed(tokenizer: Tokenizer, prompt, output) -> str:
    decoder = tokenizer.stream(prompt)
    return "".join([*(decoder.piece(token) for token in output), decoder.flush()])


@pytest.mark.parametrize("tokenizer", EVERY.values(), ids=EVERY)
@given(text=TEXT, cut=st.integers(0, 40))
def test_deltas_add_up_to_what_decoding_everything_adds_to_the_prompt(tokenizer, text, cut):
    ids = tokenizer.encode(text).tolist()
    prompt, output = ids[:cut], ids[cut:]
    whole, before = tokenizer.decode(ids), tokenizer.decode(prompt)
    if before.endswith("\ufffd") and not whole.startswith(before):
        return  # the prompt's ids end inside a character
    assert streamed(tokenizer, prompt, output) == whole[len(before) :]


@given(st.lists(st.integers(0, tiny.byte_tokenizer().get_vocab_size() + 5), max_size=30))
def test_any_ids_of_a_byte_level_tokenizer_decode_as_the_library_decodes_them(ids):
    assert streamed(BYTE, [], ids) == BYTE.decode(ids)


@given(st.lists(st.integers(0, 330), max_size=30))
def test_any_ids_of_a_spaced_tokenizer_lose_no_character_that_the_library_keeps(ids):
    library = SPACED.decode(ids).replace("\ufffd", "")
    ours = iter(streamed(SPACED, [], ids))
    assert all(char in ours for char in library)


@given(st.lists(st.integers(0, 270), max_size=30), st.data())
def test_several_ids_at_once_give_the_same_text_as_one_by_one(ids, data):
    cut = data.draw(st.integers(0, len(ids)))
    for tokenizer in (BYTE, SPACED):
        decoder = tokenizer.stream()
        text = decoder.pieces(ids[:cut]) + decoder.pieces(ids[cut:]) + decoder.flush()
        assert text == streamed(tokenizer, [], ids)


@given(TEXT)
def test_no_delta_holds_part_of_a_character(text):
    decoder = BYTE.stream()
    for token in BYTE.encode(text).tolist():
        assert ("\ufffd" in decoder.piece(token)) <= ("\ufffd" in text)
    assert decoder.flush() == ""


def test_a_prompt_that_ends_inside_a_character_is_finished_by_the_output():
    euro = BYTE.encode("a€b").tolist()
    for cut in range(1, len(euro) - 1):
        assert streamed(BYTE, euro[:cut], euro[cut:]) == "€b"


def test_an_unfinished_character_is_flushed_as_one_replacement():
    euro = BYTE.encode("€").tolist()
    decoder = BYTE.stream()
    assert decoder.pieces(euro[:-1]) == ""
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""


@pytest.mark.parametrize(("prompt", "text"), [([], "the cat"), ([tiny.BOS], "the cat")])
def test_the_leading_space_is_dropped_at_the_start_of_a_text_only(prompt, text):
    ids = SPACED.encode("the cat").tolist()
    assert streamed(SPACED, prompt, ids) == text
    assert streamed(SPACED, [*prompt, *SPACED.encode("a").tolist()], ids) == f" {text}"


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
@given(ids=st.lists(st.integers(0, 6), min_size=1, max_size=8))
def test_metaspace_decoders_match_the_library(scheme, ids):
    inner = tokenizers.Tokenizer(
        models.WordLevel({"▁a": 0, "b": 1, "▁▁c": 2, "▁": 3, "é": 4, "▁d▁e": 5}, unk_token="b")
    )
    inner.decoder = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer = tiny.wrap(inner)
    assert isinstance(tokenizer.stream(), ByteDecoder)
    assert streamed(tokenizer, [], ids) == tokenizer.decode(ids)
    with_more = tokenizer.decode([1, *ids])
    assert streamed(tokenizer, [1], ids) == with_more[1:]


@pytest.mark.parametrize("decoder", [decoders.WordPiece(cleanup=False), None])
def test_other_decoders_are_run_over_a_window(decoder):
    words = {"a": 0, "##b": 1, "c": 2, "d": 3}
    inner = tokenizers.Tokenizer(models.WordLevel(words, unk_token="a"))
    if decoder is not None:
        inner.decoder = decoder
    tokenizer = tiny.wrap(inner)
    assert isinstance(tokenizer.stream(), WindowDecoder)
    ids = [0, 1, 2, 3, 1, 1, 0, 2, 99, 3] * 5
    for cut in (0, 1, 20):
        before = tokenizer.decode(ids[:cut])
        assert streamed(tokenizer, ids[:cut], ids[cut:]) == tokenizer.decode(ids)[len(before) :]


def test_a_window_holds_an_unfinished_character_and_lets_real_replacements_go():
    inner = tiny.byte_tokenizer()
    inner.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("zz", "y")])
    tokenizer = tiny.wrap(inner)
    ids = tokenizer.encode("a😀b").tolist()
    decoder = tokenizer.stream()
    assert isinstance(decoder, WindowDecoder)
    pieces = [decoder.piece(token) for token in ids]
    assert pieces == ["a", "", "", "", "😀", "b"]
    broken = tokenizer.encode("😀").tolist()[:1] * 40
    assert streamed(tokenizer, [], broken) == tokenizer.decode(broken)


def test_special_and_unknown_ids_have_no_text():
    hello = BYTE.encode("hello").tolist()
    assert streamed(BYTE, [], [tiny.BOS, *hello, tiny.EOS, 10**6, -1]) == "hello"


def test_an_added_token_that_is_not_special_has_its_text():
    assert streamed(BYTE, [], BYTE.encode("a<tool>é").tolist()) == "a<tool>é"


def test_bos_is_added_only_when_the_model_wants_it_and_only_to_plain_text():
    wants = tiny.wrap(tiny.byte_tokenizer(), adds_bos=True)
    assert wants.encode("hello")[0] == tiny.BOS
    assert BYTE.encode("hello").tolist() == wants.encode("hello").tolist()[1:]
    assert wants.encode("hello", add_special=False).tolist() == BYTE.encode("hello").tolist()


def test_truncation_and_padding_of_the_file_do_not_touch_prompts():
    inner = tiny.byte_tokenizer()
    inner.enable_truncation(3)
    inner.enable_padding(length=64)
    assert tiny.wrap(inner).encode("abcdefgh").tolist() == BYTE.encode("abcdefgh").tolist()


def test_a_lone_surrogate_is_refused_with_its_place():
    with pytest.raises(PromptError, match=r"prompt: character 3 is a lone surrogate \(U\+D83D\)"):
        BYTE.encode("abc\ud83d")


@pytest.mark.parametrize(
    ("text", "named"),
    [("hello", "hello"), (" w", " w"), ("é", "é"), ("ü", "\ufffd"), ("<eos>", "<eos>")],
)
def test_an_id_is_named_by_its_text_a_part_of_a_character_and_a_special_token(text, named):
    assert BYTE.named(BYTE.encode(text).item(0)) == named


def test_an_id_that_is_no_token_has_no_name():
    assert BYTE.named(10**6) == ""


def test_what_is_not_a_tokenizer_is_a_bundle_error():
    with pytest.raises(BundleError, match=r"tokenizer\.json: not a tokenizer"):
        Tokenizer("{}", tiny.tokenizer_spec(tiny.byte_tokenizer()))

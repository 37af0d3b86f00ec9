from __future__ import annotations

import itertools
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from specedge.errors import SourceError, UnsupportedError
from specedge.export.gguf_tokenizer import tokenizer_of
from tests import gguf_writing as tiny

SPACE = "▁"
CORPUS = """def add(first, second): return first + second  # it's 2024, don't they're we'll I'VE
The quick brown fox jumps over the lazy dog.   Ünïcödé 你好世界 😀👍 12345 3.14
\tfor i in range(100):\r\n\t\tprint(i)\n\n\n  <|im_start|>user hello hello hello world world"""
# Pieces in which tokenizers differ: digits, contractions, runs of space, CJK, emoji, combining.
PIECES = st.sampled_from(
    [*"aehlotz019'.,<>|_ \n\t\r", "'s", "'LL", "  ", "\r\n", "世", "界", "é", "e\u0301", "😀", "½",
     "٣", "\u00a0", "\u200d", "hello", " world", "123", "<|end|>", "[PAD3]", "▁", "the "]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=25).map("".join) | st.text(max_size=20)


def byte_level(pre: tokenizers.pre_tokenizers.PreTokenizer, **model: Any) -> Tokenizer:
    """A trained byte-level BPE whose last ids are two special tokens and an added one."""
    made = Tokenizer(models.BPE(**model))
    made.pre_tokenizer = pre
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    made.train_from_iterator([CORPUS] * 3, trainer)
    made.add_special_tokens(["<|end|>", "<|im_end|>"])
    made.add_tokens(["<tool>"])
    return made


def as_metadata(made: Tokenizer, pre: str, **changes: Any) -> dict[str, Any]:
    """What a converter writes for a byte-level tokenizer, with two ids of padding after it."""
    import json

    vocab = made.get_vocab()
    words = sorted(vocab, key=vocab.__getitem__)
    kinds = [
        3 if word in ("<|end|>", "<|im_end|>") else 4 if word == "<tool>" else 1 for word in words
    ]
    merges = json.loads(made.to_str())["model"]["merges"]
    padding = [f"[PAD{len(words) + at}]" for at in range(2)]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*words, *padding],
        "tokenizer.ggml.token_type": [*kinds, 5, 5],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.eos_token_id": vocab["<|im_end|>"],
    } | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def split(pattern: str) -> tokenizers.pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


# Each spelled out whole, as its tokenizer.json has it.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ORIGINALS = {
    "gpt-2": byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)),
    "smollm": byte_level(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    ),
    "qwen2": byte_level(split(QWEN2)),
    "llama-bpe": byte_level(split(LLAMA3), ignore_merges=True),
}
ORIGINALS["qwen2"].normalizer = normalizers.NFC()
REBUILT = {
    pre: Tokenizer.from_str(tokenizer_of(as_metadata(made, pre), "m.gguf").json)
    for pre, made in ORIGINALS.items()
}


@pytest.mark.parametrize("pre", list(ORIGINALS))
@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_a_byte_level_tokenizer_comes_back_as_it_was(pre: str, text: str) -> None:
    original, rebuilt = ORIGINALS[pre], REBUILT[pre]
    ids = original.encode(text).ids
    assert rebuilt.encode(text).ids == ids
    for skip in (True, False):
        assert rebuilt.decode(ids, skip_special_tokens=skip) == original.decode(
            ids, skip_special_tokens=skip
        )


def test_the_pre_tokenizers_do_differ_on_text() -> None:
    text = "12345 don't a(x\n\n"
    cuts = {
        tuple(piece for piece, _ in made.pre_tokenizer.pre_tokenize_str(text))
        for made in REBUILT.values()
    }
    assert len(cuts) == len(REBUILT)


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-4o", ["Camel", "Case's", " ", "123", "45", " a", "/\n", "b"]),
        ("tekken", ["Camel", "Case", "'s", " ", "1", "2", "3", "4", "5", " a", "/\n", "b"]),
        ("dbrx", ["CamelCase", "'s", " ", "123", "45", " a", "/\n", "b"]),
        ("default", ["CamelCase", "'", "s", " ", "123", "45", " a", "/", "\n", "b"]),
    ],
)
def test_the_other_pre_tokenizers_cut_as_their_patterns_say(pre: str, pieces: list[str]) -> None:
    made = Tokenizer.from_str(tokenizer_of(as_metadata(ORIGINALS["gpt-2"], pre), "m").json)
    assert made.pre_tokenizer is not None
    text = "CamelCase's 12345 a/\nb"
    cut = [text[a:b] for _, (a, b) in made.pre_tokenizer.pre_tokenize_str(text)]
    assert cut == pieces


# --- SentencePiece: BPE by scores, bytes as fallback


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """Scores are ranks: the earlier a piece was learned, the higher."""
    letters = [*"abcdehlortw.,'", SPACE, "é"]
    learned = ["he", "ll", "hell", "hello", SPACE + "w", "or", SPACE + "wor", "ld", SPACE + "world"]
    learned += [SPACE + "hello", SPACE + SPACE, "aa", "aaa", "ab", "ba"]
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *pieces, *learned, *letters, "<|end|>", "\n\n"]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(learned) + len(letters)), 3, 4]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(learned))]
    scores += [-100.0 - at for at in range(len(letters))] + [-1000.0] * 2
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    } | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def by_scores(text: str, metadata: dict[str, Any]) -> list[int]:
    """SentencePiece's BPE, slow and plain: join the best-scored pair until none is left."""
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    kinds = metadata["tokenizer.ggml.token_type"]
    score = {word: scores[id_] for id_, word in enumerate(tokens) if kinds[id_] == 1}
    parts = list(text.replace(" ", SPACE))
    while True:
        found = [
            (-score[a + b], at)
            for at, (a, b) in enumerate(itertools.pairwise(parts))
            if a + b in score
        ]
        if not found:
            break
        _, at = min(found)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    ids: list[int] = []
    for part in parts:
        if part in score:
            ids.append(tokens.index(part))
        else:
            ids += [tokens.index(f"<0x{byte:02X}>") for byte in part.encode()]
    return ids


@settings(max_examples=200, deadline=None)
@given(
    text=st.lists(
        st.sampled_from([*"abehlowrd é.", "hello", " world", "世", "😀", "q"]), max_size=20
    ).map("".join)
)
def test_merges_rebuilt_from_scores_join_as_scores_do(text: str) -> None:
    metadata = sentencepiece_metadata(add_space_prefix=False, add_bos_token=False)
    rebuilt = REBUILT_PLAIN
    ids = rebuilt.encode(text).ids
    assert ids == by_scores(text, metadata)
    assert rebuilt.decode(ids) == text.replace(SPACE, " ")


REBUILT_PLAIN = Tokenizer.from_str(
    tokenizer_of(sentencepiece_metadata(add_space_prefix=False, add_bos_token=False), "m.gguf").json
)


def test_the_space_before_a_text_is_added_and_taken_away_again() -> None:
    metadata = sentencepiece_metadata()
    files = tokenizer_of(metadata, "m.gguf")
    made = Tokenizer.from_str(files.json)
    words = metadata["tokenizer.ggml.tokens"]
    assert files.adds_bos
    assert [words[id_] for id_ in made.encode("hello world").ids] == [
        "<s>",
        SPACE + "hello",
        SPACE + "world",
    ]
    assert made.decode(made.encode("hello world").ids) == "hello world"


def test_special_and_user_defined_tokens_are_matched_in_the_text() -> None:
    metadata = sentencepiece_metadata(add_space_prefix=False, add_bos_token=False)
    words = metadata["tokenizer.ggml.tokens"]
    ids = REBUILT_PLAIN.encode("a\n\nb<|end|>").ids
    assert [words[id_] for id_ in ids] == ["a", "\n\n", "b", "<|end|>"]
    assert REBUILT_PLAIN.decode(ids) == "a\n\nb"


def test_text_that_spells_a_byte_token_is_not_that_byte() -> None:
    words = sentencepiece_metadata()["tokenizer.ggml.tokens"]
    ids = REBUILT_PLAIN.encode("<0x41>").ids
    assert words.index("<0x41>") not in ids
    assert REBUILT_PLAIN.decode(ids) == "<0x41>"


# --- ids


def test_the_padded_tail_is_cut_and_not_matched_in_text() -> None:
    metadata = as_metadata(ORIGINALS["qwen2"], "qwen2")
    files = tokenizer_of(metadata, "m.gguf")
    assert files.vocab == len(metadata["tokenizer.ggml.tokens"]) - 2
    assert Tokenizer.from_str(files.json).token_to_id(f"[PAD{files.vocab}]") is None


def ids_of(metadata: dict[str, Any], *words: str) -> list[int]:
    return [metadata["tokenizer.ggml.tokens"].index(word) for word in words]


def test_every_end_of_turn_ends_a_generation_the_files_own_first() -> None:
    metadata = as_metadata(ORIGINALS["qwen2"], "qwen2")
    assert tokenizer_of(metadata, "m").eos_ids == ids_of(metadata, "<|im_end|>", "<|end|>")


def test_an_end_that_doubles_as_the_unknown_token_does_not_count() -> None:
    made = ORIGINALS["smollm"]
    unknown = made.token_to_id("<|end|>")
    metadata = as_metadata(made, "smollm", unknown_token_id=unknown)
    assert tokenizer_of(metadata, "m").eos_ids == ids_of(metadata, "<|im_end|>")


def test_eot_and_eom_ids_are_counted_and_nonsensical_ids_are_not() -> None:
    metadata = as_metadata(
        ORIGINALS["gpt-2"], "gpt-2", eot_token_id=5, eom_token_id=6, bos_token_id=2**32 - 1
    )
    files = tokenizer_of(metadata, "m")
    assert files.eos_ids == [*ids_of(metadata, "<|im_end|>"), 5, 6, *ids_of(metadata, "<|end|>")]
    assert files.bos_id is None


@pytest.mark.parametrize(("pre", "said", "adds"), [
    ("qwen2", None, False), ("qwen2", True, True), ("llama-bpe", None, True),
    ("llama-bpe", False, False),
])  # fmt: skip
def test_bos_is_added_as_the_file_says_or_as_its_kind_does(
    pre: str, said: bool | None, adds: bool
) -> None:
    changes = {} if said is None else {"add_bos_token": said}
    metadata = as_metadata(ORIGINALS[pre], pre, bos_token_id=7, **changes)
    files = tokenizer_of(metadata, "m")
    assert files.adds_bos is adds
    assert (Tokenizer.from_str(files.json).encode("x").ids[0] == 7) is adds


def test_the_chat_template_is_taken_along() -> None:
    metadata = as_metadata(ORIGINALS["gpt-2"], "gpt-2")
    assert tokenizer_of(metadata, "m").chat_template is None
    metadata["tokenizer.chat_template"] = "{{ messages }}"
    assert tokenizer_of(metadata, "m").chat_template == "{{ messages }}"


def test_a_tokenizer_json_inside_the_file_is_used_as_it_is() -> None:
    metadata = as_metadata(ORIGINALS["gpt-2"], "unheard-of")
    metadata["tokenizer.huggingface.json"] = ORIGINALS["qwen2"].to_str()
    assert tokenizer_of(metadata, "m").json == ORIGINALS["qwen2"].to_str()


def test_phi3s_special_tokens_swallow_the_space_after_them() -> None:
    metadata = sentencepiece_metadata() | {"general.architecture": "phi3"}
    made = Tokenizer.from_str(tokenizer_of(metadata, "m").json)
    assert made.encode("<|end|>\n  a").ids == made.encode("<|end|>a").ids
    assert made.encode("<s> a").ids != made.encode("<s>a").ids


# --- what is refused


def test_an_unknown_pre_tokenizer_or_model_is_named() -> None:
    with pytest.raises(UnsupportedError, match="pre-tokenizer 'klingon' is not supported; supp"):
        tokenizer_of(as_metadata(ORIGINALS["gpt-2"], "klingon"), "m")
    with pytest.raises(UnsupportedError, match="tokenizer model 't5' is not supported"):
        tokenizer_of(as_metadata(ORIGINALS["gpt-2"], "gpt-2", model="t5"), "m")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": []}, r"no tokenizer\.ggml\.tokens"),
        ({"token_type": [1]}, "but 1 token types"),
        ({"scores": [0.0]}, "but 1 scores"),
        ({"scores": None}, r"no tokenizer\.ggml\.scores"),
    ],
)
def test_lists_that_are_missing_or_disagree_are_named(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        tokenizer_of(sentencepiece_metadata(**changes), "m")


def test_a_merge_of_unknown_pieces_is_one_error() -> None:
    metadata = as_metadata(ORIGINALS["gpt-2"], "gpt-2", merges=["nosuch piece"])
    with pytest.raises(SourceError, match="its tokenizer cannot be built"):
        tokenizer_of(metadata, "m")
    assert tiny.tokens()  # the metadata of the other tests is a tokenizer too

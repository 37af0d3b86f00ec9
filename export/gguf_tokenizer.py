"""A tokenizer.json, chat template and special ids out of GGUF metadata.

Two models exist for the architectures we read. `gpt2` is byte-level BPE: tokens and merges are in
the file, how text is split before them is known by name (`gguf_pretokenizers`). `llama` is
SentencePiece's BPE: tokens and scores; merges are rebuilt from the scores, bytes are the fallback.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer

from specedge.errors import SourceError, UnsupportedError
from specedge.export.checkpoint import TokenizerFiles
from specedge.export.gguf_pretokenizers import Json, pre_tokenizer, pre_tokenizer_json

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6
_ADDED = (_UNKNOWN, _CONTROL, _USER_DEFINED)
_NEVER_MERGED = (*_ADDED, _UNUSED, _BYTE)
_MODELS = ("gpt2", "llama")
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # how SentencePiece writes a space
_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": False,
    "use_regex": False,
}

# Control tokens that end a turn or a document in the chat formats of our families. A checkpoint's
# generation config lists both kinds (Qwen2.5: <|im_end|> and <|endoftext|>; Gemma 3: <eos> and
# <end_of_turn>); GGUF keeps one id, so the others are found by their text.
_ENDS = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
}
# Phi-3's special tokens swallow the whitespace after them, these excepted; no metadata says so.
_PHI3_PLAIN = {"<unk>", "<s>", "<|endoftext|>"}


def tokenizer_of(metadata: Mapping[str, Any], label: str) -> TokenizerFiles:
    """Rebuild the tokenizer.

    Args:
        metadata: all keys of the file.
        label: the file, for messages.

    Returns:
        Its files. A padded tail of the vocabulary is left out, so `vocab` counts real tokens.
        `add_eos_token` is not honoured: a prompt that ends in EOS cannot be continued.

    Raises:
        SourceError: the metadata has no tokenizer, or lists of different lengths.
        UnsupportedError: a tokenizer model or pre-tokenizer that is not known.
    """
    source = _Source(metadata, label)
    embedded = metadata.get("tokenizer.huggingface.json")
    if embedded is not None:
        document = str(embedded)
    else:
        build = _byte_level if source.model == "gpt2" else _sentencepiece
        document = json.dumps(build(source), ensure_ascii=False)
    try:
        tokenizer = Tokenizer.from_str(document)
    except Exception as error:  # the library raises nothing narrower
        raise SourceError(f"{label}: its tokenizer cannot be built: {error}") from error
    template = metadata.get("tokenizer.chat_template")
    bos = source.id_of("bos")
    return TokenizerFiles(
        json=document,
        chat_template=None if template is None else str(template),
        bos_id=bos,
        eos_ids=source.eos_ids(),
        pad_id=source.id_of("padding"),
        adds_bos=bos is not None and tokenizer.encode("a").ids[:1] == [bos],
        vocab=max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
    )


class _Source:
    """The tokenizer's keys, checked against each other."""

    def __init__(self, metadata: Mapping[str, Any], label: str) -> None:
        self.metadata, self.label = metadata, label
        self.model = str(metadata.get("tokenizer.ggml.model"))
        if self.model not in _MODELS:
            raise UnsupportedError(
                f"{label}: tokenizer model {self.model!r} is not supported; supported: "
                f"{', '.join(_MODELS)}"
            )
        self.tokens: list[str] = self.listed("tokens")
        self.types: list[int] = self.listed("token_type", [1] * len(self.tokens))
        if len(self.types) != len(self.tokens):
            raise SourceError(
                f"{label}: {len(self.tokens)} tokens but {len(self.types)} token types"
            )
        # Converters fill ids that the tokenizer does not know up to the embedding's rows.
        self.known = {
            text: id_
            for id_, (text, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if not (kind == _UNUSED and text == f"[PAD{id_}]")
        }

    def listed(self, key: str, default: list[Any] | None = None) -> list[Any]:
        value = self.metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, list) or not value:
            raise SourceError(f"{self.label}: metadata has no tokenizer.ggml.{key}")
        return value

    def id_of(self, role: str) -> int | None:
        value = self.metadata.get(f"tokenizer.ggml.{role}_token_id")
        # Old converters write 2**32 - 1 for "none".
        return value if isinstance(value, int) and 0 <= value < len(self.tokens) else None

    def eos_ids(self) -> list[int]:
        """Ids that end a generation, the file's own first.

        A terminator that doubles as the unknown token is not counted (SmolLM2's <|endoftext|>,
        which its generation config does not list either).
        """
        own = [self.id_of(role) for role in ("eos", "eot", "eom")]
        unknown = self.id_of("unknown")
        by_text = [
            id_
            for id_, (text, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind == _CONTROL and text in _ENDS and id_ != unknown
        ]
        return list(dict.fromkeys(id_ for id_ in (*own, *by_text) if id_ is not None))

    @property
    def pre(self) -> str:
        return str(self.metadata.get("tokenizer.ggml.pre", "default"))

    def added_tokens(self) -> Iterator[Json]:
        """Control and user-defined tokens: matched in the text before anything else."""
        phi3 = self.metadata.get("general.architecture") == "phi3" and self.model == "llama"
        for text, id_ in self.known.items():
            kind = self.types[id_]
            if kind in _ADDED:
                swallows = phi3 and kind == _CONTROL and text not in _PHI3_PLAIN
                yield {
                    "id": id_,
                    "content": text,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": swallows or (phi3 and text == "</s>"),
                    "normalized": False,
                    "special": kind != _USER_DEFINED,
                }

    def bos_processor(self, default: bool) -> Json | None:
        """Puts BOS before a prompt, when the file says so, or by `default` when it is silent."""
        bos = self.id_of("bos")
        if bos is None or not self.metadata.get("tokenizer.ggml.add_bos_token", default):
            return None
        text = self.tokens[bos]
        first = {"SpecialToken": {"id": text, "type_id": 0}}
        one, two = ({"Sequence": {"id": part, "type_id": at}} for at, part in enumerate("AB"))
        return {
            "type": "TemplateProcessing",
            "single": [first, one],
            "pair": [first, one, two],
            "special_tokens": {text: {"id": text, "ids": [bos], "tokens": [text]}},
        }


def _document(source: _Source, **parts: Any) -> Json:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(source.added_tokens()),
        **parts,
    }


def _byte_level(source: _Source) -> Json:
    rules = pre_tokenizer(source.pre, source.label)
    merges = [pair.split(" ", 1) for pair in source.listed("merges", [""]) if pair]
    return _document(
        source,
        normalizer={"type": "NFC"} if rules.nfc else None,
        pre_tokenizer=pre_tokenizer_json(rules),
        post_processor=source.bos_processor(rules.adds_bos) or _BYTE_LEVEL,
        decoder=_BYTE_LEVEL,
        model={
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": rules.ignore_merges,
            "vocab": source.known,
            "merges": merges,
        },
    )


def _sentencepiece(source: _Source) -> Json:
    prefix = bool(source.metadata.get("tokenizer.ggml.add_space_prefix", True))
    to_blocks: Json = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    normalizers = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = source.id_of("unknown")
    return _document(
        source,
        normalizer={"type": "Sequence", "normalizers": [*normalizers, to_blocks]},
        pre_tokenizer=None,
        post_processor=source.bos_processor(True),
        decoder={"type": "Sequence", "decoders": decoders},
        model={
            "type": "BPE",
            "dropout": None,
            "unk_token": None if unknown is None else source.tokens[unknown],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": source.known,
            "merges": merges_from_scores(source),
        },
    )


def merges_from_scores(source: _Source) -> list[tuple[str, str]]:
    """Merges in the order SentencePiece would apply them: by the score of what they make.

    SentencePiece joins the adjacent pair whose result has the highest score; a list of merges says
    the same when every way to split a token is in it, at the token's rank. Special and
    user-defined tokens are matched before BPE and never made by it.
    """
    scores = source.listed("scores")
    if len(scores) != len(source.tokens):
        raise SourceError(f"{source.label}: {len(source.tokens)} tokens but {len(scores)} scores")
    parts = {
        text: id_ for text, id_ in source.known.items() if source.types[id_] not in _NEVER_MERGED
    }
    made: list[tuple[float, int, int, tuple[str, str]]] = []
    for text, id_ in parts.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in parts and right in parts:
                made.append((-scores[id_], parts[left], parts[right], (left, right)))
    made.sort()
    return [pair for *_, pair in made]

"""How text is cut before byte-level BPE, by the name that GGUF gives it.

`tokenizer.ggml.pre` names the original tokenizer's normaliser and splitting pattern, which the
file does not contain. The patterns below are facts about those tokenizers; a name that is not
here is refused, because a wrong split gives a plausible text of the wrong tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specedge.errors import UnsupportedError

Json = dict[str, Any]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN2 = rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|\p{{N}}|{_PUNCTUATION_AND_SPACE}"
_LLAMA3 = rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION_AND_SPACE}"
_O200K = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_SLASHED}"
)
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASHED}"


@dataclass(frozen=True)
class PreTokenizer:
    """What the name stands for."""

    splits: tuple[str, ...]  # patterns, each applied to the pieces the one before it left
    nfc: bool = False
    ignore_merges: bool = False  # a piece that is itself a token is not built from merges
    adds_bos: bool = False  # when the metadata does not say


_GPT2_STYLE = PreTokenizer((_GPT2,))
_LLAMA3_STYLE = PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True)
_KNOWN = {
    "gpt-2": _GPT2_STYLE,
    "smollm": PreTokenizer((r"\p{N}", _GPT2)),
    "qwen2": PreTokenizer((_QWEN2,), nfc=True),
    "llama-bpe": _LLAMA3_STYLE,
    "llama3": _LLAMA3_STYLE,
    "llama-v3": _LLAMA3_STYLE,
    "dbrx": PreTokenizer((_LLAMA3,)),  # Phi-4
    "gpt-4o": PreTokenizer((_O200K,)),  # Phi-4-mini
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, adds_bos=True),  # Mistral Nemo
    # What GGUF's own runtime does when a converter did not recognise the tokenizer.
    "default": PreTokenizer(
        (
            r"[\p{P}\$\+<=>\^~\|]+",
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
            r"\p{N}+",
            r"[0-9][0-9][0-9]",
        )
    ),
}


def pre_tokenizer(name: str, label: str) -> PreTokenizer:
    """The rules of a `tokenizer.ggml.pre`.

    Raises:
        UnsupportedError: the name is not known.
    """
    try:
        return _KNOWN[name]
    except KeyError:
        raise UnsupportedError(
            f"{label}: pre-tokenizer {name!r} is not supported; supported: "
            f"{', '.join(sorted(_KNOWN))}"
        ) from None


def pre_tokenizer_json(rules: PreTokenizer) -> Json:
    """The `pre_tokenizer` of tokenizer.json: the splits, then bytes as printable characters."""
    splits = [
        {"type": "Split", "pattern": {"Regex": text}, "behavior": "Isolated", "invert": False}
        for text in rules.splits
    ]
    to_bytes = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    return {"type": "Sequence", "pretokenizers": [*splits, to_bytes]}

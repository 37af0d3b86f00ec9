"""Text that spells a special token is text, and only a grammar's own word for it is the token.

llguidance looks for special tokens in text that a grammar forces: "<eos>" as a constant would end
the output, or be none that the grammar allows. So it is given a tokenizer in which they bear names
that nobody writes, and in a Lark grammar their real names become ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

MARK = "\ue000"  # of private use: no text has it for its meaning
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")  # looked up by name for a character that is no token


def concealed(tokenizer_json: str) -> tuple[str, dict[str, int]]:
    """The tokenizer with those names changed, and the ids by the real names.

    Raises:
        ValueError: this is no JSON.
        KeyError, TypeError, AttributeError: this is no tokenizer.
    """
    said: dict[str, Any] = json.loads(tokenizer_json)
    special = {
        token["content"]: token["id"] for token in said["added_tokens"] or () if _special(token)
    }
    new = {name: f"{name[:1]}{MARK}{name[1:]}" for name in special}
    for token in said["added_tokens"] or ():
        token["content"] = new.get(token["content"], token["content"])
    model = said["model"]
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {new.get(piece, piece): id_ for piece, id_ in vocab.items()}
    else:
        model["vocab"] = [[new.get(piece, piece), score] for piece, score in vocab]
    if model.get("unk_token") is not None:
        model["unk_token"] = new.get(model["unk_token"], model["unk_token"])
    # they would name tokens, and add none to text in the middle of an output
    said["post_processor"] = said["padding"] = said["truncation"] = None
    return json.dumps(said, ensure_ascii=False), special


def _special(token: Mapping[str, Any]) -> bool:
    """As llguidance has it: by what the tokenizer says, or by the name's looks."""
    name: str = token["content"]
    bracketed = name.startswith("<") and name.endswith(">")
    return bool(token["special"] or bracketed) and not _BYTE.fullmatch(name)


def named_by_id(lark: str, special: Mapping[str, int]) -> str:
    """A Lark grammar whose special tokens are `<[id]>`; strings, patterns and comments stay."""
    if not special:
        return lark
    names = "|".join(map(re.escape, sorted(special, key=len, reverse=True)))
    parts = rf'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/|(?P<name>{names})'

    def by_id(found: re.Match[str]) -> str:
        name = found["name"]
        return found[0] if name is None else f"<[{special[name]}]>"

    return re.sub(parts, by_id, lark)

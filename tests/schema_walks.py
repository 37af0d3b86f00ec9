"""Random walks through a constraint, over the tiny tokenizer: an adversary instead of a model."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import llguidance
import numpy as np

import tiny
from specedge.gates.schemas import Entry
from specedge.guidance.compiling import JSON_STYLE

MATCHER = llguidance.LLMatcher
INNER = tiny.byte_tokenizer()
VOCAB = INNER.get_vocab_size()
TOKENS = llguidance.LLTokenizer(INNER.to_str(), n_vocab=VOCAB, eos_token=[tiny.EOS])


@cache
def _start(entry_name: str, kind: str, asked: str) -> Any:
    return MATCHER(TOKENS, asked)


def matcher(entry: Entry) -> Any:
    """At the beginning of an output."""
    if entry.kind == "json_schema":
        source = MATCHER.grammar_from_json_schema(entry.asked, defaults=JSON_STYLE)
    elif entry.kind == "regex":
        source = MATCHER.grammar_from_regex(entry.asked)
    else:
        source = MATCHER.grammar_from_lark(entry.asked)
    start = _start(entry.name, entry.kind, source)
    assert not start.is_error(), f"{entry.name}: {start.get_error()}"
    return start.deep_copy()


def walk(entry: Entry, seed: int, *, reluctant: bool = False) -> tuple[str, int] | None:
    """An output, and its tokens with the end id; None: it has not ended by itself in time.

    Args:
        entry: to be walked through.
        seed: of the choices among the tokens allowed.
        reluctant: end only where nothing else is allowed.
    """
    at, choose, tokens = matcher(entry), random.Random(seed), []
    for n in range(entry.longest + 1):
        if at.is_stopped():
            return INNER.decode(tokens), n + 1
        packed = np.frombuffer(at.compute_bitmask(), dtype=np.uint8)
        allowed = np.flatnonzero(np.unpackbits(packed, count=VOCAB, bitorder="little"))
        if reluctant and len(allowed) > 1:
            allowed = allowed[allowed != tiny.EOS]
        token = int(choose.choice(allowed))
        if token == tiny.EOS:
            return INNER.decode(tokens), n + 1
        assert at.consume_token(token), f"{entry.name}: {at.get_error()}"
        tokens.append(token)
    return None


def accepts(entry: Entry, text: str) -> bool:
    """Whether what constrains would let this text through, whole."""
    at = matcher(entry)
    tokens = INNER.encode(text, add_special_tokens=False).ids
    return at.try_consume_tokens(tokens) == len(tokens) and at.is_accepting()

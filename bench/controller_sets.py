"""What the controller is measured on: prompts that speculation loses on, and such that it gains on.

adversarial   random tokens        ids drawn at random, then greedy: nothing to look up at first
              hot                  built-in chat prompts at temperature 1.5, seeded, so that plain
                                   and speculative decoding give the same text ("coupled")
              short                8 tokens after built-in prompts of 30 to 300 tokens
favourable    code editing         the file of `prompts/edit_60_lines.md`, a setting renamed
              repetition           lists that go on as they began
              chat                 for a draft of the target's own weights
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from controller_desk import Request

from specedge.model import Model
from specedge.workloads import builtin

PROMPTS = Path(__file__).parent / "prompts"
SHORT_TOKENS = 8
SHORT_PROMPT = (30, 300)
RANDOM_IDS = 64
TEMPERATURE = 1.5

EDIT = "edit_60_lines.md"
# In the file that is edited, and what it is renamed to; the first is the prompt as it stands.
RENAMES = (
    ("SHOP_CITY", "SHOP_TOWN"),
    ("SHOP_CURRENCY", "SHOP_MONEY"),
    ("SHOP_NAME", "STORE_NAME"),
    ("SHOP_LANGUAGE", "SHOP_TONGUE"),
)
LOOPS = (
    "one two three four five six\n" * 6,
    "red, green, blue, yellow, black, white; " * 5,
    '{"id": 1, "kind": "book", "price": 10}\n{"id": 2, "kind": "book", "price": 10}\n' * 4,
    "Monday\nTuesday\nWednesday\nThursday\nFriday\nSaturday\nSunday\n\n" * 3,
)


def chat(model: Model, tokens: int, **options: Any) -> list[Request]:
    """The built-in prompts of the class "chat"."""
    return [
        Request(f"chat {number}", ids, tokens, options)
        for number, ids in enumerate(_built_in(model, "chat"))
    ]


def random_tokens(model: Model, tokens: int, count: int) -> list[Request]:
    vocab, special = model.bundle.manifest.target.vocab, model.tokenizer.special_tokens()
    known = np.setdiff1d(np.arange(vocab), list(special.values()))
    rng = np.random.default_rng(0)
    return [
        Request(f"random {number}", rng.choice(known, RANDOM_IDS).astype(np.int64), tokens, {})
        for number in range(count)
    ]


def hot(model: Model, tokens: int) -> list[Request]:
    prompts = _built_in(model, "chat")
    return [
        Request(
            f"hot {number}",
            ids,
            tokens,
            {"temperature": TEMPERATURE, "seed": number, "acceptance": "coupled"},
        )
        for number, ids in enumerate(prompts)
    ]


def short(model: Model) -> list[Request]:
    """Prompts of every class, from the shortest to the longest in turn with the middle ones."""
    least, most = SHORT_PROMPT
    all_ids = [ids for each in builtin() for ids in _built_in(model, each.name)]
    fitting = sorted((ids for ids in all_ids if least <= len(ids) <= most), key=len)
    mixed = [fitting[place] for place in np.random.default_rng(0).permutation(len(fitting))]
    return [Request(f"short {n}", ids, SHORT_TOKENS, {}) for n, ids in enumerate(mixed)]


def edits(model: Model, tokens: int) -> list[Request]:
    """The prompt with its change, and the start of the answer, exchanged. For lookups only."""
    text = (PROMPTS / EDIT).read_text(encoding="utf-8")
    made = []
    old, new = RENAMES[0]
    for name, to in RENAMES:
        head, change, answer = text.rpartition(f"Change: rename `{old}` to `{new}`.")
        assert change, f"{EDIT} asks for the change"
        answer = answer.replace(new, old).replace(name, to)
        asked = f"{head}Change: rename `{name}` to `{to}`.{answer}"
        made.append(Request(f"edit {to}", model.encode(asked)[0], tokens, {}, fresh=False))
    return made


def loops(model: Model, tokens: int) -> list[Request]:
    """For lookups only."""
    return [
        Request(f"loop {number}", model.encode(text)[0], tokens, {}, fresh=False)
        for number, text in enumerate(LOOPS)
    ]


def _built_in(model: Model, name: str) -> Sequence[Any]:
    """int64 ids of each prompt of a class."""
    workload = next(each for each in builtin() if each.name == name)
    return [
        model.encode(prompt.given(has_template=model.has_chat_template))[0]
        for prompt in workload.prompts
    ]

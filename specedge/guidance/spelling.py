"""A tokenizer for llguidance that writes text as text, also where it spells a special token."""

from __future__ import annotations

from typing import Any


class Spelling:
    """What `llguidance.LLTokenizer` wants of a tokenizer that it does not read itself.

    The one that it makes of a `tokenizer.json` takes "<eos>" in text for the token of that name.
    Text that a grammar forces would then end the output, or be none that the grammar allows.

    Args:
        named: an LLTokenizer made of the `tokenizer.json`.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, named: Any) -> None:
        self._named = named
        ids = range(named.vocab_size)
        self.eos_token_id: int = named.eos_token
        self.tokens: list[bytes] = [named.decode_bytes([id_]) for id_ in ids]
        self.special_token_ids = [id_ for id_ in ids if named.is_special_token(id_)]
        self._special = frozenset(self.special_token_ids)

    def __call__(self, text: str) -> list[int]:
        """Ids whose bytes are the text's; the longest first where the tokenizer's own are not."""
        ids: list[int] = self._named.tokenize_str(text)
        if self._special.isdisjoint(ids):
            return ids
        spelled: list[int] = self._named.greedy_tokenize(text)
        return spelled

"""What a `tokenizer.json` says its ids are: read without the tokenizers library.

Both sides of a bundle use it: export to compare a draft with its target, a run to check that the
tokenizer is the one the graphs were made for.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

Vocabulary = dict[int, str]


def read_vocabulary(tokenizer_json: str) -> Vocabulary:
    """Raw token string by id, added tokens included, in id order; ids may have gaps."""
    return vocabulary_of(json.loads(tokenizer_json))


def vocabulary_of(tokenizer: dict[str, Any]) -> Vocabulary:
    """`read_vocabulary` of JSON that is parsed already."""
    entries = tokenizer["model"].get("vocab", {})
    if isinstance(entries, dict):
        found = {int(token_id): str(token) for token, token_id in entries.items()}
    else:  # Unigram: [token, score] in id order
        found = {token_id: str(entry[0]) for token_id, entry in enumerate(entries)}
    for added in tokenizer.get("added_tokens") or []:
        found[int(added["id"])] = str(added["content"])
    return dict(sorted(found.items()))


def vocabulary_hash(tokenizer_json: str) -> str:
    """sha256 over "id<TAB>token bytes<NEWLINE>" in id order."""
    digest = hashlib.sha256()
    for token_id, token in read_vocabulary(tokenizer_json).items():
        digest.update(f"{token_id}\t{token}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()

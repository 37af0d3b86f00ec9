"""Is this draft usable with this target?

The target decides every token, so a draft cannot make a text wrong; it can only propose ids that
mean something else and never be accepted. Therefore one thing is refused: an id whose token
differs, or that only one of the two knows. Everything else that differs (special flags, merges,
end-of-text ids, chat template, a shorter context) is written down as a note: text is encoded,
decoded and ended by the target's files alone.

Rows of an embedding past the last known id are padding: cut at export, so they are not compared.
"""

from __future__ import annotations

import json
from typing import Any

from specedge.contract import PairingProof
from specedge.export.checkpoint import Checkpoint, TokenizerFiles
from specedge.vocabulary import Vocabulary, vocabulary_of

_EMBEDDING = "model.embed_tokens.weight"


def examine(target: Checkpoint, draft: Checkpoint, context: int) -> PairingProof:
    """Compare the two, token by token; `notes[0]` says why where the draft is not usable.

    Args:
        context: T, rows the target's bundle will have.
    """
    target_json = json.loads(target.tokenizer.json)
    draft_json = json.loads(draft.tokenizer.json)
    ours, theirs = vocabulary_of(target_json), vocabulary_of(draft_json)
    difference = _first_difference(ours, theirs)
    notes = [] if difference is None else [_describe(difference, ours, theirs)]
    if difference is None:
        notes += _encoding_notes(target_json, draft_json)
        notes += _flag_notes(target_json, draft_json)
        notes += _role_notes(target.tokenizer, draft.tokenizer)
        notes += _context_notes(draft.config, context)
    return PairingProof(
        usable=difference is None,
        compared_ids=len(ours.keys() | theirs.keys()),
        first_difference=difference,
        target_padded_to=_embedding_rows(target),
        draft_padded_to=_embedding_rows(draft),
        notes=notes,
    )


def _first_difference(ours: Vocabulary, theirs: Vocabulary) -> int | None:
    different = (i for i in ours.keys() | theirs.keys() if ours.get(i) != theirs.get(i))
    return min(different, default=None)


def _describe(difference: int, ours: Vocabulary, theirs: Vocabulary) -> str:
    def name(vocabulary: Vocabulary) -> str:
        token = vocabulary.get(difference)
        return "no token" if token is None else repr(token)

    return (
        f"vocabulary differs at id {difference}: {name(theirs)} in the draft, "
        f"{name(ours)} in the target (which have {len(theirs)} and {len(ours)} tokens)"
    )


def _encoding_notes(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    same = "; the target's are used, acceptance may suffer"
    notes = []
    if _merges(ours) != _merges(theirs):
        notes.append(f"equal tokens but other merges: texts would be split differently{same}")
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if ours.get(part) != theirs.get(part):
            notes.append(f"the tokenizers' {part} settings differ{same}")
    return notes


def _merges(tokenizer: dict[str, Any]) -> list[str]:
    """Merges as "left right", whichever of the two notations the file uses."""
    merges = tokenizer["model"].get("merges") or []
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def _flag_notes(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    def special(tokenizer: dict[str, Any]) -> dict[int, tuple[str, bool]]:
        added = tokenizer.get("added_tokens") or []
        return {int(token["id"]): (token["content"], bool(token["special"])) for token in added}

    left, right = special(ours), special(theirs)
    different = sorted(i for i in left.keys() | right.keys() if left.get(i) != right.get(i))
    if not different:
        return []
    first = different[0]
    token = (left.get(first) or right[first])[0]
    return [
        f"{len(different)} added or special token flags differ, first at id {first} ({token!r}); "
        "the target's are used"
    ]


def _role_notes(ours: TokenizerFiles, theirs: TokenizerFiles) -> list[str]:
    notes = []
    if ours.bos_id != theirs.bos_id:
        notes.append(f"begin-of-text id is {theirs.bos_id} in the draft, {ours.bos_id} is used")
    if sorted(ours.eos_ids) != sorted(theirs.eos_ids):
        notes.append(
            f"end-of-text ids are {sorted(theirs.eos_ids)} in the draft, "
            f"{sorted(ours.eos_ids)} are used"
        )
    if (ours.chat_template or "").strip() != (theirs.chat_template or "").strip():
        notes.append("the chat templates differ; the target's is used, acceptance may suffer")
    return notes


def _context_notes(config: dict[str, Any], context: int) -> list[str]:
    longest = config.get("max_position_embeddings")
    if not isinstance(longest, int) or longest >= context:
        return []
    return [f"the draft was made for {longest} tokens; past them plain decoding goes on"]


def _embedding_rows(checkpoint: Checkpoint) -> int:
    if _EMBEDDING in checkpoint.tensors.names():
        return checkpoint.tensors.shape(_EMBEDDING)[0]
    return int(checkpoint.config.get("vocab_size", checkpoint.tokenizer.vocab))

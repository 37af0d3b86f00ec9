"""What a bundle carries of a tokenizer, whichever front end wrote its graphs."""

from __future__ import annotations

import json
from pathlib import Path

from specedge.contract import TokenizerSpec
from specedge.export.checkpoint import Checkpoint
from specedge.vocabulary import vocabulary_hash


def tokenizer_spec(checkpoint: Checkpoint, vocab: int) -> TokenizerSpec:
    """The manifest's part; `vocab` is V of the target's graph."""
    files = checkpoint.tokenizer
    return TokenizerSpec(
        vocab=vocab,
        vocabulary_hash=vocabulary_hash(files.json),
        bos_id=files.bos_id,
        eos_ids=files.eos_ids,
        pad_id=files.pad_id,
        adds_bos=files.adds_bos,
        has_chat_template=files.chat_template is not None,
    )


def write_text_files(checkpoint: Checkpoint, folder: Path) -> None:
    """tokenizer.json, chat_template.jinja where there is one, generation.json."""
    files = checkpoint.tokenizer
    (folder / "tokenizer.json").write_text(files.json, encoding="utf-8")
    if files.chat_template is not None:
        (folder / "chat_template.jinja").write_text(files.chat_template, encoding="utf-8")
    generation = json.dumps(checkpoint.generation, indent=2, ensure_ascii=False)
    (folder / "generation.json").write_text(generation + "\n", encoding="utf-8")

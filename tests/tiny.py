"""A bundle without weights: a tokenizer of a few hundred ids and the fake engine.

The tiny template writes `role: content` on a line each, and `<ask>answer<eos>` for an assistant;
`answering` is a model that replies after the last `<ask>` and then says `<eos>`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from specedge.bundle import Bundle
from specedge.contract import (
    FileRecord,
    GraphSpec,
    Ids,
    Manifest,
    MemoryPlan,
    PairingProof,
    SourceRecord,
    SpeculationDefaults,
    TokenizerSpec,
)
from specedge.controller import Controller
from specedge.engines.fake import FakeEngine, Rule
from specedge.model import Model
from specedge.proposers import Proposer
from specedge.speculator import Mode, Speculator
from specedge.tokenizer import Tokenizer
from specedge.vocabulary import vocabulary_hash

PAD, BOS, EOS, ASK = range(4)
SPECIAL = ["<pad>", "<bos>", "<eos>", "<ask>"]
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'assistant' %}<ask>{{ message.content }}"
    "<eos>{% else %}{{ message.role }}: {{ message.content }}{% endif %}{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<ask>{% endif %}"
)


def byte_tokenizer() -> tokenizers.Tokenizer:
    """Byte-level BPE: every byte, and merges that make words, a broken and a whole character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("Ġw", "o")]
    pairs += [("E", "N"), ("EN", "D"), ("â", "Ĥ"), ("Ã", "©"), ("x", "E")]
    words = [*SPECIAL, *alphabet, *(a + b for a, b in pairs)]
    vocab = {word: id_ for id_, word in enumerate(words)}
    inner = tokenizers.Tokenizer(models.BPE(vocab, pairs))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(SPECIAL)
    inner.add_tokens(["<tool>"])
    return inner


def space_tokenizer(*, strip: bool = True) -> tokenizers.Tokenizer:
    """As SentencePiece writes it: ▁ for a space, <0xNN> for what the vocabulary lacks."""
    pieces = ["▁", *"abcdefghijklmnopqrstuvwxyz.,é", "▁a", "▁the", "▁▁", "the", "▁cat"]
    words = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    vocab = {word: id_ for id_, word in enumerate(words)}
    pairs = [("▁", "a"), ("▁", "▁"), ("t", "h"), ("th", "e"), ("▁", "the")]
    pairs += [("c", "a"), ("ca", "t"), ("▁", "cat")]
    for a, b in pairs:
        vocab.setdefault(a + b, len(vocab))
    inner = tokenizers.Tokenizer(models.BPE(vocab, pairs, byte_fallback=True, fuse_unk=True))
    first = [normalizers.Prepend("▁")] if strip else []
    inner.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", "▁")])
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    inner.add_special_tokens(SPECIAL)
    return inner


def tokenizer_spec(
    inner: tokenizers.Tokenizer, *, adds_bos: bool = False, template: bool = True
) -> TokenizerSpec:
    return TokenizerSpec(
        vocab=inner.get_vocab_size(),
        vocabulary_hash=vocabulary_hash(inner.to_str()),
        bos_id=BOS,
        eos_ids=[EOS],
        pad_id=PAD,
        adds_bos=adds_bos,
        has_chat_template=template,
    )


def wrap(inner: tokenizers.Tokenizer, **spec: bool) -> Tokenizer:
    return Tokenizer(inner.to_str(), tokenizer_spec(inner, **spec))


def graph(role: str, vocab: int, *, context: int, max_verify: int) -> GraphSpec:
    return GraphSpec.model_validate(
        {
            "role": role,
            "model": f"{role}/model.onnx",
            "weights": f"{role}/weights.bin",
            "model_type": "fake",
            "lowering": "ort",
            "precision": "fp32",
            "vocab": vocab,
            "layers": 1,
            "hidden": 8,
            "heads": 1,
            "kv_heads": 1,
            "head_dim": 8,
            "context": context,
            "max_verify": max_verify,
            "weight_bytes": 4,
            "parameters": 1,
        }
    )


def write_bundle(
    folder: Path,
    *,
    inner: tokenizers.Tokenizer | None = None,
    template: str | None = TEMPLATE,
    adds_bos: bool = False,
    context: int = 256,
    max_verify: int = 16,
    draft: bool = False,
    rule: dict[str, Any] | None = None,
    speculation: dict[str, Any] | None = None,
) -> Path:
    """A bundle that `specedge.load(folder, engine="fake")` opens; returns the folder."""
    inner = byte_tokenizer() if inner is None else inner
    vocab = inner.get_vocab_size()
    graph_file = json.dumps(rule or {"rule": "hashed", "last": 4}).encode()
    files = {"tokenizer.json": inner.to_str().encode()}
    if template is not None:
        files["chat_template.jinja"] = template.encode()
    for role in ("target", "draft") if draft else ("target",):
        files |= {f"{role}/model.onnx": graph_file, f"{role}/weights.bin": b"\0\1\2\3"}
    sizes = {"context": context, "max_verify": max_verify}
    proof = PairingProof(
        usable=True, compared_ids=vocab, target_padded_to=vocab, draft_padded_to=vocab
    )
    manifest = Manifest(
        name="tiny",
        created="2026-11-01T00:00:00Z",
        tool={"specedge": "0"},
        target=graph("target", vocab, **sizes),
        draft=graph("draft", vocab, **sizes) if draft else None,
        tokenizer=tokenizer_spec(inner, adds_bos=adds_bos, template=template is not None),
        sources={
            "target": SourceRecord(kind="folder", reference="tiny", sha256=None, licence=None)
        },
        pairing=proof if draft else None,
        memory=MemoryPlan(
            **sizes,
            target_weights=4,
            target_kv=0,
            draft_weights=0,
            draft_kv=0,
            activations=0,
            total=4,
        ),
        speculation=SpeculationDefaults(**(speculation or {})),
        files={name: record(data) for name, data in files.items()},
    )
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "specedge.json").write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
    return folder


def record(data: bytes) -> FileRecord:
    return FileRecord(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))


def edit_manifest(folder: Path, **changes: Any) -> None:
    """Overwrite top-level keys of `specedge.json`."""
    said = json.loads((folder / "specedge.json").read_text())
    (folder / "specedge.json").write_text(json.dumps(said | changes))


def answering(tokenizer: Tokenizer, *answers: str | Sequence[int]) -> Rule:
    """The n-th `<ask>` in the text is answered by the n-th of `answers`, in a circle."""
    replies = [
        tokenizer.encode(answer, add_special=False).tolist()
        if isinstance(answer, str)
        else list(answer)
        for answer in answers
    ]

    def rule(tokens: Ids) -> int:
        asks = np.flatnonzero(tokens == ASK)
        if not len(asks):
            return EOS
        reply = replies[(len(asks) - 1) % len(replies)]
        said = len(tokens) - 1 - int(asks[-1])
        return reply[said] if said < len(reply) else EOS

    return rule


def open_model(
    folder: Path,
    *answers: str | Sequence[int],
    rule: Rule | None = None,
    proposers: Sequence[Proposer] = (),
    draft_length: int = 4,
    mode: Mode = "auto",
    **engine: Any,
) -> tuple[Model, FakeEngine]:
    """A model over the bundle in `folder` whose target answers as told."""
    bundle = Bundle.open(folder)
    tokenizer = Tokenizer(bundle.tokenizer_json, bundle.manifest.tokenizer)
    rule = answering(tokenizer, *answers) if rule is None else rule
    target = FakeEngine(bundle.manifest.target, rule, **engine)
    speculator = Speculator(proposers, Controller(draft_length), mode=mode)
    return Model(bundle, target, speculator, tokenizer), target

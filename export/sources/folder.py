"""A transformers checkpoint folder: config.json, safetensors, tokenizer.json and friends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from specedge.contract import SourceRecord
from specedge.errors import SourceError, UnsupportedError
from specedge.export.checkpoint import Array, Checkpoint, TensorMap, TokenizerFiles
from specedge.export.sources.reading import check_sha256, sha256_of
from specedge.export.sources.safetensors_map import SafetensorsMap
from specedge.export.sources.shapes import check_shapes
from specedge.progress import Progress, Silent

Json = dict[str, Any]

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth")
# Keys of a multimodal config that its text part may leave to it.
_SHARED_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")
_WRAPPERS = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)


def open_folder(
    path: Path,
    *,
    sha256: str | None = None,
    licence: str | None = None,
    progress: Progress | None = None,
) -> Checkpoint:
    """Open a checkpoint folder; weights stay on disk until their rows are asked for.

    Args:
        path: the folder.
        sha256: what the weights must have, over the file or over the shards in order of name.
        licence: what the config states; a folder says nothing reliable about its own.
        progress: told about the hashing.

    Raises:
        SourceError: a file is missing, damaged or inconsistent with another.
        UnsupportedError: weights or a tokenizer in a form specedge does not read.
    """
    config = _read_json(path / "config.json", required=True)
    generation = _read_json(path / "generation_config.json")
    if method := config.get("quantization_config"):
        name = method.get("quant_method") if isinstance(method, dict) else method
        raise UnsupportedError(
            f"{path}: weights already quantised ({name!r}); give the checkpoint it was made from"
        )
    files = _weight_files(path)
    tokenizer = read_tokenizer(path, config, generation)
    tensors: TensorMap = SafetensorsMap(files)
    try:
        if isinstance(config.get("text_config"), dict):
            config, tensors = _text_part(config), _TextTensors(tensors)
        config.setdefault("tie_word_embeddings", "lm_head.weight" not in tensors.names())
        check_shapes(config, tensors, str(path))
        found = sha256_of(files, progress or Silent())
        check_sha256(
            sha256, found, str(path), "give the checkpoint that the config was written for"
        )
    except BaseException:
        tensors.close()
        raise
    record = SourceRecord(
        kind="folder", reference=path.resolve().name, sha256=found, licence=licence
    )
    return Checkpoint(config, tensors, tokenizer, record, generation)


def _read_json(path: Path, *, required: bool = False) -> Json:
    if not path.exists() and not required:
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SourceError(
            f"{path.parent}: no {path.name}; expected a transformers checkpoint folder"
        ) from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise SourceError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def _weight_files(path: Path) -> list[Path]:
    """The safetensors files, in order of name."""
    index = path / _INDEX
    if not index.exists():
        if (path / _WEIGHTS).exists():
            return [path / _WEIGHTS]
        for name in _PICKLES:
            if (path / name).exists():
                raise UnsupportedError(
                    f"{path}: weights as pickle ({name}); convert them to safetensors"
                )
        raise SourceError(f"{path}: no {_WEIGHTS} and no {_INDEX}")
    shards = _read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise SourceError(f"{index}: has no weight_map")
    names = sorted({str(name) for name in shards.values()})
    for name in names:
        if Path(name).name != name or "\\" in name:
            raise SourceError(f"{index}: shard {name!r} lies outside the folder")
        if not (path / name).is_file():
            raise SourceError(f"{path}: shard {name!r} is named in {_INDEX} and missing")
    return [path / name for name in names]


def read_tokenizer(path: Path, config: Json, generation: Json) -> TokenizerFiles:
    """The tokenizer's files and the ids that decoding needs.

    Raises:
        SourceError: tokenizer.json is missing or damaged.
        UnsupportedError: only a SentencePiece model is there.
    """
    file = path / "tokenizer.json"
    if not file.exists():
        if (path / "tokenizer.model").exists():
            raise UnsupportedError(
                f"{path}: its tokenizer is tokenizer.model only; save it as tokenizer.json first"
            )
        raise SourceError(f"{path}: no tokenizer.json")
    try:
        document = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{file}: cannot be read: {error}") from error
    try:
        tokenizer = Tokenizer.from_str(document)
    except Exception as error:  # the library raises nothing narrower
        raise SourceError(f"{file}: not a tokenizer: {error}") from error
    settings = _read_json(path / "tokenizer_config.json")
    vocab = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def special(role: str) -> int | None:
        stated = settings.get(f"{role}_token")
        text = stated.get("content") if isinstance(stated, dict) else stated
        id_ = tokenizer.token_to_id(text) if isinstance(text, str) else None
        key = f"{role}_token_id"
        candidates = (id_, *_ids(generation.get(key)), *_ids(config.get(key)))
        return next((one for one in candidates if one is not None), None)

    bos = special("bos")
    text_config = config.get("text_config")
    inner = text_config if isinstance(text_config, dict) else {}
    stops = [*_ids(generation.get("eos_token_id")), *_ids(config.get("eos_token_id"))]
    stops += _ids(inner.get("eos_token_id"))
    if not stops and (own := special("eos")) is not None:
        stops = [own]
    first = tokenizer.encode("a").ids[:1]
    return TokenizerFiles(
        json=document,
        chat_template=_chat_template(path, settings),
        bos_id=bos,
        eos_ids=[id_ for id_ in dict.fromkeys(stops) if 0 <= id_ < vocab],
        pad_id=special("pad"),
        adds_bos=bos is not None and first == [bos],
        vocab=vocab,
    )


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, int) and not isinstance(one, bool)]


def _chat_template(path: Path, settings: Json) -> str | None:
    file = path / "chat_template.jinja"
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"{file}: cannot be read: {error}") from error
    found = settings.get("chat_template") or _read_json(path / "chat_template.json").get(
        "chat_template"
    )
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _text_part(config: Json) -> Json:
    """The language model of a multimodal checkpoint."""
    shared = {key: config[key] for key in _SHARED_KEYS if config.get(key) is not None}
    text: Json = config["text_config"]
    return shared | text


class _TextTensors:
    """A `TensorMap` that hides a multimodal wrapper: its prefix, and what is not text."""

    def __init__(self, inner: TensorMap) -> None:
        self._inner = inner
        names = inner.names()
        text = [name for name in names if "language_model." in name or name.startswith("lm_head.")]
        self._theirs = {_unwrapped(name): name for name in text or names}

    def names(self) -> list[str]:
        return sorted(self._theirs)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._inner.shape(self._theirs.get(name, name))

    def rows(self, name: str, start: int, stop: int) -> Array:
        return self._inner.rows(self._theirs.get(name, name), start, stop)

    def close(self) -> None:
        self._inner.close()


def _unwrapped(name: str) -> str:
    for wrapped, plain in _WRAPPERS:
        if name.startswith(wrapped):
            return plain + name.removeprefix(wrapped)
    return name

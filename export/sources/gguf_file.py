"""A GGUF file as a checkpoint."""

from __future__ import annotations

from pathlib import Path

from specedge.contract import SourceRecord
from specedge.errors import SourceError
from specedge.export.checkpoint import Checkpoint
from specedge.export.gguf_tokenizer import tokenizer_of
from specedge.export.sources.gguf_config import architecture_of, config_of
from specedge.export.sources.gguf_header import GgufHeader, read_header
from specedge.export.sources.gguf_names import ROPE_FACTORS, ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT
from specedge.export.sources.gguf_tensors import GgufMap
from specedge.export.sources.reading import DataFile, check_sha256, sha256_of
from specedge.export.sources.shapes import check_shapes
from specedge.progress import Progress, Silent


def open_gguf(
    path: Path,
    *,
    sha256: str | None = None,
    licence: str | None = None,
    progress: Progress | None = None,
    known_sha256: str | None = None,
) -> Checkpoint:
    """Open a GGUF file; weights stay on disk until their rows are asked for.

    Args:
        path: the file.
        sha256: what the config says it must be.
        licence: what the config says; the file's own `general.license` otherwise.
        progress: told about the hashing.
        known_sha256: the sum, when the caller has just computed it.

    Raises:
        SourceError: unreadable, cut short, another sha256, or inconsistent.
        UnsupportedError: an architecture, quantisation, scaling or tokenizer that is not known.
    """
    header = read_header(path)
    label = str(path)
    architecture_of(header.metadata, label)
    found = known_sha256 or sha256_of([path], progress or Silent())
    check_sha256(sha256, found, label, "give the file that the config was written for")
    config = config_of(header, _factors(path, header), label)
    tokenizer = tokenizer_of(header.metadata, label)
    rows = int(config["vocab_size"])
    if tokenizer.vocab > rows:
        raise SourceError(
            f"{label}: the tokenizer has ids up to {tokenizer.vocab - 1}, the embedding {rows} rows"
        )
    tensors = GgufMap(path, header, config)
    try:
        check_shapes(config, tensors, label)
    except SourceError:
        tensors.close()
        raise
    stated = header.metadata.get("general.license")
    record = SourceRecord(
        kind="gguf",
        reference=path.name,
        sha256=found,
        licence=licence or (str(stated) if stated else None),
        licence_note=None if licence or not stated else "as the file's general.license states",
    )
    return Checkpoint(config=config, tensors=tensors, tokenizer=tokenizer, record=record)


def _factors(path: Path, header: GgufHeader) -> dict[str, list[float]]:
    """The frequency factors that the file carries as float32 tensors."""
    result: dict[str, list[float]] = {}
    for name in (ROPE_FACTORS, ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT):
        info = header.tensors.get(name)
        if info is None:
            continue
        if info.kind.name != "F32" or len(info.shape) != 1:
            raise SourceError(f"{path}: tensor {name!r} must be a list of float32")
        file = DataFile(path)
        try:
            values = file.read(info.offset, info.row_bytes).view("<f4")
        finally:
            file.close()
        result[name] = [float(value) for value in values]
    return result

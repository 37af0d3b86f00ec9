"""What both file formats share: exact reads, sums over files, and checks on what was read.

Files are read, never mapped: pages of a map count as memory of the export, and a file that shrinks
under a map kills the process.
"""

from __future__ import annotations

import difflib
import hashlib
import threading
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specedge.errors import SourceError
from specedge.export.checkpoint import Array
from specedge.progress import Progress, Silent

PIECE_BYTES = 8 << 20  # float32 bytes converted at once; temporaries are a few times this
_CHUNK = 1 << 20


class DataFile:
    """One file of weights, read by offset."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.label = path.name
        try:
            self._file = path.open("rb")
            self.size = path.stat().st_size
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
        self._lock = threading.Lock()
        weakref.finalize(self, self._file.close)  # an opener that failed halfway leaks nothing

    def read(self, offset: int, count: int) -> npt.NDArray[np.uint8]:
        """`count` bytes from `offset`.

        Raises:
            SourceError: the file ends before that, or the disk fails.
        """
        out = np.empty(count, dtype=np.uint8)
        try:
            with self._lock:
                self._file.seek(offset)
                got = self._file.readinto(out.data)
        except OSError as error:
            raise SourceError(f"{self.path}: cannot be read: {error.strerror}") from error
        if got != count:
            raise SourceError(
                f"{self.path}: cut short: {count} bytes expected at {offset}, found {got}; "
                "fetch the file again"
            )
        return out

    def close(self) -> None:
        self._file.close()


def check_range(name: str, start: int, stop: int, rows: int) -> None:
    """A caller's range must lie inside the tensor.

    Raises:
        ValueError: it does not.
    """
    if not 0 <= start <= stop <= rows:
        raise ValueError(f"{name}: rows {start}..{stop} asked for, it has {rows}")


def check_finite(block: Array, name: str, first_row: int, label: str) -> None:
    """`block` holds rows first_row.. of the tensor.

    Raises:
        SourceError: a value is NaN or infinite; names the first such row.
    """
    finite = np.isfinite(block)
    if finite.all():
        return
    bad = finite.reshape(len(block), -1).all(axis=1).argmin()
    found = "NaN" if np.isnan(block[bad]).any() else "infinity"
    raise SourceError(
        f"{label}: tensor {name!r} has {found} in row {first_row + int(bad)}; "
        "the checkpoint is damaged: fetch or convert it again"
    )


def missing_tensor(name: str, known: Iterable[str], label: str) -> SourceError:
    """The error for a tensor that is not there, with the nearest name that is."""
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    hint = f"; the nearest is {nearest[0]!r}" if nearest else ""
    return SourceError(f"{label}: no tensor {name!r}{hint}")


def sha256_of(paths: Sequence[Path], progress: Progress | None = None) -> str:
    """Hex digest of the files' bytes one after another.

    Raises:
        SourceError: a file cannot be read.
    """
    progress = progress or Silent()
    digest = hashlib.sha256()
    try:
        total = sum(path.stat().st_size for path in paths)
        progress.stage(f"checking {paths[0].name}", total, "B")
        for path in paths:
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                    progress.advance(len(chunk))
    except OSError as error:
        raise SourceError(f"{error.filename}: cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def check_sha256(expected: str | None, found: str, reference: str, remedy: str) -> None:
    """Compare with what the config says, if it says anything.

    Raises:
        SourceError: the sums differ.
    """
    if expected is not None and expected.strip().lower() != found:
        raise SourceError(
            f"{reference}: sha256 expected {expected.strip().lower()}, found {found}; {remedy}"
        )

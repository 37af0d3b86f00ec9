"""A plan and its record on the disk: both whole, and of one build, or neither."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Buffer = bytes | memoryview

_SCRATCH = re.compile(r"\..+\.(plan|json)\.\d+\.\d+")  # see `_written`
_FORGOTTEN_S = 3600.0
_TRIES, _BETWEEN_S = 100, 0.01  # of a lock that is held for two renames


def keep(path: Path, plan: Buffer, record: str) -> None:
    """A plan and its record. Nothing is renamed before both are on the disk, and nobody renames
    between the two: a record never stands beside another build's plan.

    Raises:
        OSError: they cannot be written. The old ones are still there, unless it was a folder in
            the record's place.
    """
    beside = path.with_suffix(".json")
    _sweep(path.parent)
    with (
        _written(path, plan) as new,
        _written(beside, record.encode()) as said,
        _alone(path.parent),
    ):
        new.replace(path)
        try:
            said.replace(beside)
        except OSError:
            path.unlink()
            raise


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process or thread is in such a block; no longer than a second, as one
    that was stopped must not stop them all. Where the system has no such locks nobody waits."""
    descriptor = None
    try:
        import fcntl

        descriptor = os.open(folder, os.O_RDONLY)
        for _ in range(_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_BETWEEN_S)
    except (ImportError, OSError):
        pass
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove what a process left that was killed while it wrote."""
    for path in folder.glob(".*"):
        with suppress(OSError):
            if _SCRATCH.fullmatch(path.name) and path.stat().st_mtime < time.time() - _FORGOTTEN_S:
                path.unlink()


@contextmanager
def _written(path: Path, data: Buffer) -> Iterator[Path]:
    """A scratch file beside `path`, on the disk itself, to be renamed; gone after the block."""
    scratch = path.with_name(f".{path.name[:200]}.{os.getpid()}.{threading.get_ident()}")
    try:
        with scratch.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        yield scratch
    finally:  # after Ctrl-C too
        with suppress(OSError):
            scratch.unlink()

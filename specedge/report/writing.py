"""A page into a file, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from specedge.errors import ProbeError
from specedge.replacing import write_file


def write(path: Path, html: str) -> None:
    """Write beside the file and rename; what is no regular file (a pipe, a device) is written to.

    Raises:
        ProbeError: the path is a folder, its folder is missing, or it cannot be written.
    """
    try:
        check_place(path)
        write_file(path, html)
    except OSError as error:
        raise _refused(path, error) from None


def check_place(path: Path) -> None:
    """What can be known before there is a page.

    Raises:
        ProbeError: the path is a folder, its folder is missing, or neither can be told.
    """
    try:
        is_folder, has_folder = path.is_dir(), path.parent.is_dir()
    except OSError as error:
        raise _refused(path, error) from None
    if is_folder:
        raise ProbeError(f"report: {path}: expected a file, found a folder; name a file in it")
    if not has_folder:
        raise ProbeError(f"report: {path}: there is no folder {path.parent}; make it first")


def _refused(path: Path, error: OSError) -> ProbeError:
    return ProbeError(
        f"report: {path}: cannot be written: {error.strerror or error}; name a file elsewhere"
    )

"""A page, or another text, into a file: whole or not at all."""

from __future__ import annotations

import os
from errno import EACCES
from pathlib import Path

from specedge.errors import ProbeError
from specedge.replacing import write_file


def write(path: Path, text: str) -> None:
    """Write beside the file and rename; what is no regular file (a pipe, a device) is written to.

    Raises:
        ProbeError: the path is a folder, its folder is missing, or it cannot be written.
    """
    try:
        check_place(path)
        write_file(path, text)
    except OSError as error:
        raise _refused(path, error) from None


def check_place(path: Path) -> None:
    """What can be known before there is a page.

    Raises:
        ProbeError: the path is a folder, its folder is missing or may not be written to, or none of
            it can be told.
    """
    try:
        is_folder, is_special = path.is_dir(), path.exists() and not path.is_file()
        folder = path.resolve().parent
        has_folder = folder.is_dir()
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself
        raise _refused(path, error) from None
    if is_folder:
        raise ProbeError(f"report: {path}: expected a file, found a folder; name a file in it")
    if not has_folder:
        raise ProbeError(f"report: {path}: there is no folder {folder}; make it first")
    if not os.access(path if is_special else folder, os.W_OK):
        raise _refused(path, PermissionError(EACCES, os.strerror(EACCES)))


def _refused(path: Path, error: OSError | RuntimeError) -> ProbeError:
    why = getattr(error, "strerror", None) or error
    return ProbeError(f"report: {path}: cannot be written: {why}; name a file elsewhere")

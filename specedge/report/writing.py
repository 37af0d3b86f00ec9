"""A page into a file, whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from specedge.errors import ProbeError


def write(path: Path, html: str) -> None:
    """Write beside the file and rename; what is no regular file (a pipe, a device) is written to.

    Raises:
        ProbeError: the path is a folder, its folder is missing, or it cannot be written.
    """
    try:
        if path.is_dir():
            raise ProbeError(f"report: {path}: expected a file, found a folder; name a file in it")
        if not path.parent.is_dir():
            raise ProbeError(f"report: {path}: there is no folder {path.parent}; make it first")
        if path.exists() and not path.is_file():
            path.write_text(html, encoding="utf-8")
        else:
            _replace(path.resolve(), html)  # a link stays a link
    except OSError as error:
        raise ProbeError(
            f"report: {path}: cannot be written: {error.strerror or error}; name a file elsewhere"
        ) from None


def _replace(path: Path, html: str) -> None:
    scratch = path.with_name(f".{path.name[:200]}.{os.getpid()}")
    try:
        scratch.write_text(html, encoding="utf-8", newline="\n")
        scratch.replace(path)
    except BaseException:  # Ctrl-C too leaves nothing behind
        with suppress(OSError):
            scratch.unlink()
        raise

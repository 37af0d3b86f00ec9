"""A text into a file, whole or not at all: a record, a page, metrics."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path


def write_file(path: Path, text: str) -> None:
    """`replace_file` of a path that a person gave: a pipe or a device is written to instead, and a
    link stays a link."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
    else:
        replace_file(path.resolve(), text)


def replace_file(path: Path, text: str) -> None:
    """Write UTF-8 beside the file and rename: a reader finds the old text or the new one.

    Raises:
        OSError: it cannot be written. The old file is still there, and nothing beside it.
    """
    # Two threads may write at once; and a collector of metrics reads whatever ends in ".prom".
    scratch = path.with_name(f".{path.name[:200]}.{os.getpid()}.{threading.get_ident()}")
    try:
        scratch.write_text(text, encoding="utf-8", newline="\n")
        scratch.replace(path)
    except BaseException:  # Ctrl-C too leaves nothing behind
        with suppress(OSError):
            scratch.unlink()
        raise

"""A file or a folder whole or not at all: a record, a page, metrics; a bundle, a result."""

from __future__ import annotations

import os
import shutil
import tempfile
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
    replace_bytes(path, text.encode("utf-8"))


def replace_bytes(path: Path, data: bytes | memoryview) -> None:
    """As `replace_file`."""
    # Two threads may write at once; and a collector of metrics reads whatever ends in ".prom".
    scratch = path.with_name(f".{path.name[:200]}.{os.getpid()}.{threading.get_ident()}")
    try:
        scratch.write_bytes(data)
        scratch.replace(path)
    except BaseException:  # Ctrl-C too leaves nothing behind
        with suppress(OSError):
            scratch.unlink()
        raise


def folder_beside(output: Path) -> Path:
    """A new hidden folder, for what is to become `output`; everybody may read it.

    Raises:
        OSError: it cannot be made.
    """
    folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    folder.chmod(0o755)  # mkdtemp's is for the owner alone
    return folder


def replace_folder(folder: Path, output: Path) -> None:
    """Rename `folder` to `output`, and remove what was there.

    Raises:
        OSError: it cannot be renamed. The old folder is still there, and so is the new one.
    """
    if not output.exists():
        folder.rename(output)
        return
    # two renames, not a delete and a rename: the old one is whole until the new one stands
    old = folder.with_name(f"{folder.name}.old")
    try:
        output.rename(old)
        folder.rename(output)
    finally:
        if old.exists() and not output.exists():  # an error, or Ctrl-C, between the two
            old.rename(output)
        shutil.rmtree(old, ignore_errors=True)

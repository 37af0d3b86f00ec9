"""Prompts from arguments, files and stdin."""

from __future__ import annotations

import sys
from pathlib import Path

from specedge.errors import PromptError


def read_stdin() -> str:
    """All of stdin, without the one newline that `echo` adds.

    Raises:
        PromptError: not UTF-8; names the byte.
    """
    text = decode(sys.stdin.buffer.read(), "stdin")
    return text.removesuffix("\n").removesuffix("\r")


def read_file(path: Path) -> str:
    """A whole text file.

    Raises:
        PromptError: it cannot be read or is not UTF-8.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise PromptError(f"{path}: cannot be read: {error.strerror}") from error
    return decode(raw, str(path))


def decode(raw: bytes, where: str) -> str:
    """Strict UTF-8; a byte order mark is dropped."""
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"{where}: invalid UTF-8 at byte {error.start} (0x{raw[error.start]:02x}); "
            "convert the text to UTF-8"
        ) from None

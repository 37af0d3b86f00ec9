"""Small files that only some machines have: what cannot be read is None, and nothing waits."""

from __future__ import annotations

import os
import re
from pathlib import Path

MOST_BYTES = 1 << 20  # /proc/cpuinfo of some hundred cores

_INTEGER = re.compile(r"-?[0-9]{1,19}")
# a pipe in place of a file would wait for a writer
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def text(path: Path) -> str | None:
    """The whole file without the white space around it; None when unreadable or empty."""
    try:
        return _read(path) or None
    except OSError:
        return None


def line(path: Path) -> str | None:
    """The first line, where it can be shown: no control characters, at most 80 long."""
    first = (text(path) or "").split("\n", 1)[0].strip()
    return first if first.isprintable() and 0 < len(first) <= 80 else None


def number(path: Path) -> int | None:
    """A file that holds one integer and nothing else."""
    found = text(path)
    return int(found) if found is not None and _INTEGER.fullmatch(found) else None


def count(path: Path) -> int | None:
    """As `number`, of what cannot be negative."""
    found = number(path)
    return found if found is not None and found >= 0 else None


def trouble(path: Path) -> str:
    """Why `count` gives nothing, for a person; empty when it does give something."""
    try:
        found = _read(path)
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    if _INTEGER.fullmatch(found) and int(found) >= 0:
        return ""
    return f"{path}: expected a count, found {found[:20]!r}"


def matching(root: Path, pattern: str) -> list[Path]:
    """Paths under `root`, in order of name; those that cannot be listed are left out."""
    try:
        return sorted(root.glob(pattern))
    except (OSError, RuntimeError):  # RuntimeError: links in a circle
        return []


def _read(path: Path) -> str:
    try:
        handle = os.open(path, _FLAGS)
    except ValueError as error:  # a null character in the path
        raise OSError(22, str(error)) from None
    try:
        blocks: list[bytes] = []
        size = 0
        while size < MOST_BYTES and (block := os.read(handle, MOST_BYTES - size)):
            blocks.append(block)
            size += len(block)
    finally:
        os.close(handle)
    return b"".join(blocks).decode("utf-8", errors="replace").strip("\0 \t\r\n")

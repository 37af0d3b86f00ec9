"""Running the command line inside a test."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest

from specedge.cli import invoke as specedge
from tiny import EOS, byte_tokenizer

Said = tuple[int, str, str]


def alphabet(end: bool = False) -> dict[str, object]:
    """Rule: every letter is followed by the next, z by a or by the end; all else by a."""
    vocab = byte_tokenizer().get_vocab()
    letters = [vocab[chr(code)] for code in range(ord("a"), ord("z") + 1)]
    following = dict(zip(letters, [*letters[1:], EOS if end else letters[0]], strict=True))
    successors = {str(key): value for key, value in following.items()}
    return {"rule": "table", "successors": successors, "default": letters[0]}


def runner(capfd: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Runs a command line in this process; gives exit code, stdout, stderr.

    `stdin` None is a terminal without anybody at it.
    """

    def run(*args: str, stdin: bytes | None = None) -> Said:
        fake = io.TextIOWrapper(io.BytesIO(stdin or b""), encoding="utf-8")
        monkeypatch.setattr(fake, "isatty", lambda: stdin is None)
        monkeypatch.setattr(sys, "stdin", fake)
        code = specedge([str(arg) for arg in args])
        out, err = capfd.readouterr()
        return code, out, err

    return run

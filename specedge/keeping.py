"""Records beside a bundle: `<kind>/<fingerprint hash>.json`, of what was found on this machine.

They lie in the bundle's folder, beside and not among the files that the bundle's hash covers; in
the user's cache, by the bundle's hash, where the bundle is read-only. One that cannot be believed
is no error: it is said why, and whoever wanted it starts anew.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, StrictBool, StrictInt, StrictStr, ValidationError

from specedge.bundle import Bundle, cache_dir
from specedge.errors import ProbeError
from specedge.probe.fingerprint import short_hash
from specedge.replacing import replace_file

_TRIES, _BETWEEN_S = 500, 0.002  # a second for a lock

KeptType = TypeVar("KeptType", bound="Kept")


class Kept(BaseModel):
    """What every kind of record says first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: int
    created: str  # UTC, ISO 8601
    fingerprint: dict[str, StrictStr | StrictInt | StrictBool | None]

    @property
    def hash(self) -> str:
        """The name of its file."""
        return short_hash(self.fingerprint)


def folders(bundle: Bundle, kind: str) -> list[Path]:
    """Where records of a bundle may lie, in the order they are tried; none need exist."""
    found = [bundle.path / kind]
    with suppress(RuntimeError):  # no home folder
        found.append(cache_dir() / kind / bundle.hash)
    return found


def stored(bundle: Bundle, kind: str) -> Iterator[Path]:
    """All that lie there, whether or not they can be read."""
    for folder in folders(bundle, kind):
        with suppress(OSError):
            yield from sorted(folder.glob("*.json"))


def read(path: Path, bundle: Bundle, record: type[KeptType], schema: int) -> KeptType | str | None:
    """A record, or why it cannot be used; None when there is none."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be read for ever
            return f"{path}: not a regular file"
        said = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"{path}: cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        return f"{path}: not valid JSON, perhaps cut short"
    version = said.get("schema_version") if isinstance(said, dict) else None
    if version != schema:
        return f"{path}: schema {version!r}, this specedge reads {schema}"
    try:
        found = record.model_validate(said)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        return f"{path}: {where}: {' '.join(first['msg'].split())}"
    if found.fingerprint.get("bundle") != bundle.hash:
        return f"{path}: of another bundle"
    if found.hash != path.stem:
        return f"{path}: its fingerprint is not the one it is named after"
    return found


@contextmanager
def turn(bundle: Bundle) -> Iterator[None]:
    """Read and store meanwhile, and lose nothing of what others store who do the same.

    Other threads and processes wait for it, but no longer than a second: one that was stopped must
    not stop them all. Where the system has no such locks nobody waits.
    """
    lock = _lock(bundle.path)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """A file descriptor whose closing ends it."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        found = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        for _ in range(_TRIES):
            try:
                fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_BETWEEN_S)
            else:
                return found
    except OSError:  # a file system without locks
        pass
    except BaseException:  # Ctrl-C
        os.close(found)
        raise
    os.close(found)
    return None


def store(bundle: Bundle, kind: str, record: Kept) -> Path:
    """Write a record whole or not at all; returns where.

    Raises:
        ProbeError: neither the bundle's folder nor the cache can be written.
    """
    text = record.model_dump_json(indent=1) + "\n"
    failures = []
    for folder in folders(bundle, kind):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{record.hash}.json"
            replace_file(path, text)
            return path
        except OSError as error:
            failures.append(f"{folder}: {error.strerror or error}")
    raise ProbeError(
        f"the record cannot be kept ({'; '.join(failures)}); make one of them writable, or set "
        "SPECEDGE_CACHE to a folder that is"
    )

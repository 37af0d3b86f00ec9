"""Keep a measurement: `probes/<fingerprint>.json`.

It lies in the bundle's folder, beside and not among the files that the bundle's hash covers; in the
user's cache, by the bundle's hash, where the bundle is read-only. A record that cannot be believed
is no error: it is said why, and the measurement is made again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError

from specedge.bundle import Bundle, cache_dir
from specedge.errors import ProbeError
from specedge.probe.curves import CostCurves, PlanName
from specedge.probe.findings import Findings
from specedge.probe.fingerprint import Fingerprint, changed, short_hash
from specedge.replacing import replace_file

SCHEMA = 2
FOLDER = "probes"
NO_RECORD = "there is no record yet"


class Record(BaseModel):
    """One file: when, on what, the curves, and what was decided from them.

    `findings` is None where a run measured costs in its stream and nobody probed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Annotated[int, Field(ge=1)] = SCHEMA
    created: str  # UTC, ISO 8601
    fingerprint: dict[str, StrictStr | StrictInt | StrictBool | None]
    curves: CostCurves
    findings: Findings | None = None

    @classmethod
    def of(
        cls, fingerprint: Fingerprint, curves: CostCurves, findings: Findings | None = None
    ) -> Record:
        """A record made now."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        return cls(created=now, fingerprint=dict(fingerprint), curves=curves, findings=findings)

    @property
    def hash(self) -> str:
        return short_hash(self.fingerprint)


@dataclass(frozen=True)
class Found:
    """What is stored for a fingerprint.

    Args:
        record: None when there is none that can be used.
        path: where the record lies.
        reason: in one line why there is none; empty when there is one.
    """

    record: Record | None
    path: Path | None
    reason: str


def folders(bundle: Bundle) -> list[Path]:
    """Where records of a bundle may lie, in the order they are tried; none need exist."""
    found = [bundle.path / FOLDER]
    with suppress(RuntimeError):  # no home folder
        found.append(cache_dir() / FOLDER / bundle.hash)
    return found


def find(bundle: Bundle, fingerprint: Fingerprint, plan: PlanName = "full") -> Found:
    """The record of this fingerprint, with all points of `plan`, or the reason for having none."""
    why = ""
    for folder in folders(bundle):
        path = folder / f"{short_hash(fingerprint)}.json"
        read = _read(path, bundle)
        if read is None:
            continue
        if isinstance(read, str):
            why = why or read
        elif plan == "full" and (read.curves.plan == "startup" or read.findings is None):
            why = why or f"{path}: holds only the costs that a run measured in its stream"
        else:
            return Found(read, path, "")
    return Found(None, None, why or _why_none(bundle, fingerprint))


def store(bundle: Bundle, record: Record) -> Path:
    """Write a record whole or not at all; returns where.

    Raises:
        ProbeError: neither the bundle's folder nor the cache can be written.
    """
    text = record.model_dump_json(indent=1) + "\n"
    failures = []
    for folder in folders(bundle):
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


def _read(path: Path, bundle: Bundle) -> Record | str | None:
    """A record, or why it cannot be used; None when there is none."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be read for ever
            return f"{path}: no regular file"
        said = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"{path}: cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        return f"{path}: not valid JSON, perhaps cut short"
    schema = said.get("schema_version") if isinstance(said, dict) else None
    if schema != SCHEMA:
        return f"{path}: schema {schema!r}, this specedge reads {SCHEMA}"
    try:
        record = Record.model_validate(said)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        return f"{path}: {where}: {' '.join(first['msg'].split())}"
    if record.fingerprint.get("bundle") != bundle.hash:
        return f"{path}: of another bundle"
    if record.hash != path.stem:
        return f"{path}: its fingerprint is not the one it is named after"
    return record


def _why_none(bundle: Bundle, fingerprint: Fingerprint) -> str:
    """Compared with the newest record that can be read."""
    readable = (_read(path, bundle) for path in _stored(bundle))
    others = [record for record in readable if isinstance(record, Record)]
    if not others:
        return NO_RECORD
    newest = max(others, key=lambda record: record.created)
    different = ", ".join(changed(newest.fingerprint, fingerprint))
    return different or "the newest record knows other parts of a fingerprint"


def _stored(bundle: Bundle) -> Iterator[Path]:
    for folder in folders(bundle):
        with suppress(OSError):
            yield from sorted(folder.glob("*.json"))

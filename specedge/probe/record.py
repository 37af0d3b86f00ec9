"""Keep a measurement: `probes/<fingerprint>.json`, where `specedge.keeping` says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field

from specedge import keeping
from specedge.bundle import Bundle
from specedge.keeping import Kept
from specedge.probe.curves import CostCurves, PlanName
from specedge.probe.findings import Findings
from specedge.probe.fingerprint import Fingerprint, changed, short_hash

SCHEMA = 2
FOLDER = "probes"
NO_RECORD = "there is no record yet"


class Record(Kept):
    """One file: when, on what, the curves, and what was decided from them.

    `findings` is None where a run measured costs in its stream and nobody probed.
    """

    schema_version: Annotated[int, Field(ge=1)] = SCHEMA
    curves: CostCurves
    findings: Findings | None = None

    @classmethod
    def of(
        cls, fingerprint: Fingerprint, curves: CostCurves, findings: Findings | None = None
    ) -> Record:
        """A record made now."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        return cls(created=now, fingerprint=dict(fingerprint), curves=curves, findings=findings)


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
    """See `specedge.keeping.folders`."""
    return keeping.folders(bundle, FOLDER)


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
    """See `specedge.keeping.store`."""
    return keeping.store(bundle, FOLDER, record)


def _read(path: Path, bundle: Bundle) -> Record | str | None:
    return keeping.read(path, bundle, Record, SCHEMA)


def _why_none(bundle: Bundle, fingerprint: Fingerprint) -> str:
    """Compared with the newest record that can be read."""
    readable = (_read(path, bundle) for path in keeping.stored(bundle, FOLDER))
    others = [record for record in readable if isinstance(record, Record)]
    if not others:
        return NO_RECORD
    newest = max(others, key=lambda record: record.created)
    different = ", ".join(changed(newest.fingerprint, fingerprint))
    return different or "the newest record knows other parts of a fingerprint"

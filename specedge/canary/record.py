"""What a canary has seen so far: `canaries/<fingerprint hash>.json`, where `specedge.keeping` says.

Comparisons roll, totals and evidence stay. Whoever adds one reads the file again first, in turn
with others, so several processes fill one record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from specedge import keeping
from specedge.bundle import Bundle
from specedge.errors import ProbeError
from specedge.keeping import Kept
from specedge.probe.findings import Estimate
from specedge.probe.fingerprint import Fingerprint, short_hash
from specedge.sampling.params import RuleName

SCHEMA = 1
FOLDER = "canaries"
MOST_KEPT = 200  # comparisons
MOST_EVIDENCE = 20

Tokens = Literal["equal", "near-tie", "mismatch", "not compared"]
"""Near-tie: they differ within the width noise. Not compared: sampled by a rule whose tokens do not
repeat when nobody drafts."""
State = Literal["watching", "on", "off: mismatch", "off: loss"]


def now() -> str:
    """UTC, ISO 8601; fine enough to tell which of two records is the newer."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Comparison(_Part):
    """One request decoded both ways.

    Args:
        at: when it was compared; UTC, ISO 8601.
        tokens: what came of comparing the outputs.
        generated: tokens of the answer that its reader got.
        plain_ms, spec_ms: from the first token to the last, the reader's own time left out, scaled
            to as many tokens as plain decoding gave; None: an output was too short to time.
        acceptance: the rule.
        proposed, accepted: drafted tokens, and how many of them were kept.
        proposers: who drafted.
    """

    at: str
    tokens: Tokens
    generated: Annotated[int, Field(ge=0)]
    plain_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    spec_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    acceptance: RuleName
    proposed: Annotated[int, Field(ge=0)]
    accepted: Annotated[int, Field(ge=0)]
    proposers: tuple[str, ...]

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / proposed; None: nothing was drafted."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def timed(self) -> bool:
        """It says something of what drafting costs and gains."""
        return bool(self.proposed) and self.plain_ms is not None and self.spec_ms is not None


class Evidence(_Part):
    """Two outputs of one request that no rounding explains.

    Args:
        at: when.
        prompt_ids, plain_tokens, spec_tokens: ids.
        options: of the request, JSON-ready, with the seed that was drawn.
        acceptance: the rule.
        position: output tokens before the first difference.
        plain_token, spec_token: ids there; None: that output has ended.
        before, plain_text, spec_text: the end of the text before it, and the two tokens as text.
        margin: between the two tokens' logits; None: not measured.
        noise: what the width of calls moves such a margin by; None: likewise.
    """

    at: str
    prompt_ids: tuple[int, ...]
    plain_tokens: tuple[int, ...]
    spec_tokens: tuple[int, ...]
    options: dict[str, Any]
    acceptance: RuleName
    position: int
    plain_token: int | None
    spec_token: int | None
    before: str
    plain_text: str
    spec_text: str
    margin: float | None
    noise: float | None


class Totals(_Part):
    """Since the record was created.

    Args:
        compared: requests decoded both ways; the sum of the next four.
        equal, near_ties, mismatches, not_compared: by what came of their tokens.
        timed: of all, those that say something of speed.
        failures: the plain decode failed, or a difference could not be looked into.
        interrupted: given up for another request.
    """

    compared: int = 0
    equal: int = 0
    near_ties: int = 0
    mismatches: int = 0
    not_compared: int = 0
    timed: int = 0
    failures: int = 0
    interrupted: int = 0


class Verdict(_Part):
    """Whether speculation may go on.

    Args:
        state: "on": a look found a gain; "watching": none has found a gain or a loss yet.
        reason: in one line.
        since: when it was first so; UTC, ISO 8601.
    """

    state: State
    reason: str
    since: str

    @property
    def off(self) -> bool:
        return self.state in ("off: mismatch", "off: loss")


class Record(Kept):
    """One file.

    Args:
        updated: when something was last added; UTC, ISO 8601.
        verdict: as of the last look.
        gain: of the last look; None: there was none yet.
        last_failure: in one line; None: there was none.
        evidence: of the first mismatches.
        last: comparisons, the newest last.
    """

    schema_version: Annotated[int, Field(ge=1)] = SCHEMA
    updated: str
    verdict: Verdict
    totals: Totals = Totals()
    gain: Estimate | None = None
    last_failure: str | None = None
    evidence: Annotated[tuple[Evidence, ...], Field(max_length=MOST_EVIDENCE)] = ()
    last: Annotated[tuple[Comparison, ...], Field(max_length=MOST_KEPT)] = ()

    @classmethod
    def new(cls, fingerprint: Fingerprint) -> Record:
        """Nothing was seen yet."""
        at = now()
        verdict = Verdict(state="watching", reason="nothing was compared yet", since=at)
        return cls(created=at, fingerprint=dict(fingerprint), updated=at, verdict=verdict)


@dataclass(frozen=True)
class Found:
    """What is stored for a fingerprint.

    Args:
        record: None when there is none that can be used.
        path: where it lies, or where a damaged one does.
        damage: why what is there cannot be used; empty where it can, or where nothing is.
    """

    record: Record | None
    path: Path | None
    damage: str


def find(bundle: Bundle, fingerprint: Fingerprint) -> Found:
    """The record of this fingerprint; where both places have one, the newer."""
    name = f"{short_hash(fingerprint)}.json"
    damage, where = "", None
    found: list[tuple[Record, Path]] = []
    for folder in keeping.folders(bundle, FOLDER):
        path = folder / name
        read = _read(path, bundle)
        if isinstance(read, Record):
            found.append((read, path))
        elif read is not None and not damage:
            damage, where = read, path
    if not found:
        return Found(None, where, damage)
    newest = max(found, key=lambda each: each[0].updated)
    return Found(*newest, "")


def stored(bundle: Bundle) -> Iterator[tuple[Path, Record | str]]:
    """All records of a bundle, or why one cannot be used."""
    for path in keeping.stored(bundle, FOLDER):
        read = _read(path, bundle)
        if read is not None:
            yield path, read


def update(
    bundle: Bundle,
    fingerprint: Fingerprint,
    change: Callable[[Record], Record],
    known: Record | None = None,
) -> tuple[Record, str]:
    """Change what is stored by now.

    Args:
        bundle: whose.
        fingerprint: of engines and settings.
        change: made to a new record where none can be used.
        known: what this process could not store before; counts where it is the newer.

    Returns:
        The changed record, and why it could not be stored; empty where it was.
    """
    with keeping.turn(bundle):
        there = [each for each in (find(bundle, fingerprint).record, known) if each is not None]
        record = max(there, key=lambda each: each.updated, default=None) or Record.new(fingerprint)
        changed = change(record)
        try:
            keeping.store(bundle, FOLDER, changed)
        except ProbeError as error:
            return changed, str(error)
    return changed, ""


def clear(bundle: Bundle) -> int:
    """Remove every record of a bundle; returns how many files there were.

    Raises:
        ProbeError: one cannot be removed.
    """
    removed = 0
    for path in list(keeping.stored(bundle, FOLDER)):
        try:
            path.unlink()
        except OSError as error:
            raise ProbeError(
                f"{path}: the record cannot be removed: {error.strerror or error}; make its folder "
                "writable, or remove the file yourself"
            ) from error
        removed += 1
        with suppress(OSError):  # others may lie there
            path.parent.rmdir()
    return removed


def _read(path: Path, bundle: Bundle) -> Record | str | None:
    return keeping.read(path, bundle, Record, SCHEMA)

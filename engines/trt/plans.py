"""Plans on disk: what one is named after, where it lies, and whether it may be loaded.

A plan is an engine that TensorRT or TensorRT-RTX compiled from a `standard` graph:

    plans/<device>/<role>-<backend>-<version>-sm<cc>-<graph>-T<context>.plan
    plans/<device>/...                                                     .json

`<device>` is the GPU that TensorRT compiled it on; TensorRT-RTX compiles for a compute capability,
and there it is `sm89`. The JSON beside a plan is its `PlanRecord`: the whole key, sha256, bytes and
the build's report. It is written last, so that a plan without one is half a plan and is never
loaded. Plans lie in the bundle's folder, beside and not among the files that its hash covers, or in
the user's cache by the bundle's hash where the bundle is read-only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from specedge.bundle import cache_dir
from specedge.contract import MANIFEST, EngineOptions, GraphSpec, rope_rows
from specedge.engines.matching import Backend
from specedge.engines.trt import writing
from specedge.engines.trt.writing import Buffer
from specedge.errors import PlanError
from specedge.memory import PREFILL_CHUNK

SCHEMA = 1
FOLDER = "plans"
VERIFY, PREFILL = 0, 1  # indices of a plan's optimisation profiles

_WHOLE = 64  # hexadecimal digits of a sha256


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PlanKey(_Model):
    """Everything that a plan depends on."""

    backend: Backend
    version: str  # of the library, in full
    compute_capability: int  # 89 for SM 8.9
    device: str | None  # the GPU's name; None: TensorRT-RTX, any GPU of the compute capability
    role: Literal["target", "draft"]
    graph: str  # `graph_hash`
    context: int  # rows that a sequence may fill; T is a little more, see `rows`
    max_verify: int  # widest call of profile VERIFY, and most rows scored by any
    prefill_chunk: int  # widest call of profile PREFILL
    options: EngineOptions = {}  # of the build: "tune_for"

    @property
    def rows(self) -> int:
        """T, static in a plan: an engine may pad the last call of a full context, and what padding
        writes must have a place. A multiple of 8, as tensor cores like their sizes."""
        return -(-rope_rows(self.context) // 8) * 8

    @property
    def folder(self) -> str:
        return f"sm{self.compute_capability}" if self.device is None else _slug(self.device)

    @property
    def stem(self) -> str:
        """File name without its ending."""
        return (
            f"{self.role}-{self.backend}-{_slug(self.version)}-sm{self.compute_capability}"
            f"-{self.graph[:12]}-T{self.context}"
        )


class Widths(_Model):
    """One optimisation profile: S and M from 1 to these, kernels chosen for `tuned`."""

    name: Literal["verify", "prefill"]
    widest: int  # S
    tuned: int  # S
    rows: int  # M
    device_bytes: int | None = None  # activations of its widest call; None: the build cannot tell


class BuildReport(_Model):
    """What a build took and what its plan will take. Bytes; None: the build cannot tell."""

    seconds: float
    parse_seconds: float
    plan_bytes: int
    weight_bytes: int  # of the graph's weights file
    kv_bytes: int  # of one sequence: T rows whatever is cached, and attention reads all of them
    device_bytes: int | None  # activations, the larger of both profiles
    device_weight_bytes: int | None = None  # weights as the plan holds them; kernels are the rest
    peak_host_bytes: int | None  # resident set of the building process
    layers: int  # of the parsed network
    profiles: list[Widths]
    notes: list[str] = []


class PlanRecord(_Model):
    """The JSON beside a plan."""

    schema_version: int = SCHEMA
    created: str  # UTC, ISO 8601
    key: PlanKey
    sha256: str
    bytes: int
    report: BuildReport


@dataclass(frozen=True)
class Plan:
    """A plan that fits, not yet read."""

    path: Path
    record: PlanRecord

    def read(self) -> bytes:
        """The plan's bytes, checked against its record.

        Raises:
            PlanError: it cannot be read, is cut short or was altered.
        """
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise PlanError(f"{self.path}: cannot be read: {error.strerror}") from error
        if len(data) != self.record.bytes or _sha256(data) != self.record.sha256:
            raise PlanError(
                f"{self.path}: damaged: {len(data)} bytes, expected {self.record.bytes} of sha256 "
                f"{self.record.sha256[:12]}…; build it again with specedge build --force"
            )
        return data

    def damage(self) -> str | None:
        """Why `read` would refuse it; read in pieces, for nothing but this."""
        try:
            with self.path.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        return None if found == self.record.sha256 else "its bytes are not those built: damaged"


def graph_hash(bundle: Path, spec: GraphSpec) -> str:
    """sha256 over the graph's and its weights' own, which the manifest lists.

    Raises:
        PlanError: the manifest cannot be read or does not list them.
    """
    try:
        files = json.loads((bundle / MANIFEST).read_bytes())["files"]
        parts = [files[name]["sha256"] for name in (spec.model, spec.weights)]
        return _sha256("\n".join(parts).encode())
    except (OSError, ValueError, KeyError, TypeError):
        raise PlanError(
            f"{bundle / MANIFEST}: lists no sha256 of {spec.model} and {spec.weights}; export the "
            "bundle again"
        ) from None


def key_for(
    bundle: Path,
    spec: GraphSpec,
    *,
    backend: Backend,
    version: str,
    compute_capability: int,
    device: str | None,
    context: int | None = None,
    options: EngineOptions | None = None,
) -> PlanKey:
    """The key of a plan to build or to look for.

    Args:
        device: the GPU's name; dropped for tensorrt-rtx, whose plans run on any GPU of the compute
            capability.
        context: rows that a sequence may fill; None: the graph's.

    Raises:
        PlanError: as `graph_hash`.
    """
    rows = spec.context if context is None else context
    return PlanKey(
        backend=backend,
        version=version,
        compute_capability=compute_capability,
        device=None if backend == "tensorrt-rtx" else device,
        role=spec.role,
        graph=graph_hash(bundle, spec),
        context=rows,
        max_verify=min(spec.max_verify, rows),
        prefill_chunk=min(PREFILL_CHUNK, rows),
        options=options or {},
    )


def folders(bundle: Path) -> list[Path]:
    """Where plans of a bundle may lie, in the order they are tried; none need exist."""
    found = [bundle / FOLDER]
    with suppress(OSError, RuntimeError):  # no manifest, no home folder
        manifest = (bundle / MANIFEST).read_bytes()
        found.append(cache_dir() / FOLDER / _sha256(manifest))
    return found


def find(bundle: Path, wanted: PlanKey) -> Plan:
    """The plan that serves `wanted`: the same but for `options`, and a context at least as large.

    Of several the one with the smallest, and of those the newest: what is read-only in a bundle
    cannot be replaced there. Nothing but its record and its size is read.

    Raises:
        PlanError: none serves; what differs in the nearest, and the command that builds one.
    """
    near: list[tuple[int, str]] = []
    serving = []
    for path in _records(bundle):
        record = _read(path)
        if isinstance(record, str):
            near.append((_WHOLE, record))
            continue
        reasons = [*_differences(record.key, wanted), *_damage(path, record)]
        if not reasons:
            serving.append(Plan(path.with_suffix(".plan"), record))
        elif record.key.backend == wanted.backend and record.key.role == wanted.role:
            near.append((len(reasons), f"{path.with_suffix('.plan').name}: {', '.join(reasons)}"))
    if serving:
        return max(serving, key=lambda plan: (-plan.record.key.context, plan.record.created))
    why = f"the nearest is {min(near)[1]}" if near else "there is none"
    raise PlanError(
        f"{bundle}: no {wanted.backend} {wanted.version} plan of the {wanted.role} for "
        f"{_device(wanted)} and a context of {wanted.context}: {why}; run: "
        f"{command(bundle, wanted)}"
    )


def beside(bundle: Path) -> list[tuple[Plan, str | None]]:
    """Every plan whose record can be read, whatever it was built for; what is wrong with it, or
    None. Nothing but its record and its size is read."""
    found = []
    for path in _records(bundle):
        record = _read(path)
        if not isinstance(record, str):
            damage = ", ".join(_damage(path, record)) or None
            found.append((Plan(path.with_suffix(".plan"), record), damage))
    return found


def current(bundle: Path, key: PlanKey) -> Plan | str | None:
    """The plan of exactly this key; why the one in its place is stale; None: there is none.

    Where the bundle and the cache have one each, that is the one `find` would take.
    """
    stale: list[str] = []
    sound: list[Plan] = []
    for folder in folders(bundle):
        path = folder / key.folder / f"{key.stem}.json"
        if not path.exists():
            continue
        record = _read(path)
        if isinstance(record, str):
            stale.append(record)
        elif reasons := [*_differences(record.key, key), *_damage(path, record)]:
            stale.append(", ".join(reasons))
        else:
            sound.append(Plan(path.with_suffix(".plan"), record))
    if not sound:
        return stale[0] if stale else None
    newest = max(sound, key=lambda plan: plan.record.created)
    if newest.record.key.options != key.options:
        return f"built with {_options(newest.record.key)}, now {_options(key)}"
    return newest


def store(bundle: Path, key: PlanKey, plan: Buffer, report: BuildReport) -> Plan:
    """Write a plan whole or not at all, its record last.

    Raises:
        PlanError: neither the bundle's folder nor the cache can be written, or the disk is full.
    """
    record = PlanRecord(
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        key=key,
        sha256=_sha256(plan),
        bytes=len(plan),
        report=report,
    )
    failures = []
    for folder in folders(bundle):
        path = folder / key.folder / f"{key.stem}.plan"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            writing.keep(path, plan, record.model_dump_json(indent=1) + "\n")
        except OSError as error:
            failures.append(f"{folder}: {error.strerror or error}")
            for empty in (path.parent, folder):
                with suppress(OSError):  # it is not, or was never made
                    empty.rmdir()
        else:
            return Plan(path, record)
    raise PlanError(
        f"the plan of {len(plan) / 1e6:.0f} MB cannot be kept ({'; '.join(failures)}); free space, "
        "make one of them writable, or set SPECEDGE_CACHE to a folder that is"
    )


def free_bytes(bundle: Path) -> int | None:
    """What the disks have left where `store` could write, the most of them; None: nowhere."""
    free = []
    for folder in folders(bundle):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if os.access(there, os.W_OK):
            free.append(shutil.disk_usage(there).free)
    return max(free, default=None)


def command(bundle: Path, key: PlanKey) -> str:
    """What a person types to build it."""
    capability = f" --compute-capability {key.compute_capability}" if key.device is None else ""
    return (
        f"specedge build {bundle} --backend {key.backend}{capability} --context {key.context} "
        f"--role {key.role}"
    )


def _records(bundle: Path) -> Iterator[Path]:
    for folder in folders(bundle):
        with suppress(OSError):
            yield from sorted(folder.glob("*/*.json"))


def _read(path: Path) -> PlanRecord | str:
    """A record, or why it cannot be used."""
    try:
        said: Any = json.loads(path.read_bytes())
        if not isinstance(said, dict) or said.get("schema_version") != SCHEMA:
            return f"{path.name}: not a record that this specedge reads"
        return PlanRecord.model_validate(said)
    except (OSError, ValueError, RecursionError, ValidationError):
        return f"{path.name}: cannot be read, perhaps cut short"


def _damage(path: Path, record: PlanRecord) -> list[str]:
    try:
        found = path.with_suffix(".plan").stat().st_size
    except OSError:
        return ["its plan is missing"]
    return [] if found == record.bytes else [f"{found} bytes, expected {record.bytes}: damaged"]


def _differences(found: PlanKey, wanted: PlanKey) -> list[str]:
    """Why a plan cannot serve; empty: it can."""
    said = []
    if found.backend != wanted.backend:
        said.append(f"of {found.backend}, not {wanted.backend}")
    if found.version != wanted.version:
        said.append(f"built by version {found.version}, installed is {wanted.version}")
    if (found.compute_capability, found.device) != (wanted.compute_capability, wanted.device):
        said.append(f"for {_device(found)}, this is {_device(wanted)}")
    if found.graph != wanted.graph:
        said.append("of an older or another graph")
    if found.context < wanted.context:
        said.append(f"holds a context of {found.context}, asked for are {wanted.context}")
    if found.max_verify < wanted.max_verify:
        said.append(f"verifies {found.max_verify} tokens at once, needed are {wanted.max_verify}")
    if found.prefill_chunk < wanted.prefill_chunk:
        said.append(f"prefills {found.prefill_chunk} tokens at once, not {wanted.prefill_chunk}")
    return said


def _device(key: PlanKey) -> str:
    named = "" if key.device is None else f"{key.device}, "
    return f"{named}compute capability {key.compute_capability}"


def _options(key: PlanKey) -> str:
    return ", ".join(f"{name} = {value}" for name, value in key.options.items()) or "no options"


def _sha256(data: Buffer) -> str:
    return hashlib.sha256(data).hexdigest()


def _slug(text: str) -> str:
    """As part of a file name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.") or "unknown"

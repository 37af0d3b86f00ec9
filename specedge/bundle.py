"""Open, hash-check and describe a bundle.

A bundle is a folder that an export made: `specedge.json` (the manifest), a tokenizer, perhaps a
chat template, and one or two graphs with their weights. None of them is ever written to, so it
opens from a read-only place, through a symbolic link, and after it was moved. What is measured
later (`probes/`) lies beside them where that can be written, and is not part of its hash.

Hashing gigabytes at every start costs seconds. A file of at least `REMEMBER_BYTES` whose sha256
was once found right is remembered by path, size, modification and change time and inode in
`verified.json` in the user's cache folder, and is not read again while all of these stay as they
were. Without a writable cache folder every open hashes everything; deleting the file does the
same once. What this cannot see is damage below the file system: `rm` the cache to look again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from specedge.contract import CONTRACT, MANIFEST, SCHEMA, FileRecord, GraphSpec, Manifest
from specedge.errors import BundleError

TOKENIZER = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"

REMEMBER_BYTES = 1 << 20  # smaller files are hashed faster than a cache is worth
REMEMBERED = 1024  # entries kept in the cache, newest last
SETTLED_NS = 2_000_000_000  # a file changed later than this ago may change again in one clock tick
CHUNK = 4 << 20


def cache_dir() -> Path:
    """$SPECEDGE_CACHE, or ~/.cache/specedge; it need not exist."""
    named = os.environ.get("SPECEDGE_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "specedge"


def is_text(path: Path) -> bool:
    """Whether a path can be handed to a library as text: names of files may be any bytes."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: its folder and what its manifest says.

    Args:
        path: the folder, absolute; symbolic links are not resolved.
        manifest: the parsed `specedge.json`.
        hash: sha256 of the bytes of `specedge.json`, hence of everything it lists.
    """

    path: Path
    manifest: Manifest
    hash: str

    @classmethod
    def open(cls, path: str | os.PathLike[str], verify: bool = True) -> Bundle:
        """Read the manifest and check every file it lists: presence, size and, asked for, sha256.

        Args:
            path: the bundle's folder (or its `specedge.json`).
            verify: compare sha256 too; `False` trusts any file of the right size.

        Raises:
            BundleError: no bundle, a manifest that cannot be read or is newer than this
                version, or a file that is missing, of the wrong size or altered.
        """
        folder = Path(path).expanduser().absolute()
        if folder.name == MANIFEST and folder.is_file():
            folder = folder.parent
        raw = _read_manifest(folder)
        manifest = _parse(folder / MANIFEST, raw)
        _check_listing(folder / MANIFEST, manifest)
        _check_sizes(folder, manifest)
        if verify:
            _check_hashes(folder, manifest)
        return cls(folder, manifest, hashlib.sha256(raw).hexdigest())

    @property
    def tokenizer_json(self) -> str:
        """Content of `tokenizer.json`."""
        return _read_text(self.path / TOKENIZER)

    @property
    def chat_template(self) -> str | None:
        """Content of `chat_template.jinja`, or None when the model came without one."""
        if not self.manifest.tokenizer.has_chat_template:
            return None
        return _read_text(self.path / CHAT_TEMPLATE)

    def describe(self) -> dict[str, Any]:
        """What `specedge inspect` prints: JSON-ready, the manifest with where, hash and size."""
        said = self.manifest.model_dump(mode="json")
        files = said.pop("files")
        first = {key: said.pop(key) for key in ("name", "created", "schema_version", "contract")}
        return {
            **first,
            "path": str(self.path),
            "hash": self.hash,
            "bytes": sum(record["bytes"] for record in files.values()),
            **said,
            "files": files,
        }


def _read_manifest(folder: Path) -> bytes:
    if not folder.exists():
        raise BundleError(
            f"{folder}: no such folder; expected a bundle, as "
            f"`specedge export CONFIG -o {folder}` makes it"
        )
    if not is_text(folder):
        raise BundleError(
            f"{folder}: the path is not UTF-8, and no runtime opens such files; rename the folder"
        )
    if not folder.is_dir():
        raise BundleError(f"{folder}: a file; expected the folder that `specedge export` made")
    try:
        return (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise BundleError(
            f"{folder}: not a bundle, it has no {MANIFEST}; make one with `specedge export`"
        ) from None
    except OSError as exc:
        raise BundleError(f"{folder / MANIFEST}: cannot be read: {exc.strerror}") from exc


def _parse(where: Path, raw: bytes) -> Manifest:
    try:
        said = json.loads(raw)
    except (ValueError, RecursionError) as exc:
        raise BundleError(
            f"{where}: not valid JSON, perhaps cut short ({len(raw)} bytes: {exc}); "
            "export or copy the bundle again"
        ) from None
    if not isinstance(said, dict) or not isinstance(said.get("schema_version"), int):
        raise BundleError(f"{where}: no schema_version; expected a manifest of `specedge export`")
    if said["schema_version"] < 1:
        raise BundleError(f"{where}: schema_version: expected 1..{SCHEMA}; export the bundle again")
    if said["schema_version"] > SCHEMA:
        raise BundleError(
            f"{where}: written by a newer specedge (schema {said['schema_version']}, "
            f"this one reads up to {SCHEMA}): upgrade specedge"
        )
    try:
        manifest = Manifest.model_validate(said)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        more = f" (and {exc.error_count() - 1} more)" if exc.error_count() > 1 else ""
        raise BundleError(
            f"{where}: {key}: {first['msg']}{more}; export the bundle again"
        ) from None
    if manifest.contract != CONTRACT:
        raise BundleError(
            f"{where}: graphs of contract {manifest.contract}, this specedge runs {CONTRACT}; "
            "export the bundle again"
        )
    return manifest


def _check_listing(where: Path, manifest: Manifest) -> None:
    """Every path stays inside the folder, and everything a run opens is listed."""
    graphs: list[GraphSpec] = [manifest.target]
    if manifest.draft is not None:
        graphs.append(manifest.draft)
    needed = [TOKENIZER, *(name for graph in graphs for name in (graph.model, graph.weights))]
    if manifest.tokenizer.has_chat_template:
        needed.append(CHAT_TEMPLATE)
    for name in (*manifest.files, *needed):
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\\" in name or ":" in name:
            raise BundleError(
                f"{where}: the path {name!r} leaves the bundle's folder; do not use this bundle"
            )
    for name in needed:
        if name not in manifest.files:
            raise BundleError(f"{where}: files does not list {name}; export the bundle again")


def _check_sizes(folder: Path, manifest: Manifest) -> None:
    for name, record in manifest.files.items():
        file = folder / name
        try:
            found = file.stat().st_size
        except OSError as exc:
            raise BundleError(
                f"{file}: missing ({exc.strerror}); expected {record.bytes} bytes; "
                "export or copy the bundle again"
            ) from None
        if found != record.bytes:
            raise BundleError(
                f"{file}: {found} bytes, expected {record.bytes}; the file is "
                f"{'cut short' if found < record.bytes else 'not the one that was exported'}: "
                "export or copy the bundle again"
            )


def _check_hashes(folder: Path, manifest: Manifest) -> None:
    remembered = _recall()
    new: dict[str, str] = {}
    for name, record in manifest.files.items():
        key = _identity(folder / name) if record.bytes >= REMEMBER_BYTES else None
        if key is not None and remembered.get(key) == record.sha256:
            continue
        _check_hash(folder / name, record)
        if key is not None and key == _identity(folder / name) and _settled(folder / name):
            new[key] = record.sha256
    if new:
        _remember(remembered | new)


def _check_hash(file: Path, record: FileRecord) -> None:
    try:
        with file.open("rb", buffering=0) as stream:
            digest = hashlib.sha256()
            buffer = memoryview(bytearray(min(CHUNK, max(1, record.bytes))))
            while count := stream.readinto(buffer):
                digest.update(buffer[:count])
    except OSError as exc:
        raise BundleError(f"{file}: cannot be read: {exc.strerror}") from exc
    if digest.hexdigest() != record.sha256:
        raise BundleError(
            f"{file}: altered since the export: sha256 {digest.hexdigest()}, expected "
            f"{record.sha256}; export or copy the bundle again"
        )


def _identity(file: Path) -> str:
    stat = file.stat()
    return f"{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}:{file}"


def _settled(file: Path) -> bool:
    stat = file.stat()
    return time.time_ns() - max(stat.st_mtime_ns, stat.st_ctime_ns) > SETTLED_NS


def _recall() -> dict[str, str]:
    try:
        said = json.loads((cache_dir() / "verified.json").read_bytes())
    except (OSError, ValueError, RuntimeError):  # RuntimeError: no home folder
        return {}
    return said if isinstance(said, dict) else {}


def _remember(verified: dict[str, str]) -> None:
    """Best effort: a cache that cannot be written only costs hashing again."""
    kept = dict(list(verified.items())[-REMEMBERED:])
    try:
        folder = cache_dir()
        folder.mkdir(parents=True, exist_ok=True)
        scratch = folder / f"verified.json.{os.getpid()}"
        scratch.write_text(json.dumps(kept), encoding="utf-8")
        scratch.replace(folder / "verified.json")
    except (OSError, RuntimeError):
        return


def _read_text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8")
    except OSError as exc:
        raise BundleError(f"{file}: cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise BundleError(
            f"{file}: not UTF-8 at byte {exc.start}; export the bundle again"
        ) from None

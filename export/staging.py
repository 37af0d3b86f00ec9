"""A bundle appears whole or not at all.

Everything is written to a hidden folder beside the destination, the manifest last, and one rename
puts it in place. Whatever goes wrong, Ctrl-C included, the hidden folder is removed; after a
power cut it may stay, without a manifest, and never opens as a bundle.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specedge.bundle import is_text
from specedge.contract import MANIFEST, FileRecord, Manifest
from specedge.errors import ExportError
from specedge.progress import Progress
from specedge.replacing import folder_beside, replace_folder

_BLOCK = 4 << 20


@contextmanager
def staged(output: Path, *, force: bool) -> Iterator[Path]:
    """A folder to write the bundle to; it becomes `output` when the block ends well.

    Args:
        output: must not exist, or be a bundle that `force` allows to replace.

    Raises:
        ExportError: `output` is taken, or the folder it should be in cannot be written.
    """
    if not is_text(output.absolute()):
        raise ExportError(f"{output}: the path is not UTF-8; choose another destination")
    try:
        _check_destination(output, force)
        absent = absent_parents(output)
    except (OSError, ValueError) as error:  # a name that is too long, or no name at all
        raise failure(output, error) from error
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = folder_beside(output)
    except OSError as error:
        remove_empty(absent)
        raise failure(output.parent, error) from error
    try:
        yield folder
        replace_folder(folder, output)
    except OSError as error:
        raise failure(output, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        remove_empty(absent)


def absent_parents(output: Path) -> list[Path]:
    """Folders that have to be made for `output`; innermost first."""
    return [path for path in output.absolute().parents if not path.exists()]


def remove_empty(folders: list[Path]) -> None:
    """Parents that were made for a bundle which did not come to be; innermost first."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:  # not empty, or never made
            return


def _check_destination(output: Path, force: bool) -> None:
    if not output.exists() and not output.is_symlink():
        return
    if not (output.is_dir() and ((output / MANIFEST).is_file() or not any(output.iterdir()))):
        raise ExportError(
            f"{output}: exists and is not a bundle; choose another destination or remove it"
        )
    if not force and any(output.iterdir()):
        raise ExportError(
            f"{output}: a bundle is there already; pass --force to replace it, or -o to write "
            "another beside it"
        )


def failure(path: Path, error: OSError | ValueError) -> ExportError:
    """An error of the file system as one line."""
    reason = getattr(error, "strerror", None) or str(error)
    return ExportError(f"{path}: cannot be written: {reason}; choose another folder, or free space")


def check_space(folder: Path, needed: int) -> None:
    """Refuse early what would fill the disk (ExportError)."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ExportError(
            f"{folder.parent}: the bundle needs {needed / 1e6:.0f} MB, the disk has "
            f"{free / 1e6:.0f} MB free; choose another folder, or free space"
        )


def record_files(
    folder: Path, progress: Progress, known: dict[str, str] | None = None
) -> dict[str, FileRecord]:
    """sha256 and size of every file under `folder`, by its path in the bundle.

    Args:
        known: hashes that were computed while writing.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    progress.stage("hash", sum(path.stat().st_size for path in paths), "B")
    records = {}
    for path in paths:
        name = path.relative_to(folder).as_posix()
        size = path.stat().st_size
        sha256 = (known or {}).get(name) or _sha256(path)
        records[name] = FileRecord(sha256=sha256, bytes=size)
        progress.advance(size)
    return records


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write specedge.json, to the disk itself: it is what makes the folder a bundle."""
    with (folder / MANIFEST).open("w", encoding="utf-8") as file:
        file.write(manifest.model_dump_json(indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()

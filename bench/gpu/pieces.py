"""A file too large to travel whole: cut into pieces, and put together again.

    python3 -m gpu.pieces PIECES FOLDER      # join what lies in PIECES; standard library only

A folder of pieces has NAME.000, NAME.001, ... and pieces.json: name, bytes and sha256 of the file,
name and sha256 of each piece.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHUNK = 1 << 20


class KitError(Exception):
    """One line: where, expected, found, remedy."""


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def replace(path: Path, write: Callable[[Path], Any]) -> None:
    """Write to a temporary file beside `path`, then rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def split(wheel: Path, folder: Path, piece_bytes: int) -> list[Path]:
    """Cut a file into pieces of at most `piece_bytes` and write pieces.json beside them.

    Returns:
        The pieces, in order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    with wheel.open("rb") as file:
        while data := file.read(piece_bytes):
            name = f"{wheel.name}.{len(names):03d}"
            replace(folder / name, lambda path, data=data: path.write_bytes(data))
            names.append(name)
    record = {
        "name": wheel.name,
        "bytes": wheel.stat().st_size,
        "sha256": sha256(wheel),
        "pieces": [{"name": name, "sha256": sha256(folder / name)} for name in names],
    }
    text = json.dumps(record, indent=1)
    replace(folder / "pieces.json", lambda path: path.write_text(text, encoding="utf-8"))
    return [folder / name for name in names]


def join(folder: Path, output: Path) -> Path:
    """Put the pieces of `folder` together in the folder `output`.

    Raises:
        KitError: pieces.json is missing, or a piece is missing or was altered.
    """
    try:
        record = json.loads((folder / "pieces.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise KitError(
            f"{folder}: expected pieces.json, found {error}; copy it here together with the pieces"
        ) from error
    for piece in record["pieces"]:
        path = folder / piece["name"]
        found = sha256(path) if path.exists() else "nothing"
        if found != piece["sha256"]:
            raise KitError(
                f"{path}: expected sha256 {piece['sha256'][:12]}…, found {found[:12]}; copy the "
                "piece again"
            )
    output.mkdir(parents=True, exist_ok=True)
    target = output / str(record["name"])

    def write(path: Path) -> None:
        with path.open("wb") as joined:
            for piece in record["pieces"]:
                joined.write((folder / piece["name"]).read_bytes())
        if sha256(path) != record["sha256"]:
            raise KitError(f"{target.name}: the pieces are in the wrong order; split it again")

    replace(target, write)
    return target


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        print("expected PIECES FOLDER, as in: pieces wheels-gpu", file=sys.stderr)
        return 2
    try:
        print(join(Path(argv[0]), Path(argv[1])))
    except KitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

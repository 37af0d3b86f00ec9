"""Make build/tree/specedge: the one package as a type checker must see it.

export/, engines/ and configs/ are mapped into the package by setuptools, which mypy cannot
follow in an editable install. The tree holds links only; run it again after adding a file.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "tree" / "specedge"
MAPPED = ("export", "engines", "configs")


def main() -> None:
    TREE.mkdir(parents=True, exist_ok=True)
    wanted = {path.name: path for path in (ROOT / "specedge").iterdir()}
    wanted |= {name: ROOT / name for name in MAPPED}
    wanted.pop("__pycache__", None)
    for link in TREE.iterdir():
        if link.is_symlink() and link.name not in wanted:
            link.unlink()
    for name, path in wanted.items():
        link = TREE / name
        if not link.is_symlink():
            link.symlink_to(path)


if __name__ == "__main__":
    main()

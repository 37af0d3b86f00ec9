"""Ready configs (`*.toml`) and how to find them by name.

A folder of its own because it is data that people copy and edit. Imported as `specedge.configs`.
"""

from __future__ import annotations

from pathlib import Path

from specedge.errors import ConfigError


def shipped() -> dict[str, Path]:
    """The configs that come with specedge, by name, in alphabetical order."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}


def find(config: str | Path) -> Path:
    """The file that `config` means: a path first, else the name of a shipped config.

    Raises:
        ConfigError: neither exists; lists the shipped names.
    """
    path = Path(config)
    if path.is_file():
        return path
    named = shipped().get(str(config).removeprefix("configs/").removesuffix(".toml"))
    if named is not None:
        return named
    kind = "is a folder" if path.is_dir() else "no such file"
    raise ConfigError(f"{config}: {kind}; give a .toml file or one of: {', '.join(shipped())}")

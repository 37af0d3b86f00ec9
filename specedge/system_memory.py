"""How much memory this process can still get, as far as the system tells.

It is the least of

    MemAvailable                          of /proc/meminfo: free, or cached and easily given back
    limit - (usage - inactive_file)       of every control group that the process is in, v1 or v2

A group's usage includes the files it read. Of these only what has not been used lately counts as
free: pages of weights that are mapped and in use are not, so the figure is rather too small.
Swap counts for nothing: a model in swap is no faster than no model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def available_bytes(root: Path = Path("/")) -> int | None:
    """Bytes, 0 or more; None where the system does not say (it is not Linux, or /proc is hidden).

    Args:
        root: of the file system that is looked at.
    """
    found = _meminfo(root)
    if found is None:
        return None
    return min((found, *_groups(root)))


def _meminfo(root: Path) -> int | None:
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        size = value.split()[:1]
        if name == "MemAvailable" and size and size[0].isdecimal():
            return int(size[0]) << 10
    return None


def _groups(root: Path) -> Iterator[int]:
    """What is left in each limited group: the process's own and those around it."""
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            mount, limits = root / "sys/fs/cgroup", ["memory.max", "memory.high"]
            usage, cached = "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            mount, limits = root / "sys/fs/cgroup/memory", ["memory.limit_in_bytes"]
            usage, cached = "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        for folder in _upwards(mount, path):
            bounds = [size for name in limits if (size := _number(folder / name)) is not None]
            used = _number(folder / usage)
            if bounds and used is not None:
                kept = max(0, used - _stat(folder / "memory.stat", cached))
                yield max(0, min(bounds) - kept)


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """A group's folder and all above it. Seen from inside a container the path may be the host's,
    or lead out of the mount: then what is at the mount itself is the container's."""
    parts = [part for part in PurePosixPath(path).parts if part != "/"]
    if ".." in parts:
        parts = []
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _stat(path: Path, name: str) -> int:
    for line in _lines(path):
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdecimal():
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    """None where the file is missing or says "max"; v1 writes a huge number instead."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdecimal() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []

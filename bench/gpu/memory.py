"""Host memory of a process and of all those it started, together."""

from __future__ import annotations

import os
from pathlib import Path

LOOK_EVERY = 5  # samples; the table of all processes is slow to read


class Tree:
    """Samples what a session of processes takes; the peak of the sum is kept.

    Pages that two of them share count twice, so it is rather too much than too little. A process
    that lives less than LOOK_EVERY samples may be missed.

    Args:
        root: id of the process that leads the session.
    """

    def __init__(self, root: int) -> None:
        self._root, self._members, self._samples = root, [root], 0
        self.peak_bytes: int | None = None

    def sample(self) -> None:
        if self._samples % LOOK_EVERY == 0:
            self._members = members(self._root)
        self._samples += 1
        found = [said for pid in self._members if (said := _resident(pid)) is not None]
        if found:
            together = sum(now for now, _ in found)
            alone = max(peak for _, peak in found)  # between two samples
            self.peak_bytes = max(self.peak_bytes or 0, together, alone)


def members(root: int) -> list[int]:
    """`root`, those of its session, and what any of them started in a session of its own."""
    parents, found = {}, {root}
    for name in os.listdir("/proc") if Path("/proc").is_dir() else []:
        if name.isdigit():
            try:
                said = Path("/proc", name, "stat").read_text()
            except OSError:  # it has ended
                continue
            _, parent, _, session = said.rpartition(")")[2].split()[:4]
            parents[int(name)] = int(parent)
            if int(session) == root:
                found.add(int(name))
    for pid in sorted(parents):
        line = [pid]
        while line[-1] not in found and parents.get(line[-1], 0) not in (0, *line):
            line.append(parents[line[-1]])
        if line[-1] in found:
            found.update(line)
    return sorted(found)


def _resident(pid: int) -> tuple[int, int] | None:
    """Bytes now and at most; None: it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    said = dict(line.split(":", 1) for line in status.splitlines() if line.startswith("Vm"))
    if "VmRSS" not in said:  # a zombie
        return None
    now, peak = (1024 * int(said[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    return now, peak

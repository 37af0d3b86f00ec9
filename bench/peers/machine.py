"""What a run was made on."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(line.split("\t: ", 1) for line in info if "\t: " in line.replace("\t\t", "\t"))
    fields = {name.strip(): value for name, value in fields.items()}
    model = f"{fields.get('model name', platform.processor())}"
    family = f"family {fields.get('cpu family', '?')} model {fields.get('model', '?')}"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": f"{model} ({family})",
        "processors": len(os.sched_getaffinity(0)),
        "memory_gib": memory / 2**30,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def commit() -> str:
    """Of the working tree this file lies in; "+" when files differ from it."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(
            ["git", "describe", "--always", "--dirty=+"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    return "unknown"


def busy_seconds() -> float:
    """Processor time that the whole machine has used, stolen time included."""
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")

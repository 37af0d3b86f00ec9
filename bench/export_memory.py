"""Peak memory of an export against its bound: the largest tensor in float32 plus 1 GiB.

    python bench/export_memory.py configs/qwen2.5-coder.toml
    python bench/export_memory.py qwen2.5-coder --set export.context=2048 --json

The export runs as a child, and the kernel's own account of it is printed:

ru_maxrss   largest resident set of the child and of the processes that it waited for (pip, when
            a package has to be fetched)
VmHWM       the same of the child alone, as last seen; it can miss the last 50 ms
anonymous   of the samples, the most memory that is the process's own: arrays, buffers
file        of the samples, the most that is files mapped into it: weights being read, libraries

A resident set counts mapped pages of the page cache. Those are not memory the export holds: the
kernel drops them when it needs room. They are in the figure that is compared with the bound all
the same, since that is what tools show and what limits are set by. Exit code 1 when over it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MARGIN = 1 << 30
EVERY_S = 0.05
FIELDS = {"VmHWM": "vm_hwm", "RssAnon": "anonymous", "RssFile": "file"}


def sample(pid: int, seen: dict[str, int]) -> None:
    """Raise what was seen so far to the child's present values; bytes."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return
    for line in lines:
        name, _, value = line.partition(":")
        if name in FIELDS:
            seen[FIELDS[name]] = max(seen[FIELDS[name]], int(value.split()[0]) * 1024)


def export(config: str, overrides: list[str], output: Path) -> dict[str, Any]:
    """Run it and watch. Nothing heavy is imported before: a child starts as its parent's copy."""
    command = str(Path(sys.executable).with_name("specedge"))
    argv = [command, "export", config, "-o", str(output), "--force"]
    argv += [word for each in overrides for word in ("--set", each)]
    seen = dict.fromkeys(FIELDS.values(), 0)
    began = time.perf_counter()
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    while True:
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid:
            break
        sample(child.pid, seen)
        time.sleep(EVERY_S)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"error: the export ended with code {child.returncode}")
    peak = usage.ru_maxrss if sys.platform == "darwin" else usage.ru_maxrss * 1024
    return {"ru_maxrss": peak, **seen, "seconds": time.perf_counter() - began}


def largest_tensor(config: str, overrides: list[str]) -> tuple[str, int]:
    """Name and float32 bytes, over target and draft."""
    from specedge.config import load_config
    from specedge.export.sources import open_source

    loaded = load_config(config, overrides)
    base = Path(config).parent
    best = ("", 0)
    for model in (loaded.target, loaded.draft):
        if model is None:
            continue
        tensors = open_source(model.source, sha256=model.sha256, base=base).tensors
        for name in tensors.names():
            size = 4 * math.prod(tensors.shape(name))
            best = max(best, (name, size), key=lambda each: each[1])
        tensors.close()
    return best


def main() -> int:
    assert __doc__ is not None, "it is the help text"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", help="as `specedge export` takes it")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", dest="overrides")
    parser.add_argument("-o", "--output", type=Path, help="keep the bundle there")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        output = given.output or Path(folder) / "bundle"
        figures = export(given.config, given.overrides, output)
    name, size = largest_tensor(given.config, given.overrides)
    bound = size + MARGIN
    within = figures["ru_maxrss"] <= bound
    if given.json:
        print(json.dumps({**figures, "tensor": name, "bound": bound, "within": within}))
        return 0 if within else 1
    for each in ("ru_maxrss", "vm_hwm", "anonymous", "file"):
        print(f"{each:<10} {figures[each] / 2**20:8.0f} MiB")
    print(f"{'bound':<10} {bound / 2**20:8.0f} MiB = {name} {size / 2**20:.0f} MiB + 1024 MiB")
    print(f"{'within' if within else 'OVER THE BOUND'}, {figures['seconds']:.0f} s")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())

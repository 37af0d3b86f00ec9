"""Which meter counts the joules of this machine.

A Jetson's sensors measure the whole module, processor and GPU alike, so they go first. Else it is
what does the work: the GPU when engines run there, the processor's packages when they do not.
Figures of two sources cannot be compared; that is why each meter says which one it is.
"""

from __future__ import annotations

import time
from pathlib import Path

from specedge.power.counting import SAMPLE_S, Clock, Meter
from specedge.power.jetson import open_jetson
from specedge.power.nvml import open_nvml
from specedge.power.rapl import open_rapl


def open_meter(
    root: Path = Path("/"),
    *,
    on_gpu: bool = False,
    every_s: float = SAMPLE_S,
    clock: Clock = time.monotonic,
) -> Meter | None:
    """The meter, counting from now; None where there is none. To be closed.

    Args:
        root: of the file tree.
        on_gpu: engines compute on an NVIDIA GPU.
        every_s: between samples of a source that tells power only; 0: no thread for it.
        clock: of such a source.
    """
    found = _find(root, on_gpu, every_s, clock)
    return None if isinstance(found, str) else found


def why_no_meter(root: Path = Path("/"), *, on_gpu: bool = False) -> str:
    """Why `open_meter` gives None, in one line; empty when it gives a meter."""
    found = _find(root, on_gpu, 0.0, time.monotonic)
    if isinstance(found, str):
        return found
    found.close()
    return ""


def _find(root: Path, on_gpu: bool, every_s: float, clock: Clock) -> Meter | str:
    jetson = open_jetson(root, every_s=every_s, clock=clock)
    if not isinstance(jetson, str):
        return jetson
    other: Meter | str = (
        open_nvml(every_s=every_s, clock=clock) if on_gpu else open_rapl(root, clock)
    )
    if isinstance(other, str) and not jetson.startswith("INA3221: no sensor"):
        return f"{jetson}; {other}"
    return other

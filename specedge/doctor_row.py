"""One finding of `specedge doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Row:
    """What was looked at, how it stands, what was found, and for anything but ok the remedy."""

    check: str
    status: Status
    found: str
    remedy: str = ""

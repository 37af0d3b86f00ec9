"""What a rule answers."""

from __future__ import annotations

from typing import NamedTuple


class Verdict(NamedTuple):
    """What one round decided."""

    n_accepted: int  # 0..K
    next_token: int

"""Stages of a command as shares of their time."""

from __future__ import annotations

from typing import Protocol


class Stages(Protocol):
    """The part of `reporting()` that is used here."""

    def stage(self, title: str, total: int | None = None, unit: str = "") -> None: ...

    def advance(self, amount: int) -> None: ...


class Percent:
    """Turns shares of a stage's time into 100 units, a stage begun when its first share comes."""

    def __init__(self, progress: Stages, title: str) -> None:
        self._progress = progress
        self._title = title
        self._stage = ""
        self._shown = 0

    def __call__(self, stage: str, share: float) -> None:
        if stage != self._stage:
            self._stage, self._shown = stage, 0
            title = f"{self._title}: {stage}" if self._title else stage
            self._progress.stage(title, 100, "%")
        reached = max(self._shown, int(100 * share))
        self._progress.advance(reached - self._shown)
        self._shown = reached

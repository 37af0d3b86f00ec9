"""Probes in known time: fake engines whose calls move a clock that nothing else moves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from commands import alphabet
from specedge import opening
from specedge.engines.fake import FakeEngine
from specedge.probe import probing
from tiny import write_bundle

Cost = Callable[[str, int], float]
"""(role, N) → milliseconds of a call of N tokens."""


def cheap(role: str, width: int) -> float:
    """Verification is nearly free, and so is the draft."""
    return 10.0 + 0.2 * width if role == "target" else 1.0


def dear(role: str, width: int) -> float:
    """Every token costs as much as a plain step."""
    return 10.0 * width


@dataclass
class Desk:
    """Time that only fake engines spend; and what they were asked for.

    `before` is called with the number of the call from 0, and may raise.
    """

    cost: Cost = cheap
    now: float = 100.0
    calls: int = 0
    opened: list[tuple[FakeEngine, dict[str, object]]] = field(default_factory=list)
    before: Callable[[int], None] = lambda number: None

    def clock(self) -> float:
        return self.now

    def roles(self) -> list[str]:
        return [engine.spec.role for engine, _ in self.opened]


def install(monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Every fake engine from now on works in the time of a new desk."""
    desk = Desk()
    forward, create = FakeEngine.forward, opening.registry.create

    def timed(self, slot, tokens, n_cached, rows):
        number, desk.calls = desk.calls, desk.calls + 1
        desk.before(number)
        desk.now += desk.cost(self.spec.role, len(tokens)) / 1e3
        return forward(self, slot, tokens, n_cached, rows)

    def noting(name, folder, spec, **options):
        engine = create(name, folder, spec, **options)
        desk.opened.append((engine, options))
        return engine

    monkeypatch.setattr(FakeEngine, "forward", timed)
    monkeypatch.setattr(opening.registry, "create", noting)
    monkeypatch.setattr(probing, "open_meter", lambda **_: None)
    return desk


def bundle(folder: Path, **given: object) -> Path:
    """Target and draft say the alphabet, over and over."""
    usual = {"draft": True, "max_verify": 4, "rule": alphabet()}
    return write_bundle(folder, **(usual | given))  # type: ignore[arg-type]


def prompts(path: Path, *lines: object) -> Path:
    """A file of prompts; a string is a line as it stands."""
    path.write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines))
    return path

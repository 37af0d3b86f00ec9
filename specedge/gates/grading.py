"""Answers to tasks in pairs: without speculation, and in one way with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specedge.gates.judging import Judgement
from specedge.gates.mcnemar import p_value
from specedge.gates.tasks import Task
from specedge.words import counted


@dataclass(frozen=True, slots=True)
class Answer:
    """One task, answered in one way.

    Args:
        judged: the answer.
        same: its tokens are those of the answer without speculation.
        proposed, accepted: drafted tokens.
        failed: decoding raised; there is no answer, which counts as a wrong one.
    """

    judged: Judgement
    same: bool
    proposed: int = 0
    accepted: int = 0
    failed: bool = False


@dataclass(slots=True)
class Answered:
    """One task, answered in every way; in `ways` by the name of the way."""

    task: Task
    plain: Judgement
    ways: dict[str, Answer] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def faults(self) -> list[str]:
        """What is wrong with the check, not with an answer."""
        judged = [self.plain, *(answer.judged for answer in self.ways.values())]
        return [each.said for each in judged if each.at_fault]


@dataclass(frozen=True, slots=True)
class Grade:
    """Some tasks, without speculation against one way with it: counts.

    Args:
        tasks: of which none has a check at fault.
        plain, right: right answers, without and with.
        lost, gained: tasks that are right only without, and only with.
        same: tasks whose answers are the same tokens.
        failed: tasks on which decoding raised.
        proposed, accepted: drafted tokens.
    """

    tasks: int
    plain: int
    right: int
    lost: int
    gained: int
    same: int
    failed: int
    proposed: int
    accepted: int

    @classmethod
    def of(cls, answered: Sequence[Answered], way: str) -> Grade:
        """Over these tasks, in the way of this name."""
        pairs = [(one.plain.right, one.ways[way]) for one in answered]
        return cls(
            tasks=len(pairs),
            plain=sum(plain for plain, _ in pairs),
            right=sum(answer.judged.right for _, answer in pairs),
            lost=sum(plain and not answer.judged.right for plain, answer in pairs),
            gained=sum(answer.judged.right and not plain for plain, answer in pairs),
            same=sum(answer.same for _, answer in pairs),
            failed=sum(answer.failed for _, answer in pairs),
            proposed=sum(answer.proposed for _, answer in pairs),
            accepted=sum(answer.accepted for _, answer in pairs),
        )

    @property
    def p(self) -> float:
        return p_value(self.lost, self.gained)

    def worse(self, level: float) -> bool:
        """Beyond chance."""
        return self.lost > self.gained and self.p < level

    def __str__(self) -> str:
        said = f"{self.plain} of {self.tasks} right without speculation, {self.right} with"
        if self.same == self.tasks:
            return f"{said}; identical outputs on {self.same} of {self.tasks}"
        return (
            f"{said}; {counted(self.tasks - self.same, 'output')} changed, "
            f"{counted(self.lost, 'answer')} lost, {self.gained} gained "
            f"(McNemar p = {self.p:.2g})"
        )

    def figures(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self) | {"mcnemar_p": self.p}

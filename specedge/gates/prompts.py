"""The prompts that gates and benchmarks run on: built in, or a person's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specedge.encoding import Prompt
from specedge.workloads import Workload, WorkloadPrompt, builtin, read

PER_CLASS = 4


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt.

    Args:
        name: "chat 3": class and place in it, from 1.
        workload: its class.
        prompt: as `Model.stream` takes it.
    """

    name: str
    workload: str
    prompt: Prompt


def prompts(path: Path | None = None, per_class: int | None = None) -> list[Asked]:
    """Prompts of a file, or built in, class by class.

    Args:
        path: see docs/workloads.md; None: those built in.
        per_class: at most so many of each class; None: all of a file, `PER_CLASS` of those built
            in.

    Raises:
        PromptError: the file cannot be read, is empty, or has a bad line.
    """
    if path is None:
        return of(builtin(), PER_CLASS if per_class is None else per_class)
    return of(read(path), per_class)


def of(workloads: tuple[Workload, ...], per_class: int | None = None) -> list[Asked]:
    """The first `per_class` prompts of each."""
    return [
        Asked(f"{workload.name} {place}", workload.name, _prompt(prompt))
        for workload in workloads
        for place, prompt in enumerate(workload.prompts[:per_class], start=1)
    ]


def _prompt(prompt: WorkloadPrompt) -> Prompt:
    if prompt.messages is not None:
        return list(prompt.messages)
    assert prompt.text is not None, "a prompt has messages or text"
    return prompt.text

"""The prompts that gates and benchmarks run on: built in, or a person's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specedge.encoding import Prompt
from specedge.workloads import Workload, builtin, read

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


def prompts(
    path: Path | None = None, per_class: int | None = None, *, has_template: bool = True
) -> list[Asked]:
    """Prompts of a file, or built in, class by class.

    Args:
        path: see docs/workloads.md; None: those built in.
        per_class: at most so many of each class; None: all of a file, `PER_CLASS` of those built
            in.
        has_template: whether the model has a chat template.

    Raises:
        PromptError: the file cannot be read, is empty, has a bad line, or messages where the model
            has no template.
    """
    if path is not None:
        return of(read(path), per_class, has_template=has_template)
    most = PER_CLASS if per_class is None else per_class
    return of(builtin(), most, has_template=has_template)


def of(
    workloads: tuple[Workload, ...], per_class: int | None = None, *, has_template: bool = True
) -> list[Asked]:
    """The first `per_class` prompts of each."""
    return [
        Asked(f"{workload.name} {place}", workload.name, prompt.given(has_template=has_template))
        for workload in workloads
        for place, prompt in enumerate(workload.prompts[:per_class], start=1)
    ]

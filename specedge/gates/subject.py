"""Who the gate "limits" asks: one desk, several ways, and prompts as ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specedge.contract import Ids
from specedge.desk import AUTO, PLAIN, Desk, Way
from specedge.errors import PromptError
from specedge.gates.parting import first_difference
from specedge.gates.prompts import Asked
from specedge.result import Result

GREEDY: dict[str, Any] = {"temperature": 0.0, "min_tokens": 0, "ignore_eos": True}
LONGEST = 256
"""Tokens of a prompt that need not be long."""

_TEXTS = 4  # prompts taken


@dataclass(slots=True)
class Subject:
    """The desk and what it is asked.

    Args:
        desk: open.
        ways: plain first.
        texts: prompts, cut to what need not be long.
        stock: int64 [T + 1], the prompts again and again.
        step: told the share of the running check.
        at: name of the way that is being asked.
    """

    desk: Desk
    ways: list[Way]
    texts: list[Ids]
    stock: Ids
    step: Callable[[float], None] = lambda share: None
    at: str = ""

    @property
    def context(self) -> int:
        return self.desk.model.context

    @property
    def exact(self) -> bool:
        """Whether greedy texts of all ways must be equal."""
        return not self.desk.model.target.width_noise

    def ask(self, way: Way, prompt: Ids, **options: Any) -> Result:
        self.at = way.name
        return self.desk.ask(way, prompt, **GREEDY, **options)

    def each(self) -> Iterator[Way]:
        for place, way in enumerate(self.ways):
            self.step(place / len(self.ways))
            self.at = way.name
            yield way

    def compared(
        self, way: Way, got: Result, n_tokens: int, want: list[int], reason: str = "length"
    ) -> Iterator[str]:
        """What is wrong with an output, a line; nothing if nothing is."""
        if got.finish_reason != reason:
            yield f"{way.name}: expected to end by {reason!r}, found {got.finish_reason!r}"
        elif len(got.tokens) != n_tokens:
            yield f"{way.name}: expected {n_tokens} tokens, found {len(got.tokens)}"
        elif self.exact and len(want) == n_tokens and got.tokens != want:
            at = first_difference(want, got.tokens)
            assert at is not None, "they differ"
            yield (
                f"{way.name}: token {at} of {n_tokens}: expected {want[at]} as decoded plainly, "
                f"found {got.tokens[at]}"
            )


def subject_of(desk: Desk, prompts: Sequence[Asked], ks: Sequence[int] | None) -> Subject:
    """Ready to be asked; see `specedge.gates.limits.check`."""
    if not prompts:
        raise PromptError("limits: there is no prompt; give one at least")
    model = desk.model
    longest = max(1, min(LONGEST, model.context // 2))
    texts = [model.encode(asked.prompt)[0][-longest:] for asked in _spread(prompts)]
    stock = np.resize(np.concatenate(texts), model.context + 1).astype(np.int64)
    lengths = sorted({1, min(4, desk.longest), desk.longest} if ks is None else set(ks))
    fixed = [Way("on", (name,), k) for name in desk.proposers for k in lengths]
    desk.renew(AUTO)
    return Subject(desk, [PLAIN, AUTO, *fixed], texts, stock)


def _spread(prompts: Sequence[Asked]) -> Sequence[Asked]:
    """A few from all over the list: classes follow one another in it."""
    return prompts[:: max(1, len(prompts) // _TEXTS)][:_TEXTS]

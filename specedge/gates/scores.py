"""What the runs of one way have come to against plain decoding: counts, differences, a case."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from specedge.gates.findings import Case, first_of
from specedge.gates.parting import Parting
from specedge.tokenizer import Tokenizer
from specedge.words import counted

TEXT_CHARACTERS = 40  # of a token, in a line


@dataclass(frozen=True, slots=True)
class Token:
    """An id, and its text as `Tokenizer.named` has it."""

    id: int
    text: str

    @classmethod
    def of(cls, tokenizer: Tokenizer, id_: int | None) -> Token | None:
        """None where there is no token: the text has ended."""
        return None if id_ is None else cls(id_, tokenizer.named(id_))


@dataclass(frozen=True, slots=True)
class Difference:
    """A run whose text was another one.

    Args:
        prompt: name of what was asked.
        way: name of how it was decoded.
        position: output tokens before it, which are the same.
        plain, other: what each says there; None: it has ended.
        parting: margin and noise; None: not measured.
        why: it was not measured.
    """

    prompt: str
    way: str
    position: int
    plain: Token | None
    other: Token | None
    parting: Parting | None
    why: str = ""

    @property
    def within(self) -> bool:
        """The width noise explains it."""
        return self.parting is not None and self.parting.within

    @property
    def said(self) -> str:
        """One line: where, expected, found, how near it was."""
        if self.parting is None:
            how = f"not measured: {self.why}"
        else:
            how = f"margin {self.parting.margin:.2g}, width noise {self.parting.noise:.2g}"
        return (
            f"{self.prompt}, {self.way}, output token {self.position + 1}: expected "
            f"{_shown(self.plain)}, found {_shown(self.other)}; {how}"
        )

    def figures(self) -> dict[str, Any]:
        """JSON-ready; positions are from 1, as in every gate."""
        parting = self.parting
        return {
            "prompt": self.prompt,
            "way": self.way,
            "position": self.position + 1,
            "plain_id": self.plain.id if self.plain else None,
            "plain_text": self.plain.text if self.plain else None,
            "other_id": self.other.id if self.other else None,
            "other_text": self.other.text if self.other else None,
            "margin": parting.margin if parting else None,
            "noise": parting.noise if parting else None,
            "within": self.within,
        }


def _shown(token: Token | None) -> str:
    if token is None:
        return "the end"
    return f"{token.text[:TEXT_CHARACTERS]!r} (id {token.id})"


@dataclass(slots=True)
class Score:
    """The runs of one case.

    Args:
        name: of the case.
        runs: requests decoded in another way than plainly.
        equal: of them, those with the tokens, the text and the end of plain decoding.
        tokens: that plain decoding gave for them.
        proposed, accepted: drafted tokens over all runs.
        rounds, committed: over all runs, and tokens that those rounds committed.
        differences: runs with other tokens.
        troubles: runs that failed, or differ in what no token shows; a line each.
        seconds: that decoding and measuring took.
    """

    name: str
    runs: int = 0
    equal: int = 0
    tokens: int = 0
    proposed: int = 0
    accepted: int = 0
    rounds: int = 0
    committed: int = 0
    differences: list[Difference] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def outside(self) -> list[Difference]:
        """Differences that the width noise does not explain."""
        return [each for each in self.differences if not each.within]

    def settle(self, noise: float) -> None:
        """Judge every difference by this noise of the engine, where it is more than its own."""
        self.differences = [
            replace(each, parting=each.parting and each.parting.against(noise))
            for each in self.differences
        ]

    def case(self) -> Case:
        """Passed when every difference is explained and nothing else went wrong."""
        figures = {
            "runs": self.runs,
            "equal": self.equal,
            "tokens": self.tokens,
            "proposed": self.proposed,
            "accepted": self.accepted,
            "acceptance_rate": self.accepted / self.proposed if self.proposed else None,
            "acceptance_length": self.committed / self.rounds if self.rounds else None,
            "partings": [each.figures() for each in self.differences],
            "troubles": list(self.troubles),
        }
        passed = not self.outside and not self.troubles
        said = self._said()
        return Case(self.name, "passed" if passed else "failed", said, self.seconds, figures)

    def _said(self) -> str:
        bad = [*self.troubles, *(each.said for each in self.outside)]
        if bad:
            return first_of(bad)
        said = f"equal on {self.equal} of {self.runs} runs"
        if self.differences:
            noise = max(each.parting.noise for each in self.differences if each.parting is not None)
            differences = counted(len(self.differences), "difference")
            said = f"{differences} in {self.runs} runs, {explained(noise)}"
        if not self.proposed:
            return f"{said}, but nothing was drafted: this shows nothing about drafts"
        return f"{said}; {self.accepted:,} of {self.proposed:,} drafted tokens accepted"


def explained(noise: float) -> str:
    """The certificate of differences that are all within it."""
    return f"all within {noise:.2g}, the width noise of this engine"

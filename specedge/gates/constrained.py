"""Asks for constrained outputs, plainly and with drafts, and holds them against each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from specedge.contract import Ids
from specedge.desk import PLAIN, Desk, Way
from specedge.encoding import Prompt
from specedge.errors import SpecedgeError, one_line
from specedge.gates.findings import Case, Figures, Outcome, first_of
from specedge.gates.parting import Parting, find, first_difference
from specedge.gates.schemas import Entry
from specedge.guidance.drafting import GRAMMAR
from specedge.result import Result

EXCERPT = 60  # characters of an output in a message
MEASURED_OUTSIDE = 4
"""Differences outside the noise, after which no further one is measured: the gate has failed."""

# the mask is what is looked at: penalties of the bundle would only move the text
_GREEDY: dict[str, Any] = {
    "temperature": 0.0,
    "min_tokens": 0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
}
_SAMPLED: dict[str, Any] = {**_GREEDY, "temperature": 0.8, "top_p": 0.95, "acceptance": "coupled"}


@dataclass(slots=True)
class Tally:
    """What the outputs of one constraint, or of all, came to.

    Args:
        outputs: made.
        parsed: of them, ended by themselves and passed their check.
        compared: made with speculation where the plain tokens must come again.
        equal: of those, had the plain tokens.
        within_noise: of those, parted where the width of calls explains it.
        tokens: of all outputs.
        speculative_tokens: of those made with speculation.
        forced_proposed, forced_accepted: tokens drafted because the constraint left no other, kept.
        noise: the largest that was measured at a parting.
        faults: a line each.
    """

    outputs: int = 0
    parsed: int = 0
    compared: int = 0
    equal: int = 0
    within_noise: int = 0
    tokens: int = 0
    speculative_tokens: int = 0
    forced_proposed: int = 0
    forced_accepted: int = 0
    noise: float = 0.0
    faults: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        for name in Tally.__dataclass_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, max(mine, theirs) if name == "noise" else mine + theirs)

    def figures(self) -> dict[str, Any]:
        """`forced_share`: forced tokens of all that were made with speculation."""
        said = {name: getattr(self, name) for name in Tally.__dataclass_fields__}
        del said["faults"], said["speculative_tokens"]
        share = self.forced_accepted / self.speculative_tokens if self.speculative_tokens else 0.0
        return {**said, "forced_share": share}


@dataclass(frozen=True, slots=True)
class _Request:
    """One constraint, asked for greedily, or sampled with a seed."""

    entry: Entry
    prompt: Prompt
    ids: Ids
    seed: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        choice = _GREEDY if self.seed is None else {**_SAMPLED, "seed": self.seed}
        return {**self.entry.options, **choice}

    def name(self, way: Way) -> str:
        return way.name if self.seed is None else f"{way.name}, seed {self.seed}"


class Trial:
    """Asks one desk in several ways.

    Args:
        desk: open.
        ways: with speculation; plain decoding is what they are held against.
    """

    def __init__(self, desk: Desk, ways: Sequence[Way]) -> None:
        self._desk = desk
        self._ways = ways
        self._measured: dict[tuple[object, ...], Parting] = {}
        self._outside = 0

    def case(self, entry: Entry, seed: int | None = None) -> tuple[Case, Tally]:
        """All outputs for one constraint; with a seed also sampled ones."""
        began = perf_counter()
        tally, said = Tally(), ""
        try:
            prompt = self._prompt(entry)
            ids, _ = self._desk.model.encode(prompt)
            room = self._desk.model.context + 1 - len(ids)
            if room < entry.budget:
                said = f"may need {entry.budget} tokens, the context has room for {max(0, room)}"
                return Case(entry.name, "skipped", said), tally
            self._desk.forget()
            said = _excerpt(self._compare(_Request(entry, prompt, ids), tally))
            if seed is not None:
                self._compare(_Request(entry, prompt, ids, seed), tally)
        except SpecedgeError as error:
            tally.faults.append(one_line(error))
        if tally.faults:
            said = first_of(tally.faults)
        figures: Figures = {"kind": entry.kind, "covers": list(entry.covers), **tally.figures()}
        outcome: Outcome = "failed" if tally.faults else "passed"
        return Case(entry.name, outcome, said, perf_counter() - began, figures), tally

    def _prompt(self, entry: Entry) -> Prompt:
        if self._desk.model.has_chat_template:
            return [{"role": "user", "content": entry.prompt}]
        return f"{entry.prompt}\n"

    def _compare(self, request: _Request, tally: Tally) -> str:
        """Plain, then every way against it. Returns the plain text."""
        plain = self._ask(PLAIN, request, tally)
        for way in self._ways:
            other = self._ask(way, request, tally)
            counts = other.metrics.proposers.get(GRAMMAR)
            if counts is not None:
                tally.forced_proposed += counts.proposed
                tally.forced_accepted += counts.accepted
            tally.speculative_tokens += len(other.tokens)
            if request.seed is None or plain.reproducible:
                tally.compared += 1
                self._hold_against(plain, other, request, way, tally)
        return plain.text

    def _ask(self, way: Way, request: _Request, tally: Tally) -> Result:
        """One output, and what is wrong with it by itself."""
        name = request.name(way)
        try:
            result = self._desk.ask(way, request.prompt, **request.options)
        except SpecedgeError as error:
            raise SpecedgeError(f"{name}: {error}") from error
        tally.outputs += 1
        tally.tokens += len(result.tokens)
        if result.finish_reason == "stop":
            fault = request.entry.fault(result.text)
        else:
            fault = (
                f"expected to end by itself, found {result.finish_reason!r} after "
                f"{len(result.tokens)} tokens"
            )
        if fault is None:
            tally.parsed += 1
        else:
            tally.faults.append(f"{name}: {fault}: {_excerpt(result.text)}")
        return result

    def _hold_against(
        self, plain: Result, other: Result, request: _Request, way: Way, tally: Tally
    ) -> None:
        position = first_difference(plain.tokens, other.tokens)
        if position is None:
            tally.equal += 1
            return
        said = (
            f"{request.name(way)}: position {position}: expected {self._token(plain, position)}, "
            f"found {self._token(other, position)}"
        )
        if request.seed is None and self._outside < MEASURED_OUTSIDE:
            parting = self._parting(plain, other, request, position)
            tally.noise = max(tally.noise, parting.noise)
            if parting.within:
                tally.within_noise += 1
                return
            self._outside += 1
            said += f", margin {parting.margin:.2g}, width noise {parting.noise:.2g}"
        tally.faults.append(f"{said}: {_excerpt(plain.text)} became {_excerpt(other.text)}")

    def _parting(self, plain: Result, other: Result, request: _Request, position: int) -> Parting:
        """Measured once where several ways part alike."""
        key = (request.entry.name, *plain.tokens[: position + 1], *other.tokens[position:][:1])
        if key not in self._measured:
            found = find(self._desk.model.target, request.ids, plain.tokens, other.tokens)
            assert found is not None, "the outputs differ"
            self._measured[key] = found
        return self._measured[key]

    def _token(self, result: Result, position: int) -> str:
        """Its id and text, or that there is none."""
        if position >= len(result.tokens):
            return "no token"
        id_ = result.tokens[position]
        return f"{id_} {self._desk.model.tokenizer.named(id_)!r}"


def _excerpt(text: str) -> str:
    """On one line, without its middle where it is long."""
    half = EXCERPT // 2
    return repr(text if len(text) <= EXCERPT else f"{text[:half]} … {text[-half:]}")

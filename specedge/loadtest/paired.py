"""Two ways, or two results, on the same prompts: times side by side, one entry a prompt.

A prompt is the unit that is drawn. Its repetitions, and its second turn in a long load, are no
further prompts: they are averaged before anything is compared.

Outputs may differ in length where sampling does not promise equal ones. Both sides are then
reckoned for the mean of both lengths, at the pace each decoded with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from specedge.loadtest.records import RequestRecord

Measure = Literal["decode", "ttft", "e2e"]
MEASURES: tuple[Measure, ...] = ("decode", "ttft", "e2e")
QUEUED = 0.05  # share of the time from arrival to the end, from which waiting is not ignored
_LEAST_MS = 1e-6  # a time that the clock could not tell from none

Prompt = tuple[str, str]
"""Workload class and name."""
Sides = tuple[list[RequestRecord], list[RequestRecord]]


@dataclass(frozen=True, slots=True)
class Times:
    """One measure over prompts, ms: [n] each, in the same order; n may be 0.

    Args:
        first, second: what each prompt took on either side.
        prompts: which those are.
        lengths: tokens that a time is for; 1 but for "decode".
    """

    first: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)


def prompt_of(request: RequestRecord) -> Prompt:
    return request.workload, request.prompt


def matched(
    first: Iterable[RequestRecord], second: Iterable[RequestRecord]
) -> list[tuple[RequestRecord, RequestRecord]]:
    """Served requests of the same load, repetition and number, in the order of `first`."""
    other = {(each.load, each.repeat, each.number): each for each in second if each.failure is None}
    return [
        (each, other[key])
        for each in first
        if each.failure is None and (key := (each.load, each.repeat, each.number)) in other
    ]


def by_prompt(pairs: Iterable[tuple[RequestRecord, RequestRecord]]) -> dict[Prompt, Sides]:
    """Both sides of every prompt, in the order in which prompts come first."""
    sides: dict[Prompt, Sides] = {}
    for first, second in pairs:
        mine, other = sides.setdefault(prompt_of(first), ([], []))
        mine.append(first)
        other.append(second)
    return sides


def times(sides: Mapping[Prompt, Sides], measure: Measure) -> Times:
    """What each prompt took on either side; prompts that lack the measure are left out.

    Args:
        sides: served requests.
        measure: "decode" from the first token to the last, "ttft" and "e2e" from arrival to the
            first and to the last token.
    """
    found = Times()
    for prompt, (mine, other) in sides.items():
        lengths = [_after_first(mine), _after_first(other)]
        length = sum(lengths) / 2
        values = [_time(side, measure, length) for side in (mine, other)]
        if values[0] is None or values[1] is None:
            continue
        found.first.append(max(values[0], _LEAST_MS))
        found.second.append(max(values[1], _LEAST_MS))
        found.prompts.append(prompt)
        found.lengths.append(length if measure == "decode" else 1.0)
    return found


def pace_ms(requests: Sequence[RequestRecord]) -> float | None:
    """Decoding, ms a token after the first; None: there is no such token."""
    known = [
        (each.ended_s - each.first_s, each.tokens - 1)
        for each in requests
        if each.first_s is not None and each.tokens > 1
    ]
    tokens = sum(count for _, count in known)
    return sum(seconds for seconds, _ in known) * 1e3 / tokens if tokens else None


def queued_share(requests: Iterable[RequestRecord]) -> float:
    """Part of the time from arrival to the end that requests waited for the engine."""
    waited = total = 0.0
    for each in requests:
        waited += each.queued_ms
        total += each.e2e_ms
    return waited / total if total else 0.0


def _after_first(requests: Sequence[RequestRecord]) -> float:
    return sum(max(each.tokens - 1, 0) for each in requests) / len(requests)


def _time(requests: Sequence[RequestRecord], measure: Measure, length: float) -> float | None:
    """Mean ms of one side; `length` tokens after the first."""
    pace = pace_ms(requests)
    if measure == "decode":
        return None if pace is None or not length else pace * length
    first = [each.ttft_ms for each in requests if each.ttft_ms is not None]
    if not first:
        return None
    ttft = sum(first) / len(first)
    if measure == "ttft":
        return ttft
    if length and pace is None:
        return None
    return ttft + (pace or 0.0) * length

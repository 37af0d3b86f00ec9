"""Two results of one bundle, and whether they differ by more than noise.

What both hold is compared: the same load, way and prompts. A difference is called only where its
interval over prompts leaves out 1 and it is larger than what repetitions within a result differed
by. All judged comparisons share one chance of a false alarm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log
from typing import TYPE_CHECKING, Any, Literal

from specedge.errors import BenchError
from specedge.loadtest.against import PLAIN, against
from specedge.loadtest.common import common, only
from specedge.loadtest.judging import ALARM, Verdict, change, changed
from specedge.loadtest.paired import (
    MEASURES,
    QUEUED,
    Measure,
    Prompt,
    Sides,
    Times,
    by_prompt,
    prompt_of,
    queued_share,
    times,
)
from specedge.loadtest.records import RequestRecord
from specedge.loadtest.summary import promises_equality
from specedge.loadtest.written import written
from specedge.probe.findings import Estimate
from specedge.probe.intervals import MIN_PROMPTS

if TYPE_CHECKING:
    from specedge.loadtest.keeping import Kept

Unjudged = Literal["", "queued", "few prompts"]


@dataclass(frozen=True, slots=True)
class Change:
    """One measure of one way under one load, in both results.

    Args:
        load, way: names.
        measure: "decode" from the first token to the last, "ttft" and "e2e" from arrival.
        first, second: mean over prompts in either result, ms; of "decode" ms a token.
        ratio: time in the second over the first's; above 1 is slower there.
        repeats: largest difference between two repetitions within either result, as a share; None:
            each was measured once.
        verdict: of the second result.
        unjudged: why no interval is given: waits in one queue depend on each other, or there are
            too few prompts.
    """

    load: str
    way: str
    measure: Measure
    first: float
    second: float
    ratio: Estimate
    repeats: float | None
    verdict: Verdict
    unjudged: Unjudged

    @property
    def within(self) -> float | None:
        """The true change is hardly larger than this share; None: not known."""
        if self.ratio.low is None or self.ratio.high is None:
            return None
        return max(1 - self.ratio.low, self.ratio.high - 1, self.repeats or 0.0)


@dataclass(frozen=True, slots=True)
class Gains:
    """Speed over plain decoding in either result, as `Against.judged` has it."""

    load: str
    way: str
    first: Estimate
    second: Estimate


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two results say.

    Args:
        bundle: name.
        names: of the results.
        created: when they were measured.
        conditions: what differs between them, a phrase each.
        left_out: what only one of them has, or cannot be compared, a sentence each.
        changes: by load, way and measure.
        gains: over plain, where both have it.
        outputs, equal: prompts answered by the same way and load in both, and those answered with
            the same ids; 0 where options do not promise them.
        failures: requests that failed in either.
        comparisons: that were judged, and share
        alarm: the chance of calling any difference where there is none.
    """

    bundle: str
    names: tuple[str, str]
    created: tuple[str, str]
    conditions: tuple[str, ...]
    left_out: tuple[str, ...]
    changes: tuple[Change, ...]
    gains: tuple[Gains, ...]
    outputs: int
    equal: int
    failures: tuple[int, int]
    comparisons: int
    alarm: float = ALARM

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, nested."""
        said: dict[str, Any] = written(self)
        for each, made in zip(said["changes"], self.changes, strict=True):
            each["within"] = made.within
        return said


@dataclass(frozen=True, slots=True)
class _Point:
    """One way under one load: requests of either result, all and the prompts of both."""

    load: str
    way: str
    first: list[RequestRecord]
    second: list[RequestRecord]
    sides: dict[Prompt, Sides]

    def of(self, measure: Measure) -> Times:
        return times(self.sides, measure)

    def unjudged(self, measure: Measure) -> Unjudged:
        requests = (each for pair in self.sides.values() for side in pair for each in side)
        if measure != "decode" and queued_share(requests) > QUEUED:
            return "queued"
        return "few prompts" if len(self.of(measure).prompts) < MIN_PROMPTS else ""


def compare(first: Kept, second: Kept, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """What both results hold, side by side.

    Raises:
        BenchError: they are of different bundles, empty, or have no load, way and prompt in common.
    """
    shared = common(first, second, names)
    points = [
        _point(load.name, way, _chosen(first, one, way), _chosen(second, two, way))
        for load, one, two in shared.loads
        for way in shared.ways
    ]
    points = [each for each in points if each.sides]
    if not points:
        raise BenchError(
            f"{names[0]} and {names[1]}: no prompt was served by the same way under the same load "
            "in both; measure both with the same prompts, loads and ways"
        )
    measures = [each for each in MEASURES if each != "e2e" or shared.same_outputs]
    places = [
        (point, measure) for point in points for measure in measures if point.of(measure).prompts
    ]
    judged = sum(not point.unjudged(measure) for point, measure in places)
    outputs = _outputs(points) if shared.same_outputs and promises_equality(first.header) else []
    prompts = [[" ".join(prompt_of(each)) for each in kept.requests] for kept in (first, second)]
    return Comparison(
        bundle=first.header.bundle,
        names=names,
        created=(first.header.created, second.header.created),
        conditions=shared.conditions,
        left_out=(*shared.left_out, *only("prompt", names, *prompts)),
        changes=tuple(_change(point, measure, max(judged, 1)) for point, measure in places),
        gains=tuple(_gains(points)),
        outputs=len(outputs),
        equal=sum(outputs),
        failures=(_failures(first), _failures(second)),
        comparisons=judged,
    )


def _chosen(kept: Kept, load: int, way: str) -> list[RequestRecord]:
    return [each for each in kept.requests if each.load == load and each.way == way]


def _point(load: str, way: str, first: list[RequestRecord], second: list[RequestRecord]) -> _Point:
    """Prompts of the same name and length that both served; others are no pair."""
    mine, other = _served(first), _served(second)
    sides = {
        prompt[:2]: (requests, other[prompt])
        for prompt, requests in mine.items()
        if prompt in other
    }
    return _Point(load, way, first, second, sides)


def _served(requests: Iterable[RequestRecord]) -> dict[tuple[str, str, int], list[RequestRecord]]:
    found: dict[tuple[str, str, int], list[RequestRecord]] = {}
    for each in requests:
        if each.failure is None:
            found.setdefault((*prompt_of(each), each.prompt_tokens), []).append(each)
    return found


def _change(point: _Point, measure: Measure, comparisons: int) -> Change:
    found = point.of(measure)
    unjudged = point.unjudged(measure)
    ratio = change(found, comparisons)
    assert ratio is not None
    if unjudged:
        ratio = ratio.model_copy(update={"low": None, "high": None})
    noise = [_repeats(each, measure) for each in (point.first, point.second)]
    repeats = max((each for each in noise if each is not None), default=None)
    return Change(
        load=point.load,
        way=point.way,
        measure=measure,
        first=sum(found.first) / sum(found.lengths),
        second=sum(found.second) / sum(found.lengths),
        ratio=ratio,
        repeats=repeats,
        verdict=changed(ratio, repeats or 0.0),
        unjudged=unjudged,
    )


def _repeats(requests: Iterable[RequestRecord], measure: Measure) -> float | None:
    """How far two repetitions of the same requests are apart at most; None: there are no two."""
    passes: dict[int, dict[int, RequestRecord]] = {}
    for each in requests:
        if each.failure is None:
            passes.setdefault(each.repeat, {})[each.number] = each
    apart = []
    for one, two in combinations(passes.values(), 2):
        found = times(
            by_prompt((one[number], two[number]) for number in one if number in two), measure
        )
        if found.prompts:
            apart.append(exp(abs(log(sum(found.second) / sum(found.first)))) - 1)
    return max(apart, default=None)


def _gains(points: Sequence[_Point]) -> Iterator[Gains]:
    plain = {each.load: each for each in points if each.way == PLAIN}
    for point in points:
        base = plain.get(point.load)
        if base is None or base is point:
            continue
        first, second = (
            gains.judged if (gains := against(one, two)) else None
            for one, two in ((base.first, point.first), (base.second, point.second))
        )
        if first and second:
            yield Gains(point.load, point.way, first, second)


def _outputs(points: Iterable[_Point]) -> list[bool]:
    """For each way, load and prompt of both: whether the first answers are the same."""
    return [
        mine[0].output == other[0].output
        for point in points
        for mine, other in point.sides.values()
    ]


def _failures(kept: Kept) -> int:
    return sum(each.failure is not None for each in kept.requests)

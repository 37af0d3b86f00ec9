"""What two results have in common, what only one has, and under what they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specedge.errors import BenchError
from specedge.loadtest.records import Header, Load
from specedge.probe.fingerprint import changed

if TYPE_CHECKING:
    from specedge.loadtest.keeping import Kept

_SHOWN = 3  # names of a list that a sentence gives


@dataclass(frozen=True, slots=True)
class Common:
    """Two results that can be compared.

    Args:
        loads: that both ran, with the index in either.
        ways: that both ran, in the order of the first.
        conditions: what differs, a phrase each: "threads 2 -> 1".
        left_out: what only one has, a sentence each.
        same_outputs: whether the requests were asked for the same way, so that whole answers, not
            only their pace, can be compared.
    """

    loads: tuple[tuple[Load, int, int], ...]
    ways: tuple[str, ...]
    conditions: tuple[str, ...]
    left_out: tuple[str, ...]
    same_outputs: bool


def common(first: Kept, second: Kept, names: tuple[str, str]) -> Common:
    """See `Common`.

    Raises:
        BenchError: the bundles differ, or no load or no way is in both, or either is empty.
    """
    one, two = first.header, second.header
    if one.bundle_hash != two.bundle_hash:
        raise BenchError(
            f"{names[0]} is of bundle {one.bundle} ({one.bundle_hash[:12]}), {names[1]} of "
            f"{two.bundle} ({two.bundle_hash[:12]}); compare two results of the same bundle"
        )
    for kept, name in zip((first, second), names, strict=True):
        if not kept.requests:
            raise BenchError(f"{name}: the result has no request; run the benchmark again")
    loads = [
        (load, one.loads.index(load), two.loads.index(load))
        for load in dict.fromkeys(one.loads)
        if load in two.loads
    ]
    ways = [way for way in one.ways if way in two.ways]
    for what, shared, mine, other in (
        ("load", loads, [each.name for each in one.loads], [each.name for each in two.loads]),
        ("way", ways, one.ways, two.ways),
    ):
        if not shared:
            raise BenchError(
                f"{names[0]} and {names[1]} have no {what} in common: {', '.join(mine)} against "
                f"{', '.join(other)}; measure both with one that is the same"
            )
    left_out = only("load", names, [x.name for x in one.loads], [x.name for x in two.loads])
    left_out += only("way", names, one.ways, two.ways)
    same = one.max_tokens == two.max_tokens and one.options == two.options
    if not same:
        left_out.append(
            "End-to-end times and outputs are left out: output limits or options differ."
        )
    return Common(tuple(loads), tuple(ways), _conditions(one, two, names), tuple(left_out), same)


def only(
    what: str, names: tuple[str, str], first: Sequence[str], second: Sequence[str]
) -> list[str]:
    """ "Only A has way ngram K=3.": a sentence for either side that has more."""
    said = []
    for name, mine, other in ((names[0], first, second), (names[1], second, first)):
        lone = [each for each in dict.fromkeys(mine) if each not in set(other)]
        if lone:
            shown = ", ".join(lone[:_SHOWN])
            more = f" and {len(lone) - _SHOWN} more" if len(lone) > _SHOWN else ""
            said.append(f"Only {name} has {what if len(lone) == 1 else what + 's'} {shown}{more}.")
    return said


def _conditions(one: Header, two: Header, names: tuple[str, str]) -> tuple[str, ...]:
    """Versions, settings and options that differ, and what was interrupted."""
    said = _differing(one.versions, two.versions)
    said += [
        each
        for each in changed(one.fingerprint, two.fingerprint)
        if not any(each.startswith(f"{name} ") for name in {*one.versions, "bundle"})
    ]
    said += _differing({"prompts": one.prompts}, {"prompts": two.prompts})
    said += _differing({"max tokens": one.max_tokens}, {"max tokens": two.max_tokens})
    said += _differing(one.options, two.options)
    for header, name in zip((one, two), names, strict=True):
        if not header.complete:
            said.append(f"{name} was interrupted")
    return tuple(said)


def _differing(one: Mapping[str, object], two: Mapping[str, object]) -> list[str]:
    names = dict.fromkeys([*one, *two])
    return [
        f"{name} {_given(one.get(name))} -> {_given(two.get(name))}"
        for name in names
        if one.get(name) != two.get(name)
    ]


def _given(value: object) -> str:
    return "not given" if value is None else str(value)

"""Gate "structured": a constrained output is whole, and speculation does not change it.

Each constraint of `specedge.gates.schemas` is asked for plainly, then in several ways with drafts,
greedily; some of them sampled too, with a seed and coupled acceptance. Every output has to

    end by itself          the budget is more than the constraint can take
    be what was asked      judged by jsonschema, by Python's `re`, or by a reader of the language,
                           none of which took part in making it
    equal the plain one    token for token; `specedge.gates.parting` explains what does not
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from time import perf_counter

from specedge.desk import AUTO, Desk, Way
from specedge.errors import OptionError
from specedge.gates.constrained import Tally, Trial
from specedge.gates.findings import Case, Gate, Report
from specedge.gates.prompts import Asked
from specedge.gates.schemas import Entry, entries

NAME = "structured"
TITLE = "Structured output"
PACKAGES = ("llguidance", "jsonschema")
KS = (3, 7)
SAMPLED = 8


def check(
    desk: Desk,
    prompts: Sequence[Asked] = (),
    *,
    report: Report,
    most: int | None = None,
    ks: Sequence[int] = KS,
    sampled: int = SAMPLED,
    chosen: Sequence[Entry] | None = None,
) -> Gate:
    """Ask for every constraint in every way.

    Args:
        desk: of the bundle.
        prompts: not used; a constraint has its own.
        report: told of the progress.
        most: so many constraints at most, those that cover the most features; None: all.
        ks: draft lengths of the first lookup, cut to what fits; the draft model has the smallest.
        sampled: constraints that are asked for with a seed as well.
        chosen: constraints; None: those that come with specedge.

    Raises:
        OptionError: an argument is out of range.
    """
    for name, value, least in (("most", most, 1), ("sampled", sampled, 0)):
        if value is not None and value < least:
            raise OptionError(f"{name}: expected {least} or more, found {value}")
    began = perf_counter()
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        said = f"needs {' and '.join(missing)}; pip install 'specedge[guidance]'"
        return Gate(NAME, TITLE, f"could not be checked: {said}", [Case("install", "failed", said)])
    asked = spread(entries() if chosen is None else chosen, most)
    seeded = {entry.name: seed for seed, entry in enumerate(spread(asked, sampled), start=1)}
    trial = Trial(desk, ways_of(desk, ks))
    cases, whole = [], Tally()
    desk.renew(AUTO)  # what it learns, it learns here
    for place, entry in enumerate(asked):
        report(entry.name, place / len(asked))
        case, tally = trial.case(entry, seeded.get(entry.name))
        cases.append(case)
        whole.add(tally)
    report(NAME, 1.0)
    return Gate(
        NAME,
        TITLE,
        _certificate(cases, whole),
        cases,
        perf_counter() - began,
        {**_counts(asked), **whole.figures()},
        _notes(whole, exact=not desk.model.target.width_noise),
    )


def ways_of(desk: Desk, ks: Sequence[int] = KS) -> list[Way]:
    """Auto, the first lookup with each K that fits, and the draft model with the smallest."""
    fitting = sorted({min(k, desk.longest) for k in ks})
    lookups = [name for name in desk.proposers if name != "draft"][:1]
    ways = [AUTO, *(Way("on", (name,), k) for name in lookups for k in fitting)]
    if "draft" in desk.proposers:
        ways.append(Way("on", ("draft",), fitting[0]))
    return ways


def spread(found: Sequence[Entry], most: int | None) -> list[Entry]:
    """So many entries that cover as many features as such a choice can, in their order."""
    if most is None or most >= len(found):
        return list(found)
    left, taken, seen = list(found), set[str](), Counter[str]()

    def new(entry: Entry) -> float:
        kind: float = 0.1 ** seen[entry.kind]
        return 9 * kind + sum(0.1 ** seen[feature] for feature in entry.covers)

    for _ in range(most):
        best = max(left, key=new)
        left.remove(best)
        taken.add(best.name)
        seen.update((best.kind, *best.covers))
    return [entry for entry in found if entry.name in taken]


def _counts(asked: Iterable[Entry]) -> dict[str, int]:
    kinds = [entry.kind for entry in asked]
    return {
        "constraints": len(kinds),
        "schemas": kinds.count("json_schema"),
        "patterns": kinds.count("regex"),
        "grammars": kinds.count("grammar"),
    }


def _certificate(cases: Sequence[Case], whole: Tally) -> str:
    failed = [case.name for case in cases if case.outcome == "failed"]
    skipped = sum(case.outcome == "skipped" for case in cases)
    said = (
        f"{whole.parsed:,} of {whole.outputs:,} outputs for {len(cases) - skipped} constraints "
        f"parse; {whole.equal:,} of {whole.compared:,} with speculation have the tokens of those "
        "without"
    )
    if whole.within_noise:
        said += f", {whole.within_noise} part within the noise of widths ({whole.noise:.2g})"
    if failed:
        names = ", ".join(repr(name) for name in failed[:3])
        said += f"; failed: {names}" + (f" and {len(failed) - 3} more" if len(failed) > 3 else "")
    return said


def _notes(whole: Tally, *, exact: bool) -> list[str]:
    said = [
        "validated by jsonschema, Python's re and readers of our own, none of which made the "
        "output; keys that repeat inside a map are one key to them"
    ]
    if whole.forced_proposed:
        said.append(
            f"the constraint left one token only at {whole.forced_proposed:,} drafted places; "
            f"{whole.forced_accepted:,} were accepted, "
            f"{whole.figures()['forced_share']:.0%} of the tokens made with speculation"
        )
    if not exact:
        said.append(
            "calls of other widths differ in their last bits here, so a sampled output is "
            "checked for its form and not for its tokens"
        )
    return said

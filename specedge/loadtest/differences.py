"""What a comparison of two results says, in words."""

from __future__ import annotations

from math import log

from specedge.loadtest.against import PLAIN
from specedge.loadtest.comparing import Comparison
from specedge.loadtest.paired import Measure
from specedge.loadtest.sentences import Headline
from specedge.words import counted, interval, share

NAMES: dict[Measure, str] = {
    "decode": "decoding",
    "ttft": "time to the first token",
    "e2e": "time to the last token",
}


def headline(comparison: Comparison) -> Headline:
    """Whether the second result is faster or slower than the first."""
    first, second = comparison.names
    verdicts = [each.verdict for each in comparison.changes]
    slower, faster = verdicts.count("slower"), verdicts.count("faster")
    judged = counted(comparison.comparisons, "comparison")
    if not comparison.comparisons:
        said = f"Nothing could be judged: {_why_unjudged(comparison)}."
        return Headline("Too few to tell", "open", said)
    said = f"Of {judged}, {second} is slower in {slower} and faster in {faster} than {first}"
    if slower or faster:
        called = [each for each in comparison.changes if each.verdict in ("faster", "slower")]
        most = max(called, key=lambda each: abs(log(each.ratio.gain)))
        what = f"{NAMES[most.measure]} of {most.way} with {most.load}"
        said += f"; most: {what} takes {interval(most.ratio)}"
    if slower and faster:
        return Headline("Faster and slower", "open", f"{said}.")
    if slower:
        return Headline(f"{second} is slower", "bad", f"{said}.")
    if faster:
        return Headline(f"{second} is faster", "good", f"{said}.")
    widest = max(each.within or 0.0 for each in comparison.changes)
    return Headline("No difference beyond noise", "open", f"{said}; all within ±{share(widest)}.")


def drift_line(comparison: Comparison) -> str | None:
    """Where plain decoding itself changed, the device did, not speculation."""
    moved = [
        each
        for each in comparison.changes
        if each.way == PLAIN and each.measure == "decode" and each.verdict in ("faster", "slower")
    ]
    if not moved:
        return None
    most = max(moved, key=lambda each: abs(each.ratio.gain - 1))
    return (
        f"Plain decoding itself takes {interval(most.ratio)} in {comparison.names[1]}: the device, "
        "its settings or the engine changed; compare the gains over plain too."
    )


def remarks(comparison: Comparison) -> list[str]:
    """What a reader needs to read the comparison right."""
    said = []
    if line := drift_line(comparison):
        said.append(line)
    if comparison.conditions:
        said.append(f"They were measured differently: {'; '.join(comparison.conditions)}.")
    said += comparison.left_out
    if comparison.outputs:
        equal = f"{comparison.equal} of {counted(comparison.outputs, 'output')}"
        said.append(f"Same tokens in both: {equal}.")
    for name, failures in zip(comparison.names, comparison.failures, strict=True):
        if failures:
            said.append(f"{counted(failures, 'request')} of {name} failed and are left out.")
    if comparison.comparisons > 1:
        each = comparison.alarm / comparison.comparisons
        said.append(
            f"{comparison.comparisons} comparisons share the chance of {share(comparison.alarm)} "
            f"of calling a difference that is none: each interval is of {1 - each:.2%}."
        )
    if any(each.unjudged == "queued" for each in comparison.changes):
        said.append(
            "Where requests queued, only decoding is judged: waits in one queue depend on each "
            "other."
        )
    if any(each.repeats is None and not each.unjudged for each in comparison.changes):
        said.append(
            "With one repetition there is no saying how far the device drifts from run to run; "
            "a small difference may be that."
        )
    return said


def _why_unjudged(comparison: Comparison) -> str:
    kinds = {each.unjudged for each in comparison.changes}
    few = max((each.ratio.prompts for each in comparison.changes), default=0)
    if "few prompts" in kinds:
        return f"{counted(few, 'prompt')} in common, 12 are needed"
    return "requests queued"

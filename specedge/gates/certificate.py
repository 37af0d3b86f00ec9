"""The greedy gate's answer: a certificate, or the difference that is no near-tie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specedge.desk import PLAIN
from specedge.engines.base import Engine
from specedge.gates.findings import Case, Gate
from specedge.gates.scores import Difference, Score, explained
from specedge.words import counted

NAME = "greedy"
TITLE = "Greedy text is the same with speculation and without"
PENALISED = "penalties and bias"


@dataclass(slots=True)
class Runs:
    """All runs of the gate.

    Args:
        prompts: how many were asked.
        max_tokens: output budget of each run.
        ways: scores, one for each way.
        left_out: prompts that do not fit the context.
        plain: runs of the reference itself.
        penalised: runs with penalties and biases, of several ways.
        noise: between widths of calls, as far as it was measured.
    """

    prompts: int
    max_tokens: int
    ways: Sequence[Score]
    left_out: Sequence[str] = ()
    plain: Score = field(default_factory=lambda: Score(PLAIN.name))
    penalised: Score = field(default_factory=lambda: Score(PENALISED))
    noise: float = 0.0

    @property
    def scores(self) -> list[Score]:
        """Of everything that is compared with plain decoding."""
        return [*self.ways, self.penalised]

    @property
    def differences(self) -> list[Difference]:
        return [each for score in self.scores for each in score.differences]


def gate(runs: Runs, target: Engine, seconds: float) -> Gate:
    """All scores together; noise that was measured for one difference counts for all.

    Args:
        runs: finished.
        target: that made the text.
        seconds: that the runs took.
    """
    for score in runs.scores:
        score.settle(runs.noise)
    cases = [score.case() for score in runs.scores if score.runs]
    if runs.plain.troubles:
        figures = {"runs": runs.plain.runs, "troubles": list(runs.plain.troubles)}
        said = runs.plain.troubles[0]
        cases.insert(0, Case(PLAIN.name, "failed", said, runs.plain.seconds, figures))
    proposed = sum(score.proposed for score in runs.scores)
    if not proposed:
        cases.append(Case("drafts", "failed", _nothing_drafted(runs)))
    margins = [abs(each.parting.margin) for each in runs.differences if each.parting is not None]
    figures = {
        "prompts": runs.prompts,
        "ways": len(runs.ways),
        "max_tokens": runs.max_tokens,
        "runs": sum(score.runs for score in runs.scores),
        "equal": sum(score.equal for score in runs.scores),
        "tokens": sum(score.tokens for score in runs.scores),
        "proposed": proposed,
        "accepted": sum(score.accepted for score in runs.scores),
        "differences": len(runs.differences),
        "outside": sum(not each.within for each in runs.differences),
        "largest_margin": max(margins, default=None),
        "noise": runs.noise if margins else None,
        "engine_width_noise": target.width_noise,
        "width_step": target.width_step,
    }
    said, notes = _said(runs, cases), _notes(runs, target)
    return Gate(NAME, TITLE, said, cases, seconds, figures, notes)


def _said(runs: Runs, cases: Sequence[Case]) -> str:
    """The answer in one line."""
    count = sum(score.runs for score in runs.scores)
    outside = [each for each in runs.differences if not each.within]
    if outside:
        differences = counted(len(outside), "difference")
        return (
            f"{differences} in {count} runs outside the width noise; the first: {outside[0].said}"
        )
    failed = [case for case in cases if case.outcome == "failed"]
    if failed:
        return f"{failed[0].name}: {failed[0].said}"
    tokens = sum(score.tokens for score in runs.scores)
    asked, ways = counted(runs.prompts, "prompt"), counted(len(runs.ways), "way")
    size = f"{asked}, {ways}, {tokens:,} tokens"
    if runs.differences:
        differences = counted(len(runs.differences), "difference")
        return f"{differences} in {count} runs ({size}), {explained(runs.noise)}"
    return f"equal on {count} of {count} runs ({size})"


def _notes(runs: Runs, target: Engine) -> list[str]:
    """What may be expected of this engine, and what the runs could not show."""
    notes = [_exactness(runs, target)]
    if runs.penalised.runs:
        notes.append(
            f"{runs.penalised.runs} of the runs are made with penalties and biases, which change "
            "every row by the tokens before it, drafted ones included"
        )
    idle = [score.name for score in runs.ways if score.runs and not score.proposed]
    if idle:
        notes.append(f"drafted nothing on these prompts, and so cannot fail: {', '.join(idle)}")
    never = [score.name for score in runs.ways if score.proposed and not score.accepted]
    if never:
        notes.append(f"not one drafted token was accepted: {', '.join(never)}")
    if runs.left_out:
        notes.append(f"longer than the context, left out: {', '.join(runs.left_out)}")
    return notes


def _nothing_drafted(runs: Runs) -> str:
    names = ", ".join(score.name for score in runs.ways) or "none"
    return (
        f"no way drafted a single token ({names}), so nothing was tested; give prompts whose text "
        "repeats itself, a bundle with a draft model, or a larger export.max_verify"
    )


def _exactness(runs: Runs, target: Engine) -> str:
    if target.width_noise:
        return (
            f"not exact: logits of this engine differ by up to {target.width_noise:.2g} with the "
            "number of tokens in a call, so of two nearly tied tokens the other one may win; "
            "every such difference is measured where it happens"
        )
    if runs.noise:
        return (
            "not exact: logits of this engine were found to agree when it was loaded, but on these "
            f"texts they differ by up to {runs.noise:.2g} with the number of tokens in a call"
        )
    return (
        f"exact: calls are padded to multiples of {target.width_step}, between which logits agree "
        "to the bit, so every difference is a fault"
    )

"""Prompts of every class on the engines, within a budget: texts, agreement, then live pairs.

What is run of a class, and when it is through, `specedge.probe.classes` says. Here classes take
turns, so that a budget that ends early has served all of them about equally. The most promising
proposer of each is checked first, the next one when all classes are through with that. What is
there when time ends is kept, and the rest stays open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from specedge.contract import Ids
from specedge.engines.base import Engine
from specedge.errors import PromptError
from specedge.probe import replay
from specedge.probe.classes import Check, Plan, PromptClass
from specedge.probe.curves import CostCurves
from specedge.probe.deciding import decide
from specedge.probe.findings import Findings, Steadiness
from specedge.probe.measuring import Clock, Report, Watch, check_budget
from specedge.probe.pairs import STEP_PAST, Meter, Pair, Rig
from specedge.proposers import NgramProposer
from specedge.workloads import Workload, WorkloadPrompt, fits

Encode = Callable[[WorkloadPrompt], Ids]
"""A prompt's token ids, int64 [n]; raises PromptError where it has none."""

FEWEST_CREDIBLE = 3  # repetitions of every point
SAME_PACE = 1.25  # ratio up to which two readings of T(1) are of the same machine
TOKENS = 48  # of output; enough for lookups to find something in it


@dataclass(frozen=True)
class Calibrated:
    """What was found out, and what it rests on.

    Args:
        findings: without energy and clocks, which whoever holds a meter adds.
        pairs: every pair, in the order of running.
        plain_joules, spec_joules: of a token, by the meter; None: not metered.
        left_out: prompts that the context has no room for, a line each.
    """

    findings: Findings
    pairs: tuple[Pair, ...]
    plain_joules: float | None
    spec_joules: float | None
    left_out: tuple[str, ...]


def calibrate(
    target: Engine,
    draft: Engine | None,
    curves: CostCurves,
    workloads: Sequence[Workload],
    encode: Encode,
    *,
    proposers: Sequence[str],
    eos_ids: frozenset[int],
    ngrams: tuple[int, int],
    margin: float,
    max_draft: int,
    budget_s: float,
    tokens: int = TOKENS,
    clock: Clock = time.perf_counter,
    meter: Meter | None = None,
    report: Report | None = None,
) -> Calibrated:
    """Find out where which proposer pays.

    Args:
        target: open; stays so.
        draft: open; stays so. None: "draft" is not among `proposers`.
        curves: of these engines.
        workloads: one or more classes, all of one source.
        encode: called once for each prompt, before anything runs.
        proposers: of "ngram" and "draft", in priority order.
        eos_ids: end a text.
        ngrams: shortest and longest match of lookups.
        margin: gain from which speculation is worth it, 1 or more.
        max_draft: largest K; cut to what the curves know.
        budget_s: seconds; nothing is begun that would, by the pace so far, end after them.
        tokens: most of a prompt's output, 2 or more.
        clock: of durations and budget.
        meter: read around every timed run.
        report: told the used share of the budget after each prompt.

    Raises:
        OptionError: see `check_budget`.
        PromptError: a prompt cannot be encoded, or not one fits the context.
        ProbeError: the clock went back, stood still or is not finite.
        EngineError: the target failed.
        ProposerError: the draft failed.
    """
    check_budget(budget_s)
    watch = Watch(clock)
    began = watch.now()
    rig = Rig(
        target,
        draft,
        watch,
        eos_ids=eos_ids,
        tokens=tokens,
        ngrams=ngrams,
        meter=meter,
    )
    with rig:
        prompts, left_out = encoded(workloads, encode, rig.context)
        longest = min(max_draft, curves.target.widths[-1] - 1)
        before = watch.now()
        first_ms = rig.step_ms()
        reserve_s = watch.now() - before
        trusted = credible(curves, first_ms)
        prices = replay.Prices(curves)
        plan = Plan(curves, prices, tuple(proposers), longest, margin, trusted)
        classes = [PromptClass(each.name, prompts[each.name], plan) for each in workloads]
        turns = _Turns(
            rig, classes, plan, NgramProposer(*ngrams), tokens, watch, began, budget_s, reserve_s
        )
        complete = turns.run(report)
        drift = rig.step_ms() / first_ms
    decision = decide(
        curves,
        [each.calibration(name) for each in classes for name in proposers if each.texts],
        margin,
        live=[check.live for each in classes for check in each.checks if check.pairs],
        workloads=[each.name for each in workloads],
        proposers=proposers,
        trusted=trusted,
    )
    findings = Findings(
        margin=margin,
        prompts_from=workloads[0].source,
        workloads=tuple(each.name for each in workloads),
        findings=decision.findings,
        proposers=decision.proposers,
        reason=decision.reason,
        texts_equal=turns.equal,
        texts_compared=turns.compared,
        energy=None,
        steadiness=Steadiness(drift=drift),
        seconds=watch.now() - began,
        complete=complete,
    )
    return Calibrated(
        findings,
        tuple(turns.pairs),
        rig.plain_use.per_token,
        rig.spec_use.per_token,
        left_out,
    )


def credible(curves: CostCurves, step_ms: float) -> bool:
    """Whether curves are worth ruling a proposer out by: repeated, and of a machine like now's.

    A median of one or two calls may be anything; and what something else ran beside them made dear
    is not what a run pays.

    Args:
        step_ms: T(1) after STEP_PAST rows, now.
    """
    ratio = step_ms / curves.target.cost_ms(1, STEP_PAST)
    return curves.passes >= FEWEST_CREDIBLE and 1 / SAME_PACE <= ratio <= SAME_PACE


def encoded(
    workloads: Sequence[Workload], encode: Encode, context: int
) -> tuple[dict[str, list[Ids]], tuple[str, ...]]:
    """Ids of the prompts that leave room for two tokens of output, by class; and the others.

    Raises:
        PromptError: a prompt cannot be encoded, or not one fits.
    """
    found: dict[str, list[Ids]] = {}
    left_out: list[str] = []
    for workload in workloads:
        kept = found.setdefault(workload.name, [])
        for prompt in workload.prompts:
            ids = encode(prompt)
            try:
                fits(prompt, len(ids), context, 1)
            except PromptError as error:
                left_out.append(str(error))
            else:
                kept.append(ids)
    if not any(found.values()):
        raise PromptError(f"not one of {len(left_out)} prompts fits: {left_out[0]}")
    return found, tuple(left_out)


@dataclass
class _Turns:
    """The classes in turn, until all are through or the time is.

    Args:
        reserve_s: of the budget, for what comes afterwards.
    """

    rig: Rig
    classes: list[PromptClass]
    plan: Plan
    lookup: NgramProposer
    tokens: int
    watch: Watch
    began: float
    budget_s: float
    reserve_s: float
    pairs: list[Pair] = field(default_factory=list)
    equal: int = 0
    compared: int = 0

    def run(self, report: Report | None) -> bool:
        """Whether it came to its end in time."""
        guessed_ms = took_ms = 0.0
        for of, number, check in self._tasks():
            before = self.watch.now()
            guess_ms = self._guess_ms(of.prompts[number], check)
            pace = took_ms / guessed_ms if guessed_ms else 1.0
            left_s = self.budget_s - self.reserve_s - (before - self.began)
            if pace * guess_ms / 1e3 > left_s:
                return False
            self._visit(of, number, check)
            spent = self.watch.now()
            guessed_ms += guess_ms
            took_ms += (spent - before) * 1e3
            if report is not None:
                report(min(1.0, (spent - self.began) / self.budget_s))
        return True

    def _tasks(self) -> Iterator[tuple[PromptClass, int, Check | None]]:
        """In turn; each is asked for after the one before was run."""
        stages = len(self.plan.proposers) if self.plan.longest > 0 else 0
        for stage in range(stages):
            waiting = list(self.classes)
            while waiting:
                for each in tuple(waiting):
                    task = each.task(stage)
                    if task is None:
                        waiting.remove(each)
                    else:
                        yield each, *task

    def _guess_ms(self, prompt: Ids, check: Check | None) -> float:
        """By the curves, which do not know how fast a prompt is read in wide calls."""
        n, curves = len(prompt), self.plan.curves
        runs = 1 if check is None else 2
        ms = curves.target.feed_ms(n, 0) + runs * self.tokens * curves.target.cost_ms(1, n)
        if "draft" in self.plan.proposers and curves.draft is not None:
            ms += curves.draft.feed_ms(n + self.tokens, 0)
        return ms

    def _visit(self, of: PromptClass, number: int, check: Check | None) -> None:
        self.rig.prefill(of.prompts[number])
        output = self.rig.plain().output if check is None else self._pair(number, check)
        if number < len(of.texts):
            return
        of.texts.append(len(output))
        for name in self.plan.proposers:
            offers = self._offers(name, of.prompts[number], output)
            of.offers.setdefault(name, []).append(offers)

    def _offers(self, name: str, prompt: Ids, output: Ids) -> replay.Offers:
        longest = self.plan.longest
        if name == "draft":
            return replay.draft_offers(len(prompt), self.rig.agreement(output), longest)
        return replay.lookup_offers(prompt, output, self.lookup, longest)

    def _pair(self, number: int, check: Check) -> Ids:
        """Run the prompt both ways; the plain text, int64 [n]."""
        rig, name, k = self.rig, check.proposer, check.k
        began_s = self.watch.now() - self.began
        if name == "draft":
            rig.read()  # before either run, so that both follow the same
        if len(check.tried) % 2 == 0:
            plain = rig.plain()
            spec = rig.speculative(name, k)
        else:
            spec = rig.speculative(name, k)
            plain = rig.plain()
        check.tried.add(number)
        self.compared += 1
        self.equal += plain.output.tolist() == spec.output.tolist()
        steps, spec_steps = len(plain.output) - 1, len(spec.output) - 1
        if steps and spec_steps:
            # Where near-ties fell otherwise, the text may have ended elsewhere.
            spec_ms = spec.ms * steps / spec_steps
            pair = Pair(check.workload, name, k, number, plain.ms, spec_ms, steps, began_s)
            self.pairs.append(pair)
            check.add(pair, self.plan.margin)
        return plain.output

"""Are answers as good with speculation as without? Tasks with checkable answers, in pairs.

Every task is answered greedily without speculation and in each way with it, from an empty KV, and
both answers are judged. McNemar's exact test looks at the pairs whose judgement has changed: a way
is worse beyond chance when more were lost than gained and p is under the level. The level is
shared out over the ways, since each of them may fail the gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from specedge.desk import AUTO, PLAIN, Desk, Way
from specedge.errors import PromptError, SpecedgeError
from specedge.gates.findings import Case, Gate, Outcome, Report
from specedge.gates.grading import Answer, Answered, Grade
from specedge.gates.judging import Judgement
from specedge.gates.mcnemar import fewest_lost
from specedge.gates.prompts import Asked
from specedge.gates.tasks import Task, builtin
from specedge.result import Result
from specedge.words import counted
from specedge.workloads import fits

LEVEL = 0.05
FIXED_K = 4  # drafts in every round, where "auto" may choose not to draft at all
TITLE = "Answers are as good with speculation as without"


def check(
    desk: Desk,
    prompts: Sequence[Asked],
    *,
    report: Report,
    tasks: Sequence[Task] | None = None,
    ways: Sequence[Way] | None = None,
    level: float = LEVEL,
) -> Gate:
    """Score the tasks without speculation and with it.

    Args:
        prompts: not used; the tasks bring their own.
        report: told the class of the task and the share of tasks that are done.
        tasks: see `specedge.gates.tasks`; None: those built in.
        ways: with speculation; None: "auto", and each proposer with `FIXED_K` or what fits.
        level: under which a p-value of McNemar's test fails the gate, shared out over the ways.

    Raises:
        PromptError: there are tasks, and none of them fits the context.
        EngineError, ProbeError: decoding without speculation, or a sandbox, has failed.
    """
    began = perf_counter()
    chosen = default_ways(desk) if ways is None else list(ways)
    able, notes = _able(desk, builtin() if tasks is None else tasks)
    answered: list[Answered] = []
    for place, task in enumerate(able):
        report(task.workload, place / len(able))
        answered.append(_answer(desk, task, chosen))
    report("done", 1.0)
    faulty = [one for one in answered if one.faults]
    scored = [one for one in answered if not one.faults]
    share = level / max(1, len(chosen))
    cases = [_way_case(scored, way, share) for way in chosen] if scored else []
    cases += _class_cases(scored, chosen, share)
    cases += [
        Case(f"check of {one.task.name}", "failed", one.faults[0], one.seconds) for one in faulty
    ]
    if not cases:
        cases = [Case("tasks", "skipped", "no task can be checked here; the notes say why")]
    return Gate(
        "quality",
        TITLE,
        _said(scored, chosen, faulty),
        cases,
        perf_counter() - began,
        figures={
            "level": level,
            "level_of_each_way": share,
            "fewest_lost_that_fail": fewest_lost(share),
            "ways": {way.name: Grade.of(scored, way.name).figures() for way in chosen},
        },
        notes=[*notes, *_notes(scored, chosen, share)],
    )


def default_ways(desk: Desk) -> list[Way]:
    """ "auto", and every proposer with a fixed draft length."""
    k = min(FIXED_K, desk.longest)
    return [AUTO, *(Way("on", (name,), k) for name in desk.proposers)]


def _able(desk: Desk, tasks: Sequence[Task]) -> tuple[list[Task], list[str]]:
    """Tasks that can be asked and judged here; and of the others, why not."""
    able: list[Task] = []
    left_out: dict[str, list[str]] = {}  # by what is said of the first one
    unfit: str | None = None
    n_unfit = 0
    for task in tasks:
        why = task.judge.unavailable()
        if not why:
            prompt = task.prompt.given(has_template=desk.model.has_chat_template)
            length = len(desk.model.encode(prompt)[0])
            try:
                fits(task.prompt, length, desk.model.context, task.max_tokens)
            except PromptError as error:
                n_unfit += 1
                if n_unfit == len(tasks):
                    raise
                why = unfit = unfit or str(error)
        if why:
            left_out.setdefault(why, []).append(task.name)
        else:
            able.append(task)
    notes = [
        f"left out: {names[0]}: {why}" + (f"; likewise {', '.join(names[1:])}" if names[1:] else "")
        for why, names in left_out.items()
    ]
    return able, notes


def _answer(desk: Desk, task: Task, ways: Sequence[Way]) -> Answered:
    began = perf_counter()
    plain = _ask(desk, PLAIN, task)
    answered = Answered(task, task.judge(plain.text))
    for way in ways:
        try:
            result = _ask(desk, way, task)
        except SpecedgeError as error:
            judged = Judgement(False, f"{type(error).__name__}: {error}")
            answered.ways[way.name] = Answer(judged, False, failed=True)
            continue
        same = result.tokens == plain.tokens
        answered.ways[way.name] = Answer(
            # a check that is not the same twice must not look like a change
            answered.plain if same else task.judge(result.text),
            same,
            proposed=result.metrics.proposed,
            accepted=result.metrics.accepted,
        )
    answered.seconds = perf_counter() - began
    return answered


def _ask(desk: Desk, way: Way, task: Task) -> Result:
    desk.forget()
    prompt = task.prompt.given(has_template=desk.model.has_chat_template)
    return desk.ask(way, prompt, max_tokens=task.max_tokens, temperature=0.0)


def _way_case(answered: Sequence[Answered], way: Way, level: float) -> Case:
    """All tasks, one way; not judged where it drafted nothing, since that is plain decoding."""
    score = Grade.of(answered, way.name)
    said = str(score)
    outcome: Outcome = "passed"
    if score.failed:
        first = next(answer for one in answered if (answer := one.ways[way.name]).failed)
        failed = f"{counted(score.failed, 'request')} failed: {first.judged.said}"
        outcome, said = "failed", f"{failed}; {said}"
    elif score.worse(level):
        outcome, said = "failed", f"{said}; expected p of {level:.2g} or more"
    elif not score.proposed and score.same == score.tasks:
        outcome, said = "skipped", f"no token was drafted on {score.tasks} tasks: {said}"
    return Case(f"all tasks, {way.name}", outcome, said, figures=score.figures())


def _class_cases(answered: Sequence[Answered], ways: Sequence[Way], level: float) -> list[Case]:
    """The tasks of each class, in all ways, with every answer."""
    cases: list[Case] = []
    for name in dict.fromkeys(one.task.workload for one in answered):
        own = [one for one in answered if one.task.workload == name]
        scores = {way.name: Grade.of(own, way.name) for way in ways}
        worse = [way for way, score in scores.items() if score.worse(level)]
        drafted = any(score.proposed for score in scores.values())
        same = all(score.same == score.tasks for score in scores.values())
        outcome: Outcome = "failed" if worse else "passed" if drafted or not same else "skipped"
        said = "; ".join(f"{way}: {scores[way]}" for way in worse) or _together(scores)
        figures = {
            "ways": {way: score.figures() for way, score in scores.items()},
            "tasks": [_told(one) for one in own],
        }
        cases.append(Case(name, outcome, said, sum(one.seconds for one in own), figures))
    return cases


def _told(one: Answered) -> dict[str, Any]:
    """A task as JSON."""
    return {
        "name": one.task.name,
        "where": one.task.where,
        "without": {"right": one.plain.right, "said": one.plain.said},
        "with": {
            way: {
                "right": answer.judged.right,
                "identical": answer.same,
                "said": answer.judged.said,
                "proposed": answer.proposed,
                "accepted": answer.accepted,
            }
            for way, answer in one.ways.items()
        },
    }


def _together(scores: dict[str, Grade]) -> str:
    """Some tasks in every way, on one line; the p-value is the smallest of the ways."""
    if not scores:
        return "no way with speculation was asked for"
    tasks, plain = next((score.tasks, score.plain) for score in scores.values())
    said = f"{plain} of {tasks} right without speculation, "
    rights = {score.right for score in scores.values()}
    if len(rights) == 1:
        ways = "" if len(scores) == 1 else f" in each of {len(scores)} ways"
        said += f"{rights.pop()} with{ways}"
    else:
        said += ", ".join(f"{score.right} with {way}" for way, score in scores.items())
    outputs = tasks * len(scores)
    same = sum(score.same for score in scores.values())
    if same == outputs:
        return f"{said}; identical outputs on {same} of {outputs}"
    changed = sum(score.lost + score.gained for score in scores.values())
    least = min(score.p for score in scores.values())
    return (
        f"{said}; {outputs - same} of {outputs} outputs changed, "
        f"{counted(changed, 'answer')} judged otherwise (McNemar p = {least:.2g})"
    )


def _said(scored: Sequence[Answered], ways: Sequence[Way], faulty: Sequence[Answered]) -> str:
    said = "no task was scored"
    if scored:
        said = _together({way.name: Grade.of(scored, way.name) for way in ways})
    if faulty:
        said += f"; {counted(len(faulty), 'check')} at fault"
    return said


def _notes(scored: Sequence[Answered], ways: Sequence[Way], level: float) -> list[str]:
    scores = [Grade.of(scored, way.name) for way in ways]
    if all(score.same == score.tasks for score in scores):
        return ["identical outputs leave nothing to test: McNemar's test looks at changed answers"]
    fewest = fewest_lost(level)
    notes = [f"with none gained, {fewest} lost answers are the fewest that fail at p < {level:.2g}"]
    right = sum(one.plain.right for one in scored)
    if right < fewest:
        notes.append(
            f"only {right} of {len(scored)} tasks are right without speculation: too few for a "
            "loss beyond chance; give more tasks, or easier ones"
        )
    return notes

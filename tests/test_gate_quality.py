"""The gate on task quality: scores in pairs, McNemar's test, and what it cannot say."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from commands import alphabet
from specedge.acceptance import accept_greedy_ids
from specedge.desk import AUTO, PLAIN, Desk, Way
from specedge.errors import EngineError, ProposerError
from specedge.gates import quality
from specedge.gates.judging import Check, Expect, Schema
from specedge.gates.mcnemar import fewest_lost, p_value
from specedge.gates.quality import check
from specedge.gates.tasks import Task
from specedge.sampling import sampler
from specedge.workloads import WorkloadPrompt
from tiny import write_bundle

FIXED = Way("on", ("ngram",), 4)


class Scripted:
    """A desk whose answers are given: (way, prompt) → text, an error, or the plain answer."""

    proposers = ("ngram",)
    longest = 15

    def __init__(
        self,
        plain: Sequence[str | Exception],
        others: Mapping[Way, Mapping[int, str | Exception]] | None = None,
        *,
        drafted: int = 3,
        context: int = 1000,
    ) -> None:
        self.plain, self.others, self.drafted = plain, others or {}, drafted
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.forgotten = 0
        self.model = SimpleNamespace(
            has_chat_template=False, context=context, encode=lambda p: (np.arange(len(p)), p)
        )

    def forget(self) -> None:
        self.forgotten += 1

    def ask(self, way: Way, prompt: str, **options: Any) -> Any:
        self.asked.append((way.name, prompt, options))
        number = int(prompt.split()[-1])
        text = self.others.get(way, {}).get(number, self.plain[number])
        if isinstance(text, Exception):
            raise text
        drafted = 0 if way == PLAIN else self.drafted
        return SimpleNamespace(
            text=text,
            tokens=list(text.encode()),
            metrics=SimpleNamespace(proposed=drafted, accepted=drafted // 2),
        )


def tasks(count: int, judge: Any = None, workload: str = "sums") -> list[Task]:
    judge = Expect("equals", ("yes",)) if judge is None else judge
    return [
        Task(
            f"{workload} {n}",
            workload,
            WorkloadPrompt(None, f"{workload} {n}", str(n)),
            judge,
            9,
            f"line {n}",
        )
        for n in range(count)
    ]


def gate(desk: Any, given: Sequence[Task], **more: Any) -> Any:
    return check(
        desk, [], report=more.pop("report", lambda stage, share: None), tasks=given, **more
    )


# McNemar's test


def coins(lost: int, gained: int) -> float:
    """By every way in which that many coins can fall: no likelier than these did."""
    flips = list(itertools.product((0, 1), repeat=lost + gained))
    seen = abs(lost - gained)
    return sum(abs(2 * sum(flip) - len(flip)) >= seen for flip in flips) / len(flips)


@pytest.mark.parametrize(("lost", "gained"), [*itertools.product(range(6), repeat=2)])
def test_the_p_value_is_that_of_fair_coins(lost, gained):
    assert p_value(lost, gained) == pytest.approx(coins(lost, gained), abs=1e-15)


def test_the_p_value_of_many_pairs_is_finite_and_known():
    assert p_value(0, 0) == 1
    normal = math.erfc((abs(59 - 121) - 1) / math.sqrt(2 * (59 + 121)))  # corrected for steps
    assert p_value(59, 121) == pytest.approx(normal, rel=0.25)
    assert 0 < p_value(0, 900) < 1e-200
    assert p_value(5000, 5000) == 1


def test_the_fewest_losses_are_the_first_under_the_level():
    assert fewest_lost(0.05) == 6
    assert p_value(6, 0) < 0.05 <= p_value(5, 0)
    assert fewest_lost(0.025) == 7


# The gate


def test_identical_outputs_pass_and_say_that_nothing_was_left_to_test():
    desk = Scripted(["yes"] * 7 + ["no"] * 3)
    found = gate(desk, tasks(10))
    assert (found.name, found.outcome) == ("quality", "passed")
    assert found.said == (
        "7 of 10 right without speculation, 7 with in each of 2 ways; identical outputs on 20 of 20"
    )
    assert found.notes == [
        "identical outputs leave nothing to test: McNemar's test looks at changed answers"
    ]
    assert [(case.name, case.outcome) for case in found.cases] == [
        ("all tasks, auto", "passed"),
        ("all tasks, ngram K=4", "passed"),
        ("sums", "passed"),
    ]


def test_every_task_is_asked_greedily_from_an_empty_kv_in_every_way():
    desk = Scripted(["yes", "yes"])
    gate(desk, tasks(2))
    assert [(way, prompt) for way, prompt, _ in desk.asked] == [
        (way, f"sums {n}") for n in range(2) for way in ("plain", "auto", "ngram K=4")
    ]
    assert all(options == {"max_tokens": 9, "temperature": 0.0} for *_, options in desk.asked)
    assert desk.forgotten == len(desk.asked)


def test_a_loss_beyond_chance_fails_its_way_and_its_class():
    others = {FIXED: dict.fromkeys(range(7), "no")}
    found = gate(Scripted(["yes"] * 10, others), tasks(10))
    assert found.outcome == "failed"
    auto, fixed, sums = found.cases
    assert (auto.outcome, fixed.outcome, sums.outcome) == ("passed", "failed", "failed")
    assert fixed.said == (
        "10 of 10 right without speculation, 3 with; 7 outputs changed, 7 answers lost, 0 gained "
        "(McNemar p = 0.016); expected p of 0.025 or more"
    )
    assert found.said == (
        "10 of 10 right without speculation, 10 with auto, 3 with ngram K=4; 7 of 20 outputs "
        "changed, 7 answers judged otherwise (McNemar p = 0.016)"
    )
    assert sums.said.startswith("ngram K=4: 10 of 10 right without speculation, 3 with; ")
    told = sums.figures["tasks"][0]
    assert told["without"] == {"right": True, "said": ""}
    assert told["with"]["auto"]["identical"]
    assert told["with"]["ngram K=4"]["said"] == "the answer is not 'yes'"


def test_the_level_is_shared_out_over_the_ways():
    others = {FIXED: dict.fromkeys(range(6), "no")}  # p = 0.031
    desk = Scripted(["yes"] * 10, others)
    assert gate(desk, tasks(10)).outcome == "passed"
    assert gate(desk, tasks(10), ways=[FIXED]).outcome == "failed"


def test_a_gain_beyond_chance_is_no_failure():
    others = {FIXED: dict.fromkeys(range(9), "yes")}
    found = gate(Scripted(["no"] * 9, others), tasks(9), ways=[FIXED])
    assert found.outcome == "passed"
    assert found.figures["ways"]["ngram K=4"]["gained"] == 9
    assert found.figures["ways"]["ngram K=4"]["mcnemar_p"] < 0.05


def test_losses_within_chance_pass_and_the_notes_say_what_would_have_failed():
    found = gate(Scripted(["yes"] * 10, {FIXED: {1: "no"}}), tasks(10), ways=[FIXED])
    assert found.outcome == "passed"
    assert found.notes == ["with none gained, 6 lost answers are the fewest that fail at p < 0.05"]
    few = gate(Scripted(["yes"] * 4 + ["no"] * 6, {FIXED: {1: "no"}}), tasks(10), ways=[FIXED])
    assert few.notes[1].startswith("only 4 of 10 tasks are right without speculation: too few")


def test_an_output_that_differs_may_be_as_right():
    found = gate(Scripted(["yes", "yes"], {FIXED: {0: " Yes "}}), tasks(2), ways=[FIXED])
    assert found.said == (
        "2 of 2 right without speculation, 2 with; 1 of 2 outputs changed, 0 answers judged "
        "otherwise (McNemar p = 1)"
    )


def test_a_class_of_its_own_is_scored_on_its_own():
    desk = Scripted(["yes"] * 8, {FIXED: {}})
    mixed = [*tasks(8), *tasks(3, Expect("equals", ("no",)), "other")]
    found = gate(desk, mixed, ways=[FIXED])
    assert [(case.name, case.said) for case in found.cases[1:]] == [
        ("sums", "8 of 8 right without speculation, 8 with; identical outputs on 8 of 8"),
        ("other", "0 of 3 right without speculation, 0 with; identical outputs on 3 of 3"),
    ]


def test_a_way_that_drafted_nothing_is_not_judged():
    found = gate(Scripted(["yes"] * 3, drafted=0), tasks(3))
    assert found.outcome == "skipped"
    assert {case.outcome for case in found.cases} == {"skipped"}
    assert found.cases[0].said.startswith("no token was drafted on 3 tasks: 3 of 3 right")


def test_one_request_that_fails_under_speculation_fails_the_gate():
    others = {FIXED: {1: ProposerError("draft: it fell over")}}
    found = gate(Scripted(["no"] * 20, others), tasks(20), ways=[FIXED])
    assert found.outcome == "failed"
    assert found.cases[0].said.startswith(
        "1 request failed: ProposerError: draft: it fell over; 0 of 20 right"
    )


def test_an_engine_that_fails_without_speculation_leaves_nothing_to_say():
    with pytest.raises(EngineError, match="gone"):
        gate(Scripted([EngineError("gone")]), tasks(1))


def test_a_check_at_fault_fails_and_leaves_its_task_out_of_the_score():
    broken = Check("if output == 'no':\n    nowhere", 'my.jsonl, line 2: "check"')
    given = [*tasks(3), *tasks(4, broken, "own")[3:]]
    found = gate(Scripted(["yes"] * 4, {FIXED: {3: "no"}}), given, ways=[FIXED])
    assert found.outcome == "failed"
    assert found.cases[-1].name == "check of own 3"
    assert found.cases[-1].said.startswith('my.jsonl, line 2: "check", line 2 of it: NameError')
    assert found.said.startswith("3 of 3 right")
    assert found.said.endswith("; 1 check at fault")


def test_the_same_tokens_are_judged_once():
    asked: list[str] = []

    class Counting(Expect):
        def __call__(self, answer):
            asked.append(answer)
            return super().__call__(answer)

    gate(Scripted(["yes", "yes"], {FIXED: {1: "no"}}), tasks(2, Counting("equals", ("yes",))))
    assert asked == ["yes", "yes", "no"]


def test_tasks_that_do_not_fit_or_cannot_be_judged_are_left_out_with_a_note(monkeypatch):
    monkeypatch.setattr(Schema, "unavailable", lambda self: "no jsonschema")
    long = Task(
        "long", "a", WorkloadPrompt(None, "x" * 40, "my.jsonl, line 9"), tasks(1)[0].judge, 9, ""
    )
    longer = Task("longer", "a", long.prompt, long.judge, 20, "")
    desk = Scripted(["yes"], context=30)
    found = gate(desk, [*tasks(1), *tasks(2, Schema({}, ""), "json"), long, longer])
    assert found.outcome == "passed"
    assert found.notes[0] == "left out: json 0: no jsonschema; likewise json 1"
    assert found.notes[1].startswith("left out: long: my.jsonl, line 9: the prompt has 40 tokens")
    assert found.notes[1].endswith("; likewise longer")
    alone = gate(desk, tasks(1, Schema({}, ""), "json"))
    assert (alone.outcome, alone.said) == ("skipped", "no task was scored")


def test_progress_names_the_class_and_reaches_the_end():
    told: list[tuple[str, float]] = []
    gate(Scripted(["yes"] * 2), tasks(2), report=lambda stage, share: told.append((stage, share)))
    assert told == [("sums", 0.0), ("sums", 0.5), ("done", 1.0)]


def test_the_gate_is_json_ready():
    found = gate(Scripted(["yes"] * 2, {FIXED: {1: "no"}}), tasks(2))
    assert json.loads(json.dumps([case.figures for case in found.cases]))
    assert json.loads(json.dumps(found.figures))["level_of_each_way"] == 0.025


# On a desk


def test_the_built_in_tasks_run_on_a_model_without_weights(tmp_path):
    bundle = write_bundle(tmp_path / "tiny", context=1024, rule=alphabet())
    with Desk(bundle, engine="fake") as desk:
        found = check(desk, [], report=lambda stage, share: None)
    assert found.outcome == "passed"
    assert "identical outputs on 80 of 80" in found.said
    assert [case.name for case in found.cases[2:]] == ["arithmetic", "extraction", "code", "json"]


def test_a_round_that_commits_a_wrong_token_fails_the_gate(tmp_path, monkeypatch):
    def wrong(draft, greedy_ids):
        verdict = accept_greedy_ids(draft, greedy_ids)
        return verdict._replace(next_token=verdict.next_token - 1) if len(draft) else verdict

    with Desk(write_bundle(tmp_path / "tiny", rule=alphabet()), engine="fake") as desk:
        given = [
            Task(str(n), "letters", WorkloadPrompt(None, "abc" * n, str(n)), judge, 60, "")
            for n in range(1, 9)
            for judge in [
                Expect("equals", (desk.ask(PLAIN, "abc" * n, max_tokens=60, temperature=0).text,))
            ]
        ]
        assert gate(desk, given).outcome == "passed"
        monkeypatch.setattr(sampler, "accept_greedy_ids", wrong)
        found = gate(desk, given)
    assert found.outcome == "failed"
    assert found.figures["ways"]["ngram K=4"]["lost"] == 8
    assert found.figures["ways"]["ngram K=4"]["right"] == 0


@pytest.mark.model
def test_smollm2_answers_as_well_with_speculation(smollm2):
    chosen = [
        task for task in quality.builtin() if task.name in ("extraction 5", "code 1", "json 6")
    ]
    with Desk(smollm2, verify=False) as desk:
        found = check(desk, [], report=lambda stage, share: None, tasks=chosen, ways=[AUTO, FIXED])
    assert found.outcome == "passed", found.said
    assert found.figures["ways"]["ngram K=4"]["plain"] == 3
    assert found.figures["ways"]["ngram K=4"]["accepted"] > 0

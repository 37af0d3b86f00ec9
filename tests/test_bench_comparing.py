"""Two benchmarks compared: a planted difference is called, noise is not."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

import bench_samples as samples
from specedge.cli._bench_tables import compare_lines, compare_tables
from specedge.errors import BenchError
from specedge.loadtest import differences
from specedge.loadtest.comparing import compare
from specedge.loadtest.judging import ALARM, change, changed, verdict
from specedge.loadtest.keeping import Kept
from specedge.loadtest.paired import Times
from specedge.probe.findings import Estimate

TWO = {"plain": 1.0, "auto": 1.4}


def kept(**changed) -> Kept:
    return samples.kept(**({"ways": TWO} | changed))


def with_header(result: Kept, **changed) -> Kept:
    return replace(result, header=result.header.model_copy(update=changed))


def verdicts(comparison) -> set[str]:
    return {each.verdict for each in comparison.changes}


def test_a_planted_slowdown_is_found_and_its_opposite_is_a_gain():
    first, second = kept(seed=1), kept(seed=2, slower=1.1)
    slower = compare(first, second)
    assert verdicts(slower) == {"slower"}
    assert slower.comparisons == 6
    for each in slower.changes:
        assert each.ratio.low < 1.1 < each.ratio.high
        assert each.second > each.first
    assert differences.headline(slower).state == "B is slower"
    faster = compare(second, first)
    assert verdicts(faster) == {"faster"}
    assert differences.headline(faster).kind == "good"


def test_a_result_differs_from_itself_in_nothing():
    comparison = compare(kept(), kept())
    assert verdicts(comparison) == {"no difference beyond noise"}
    assert {each.ratio.gain for each in comparison.changes} == {1.0}
    assert comparison.equal == comparison.outputs == 40
    assert comparison.conditions == comparison.left_out == ()


def test_a_slowdown_of_one_way_only_is_called_for_that_way_only():
    second = samples.replaced(
        kept(seed=2), lambda each: delayed(each, 1.1) if each.way == "auto" else each
    )
    found = compare(kept(seed=1), second)
    assert {each.way for each in found.changes if each.verdict == "slower"} == {"auto"}
    assert differences.drift_line(found) is None


def delayed(each, factor):
    assert each.first_s is not None
    return each.model_copy(
        update={
            "first_s": each.began_s + factor * (each.first_s - each.began_s),
            "ended_s": each.began_s + factor * (each.ended_s - each.began_s),
        }
    )


def test_noise_alone_raises_the_alarm_no_more_often_than_stated():
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(200):
        base = np.exp(rng.normal(5, 0.5, 20))
        sides = [base * np.exp(rng.normal(0, 0.03, 20)) for _ in range(2)]
        times = Times(list(sides[0]), list(sides[1]), [("", "")] * 20, [1.0] * 20)
        alarms += changed(change(times, 1), 0.0) != "no difference beyond noise"
    assert alarms <= 200 * ALARM + 3 * (200 * ALARM * (1 - ALARM)) ** 0.5


def test_whole_comparisons_of_equal_benchmarks_hardly_ever_call_a_difference():
    runs = [kept(seed=seed, repeats=1, noise=0.05) for seed in range(24)]
    called = [
        verdicts(compare(first, second)) != {"no difference beyond noise"}
        for first, second in zip(runs[::2], runs[1::2], strict=True)
    ]
    assert sum(called) <= 2


def test_many_comparisons_share_one_alarm():
    times = Times(
        list(np.linspace(90, 110, 20)), list(np.linspace(97, 103, 20)), [("", "")] * 20, [1.0] * 20
    )
    one, many = change(times, 1), change(times, 30)
    assert many.low < one.low
    assert many.high > one.high


def test_a_difference_smaller_than_between_repetitions_is_noise():
    steady, drifting = kept(seed=1), kept(seed=8, drift=0.05, slower=1.02)
    found = compare(steady, drifting)
    assert all(each.ratio.low > 1 for each in found.changes)
    assert verdicts(found) == {"no difference beyond noise"}
    assert all(each.within >= each.repeats for each in found.changes)


@pytest.mark.parametrize(
    ("gain", "low", "high", "noise", "expected"),
    [
        (1.1, 1.05, 1.15, 0.0, "slower"),
        (1.1, 1.05, 1.15, 0.2, "no difference beyond noise"),
        (0.9, 0.85, 0.95, 0.0, "faster"),
        (0.9, 0.85, 0.95, 0.15, "no difference beyond noise"),
        (1.1, 0.99, 1.2, 0.0, "no difference beyond noise"),
        (1.1, None, None, 0.0, "too few to tell"),
    ],
)
def test_a_change_is_called_beyond_interval_and_repetitions(gain, low, high, noise, expected):
    assert changed(Estimate(gain=gain, low=low, high=high, prompts=20), noise) == expected


def test_a_speed_is_judged_the_other_way_round_than_a_time():
    assert verdict(Estimate(gain=1.1, low=1.05, high=1.2, prompts=20)) == "faster"
    assert verdict(Estimate(gain=0.9, low=0.8, high=0.95, prompts=20)) == "slower"
    assert verdict(None) == "too few to tell"


def test_results_of_two_bundles_are_refused_in_one_line_that_names_both():
    other = with_header(kept(), bundle="qwen", bundle_hash="0" * 64)
    with pytest.raises(BenchError) as caught:
        compare(kept(), other, ("old", "new"))
    said = str(caught.value)
    assert "\n" not in said
    for name in ("old", "new", "smollm2", "qwen", "5f1d0c9be7a2", "000000000000"):
        assert name in said


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"loads": (samples.FOUR,)}, "no load in common: 1 client against 4 clients"),
        ({"ways": {"draft K=3": 1.2}}, "no way in common: plain, auto against draft K=3"),
        ({"classes": ("poetry",)}, "no prompt was served by the same way"),
    ],
)
def test_nothing_in_common_is_refused(other, said):
    with pytest.raises(BenchError, match=said):
        compare(kept(), kept(**other))


def test_an_empty_result_is_refused_by_its_name():
    empty = Kept(kept().header, (), ())
    with pytest.raises(BenchError, match="new: the result has no request"):
        compare(kept(), empty, ("old", "new"))


def test_the_common_part_is_compared_and_the_rest_is_named():
    first = kept(loads=(samples.ONE, samples.FOUR), ways=TWO | {"ngram K=7": 0.9})
    second = kept(seed=2, ways=TWO | {"draft K=3": 1.2}, per_class=3)
    found = compare(first, second)
    assert {(each.load, each.way) for each in found.changes} == {
        ("1 client", "plain"),
        ("1 client", "auto"),
    }
    left_out = " ".join(found.left_out)
    assert "Only A has load 4 clients." in left_out
    assert "Only A has way ngram K=7." in left_out
    assert "Only B has way draft K=3." in left_out
    assert "Only A has prompts" in left_out


def test_prompts_of_the_same_name_and_another_length_are_no_pair():
    second = samples.replaced(
        kept(seed=2),
        lambda each: (
            each.model_copy(update={"prompt_tokens": each.prompt_tokens + 1})
            if each.workload == "chat"
            else each
        ),
    )
    found = compare(kept(seed=1), second)
    assert {each.ratio.prompts for each in found.changes} == {16}
    assert found.outputs == 32


def test_the_same_load_is_found_wherever_it_stands():
    first = kept(loads=(samples.ONE, samples.FOUR))
    second = kept(seed=2, loads=(samples.FOUR, samples.ONE))
    found = compare(first, second)
    assert len({each.load for each in found.changes}) == 2
    assert verdicts(found) <= {"no difference beyond noise", "too few to tell"}


def test_other_output_limits_leave_whole_answers_out():
    found = compare(kept(), kept(seed=2, max_tokens=48))
    assert {each.measure for each in found.changes} <= {"decode", "ttft"}
    assert "max tokens 64 -> 48" in found.conditions
    assert found.outputs == 0
    assert any("End-to-end times and outputs are left out" in each for each in found.left_out)


def test_what_was_different_when_they_were_measured_is_named():
    second = with_header(
        kept(seed=2),
        versions={"specedge": "0.2.0", "python": "3.11.14", "onnxruntime": "1.32.0"},
        fingerprint=samples.fingerprint(threads=1, specedge="0.2.0"),
        options={"temperature": 0.5, "seed": None},
        prompts="mine.jsonl",
        complete=False,
    )
    assert compare(kept(), second).conditions == (
        "specedge 0.1.0 -> 0.2.0",
        "threads 2 -> 1",
        "prompts built in -> mine.jsonl",
        "temperature not given -> 0.5",
        "B was interrupted",
    )


def test_few_prompts_are_too_few_to_tell():
    found = compare(kept(per_class=2), kept(per_class=2, slower=2.0))
    assert verdicts(found) == {"too few to tell"}
    assert found.comparisons == 0
    assert "10 prompts in common, 12 are needed" in differences.headline(found).said


def test_waits_in_a_queue_are_shown_and_not_judged():
    found = compare(kept(loads=(samples.FOUR,)), kept(loads=(samples.FOUR,), slower=1.1))
    by_measure = {each.measure: each for each in found.changes if each.way == "auto"}
    assert by_measure["decode"].verdict == "slower"
    for measure in ("ttft", "e2e"):
        assert by_measure[measure].unjudged == "queued"
        assert by_measure[measure].ratio.low is None
        assert by_measure[measure].ratio.gain == pytest.approx(1.1)
    assert found.comparisons == 2
    assert any("waits in one queue" in each for each in differences.remarks(found))


def test_outputs_that_changed_are_counted():
    second = samples.replaced(
        kept(), lambda each: each.model_copy(update={"output": "x"}) if each.number == 3 else each
    )
    found = compare(kept(), second)
    assert (found.equal, found.outputs) == (38, 40)
    assert "Same tokens in both: 38 of 40 outputs." in differences.remarks(found)


def test_failures_of_either_are_counted():
    second = samples.replaced(
        kept(),
        lambda each: each.model_copy(update={"failure": "boom"}) if each.number == 3 else each,
    )
    found = compare(kept(), second)
    assert found.failures == (0, 6)
    assert {each.ratio.prompts for each in found.changes} == {19}
    assert any("6 requests of B failed" in each for each in differences.remarks(found))


def test_where_plain_decoding_moved_the_device_is_suspected():
    found = compare(kept(seed=1), kept(seed=2, slower=1.2))
    line = differences.drift_line(found)
    assert line is not None
    assert line.startswith("Plain decoding itself takes 1.2")
    one, two = found.gains[0].first, found.gains[0].second
    assert one.gain == pytest.approx(two.gain, rel=0.03)


def test_one_repetition_is_said_to_tell_nothing_of_drift():
    found = compare(kept(repeats=1), kept(repeats=1, seed=2))
    assert {each.repeats for each in found.changes} == {None}
    assert any("With one repetition" in each for each in differences.remarks(found))


def test_comparing_fits_eighty_columns_and_says_how_many_comparisons():
    loads = (samples.ONE, samples.FOUR)
    found = compare(
        samples.kept(loads=loads), samples.kept(seed=3, loads=loads), ("before", "after")
    )
    out = StringIO()
    console = Console(file=out, width=80, color_system=None)
    for table in compare_tables(found):
        console.print(table)
    text = out.getvalue()
    assert "…" not in text
    assert all(way in text for way in samples.WAYS)
    assert "before" in text
    assert "noise ±" in text
    assert "queued" in text
    assert any("16 comparisons share the chance of 5%" in each for each in compare_lines(found))


def test_folders_whose_names_end_alike_are_still_two_columns():
    found = compare(kept(), kept(seed=2), ("monday/the-result", "friday/the-result"))
    heads = [str(column.header) for column in compare_tables(found)[0].columns]
    assert heads[2:4] == ["A", "B"]


def test_a_comparison_is_json():
    found = compare(kept(), kept(seed=2, slower=1.1))
    said = json.loads(json.dumps(found.to_dict()))
    assert said["changes"][0]["verdict"] == "slower"
    assert said["changes"][0]["within"] == found.changes[0].within
    assert said["alarm"] == ALARM

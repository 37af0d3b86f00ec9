"""A benchmark summed up: against plain counting, and against data whose answer is known."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import bench_samples as samples
from specedge.cli._bench_tables import bench_lines, bench_tables
from specedge.errors import BenchError
from specedge.loadtest import sentences
from specedge.loadtest.keeping import Kept
from specedge.loadtest.quantiles import Quantiles, nearest
from specedge.loadtest.records import Load, RequestRecord
from specedge.loadtest.summary import promises_equality, summarise


def request(way="plain", number=0, *, at=0.0, waits=0.0, prefill=0.1, decode=1.0, **changed):
    """One served request of 11 tokens, by default; seconds."""
    known = {
        "way": way,
        "load": 0,
        "repeat": 0,
        "number": number,
        "prompt": f"chat {number}",
        "workload": "chat",
        "arrived_s": at,
        "began_s": at + waits,
        "first_s": at + waits + prefill,
        "ended_s": at + waits + prefill + decode,
        "prompt_tokens": 50,
        "tokens": 11,
        "output": "same",
        "rounds": 10,
    }
    return RequestRecord(**(known | changed))


def of(*requests, **changed):
    """Summed up; ways and loads as the requests need them."""
    ways = list(dict.fromkeys(each.way for each in requests))
    head = samples.header(**({"ways": ways} | changed))
    return summarise(Kept(head, tuple(requests), ()))


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.integers(min_value=1, max_value=100)
)
def test_a_quantile_is_the_least_value_that_so_many_do_not_exceed(values, percent):
    enough = [
        value
        for value in values
        if 100 * sum(other <= value for other in values) >= percent * len(values)
    ]
    assert nearest(sorted(values), percent) == min(enough)


def test_p99_of_fewer_than_a_hundred_values_is_the_largest():
    assert Quantiles.of(range(99)).p99 == 98
    assert Quantiles.of(range(100)).p99 == 98
    assert Quantiles.of(range(1000)).p99 == 989
    assert Quantiles.of([]) is None


def test_times_of_a_cell_are_those_of_its_requests():
    kept = samples.kept(loads=(samples.ONE, samples.FOUR))
    summary = summarise(kept)
    for load in (0, 1):
        for way in samples.WAYS:
            mine = [each for each in kept.requests if (each.load, each.way) == (load, way)]
            cell = summary.of(load, way)
            ends = sorted((each.ended_s - each.arrived_s) * 1e3 for each in mine)
            assert cell.requests == len(mine) == 60
            assert cell.e2e.p50 == ends[29]
            assert cell.e2e.p90 == ends[53]
            assert cell.e2e.p99 == cell.e2e.largest == ends[-1]
            assert cell.tokens == sum(each.tokens for each in mine)
            chat = summary.of(load, way, "chat")
            assert chat.requests == sum(each.workload == "chat" for each in mine) == 12
            assert chat.wall_s is None


def test_throughput_is_over_all_passes_and_the_others_turns_are_not_in_it():
    one = of(
        request(number=0, at=0, prefill=1, decode=1),
        request(number=1, at=7, prefill=1, decode=3),  # five seconds of other ways between them
        request(number=0, at=0, prefill=1, decode=1, repeat=1),
        request(number=1, at=2, prefill=1, decode=3, repeat=1),
    ).of(0, "plain")
    assert one.wall_s == pytest.approx(12)
    assert one.tokens_per_second == pytest.approx(44 / 12)
    assert one.requests_per_second == pytest.approx(4 / 12)
    assert one.busy == pytest.approx(1)


def test_waiting_for_arrivals_is_in_the_wall_time_of_an_open_loop():
    slow = Load(kind="poisson", rate=0.2)
    cell = of(
        request(number=0, at=1, prefill=1, decode=1),
        request(number=1, at=9, prefill=1, decode=1),
        loads=[slow],
    ).of(0, "plain")
    assert cell.wall_s == pytest.approx(10)
    assert cell.busy == pytest.approx(0.4)


def test_overlapping_requests_of_a_closed_loop_count_once():
    cell = of(
        request(number=0, at=0, prefill=1, decode=1),
        request(number=1, at=0, waits=2, prefill=1, decode=1),
        loads=[samples.FOUR],
    ).of(0, "plain")
    assert cell.wall_s == pytest.approx(4)
    assert cell.queued.largest == pytest.approx(2000)
    assert cell.queued_share == pytest.approx(2 / 6)


def test_gains_are_ratios_of_sums_over_prompts():
    summary = of(
        request(number=0, prefill=0.1, decode=1.0),
        request(number=1, prefill=0.1, decode=3.0),
        request("auto", number=0, prefill=0.2, decode=0.5),
        request("auto", number=1, prefill=0.2, decode=1.1),
    )
    found = summary.of(0, "auto").against
    assert found.decode.gain == pytest.approx(4.0 / 1.6)
    assert found.ttft.gain == pytest.approx(0.5)
    assert found.e2e.gain == pytest.approx(4.2 / 2.0)
    assert (found.pairs, found.prompts, found.equal) == (2, 2, 2)
    assert found.verdict == "too few to tell"
    assert summary.of(0, "plain").against is None


def test_repeating_a_benchmark_exactly_tells_nothing_new():
    once = samples.kept(repeats=1)
    again = tuple(
        each.model_copy(update={"repeat": repeat}) for repeat in range(5) for each in once.requests
    )
    first, second = summarise(once), summarise(replace(once, requests=again))
    for way in ("auto", "draft K=3", "ngram K=7"):
        one, five = first.of(0, way).against, second.of(0, way).against
        assert five.pairs == 5 * one.pairs
        for measure in ("decode", "ttft", "e2e"):
            mine, other = getattr(one, measure), getattr(five, measure)
            assert mine.low is not None
            assert (mine.gain, mine.low, mine.high) == pytest.approx(
                (other.gain, other.low, other.high)
            )


def test_a_prompt_that_comes_twice_in_a_load_is_one_prompt():
    requests = [
        request(way, number, prompt=f"chat {number % 3}", decode=1 + number / 100)
        for way in ("plain", "auto")
        for number in range(24)
    ]
    found = of(*requests).of(0, "auto").against
    assert (found.pairs, found.prompts) == (24, 3)
    assert found.decode.low is None


def test_intervals_of_several_ways_are_wider_than_that_of_one():
    many = summarise(samples.kept())
    one = summarise(samples.kept(ways={"plain": 1.0, "auto": 1.45}))
    assert (many.comparisons, one.comparisons) == (3, 1)
    wide, narrow = (each.of(0, "auto").against.decode for each in (many, one))
    assert wide.low < narrow.low
    assert wide.high > narrow.high


def test_where_requests_queue_only_decoding_is_judged():
    summary = summarise(samples.kept(loads=(samples.ONE, samples.FOUR)))
    alone, queued = summary.of(0, "auto").against, summary.of(1, "auto").against
    assert not alone.queued
    assert alone.e2e.low is not None
    assert alone.judged == alone.e2e
    assert queued.queued
    assert queued.e2e.low is None
    assert queued.ttft.low is None
    assert queued.judged == queued.decode
    assert queued.decode.low > 1


def test_a_faster_and_a_slower_way_are_told_from_noise():
    ways = {"plain": 1.0, "auto": 1.5, "same": 1.0, "slow": 0.7}
    verdicts = {
        cell.way: cell.against.verdict
        for cell in summarise(samples.kept(ways=ways)).under(0)
        if cell.against
    }
    assert verdicts == {
        "auto": "faster",
        "same": "no difference beyond noise",
        "slow": "slower",
    }


def test_outputs_of_other_lengths_are_compared_at_their_pace():
    summary = of(
        request(prefill=0.1, decode=1.0, tokens=11),
        request("auto", prefill=0.1, decode=1.0, tokens=21, output="longer"),
    )
    found = summary.of(0, "auto").against
    assert found.decode.gain == pytest.approx(2.0)
    assert found.e2e.gain == pytest.approx((0.1 + 15 * 0.1) / (0.1 + 15 * 0.05))
    assert found.equal == 0


def test_failures_are_counted_and_their_times_left_out():
    summary = of(
        request(number=0),
        request(number=1, at=1.1, prefill=0, decode=50.0, first_s=None, tokens=0, failure="boom"),
        request("auto", number=0, decode=0.5),
        request("auto", number=1, at=1.1, decode=0.5),
    )
    cell = summary.of(0, "plain")
    assert (cell.requests, cell.failures, cell.served, cell.tokens) == (2, 1, 1, 11)
    assert cell.e2e.count == 1
    assert cell.e2e.largest == pytest.approx(1100)
    assert cell.wall_s == pytest.approx(51.1)
    assert summary.of(0, "auto").against.pairs == 1
    assert summary.failed == (("boom", "plain", 1),)
    assert any("1 of 4 requests failed" in each for each in sentences.doubts(summary))


def test_where_everything_failed_there_are_counts_and_no_times():
    failed = {"failure": "no memory", "tokens": 0, "first_s": None}
    summary = of(request(**failed), request("auto", **failed))
    cell = summary.of(0, "auto")
    assert (cell.failures, cell.e2e, cell.acceptance, cell.against) == (1, None, None, None)
    assert sentences.headline(summary).state == "Nothing to compare"
    assert shown(summary)


def test_a_way_without_a_request_is_named():
    kept = samples.replaced(samples.kept(), lambda each: None if each.way == "auto" else each)
    summary = summarise(kept)
    assert summary.missing == ((0, "auto"),)
    assert any("auto with 1 client" in each for each in sentences.doubts(summary))


def test_a_result_without_a_request_is_refused():
    with pytest.raises(BenchError, match="smollm2: the result has no request"):
        summarise(Kept(samples.header(), (), ()))


def test_without_plain_decoding_no_gain_is_stated():
    summary = summarise(samples.kept(ways={"auto": 1.4}))
    assert summary.of(0, "auto").against is None
    found = sentences.headline(summary)
    assert (found.state, found.kind) == ("Nothing to compare", "open")
    assert "Plain decoding was not measured" in found.said


def test_acceptance_counts_what_rounds_did():
    kept = samples.kept(repeats=2)
    for way in samples.WAYS:
        found = summarise(kept).of(0, way).acceptance
        mine = [each for each in kept.requests if each.way == way]
        rounds = [each for each in kept.rounds if each.way == way]
        assert found.rounds == len(rounds)
        assert found.committed == sum(each.committed for each in rounds)
        assert found.proposed == sum(map(sum, (each.proposed_by_position for each in mine)))
        assert found.accepted == sum(map(sum, (each.accepted_by_position for each in mine)))
        assert found.length == pytest.approx(np.mean([each.committed for each in rounds]))
        assert found.per_call == pytest.approx(
            sum(each.tokens for each in mine) / (len(rounds) + len(mine))
        )
        if way == "plain":
            assert (found.rate, found.rate_by_position) == (None, [])
        else:
            assert found.rate == pytest.approx(found.accepted / found.proposed)
            assert found.rate_by_position == sorted(found.rate_by_position, reverse=True)


def test_positions_that_few_drafts_reach_are_judged_by_those():
    found = (
        of(
            request("auto", 0, proposed_by_position=[4, 2], accepted_by_position=[2, 2]),
            request("auto", 1, proposed_by_position=[6], accepted_by_position=[6]),
        )
        .of(0, "auto")
        .acceptance
    )
    assert (found.proposed_by_position, found.accepted_by_position) == ([10, 2], [8, 2])
    assert found.rate_by_position == [0.8, 1.0]


def test_time_of_a_round_is_split_into_what_it_went_to():
    spent = {"propose_ms": 10, "verify_ms": 70, "accept_ms": 15, "other_ms": 5}
    found = of(request(**spent), request(number=1, **spent, rounds=30)).of(0, "plain").split
    assert (found.proposer, found.verifier, found.accept, found.other) == (0.5, 3.5, 0.75, 0.25)
    assert found.round == 5


@pytest.mark.parametrize(
    ("changed", "promised"),
    [
        ({}, True),
        ({"options": {"temperature": 0.0}}, True),
        ({"options": {"temperature": 0.7, "seed": 1}}, True),
        ({"options": {"temperature": 0.7, "seed": 1, "acceptance": "coupled"}}, True),
        ({"options": {"temperature": 0.7, "seed": None, "acceptance": "coupled"}}, False),
        ({"options": {"temperature": 0.7}}, False),
        ({"options": {"temperature": 0.7, "seed": 1, "acceptance": "block"}}, False),
        ({"fingerprint": {"exact": False}}, False),
    ],
)
def test_outputs_must_equal_plains_only_where_options_and_kernels_promise_it(changed, promised):
    assert promises_equality(samples.header(**changed)) is promised
    summary = of(request(), request("auto", output="other"), **changed)
    said, doubtful = sentences.equality(summary)
    assert "0 of 1 request" in said
    assert doubtful is promised
    assert (sentences.headline(summary).state == "Outputs differ") is promised
    assert (said in sentences.remarks(summary)) is not promised


def test_the_words_say_what_pays_and_that_the_engine_is_serial():
    summary = summarise(samples.kept(loads=(samples.ONE, samples.FOUR)))
    found = sentences.headline(summary)
    assert (found.state, found.kind) == ("Speculation pays", "good")
    assert found.said.startswith("auto is 1.")
    lines = "\n".join(bench_lines(summary))
    assert "slower: ngram K=7 0." in lines
    assert "The engine serves one request at a time" in lines
    assert "not measured" in lines
    assert "4 clients: up to 7" in lines
    slow = summarise(samples.kept(ways={"plain": 1.0, "draft K=3": 0.7}))
    assert sentences.headline(slow).state == "Speculation does not pay"
    few = summarise(samples.kept(per_class=1))
    assert sentences.headline(few).state == "Too few prompts to tell"
    same = summarise(samples.kept(ways={"plain": 1.0, "draft K=3": 1.0}))
    assert sentences.headline(same).state == "No gain beyond noise"


def shown(summary, width=80) -> str:
    """What a terminal of that width shows."""
    out = StringIO()
    console = Console(file=out, width=width, color_system=None)
    for table in bench_tables(summary):
        console.print(table)
    return out.getvalue()


def test_tables_fit_a_terminal_of_eighty_columns():
    text = shown(summarise(samples.kept(loads=(samples.ONE, samples.FOUR))))
    assert text.count("\nngram K=7") == 8
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    for name in ("throughput", "p50 / p90 / p99", "speed over plain", "rounds", "by position"):
        assert name in text


def test_a_summary_is_json():
    summary = summarise(samples.kept(loads=(samples.ONE, samples.FOUR)))
    said = json.loads(json.dumps(summary.to_dict()))
    auto = next(each for each in said["cells"] if each["way"] == "auto")
    assert auto["load_name"] == "1 client"
    assert auto["acceptance"]["rate"] == summary.of(0, "auto").acceptance.rate
    assert auto["against"]["e2e"]["low"] == summary.of(0, "auto").against.e2e.low
    assert said["header"]["bundle"] == "smollm2"

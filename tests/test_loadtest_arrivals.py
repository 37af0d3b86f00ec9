"""When requests arrive, and what a trace may hold."""

from __future__ import annotations

import json

import numpy as np
import pytest

from specedge.errors import BenchError, PromptError
from specedge.loadtest.arrivals import Arrival, closed, poisson, recorded
from specedge.loadtest.trace import Traced, parsed_trace
from specedge.workloads.reading import file_bytes


def test_clients_of_a_closed_loop_ask_again_when_they_have_their_answer():
    loop = closed(2, 4)
    assert loop.first() == [Arrival(0.0, 0), Arrival(0.0, 1)]
    assert loop.after(2, 1.5) == Arrival(1.5, 2)
    assert loop.after(3, 1.75) == Arrival(1.75, 3)
    assert loop.after(4, 2.0) is None
    assert loop.load.name == "2 clients"


def test_a_closed_loop_has_no_more_clients_than_requests():
    assert closed(9, 2).first() == [Arrival(0.0, 0), Arrival(0.0, 1)]


def test_poisson_gaps_are_exponential_with_the_mean_of_the_rate():
    times = np.array(poisson(4.0, 20_000, seed=7).times_s)
    gaps = np.diff(times, prepend=0.0)
    assert (gaps > 0).all()
    # standard error of the mean: 0.25 / sqrt(20,000); 5 of them
    assert abs(gaps.mean() - 0.25) < 5 * 0.25 / np.sqrt(20_000)
    # exponential: P(gap > mean) = 1/e, P(gap > 2 means) = 1/e^2
    for means in (1, 2):
        assert abs((gaps > means * 0.25).mean() - np.exp(-means)) < 0.02


def test_the_same_seed_gives_the_same_times_and_another_one_others():
    assert poisson(2.0, 50, seed=3) == poisson(2.0, 50, seed=3)
    assert poisson(2.0, 50, seed=3).times_s != poisson(2.0, 50, seed=4).times_s


def test_an_open_loop_knows_everything_beforehand():
    loop = poisson(2.0, 5)
    assert [arrival.number for arrival in loop.first()] == [0, 1, 2, 3, 4]
    assert loop.after(5, 1.0) is None
    assert loop.count == 5
    assert loop.load.name == "2 requests/s"


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_must_be_a_number_above_0(rate):
    with pytest.raises(BenchError, match="rate: expected a number of requests a second above 0"):
        poisson(rate, 5)


@pytest.mark.parametrize("rate", [1e-309, 5e-324])
def test_arrivals_that_would_never_come_are_refused(rate):
    with pytest.raises(
        BenchError, match=r"rate: at .* requests a second they would never have come"
    ):
        poisson(rate, 5)
    with pytest.raises(BenchError, match=r"trace: from -1e.308 to 1e.308 s is too long"):
        recorded([Traced(-1e308), Traced(1e308)])


def test_a_loop_has_clients_and_requests():
    with pytest.raises(BenchError, match=r"concurrency: expected 1\.\.1,000,000 clients, found 0"):
        closed(0, 5)
    with pytest.raises(BenchError, match=r"requests: expected 1.*found 0"):
        closed(1, 0)


def test_times_of_a_trace_count_from_its_first():
    loop = recorded([Traced(1000.5), Traced(1001.0), Traced(1002.5)])
    assert loop.times_s == (0.0, 0.5, 2.0)
    assert loop.load.rate == 1.0
    assert recorded([Traced(7.0), Traced(7.0)]).load.rate is None
    assert recorded([Traced(0.0), Traced(5e-324)]).load.rate is None


def lines(path, *items):
    path.write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in items))
    return path


def read_trace(path):
    return parsed_trace(file_bytes(path), path)


def test_a_trace_is_times_or_objects(tmp_path):
    messages = [{"role": "user", "content": "hi"}]
    trace = read_trace(
        lines(
            tmp_path / "trace.jsonl",
            "-0.5",
            "",
            "1e0",
            {"at": 1},
            {"at": 2.5, "max_tokens": 7, "prompt": "Name a river.", "class": "chat"},
            {"at": 2.5, "messages": messages},
        )
    )
    assert [each.at_s for each in trace] == [-0.5, 1.0, 1.0, 2.5, 2.5]
    assert [each.max_tokens for each in trace] == [None, None, None, 7, None]
    assert [each.workload for each in trace] == [None, None, None, "chat", "user"]
    assert trace[3].prompt is not None
    assert trace[3].prompt.given(has_template=False) == "Name a river."
    assert trace[4].prompt is not None
    assert trace[4].prompt.given(has_template=True) == messages


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ((), "t: an empty trace"),
        (("", "  "), "t: an empty trace"),
        (("1", "", "3", "2.5"), r"t, line 4: the time 2\.5 comes before the 3 of line 3; sort"),
        (("1", "soon"), "t, line 2: expected a time in seconds or an object, found 'soon'"),
        (("nan",), "t, line 1: expected a time that is finite"),
        (("1e999",), "t, line 1: expected a time that is finite"),
        (({"prompt": "hi"},), 't, line 1: the key "at" is missing'),
        (({"at": "1"},), "t, line 1: expected a time in seconds, found '1'"),
        (({"at": True},), "t, line 1: expected a time in seconds, found True"),
        (({"at": 1, "max_tokens": 0},), "t, line 1: max_tokens: expected 1 or more, found 0"),
        (({"at": 1, "max_tokens": 1.5},), r"t, line 1: max_tokens: expected .* found 1\.5"),
    ],
)
def test_a_bad_trace_is_one_line_that_names_its_own(tmp_path, items, said):
    with pytest.raises(BenchError, match=said) as caught:
        read_trace(lines(tmp_path / "t", *items))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"at": 1, "prompt": ""}, 't, line 1: "prompt" is empty'),
        ({"at": 1, "class": "chat"}, "t, line 1: expected exactly one of"),
        ({"at": 1, "rate": 3}, "t, line 1: the key 'rate' is not known"),
        ('{"at": 1', "t, line 1: invalid JSON"),
        ("[1]", "t, line 1: expected an object"),
    ],
)
def test_prompts_of_a_trace_are_held_to_the_rules_of_prompts(tmp_path, item, said):
    with pytest.raises(PromptError, match=said):
        read_trace(lines(tmp_path / "t", item))

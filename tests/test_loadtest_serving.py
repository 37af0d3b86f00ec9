"""Requests queue for the engine as a slow plain simulation says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from load_time import (
    Batch,
    FakeTime,
    closed_loop,
    fake_time,
    jobs,
    open_desk,
    open_loop,
    service_s,
)
from specedge.desk import PLAIN, Way
from specedge.engines.fake import FakeEngine
from specedge.errors import EngineError
from specedge.loadtest.arrivals import OpenLoop, closed, poisson
from specedge.loadtest.records import Load
from specedge.loadtest.serving import Serial, serve

pytestmark = pytest.mark.usefixtures("private_cache")

LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=12)


def at(*times_s: float) -> OpenLoop:
    return OpenLoop(Load(kind="trace"), times_s)


def times(served):
    """By number: arrived, began, ended."""
    ordered = sorted(served, key=lambda each: each.number)
    return [(each.arrived_s, each.began_s, each.ended_s) for each in ordered]


def close_to(expected):
    return [pytest.approx(each, abs=1e-6) for each in expected]


@given(lengths=LENGTHS, clients=st.integers(1, 5))
@settings(max_examples=60)
def test_a_closed_loop_queues_as_simulated(lengths, clients):
    time = FakeTime()
    watch = time.watch()
    server = Batch(time, watch, dict(enumerate(lengths)))
    served = list(serve(closed(clients, len(lengths)), jobs(len(lengths)), server, watch))
    assert [each.number for each in served] == list(range(len(lengths)))
    assert times(served) == close_to(closed_loop(clients, [0.01 * n for n in lengths]))
    assert time.slept == []


@given(lengths=LENGTHS, rate=st.sampled_from([5.0, 30.0, 200.0]), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_an_open_loop_queues_as_simulated(lengths, rate, seed):
    time = FakeTime()
    watch = time.watch()
    arrivals = poisson(rate, len(lengths), seed)
    server = Batch(time, watch, dict(enumerate(lengths)))
    served = list(serve(arrivals, jobs(len(lengths)), server, watch))
    expected = open_loop(arrivals.times_s, [0.01 * n for n in lengths])
    assert times(served) == close_to(expected)
    idle = sum(max(0.0, b - max(e, 0.0)) for (_, b, _), e in _after(expected))
    assert sum(time.slept) == pytest.approx(idle, abs=1e-6)


def _after(found):
    """Each request with the end of the one before it."""
    return zip(found, [0.0, *(end for _, _, end in found[:-1])], strict=True)


def test_a_server_with_two_seats_takes_two_and_steps_them_together():
    time = FakeTime()
    watch = time.watch()
    server = Batch(time, watch, {0: 3, 1: 1, 2: 2}, seats=2)
    served = list(serve(at(0.0, 0.0, 0.0), jobs(3), server, watch))
    assert [each.number for each in served] == [1, 0, 2]
    assert times(served) == close_to([(0, 0, 0.03), (0, 0, 0.01), (0, 0.01, 0.03)])


def test_a_server_with_seats_takes_what_arrives_while_it_runs():
    time = FakeTime()
    watch = time.watch()
    server = Batch(time, watch, {0: 3, 1: 1}, seats=2)
    served = list(serve(at(0.0, 0.015), jobs(2), server, watch))
    # between two steps at the earliest
    assert times(served) == close_to([(0, 0, 0.03), (0.015, 0.02, 0.03)])


@pytest.mark.parametrize("arrivals", [closed(1, 5), closed(3, 5), poisson(9.0, 5), poisson(60, 5)])
def test_a_desk_is_served_one_request_at_a_time(monkeypatch, tmp_path, arrivals):
    time = fake_time(monkeypatch)
    watch = time.watch()
    asked = jobs(5, max_tokens=6)
    with open_desk(tmp_path / "b") as desk:
        services = [service_s(desk, job) for job in asked]
        served = list(serve(arrivals, asked, Serial(desk, PLAIN, watch), watch))
        prefills = [(10 + len(desk.model.encode(job.asked.prompt)[0])) / 1e3 for job in asked]
    if arrivals.load.kind == "closed":
        expected = closed_loop(arrivals.load.concurrency, services)
    else:
        expected = open_loop(arrivals.times_s, services)
    assert times(served) == close_to(expected)
    for each, prefill in zip(served, prefills, strict=True):
        assert each.failure is None
        assert each.result is not None
        assert len(each.result.tokens) == 6
        # the whole prompt is run, although the one before began with the same words
        assert each.first_s == pytest.approx(each.began_s + prefill, abs=1e-6)


def test_the_watch_stands_still_between_requests(monkeypatch, tmp_path):
    time = fake_time(monkeypatch)
    asked = jobs(3, max_tokens=4)
    with open_desk(tmp_path / "b") as desk:
        watch = time.watch()
        alone = times(serve(closed(1, 3), asked, Serial(desk, PLAIN, watch), watch))
        watch = time.watch()
        found = []
        for each in serve(closed(1, 3), asked, Serial(desk, PLAIN, watch), watch):
            time.ns.spend(10_000)  # the turns of other ways
            found.append(each)
    assert times(found) == close_to(alone)


def test_a_request_that_fails_is_a_finding_and_the_next_one_is_served(monkeypatch, tmp_path):
    asked = jobs(4, max_tokens=4)
    forward = FakeEngine.forward
    calls = iter(range(10**6))

    def failing(self, *args):
        if next(calls) == 6:  # in the second request: the first one has 4 calls
            raise EngineError("the device is gone")
        return forward(self, *args)

    with open_desk(tmp_path / "b") as desk:
        monkeypatch.setattr(FakeEngine, "forward", failing)
        watch = FakeTime().watch()
        served = list(serve(closed(1, 4), asked, Serial(desk, PLAIN, watch), watch))
    assert [each.failure for each in served] == [
        None,
        "EngineError: the device is gone",
        None,
        None,
    ]
    assert served[1].result is not None
    assert len(served[1].result.tokens) == 2
    assert served[1].first_s is not None


def test_a_request_that_cannot_begin_is_a_finding_too(tmp_path):
    asked = jobs(3, max_tokens=4)
    asked[1] = type(asked[1])(asked[1].asked, {"max_tokens": 0})
    with open_desk(tmp_path / "b") as desk:
        watch = FakeTime().watch()
        served = list(serve(closed(2, 3), asked, Serial(desk, PLAIN, watch), watch))
    assert [each.failure is None for each in served] == [True, False, True]
    assert "OptionError: max_tokens: expected 1 or more" in (served[1].failure or "")
    assert served[1].result is served[1].first_s is None


def test_a_run_that_is_given_up_leaves_the_desk_free(tmp_path):
    asked = jobs(2, max_tokens=50)
    with open_desk(tmp_path / "b") as desk:
        watch = FakeTime().watch()
        server = Serial(desk, Way("on", ("ngram",), 2), watch)
        server.begin(0, asked[0], 0.0)
        assert server.step() == ()
        assert (server.room, server.running) == (0, 1)
        held = server._stream  # else the collector would end it
        server.close()
        assert held is not None
        assert held.finished
        assert (server.room, server.running) == (1, 0)
        assert desk.ask(PLAIN, "hello", max_tokens=2).tokens

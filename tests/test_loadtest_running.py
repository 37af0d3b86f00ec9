"""Every way over every load: whose turn it is, what is kept, what is said of the outputs."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import pytest

from load_time import closed_loop, fake_time, jobs, open_desk, service_s
from specedge.desk import AUTO, PLAIN, Way
from specedge.loadtest.arrivals import closed, poisson
from specedge.loadtest.running import Plan, Runner

pytestmark = pytest.mark.usefixtures("private_cache")

NGRAM = Way("on", ("ngram",), 2)
WAYS = (PLAIN, AUTO, NGRAM)


class Kept:
    """In place of a `Writer`."""

    def __init__(self):
        self.requests, self.rounds = [], []

    def __call__(self, request, rounds):
        self.requests.append(request)
        self.rounds += rounds


@pytest.fixture
def time(monkeypatch):
    return fake_time(monkeypatch)


@pytest.fixture
def desk(tmp_path):
    with open_desk(tmp_path / "b") as desk:
        yield desk


def run(desk, time, **given):
    kept, told = Kept(), []
    usual = {"ways": WAYS, "loads": [closed(1, 4)], "jobs": jobs(4, max_tokens=6)}
    ran = Runner(
        desk,
        Plan(**(usual | given)),
        kept,
        report=lambda *said: told.append(said),
        clock=time.clock,
        sleep=time.sleep,
    ).run()
    return ran, kept, told


def test_with_one_client_ways_take_turns_and_the_first_one_moves_on(desk, time):
    _, kept, _ = run(desk, time, repeats=2)
    order = [(each.repeat, each.number, each.way) for each in kept.requests]
    names = [way.name for way in WAYS]
    expected = [
        (repeat, number, names[(repeat + number + place) % 3])
        for repeat in range(2)
        for number in range(4)
        for place in range(3)
    ]
    assert order == expected


@pytest.mark.parametrize("load", [closed(2, 4), poisson(20.0, 4)])
def test_under_any_other_load_a_way_serves_all_of_it_before_the_next(desk, time, load):
    _, kept, _ = run(desk, time, loads=[load], repeats=2)
    assert [(key, len(list(each))) for key, each in groupby(kept.requests, lambda r: r.way)] == [
        ("plain", 4),
        ("auto", 4),
        ("ngram K=2", 4),
        ("auto", 4),
        ("ngram K=2", 4),
        ("plain", 4),
    ]


def test_turns_of_other_ways_are_no_part_of_a_ways_time(desk, time):
    _, kept, _ = run(desk, time)
    mine = [each for each in kept.requests if each.way == "plain"]
    expected = closed_loop(1, [service_s(desk, job) for job in jobs(4, max_tokens=6)])
    found = [(each.arrived_s, each.began_s, each.ended_s) for each in mine]
    assert found == [pytest.approx(each, abs=1e-6) for each in expected]
    assert [each.queued_ms for each in mine] == [pytest.approx(0, abs=1e-3)] * 4


def test_arrivals_and_prompts_are_the_same_for_every_way_and_repetition(desk, time):
    _, kept, _ = run(desk, time, loads=[poisson(20.0, 4, seed=5)], repeats=2)
    seen = Counter((each.number, each.arrived_s, each.prompt) for each in kept.requests)
    assert set(seen.values()) == {len(WAYS) * 2}
    assert len(seen) == 4


def test_rounds_belong_to_their_requests(desk, time):
    _, kept, _ = run(desk, time)
    for request in kept.requests:
        mine = [
            each for each in kept.rounds if (each.way, each.number) == (request.way, request.number)
        ]
        assert len(mine) == request.rounds
        assert sum(each.committed for each in mine) == request.tokens - 1 == 5
        assert sum(each.accepted for each in mine) == sum(request.accepted_by_position)
    lookups = [each for each in kept.rounds if each.way == "ngram K=2" and each.drafted]
    assert all(each.proposer == "ngram" and each.drafted <= 2 for each in lookups)


def test_a_warm_up_is_done_and_not_recorded(desk, time, monkeypatch):
    prefills = []
    start = type(desk).start

    def noting(self, way, prompt, options):
        prefills.append(way.name)
        return start(self, way, prompt, options)

    monkeypatch.setattr(type(desk), "start", noting)
    _, kept, _ = run(desk, time, warmup=2)
    assert prefills[:6] == ["plain", "plain", "auto", "auto", "ngram K=2", "ngram K=2"]
    assert len(prefills) == 6 + 12
    assert len(kept.requests) == 12


def test_progress_rises_to_the_end(desk, time):
    _, _, told = run(desk, time, loads=[closed(1, 4), closed(2, 4)], repeats=2, warmup=1)
    stages = [stage for stage, _ in groupby(told, lambda said: said[0])]
    assert stages == [
        "warming up",
        "1 client, repetition 1 of 2",
        "2 clients, repetition 1 of 2",
        "1 client, repetition 2 of 2",
        "2 clients, repetition 2 of 2",
    ]
    shares = [whole for _, _, whole in told]
    assert shares == sorted(shares)
    assert shares[-1] == told[-1][1] == 1.0


def test_equal_outputs_need_no_note(desk, time):
    ran, kept, _ = run(desk, time, repeats=2)
    assert ran.notes == []
    assert ran.complete
    assert len({each.output for each in kept.requests if each.number == 0}) == 1
    assert set(ran.peak_rss_bytes) == {"plain", "auto", "ngram K=2"}


def test_outputs_that_differ_from_plain_are_named(desk, time, monkeypatch):
    from specedge import generation

    def spoiled(self, sample, reason, original=generation.Generation._end_sample):
        result = original(self, sample, reason)
        if result.metrics.proposed and result.prompt_tokens > 3:
            result.tokens[-1] += 1
        return result

    monkeypatch.setattr(generation.Generation, "_end_sample", spoiled)
    ran, kept, _ = run(desk, time, ways=(PLAIN, NGRAM), jobs=jobs(4, max_tokens=60))
    differing = sorted(
        number
        for number in range(4)
        if len({each.output for each in kept.requests if each.number == number}) > 1
    )
    assert differing
    (note,) = ran.notes
    assert note.startswith(f"outputs of ngram K=2 differ from plain decoding's on {len(differing)}")
    assert all(f"user {number + 1} (request {number})" in note for number in differing)
    assert "specedge verify" in note

from __future__ import annotations

import sys

import pytest

from specedge.controller import Controller
from specedge.engines.fake import FakeEngine, agreeing, fake_spec, hashed
from specedge.loop import decode
from specedge.metrics import Metrics, ProposerCounts, peak_rss_bytes
from specedge.proposers import DraftModelProposer
from specedge.sequence import Sequence
from specedge.speculator import Speculator

MS = 1_000_000


def test_counts_and_rates_of_a_small_run():
    metrics = Metrics()
    metrics.first_token(7, 0, 5 * MS)
    for drafted, accepted in [(3, 2), (3, 0), (2, 2), (0, 0)]:
        metrics.round("draft", drafted, accepted, accepted + 1, (0, 0, 0, 0), 0.0)
    got = metrics.summary()
    assert (got.prefill_tokens, got.generated, got.rounds) == (7, 9, 4)
    assert (got.proposed, got.accepted, got.acceptance_rate) == (8, 4, 0.5)
    assert got.acceptance_length == 2.0
    assert got.proposed_by_position == [3, 3, 2]
    assert got.accepted_by_position == [2, 2, 0]
    assert got.proposers == {"draft": ProposerCounts(3, 8, 4)}


def test_phases_of_known_times():
    metrics = Metrics()
    metrics.first_token(7, 10 * MS, 30 * MS)
    metrics.proposers_started(1 * MS)
    metrics.round("a", 1, 1, 2, (40 * MS, 42 * MS, 47 * MS, 48 * MS), 4.5)
    metrics.round("a", 0, 0, 1, (50 * MS, 50 * MS, 57 * MS, 60 * MS), 6.5)
    got = metrics.summary()
    assert got.prefill_ms == pytest.approx(20)
    phases = (got.propose_ms, got.verify_ms, got.accept_ms, got.other_ms)
    assert phases == pytest.approx((3, 12, 4, 11))
    assert got.engine_ms == 11
    assert got.tpot_ms == pytest.approx(10)
    assert got.tokens_per_second == pytest.approx(100)


def test_nothing_measured_is_none_and_not_zero():
    got = Metrics().summary()
    assert (got.ttft_ms, got.tpot_ms, got.tokens_per_second) == (None, None, None)
    assert (got.acceptance_rate, got.acceptance_length) == (None, None)
    metrics = Metrics()
    metrics.first_token(1, 0, 1)
    metrics.round("", 0, 0, 1, (1, 1, 1, 1), 0.0)
    assert metrics.summary().acceptance_rate is None
    assert metrics.summary().acceptance_length == 1.0


def test_a_run_adds_up():
    rule = hashed(8)
    target = FakeEngine(fake_spec(8, 64), rule, delay_ms=0.2)
    draft = FakeEngine(fake_spec(8, 64, role="draft"), agreeing(rule, 0.7, 8))
    seq = Sequence([1, 2, 3], context=64, max_tokens=40)
    metrics = Metrics()
    speculator = Speculator([DraftModelProposer(draft)], Controller(4))
    rounds = list(decode(seq, target, target.new_slot(), speculator, metrics))[1:]
    got = metrics.summary()
    assert got.rounds == len(rounds)
    assert got.generated == 40
    assert got.proposed == sum(each.drafted for each in rounds)
    assert got.accepted == sum(each.accepted for each in rounds) == sum(got.accepted_by_position)
    assert got.acceptance_length == pytest.approx(39 / len(rounds))
    phases = (got.propose_ms, got.verify_ms, got.accept_ms, got.other_ms)
    assert all(phase > 0 for phase in phases)
    assert sum(phases) == pytest.approx(got.tpot_ms * 39)
    assert got.verify_ms >= 0.2 * got.rounds
    assert 0.2 * got.rounds < got.engine_ms < got.verify_ms + got.propose_ms
    assert got.ttft_ms > got.prefill_ms > 0


def test_a_stream_closed_early_has_a_summary():
    target = FakeEngine(fake_spec(8, 64))
    metrics = Metrics()
    seq = Sequence([1], context=64, max_tokens=40)
    rounds = decode(seq, target, target.new_slot(), Speculator([], Controller(0)), metrics)
    next(rounds)
    next(rounds)
    rounds.close()
    assert (metrics.summary().generated, metrics.summary().rounds) == (2, 1)


@pytest.mark.skipif(sys.platform == "win32", reason="no getrusage")
def test_peak_memory_is_plausible():
    before = peak_rss_bytes()
    block = bytearray(64 << 20)
    block[::4096] = b"x" * len(block[::4096])
    assert peak_rss_bytes() >= before > 1 << 20

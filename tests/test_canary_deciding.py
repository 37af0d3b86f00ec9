"""When a canary turns speculation off: at once for a wrong text, at planned looks for a loss."""

from __future__ import annotations

import numpy as np
import pytest

from specedge.bundle import Bundle
from specedge.canary.deciding import LOOKS, added, estimate, failed, interrupted
from specedge.canary.record import MOST_KEPT, Record
from specedge.engines.fake import FakeEngine, fake_spec
from specedge.probe.fingerprint import take
from specedge.probe.intervals import ratio_interval
from test_canary_record import compared, evidence


@pytest.fixture
def record(tiny_bundle) -> Record:
    return Record.new(take(Bundle.open(tiny_bundle), FakeEngine(fake_spec()), context=64))


def fed(record: Record, times: int, plain_ms: float = 200.0, spec_ms: float = 300.0, **given):
    for _ in range(times):
        record = added(record, compared(plain_ms=plain_ms, spec_ms=spec_ms, **given))
    return record


def test_a_loss_is_found_at_the_first_look_and_not_before(record):
    record = fed(record, LOOKS[0] - 1)
    assert record.verdict.state == "watching"
    record = fed(record, 1)
    assert record.verdict.state == "off: loss"
    assert "0.67 times the speed" in record.verdict.reason
    assert record.gain is not None
    assert (record.gain.prompts, record.gain.high) == (LOOKS[0], pytest.approx(2 / 3))


def test_a_gain_is_on_and_even_times_are_watched(record):
    assert fed(record, LOOKS[0], spec_ms=150.0).verdict.state == "on"
    even = fed(record, LOOKS[0], spec_ms=200.0)
    assert even.verdict.state == "watching"
    assert "neither a gain nor a loss" in even.verdict.reason


def test_between_looks_nothing_is_decided(record):
    record = fed(record, LOOKS[0], spec_ms=100.0)
    for _ in range(LOOKS[1] - LOOKS[0] - 1):
        record = fed(record, 1, spec_ms=5000.0)
        assert record.verdict.state == "on"
    assert fed(record, 1, spec_ms=5000.0).verdict.state == "off: loss"


def test_only_requests_with_drafts_and_times_count_towards_a_look(record):
    record = fed(record, 40, proposed=0, accepted=0)
    record = fed(record, 40, plain_ms=None, spec_ms=None)
    record = fed(record, LOOKS[0] - 1)
    assert record.verdict.state == "watching"
    assert record.totals.timed == LOOKS[0] - 1
    assert fed(record, 1).verdict.state == "off: loss"


def test_what_was_found_at_a_look_outlives_the_requests_it_was_found_on(record):
    record = fed(record, LOOKS[0], spec_ms=100.0)
    found = record.verdict, record.gain
    record = fed(record, MOST_KEPT, proposed=0, accepted=0)
    assert (record.verdict, record.gain) == found


def test_sampled_requests_count_towards_a_look_though_their_tokens_do_not(record):
    record = fed(record, LOOKS[0], tokens="not compared", acceptance="rejection")
    assert record.verdict.state == "off: loss"
    assert (record.totals.not_compared, record.totals.equal) == (LOOKS[0], 0)


def test_after_the_last_planned_look_the_window_is_looked_at_again_and_again(record):
    record = fed(record, LOOKS[-1], spec_ms=100.0)
    record = fed(record, LOOKS[-1] - 1, spec_ms=300.0)
    assert record.verdict.state == "on"
    assert fed(record, 1, spec_ms=300.0).verdict.state == "off: loss"


def test_one_mismatch_is_enough_at_once(record):
    record = added(fed(record, 3, spec_ms=50.0), compared(tokens="mismatch"), evidence())
    assert record.verdict.state == "off: mismatch"
    assert record.verdict.reason == (
        "output token 2 is 'b' with speculation and 'a' without (margin 0.5, width noise 0.002)"
    )


def test_a_near_tie_turns_nothing_off(record):
    record = fed(record, 11, spec_ms=100.0, tokens="near-tie")
    assert (record.verdict.state, record.totals.near_ties) == ("watching", 11)


def test_what_turned_it_off_stays_the_reason(record):
    record = added(record, compared(tokens="mismatch"), evidence())
    first = record.verdict
    record = added(fed(record, 60, spec_ms=50.0), compared(tokens="mismatch"), evidence(position=0))
    assert record.verdict == first
    assert len(record.evidence) == 2


def test_failures_and_interruptions_are_counted_and_decide_nothing(record):
    record = interrupted(failed(failed(record, "first"), "second"))
    assert (record.totals.failures, record.totals.interrupted) == (2, 1)
    assert (record.last_failure, record.verdict.state) == ("second", "watching")
    assert record.totals.compared == 0


def test_the_gain_is_a_ratio_of_sums_over_the_window(record):
    record = added(record, compared(plain_ms=300.0, spec_ms=100.0))
    record = added(record, compared(plain_ms=100.0, spec_ms=100.0))
    found = estimate(record.last)
    assert found is not None
    assert found.gain == pytest.approx(400 / 200)
    assert estimate(Record.new(record.fingerprint).last) is None


def test_the_interval_allows_for_every_look_that_was_planned(record):
    rng = np.random.default_rng(3)
    plain, spec = 100 * np.exp(rng.normal(0, 0.3, (2, LOOKS[1])))
    for p, s in zip(plain.tolist(), spec.tolist(), strict=True):
        record = added(record, compared(plain_ms=p, spec_ms=s))
    assert record.gain == ratio_interval(plain, spec, looks=2, planned_looks=len(LOOKS))


def test_where_nothing_is_gained_or_lost_the_alarm_is_as_rare_as_planned(record):
    """90 % intervals over all planned looks: at most 5 % of such records may be turned off."""
    rng = np.random.default_rng(5)
    runs, alarms = 120, 0
    for _ in range(runs):
        noise = rng.normal(0, 0.15, (LOOKS[2], 2))
        seen = record
        for plain, spec in 100 * np.exp(noise):
            seen = added(seen, compared(plain_ms=float(plain), spec_ms=float(spec)))
        alarms += seen.verdict.state == "off: loss"
    assert alarms <= 0.05 * runs

from __future__ import annotations

import numpy as np
import pytest

from specedge.engines.base import Engine, prefill
from specedge.engines.fake import FakeEngine, agreeing, fake_spec, hashed, scripted, table
from specedge.errors import EngineError, ShapeError

RULE = hashed(16)


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


def engine(**options) -> FakeEngine:
    return FakeEngine(fake_spec(16, 8), RULE, **options)


def test_it_is_an_engine():
    fake: Engine = engine()
    assert fake.spec.vocab == 16


def test_the_next_token_follows_from_every_cached_row():
    fake = engine()
    slot = fake.new_slot()
    fake.forward(slot, ids(1, 2), 0, 1)
    scored = fake.forward(slot, ids(3, 4), 2, 2)
    assert scored.greedy_ids.tolist() == [RULE(ids(1, 2, 3)), RULE(ids(1, 2, 3, 4))]


def test_a_wrong_cached_length_gives_another_text():
    fake = FakeEngine(fake_spec(100_000, 8))
    slot = fake.new_slot()
    right = int(fake.forward(slot, ids(1, 2, 3), 0, 1).greedy_ids[0])
    fake.forward(slot, ids(1, 2), 0, 1)
    wrong = {int(fake.forward(slot, ids(3), n, 1).greedy_ids[0]) for n in (1, 3, 4)}
    assert right not in wrong


def test_slots_do_not_share_rows():
    fake = engine()
    first, second = fake.new_slot(), fake.new_slot()
    fake.forward(first, ids(1, 2), 0, 1)
    fake.forward(second, ids(5, 6), 0, 1)
    assert fake.forward(first, ids(3), 2, 1).greedy_ids.tolist() == [RULE(ids(1, 2, 3))]


def test_logits_peak_at_the_chosen_id_and_differ_everywhere():
    fake = engine()
    scored = fake.forward(fake.new_slot(), ids(1, 2), 0, 2)
    assert scored.logits.dtype == np.float32
    assert scored.logits.argmax(axis=1).tolist() == scored.greedy_ids.tolist()
    assert all(len(set(row)) == 16 for row in scored.logits.tolist())


def test_results_live_until_the_next_call_only():
    fake = engine()
    slot = fake.new_slot()
    first = fake.forward(slot, ids(1), 0, 1)
    second = fake.forward(slot, ids(2), 1, 1)
    assert np.shares_memory(first.logits, second.logits)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8])
def test_prefill_in_chunks_is_one_prefill(length):
    tokens = np.arange(length, dtype=np.int64)
    fake = engine(prefill_chunk=4)
    assert prefill(fake, fake.new_slot(), tokens, 0).greedy_ids.tolist() == [RULE(tokens)]
    assert max(call.width for call in fake.calls) <= 4


@pytest.mark.parametrize(
    ("tokens", "n_cached", "rows", "message"),
    [
        (ids(), 0, 1, "0 after 0 cached rows"),
        (ids(1, 2), 7, 1, "2 after 7 cached rows"),
        (ids(1), -1, 1, "1 after -1 cached rows"),
        (ids(1, 2), 0, 0, r"expected 1\.\.2, found 0"),
        (ids(1, 2), 0, 3, r"expected 1\.\.2, found 3"),
        (ids(16), 0, 1, r"expected ids 0\.\.15"),
        (np.zeros((1, 2), dtype=np.int64), 0, 1, r"expected int64 \[S\]"),
        (np.zeros(2, dtype=np.int32), 0, 1, r"expected int64 \[S\]"),
    ],
)
def test_a_call_outside_the_contract_is_refused(tokens, n_cached, rows, message):
    fake = engine()
    with pytest.raises(ShapeError, match=message):
        fake.forward(fake.new_slot(), tokens, n_cached, rows)


def test_faults_come_at_the_call_they_were_put_on():
    fake = engine(faults={1: MemoryError("full"), 2: "nan"})
    slot = fake.new_slot()
    fake.forward(slot, ids(1), 0, 1)
    with pytest.raises(MemoryError, match="full"):
        fake.forward(slot, ids(2), 1, 1)
    with pytest.raises(EngineError, match="not finite"):
        fake.forward(slot, ids(2), 1, 1)
    assert fake.forward(slot, ids(2), 1, 1).greedy_ids.tolist() == [RULE(ids(1, 2))]


def test_a_released_slot_and_a_closed_engine_are_refused():
    fake = engine()
    slot = fake.new_slot()
    fake.release(slot)
    with pytest.raises(EngineError, match="released"):
        fake.forward(slot, ids(1), 0, 1)
    slot = fake.new_slot()
    fake.close()
    with pytest.raises(EngineError, match="closed"):
        fake.forward(slot, ids(1), 0, 1)


def test_a_delay_is_in_the_run_time():
    fake = engine(delay_ms=2)
    assert fake.forward(fake.new_slot(), ids(1), 0, 1).run_ms >= 2


@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
def test_an_agreeing_rule_agrees_as_often_as_it_is_told(probability):
    draft = agreeing(RULE, probability, 16)
    texts = [ids(a, b) for a in range(16) for b in range(16)]
    share = np.mean([draft(text) == RULE(text) for text in texts])
    assert share == pytest.approx(probability, abs=0.12)


def test_rules_for_tables_and_scripts():
    assert table({1: 2}, default=9)(ids(5, 1)) == 2
    assert table({1: 2}, default=9)(ids(1, 5)) == 9
    script = scripted([7, 8], n_prompt=2)
    assert [script(ids(*range(n))) for n in (2, 3, 4)] == [7, 8, 0]

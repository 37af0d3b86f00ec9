"""The canary's file: rolling, merged with what others wrote, and never half a file."""

from __future__ import annotations

import json
import sys
import threading

import pytest

from specedge import keeping
from specedge.bundle import Bundle
from specedge.canary import deciding
from specedge.canary.record import (
    MOST_EVIDENCE,
    MOST_KEPT,
    Comparison,
    Evidence,
    Record,
    clear,
    find,
    now,
    stored,
    update,
)
from specedge.engines.fake import FakeEngine, fake_spec
from specedge.errors import ProbeError
from specedge.probe.fingerprint import short_hash, take


@pytest.fixture
def bundle(tiny_bundle, private_cache) -> Bundle:
    return Bundle.open(tiny_bundle)


@pytest.fixture
def parts(bundle):
    return take(bundle, FakeEngine(fake_spec()), context=64)


def compared(**given) -> Comparison:
    usual = {"at": now(), "tokens": "equal", "generated": 20, "plain_ms": 200.0, "spec_ms": 100.0}
    usual |= {"acceptance": "greedy", "proposed": 12, "accepted": 9, "proposers": ("ngram",)}
    return Comparison.model_validate(usual | given)


def evidence(**given) -> Evidence:
    usual = {"at": now(), "prompt_ids": (1, 2), "plain_tokens": (5, 6), "spec_tokens": (5, 7)}
    usual |= {"options": {"max_tokens": 2}, "acceptance": "greedy", "position": 1}
    usual |= {"plain_token": 6, "spec_token": 7, "before": "x", "plain_text": "a"}
    usual |= {"spec_text": "b", "margin": 0.5, "noise": 0.002}
    return Evidence.model_validate(usual | given)


def add(bundle, parts, comparison, said=None, known=None):
    return update(bundle, parts, lambda r: deciding.added(r, comparison, said), known)


def test_what_is_added_is_found_again_beside_the_bundles_files(bundle, parts):
    before = bundle.hash
    record, trouble = add(bundle, parts, compared(tokens="mismatch"), evidence())
    assert not trouble
    found = find(bundle, parts)
    assert found.record == record
    assert found.path == bundle.path / "canaries" / f"{short_hash(parts)}.json"
    assert Bundle.open(bundle.path).hash == before


def test_another_fingerprint_starts_anew(bundle, parts):
    add(bundle, parts, compared(tokens="mismatch"), evidence())
    other = parts | {"threads": 99}
    assert find(bundle, other).record is None
    record, _ = add(bundle, other, compared())
    assert (record.totals.compared, record.verdict.state) == (1, "watching")
    assert len(list(stored(bundle))) == 2


def test_comparisons_roll_and_totals_do_not(parts):
    record = Record.new(parts)
    for number in range(MOST_KEPT + 30):
        record = deciding.added(record, compared(generated=number, proposed=0, accepted=0))
    assert [each.generated for each in record.last] == list(range(30, MOST_KEPT + 30))
    assert record.totals.compared == record.totals.equal == MOST_KEPT + 30
    assert Record.model_validate_json(record.model_dump_json()) == record


def test_the_first_mismatches_are_kept_and_all_are_counted(parts):
    record = Record.new(parts)
    for number in range(MOST_EVIDENCE + 5):
        record = deciding.added(record, compared(tokens="mismatch"), evidence(position=number))
    assert [each.position for each in record.evidence] == list(range(MOST_EVIDENCE))
    assert record.totals.mismatches == MOST_EVIDENCE + 5
    assert "output token 1 " in record.verdict.reason


def test_two_writers_in_turn_fill_one_record(bundle, parts):
    for number in range(6):
        add(bundle, parts, compared(generated=number))
    record = find(bundle, parts).record
    assert record is not None
    assert [each.generated for each in record.last] == list(range(6))


def test_writers_at_once_leave_a_whole_record(bundle, parts):
    damaged: list[str] = []

    def write() -> None:
        for _ in range(15):
            add(bundle, parts, compared())
            damaged.append(find(bundle, parts).damage)

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(damaged) == {""}
    record = find(bundle, parts).record
    assert record is not None
    if sys.platform == "win32":
        assert 15 <= record.totals.compared <= 45
    else:
        assert record.totals.compared == 45
    assert [path.suffix for path in (bundle.path / "canaries").iterdir()] == [".json"]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no locks of folders")
def test_a_writer_that_was_stopped_stops_no_other(bundle, parts, monkeypatch):
    monkeypatch.setattr(keeping, "_TRIES", 2)
    with keeping.turn(bundle):
        add(bundle, parts, compared())
        with keeping.turn(bundle):
            add(bundle, parts, compared())
    record = find(bundle, parts).record
    assert record is not None
    assert record.totals.compared == 2


def test_without_locks_a_record_is_filled_all_the_same(bundle, parts, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    add(bundle, parts, compared())
    add(bundle, parts, compared())
    record = find(bundle, parts).record
    assert record is not None
    assert record.totals.compared == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not valid JSON"),
        ("[]", "schema None"),
        ('{"schema_version": 99}', "schema 99, this specedge reads 1"),
        ('{"schema_version": 1}', "Field required"),
    ],
)
def test_a_damaged_record_says_why_and_is_started_anew(bundle, parts, text, why):
    path = bundle.path / "canaries" / f"{short_hash(parts)}.json"
    path.parent.mkdir()
    path.write_text(text)
    found = find(bundle, parts)
    assert found.record is None
    assert why in found.damage
    assert str(path) in found.damage
    record, trouble = add(bundle, parts, compared())
    assert (record.totals.compared, trouble) == (1, "")
    assert find(bundle, parts).record == record


def test_a_time_of_nothing_or_of_no_number_is_damage(bundle, parts):
    record, _ = add(bundle, parts, compared())
    path = find(bundle, parts).path
    assert path is not None
    said = json.loads(record.model_dump_json())
    said["last"][0]["spec_ms"] = 0
    path.write_text(json.dumps(said))
    assert "last.0.spec_ms" in find(bundle, parts).damage


def test_a_bundle_that_cannot_be_written_has_its_record_in_the_cache(bundle, parts, private_cache):
    (bundle.path / "canaries").write_text("a file, where a folder cannot be made")
    record, trouble = add(bundle, parts, compared())
    assert not trouble
    found = find(bundle, parts)
    assert found.record == record
    assert found.path is not None
    assert found.path.parent == private_cache / "canaries" / bundle.hash


def test_of_two_places_the_newer_record_counts(bundle, parts, private_cache):
    add(bundle, parts, compared())
    here = bundle.path / "canaries"
    here.rename(bundle.path / "aside")
    here.write_text("")
    newer, _ = add(bundle, parts, compared(tokens="mismatch"), evidence())
    here.unlink()
    (bundle.path / "aside").rename(here)
    assert find(bundle, parts).record == newer


def test_without_any_place_to_write_the_record_lives_on_in_the_process(
    bundle, parts, private_cache
):
    (bundle.path / "canaries").write_text("")
    private_cache.write_text("")
    record, trouble = add(bundle, parts, compared())
    assert "cannot be kept" in trouble
    record, trouble = add(bundle, parts, compared(), known=record)
    assert record.totals.compared == 2


def test_clearing_forgets_every_record_and_says_how_many(bundle, parts):
    add(bundle, parts, compared())
    add(bundle, parts | {"threads": 99}, compared())
    assert clear(bundle) == 2
    assert find(bundle, parts).record is None
    assert not (bundle.path / "canaries").exists()
    assert clear(bundle) == 0


def test_a_record_that_cannot_be_removed_is_named(bundle, parts):
    path = bundle.path / "canaries" / "0123.json"
    (path / "inside").mkdir(parents=True)
    with pytest.raises(ProbeError, match=r"0123\.json: the record cannot be removed"):
        clear(bundle)

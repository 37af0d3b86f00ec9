"""The engine of contract concat, on a hand-made graph that shows every wrong row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concat_graphs import COLUMNS, CONTEXT, D, H, Toy, V
from specedge.contract import Ids
from specedge.engines import concat, registry, slotted
from specedge.engines.base import prefill
from specedge.engines.concat import ConcatEngine, kv_of, open_engine
from specedge.errors import EngineError, ShapeError
from specedge.memory import activation_bytes

TOYS = {
    "as optimum writes": Toy(),
    "rows on axis 1": Toy(rows_axis=1),
    "no positions": Toy(positions=False),
    "no mask": Toy(mask=False),
}
IDS: Ids = np.random.default_rng(3).integers(0, V, CONTEXT)


@pytest.fixture(params=TOYS)
def toy(request: pytest.FixtureRequest) -> Toy:
    return TOYS[request.param]


@pytest.fixture
def engine(toy: Toy, tmp_path: Path) -> Iterator[ConcatEngine]:
    engine = open_engine(tmp_path, toy.write(tmp_path), threads=1)
    yield engine
    engine.close()


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[ConcatEngine]:
    engine = open_engine(tmp_path, Toy().write(tmp_path), threads=1)
    yield engine
    engine.close()


def test_a_whole_text_at_once_scores_every_row(toy: Toy, engine: ConcatEngine) -> None:
    scored = engine.forward(engine.new_slot(), IDS, 0, CONTEXT)
    np.testing.assert_array_equal(scored.logits, toy.logits(IDS))
    np.testing.assert_array_equal(scored.greedy_ids, toy.logits(IDS).argmax(-1))


def test_a_call_sees_the_rows_before_it_and_no_others(toy: Toy, engine: ConcatEngine) -> None:
    """Any width after any past: it was appended to, cut short, or cut to nothing."""
    wanted = toy.logits(IDS)
    slot = engine.new_slot()
    held = np.random.default_rng(0)
    prefill(engine, slot, IDS, 0)
    for _ in range(80):
        n_cached = int(held.integers(0, CONTEXT))
        width = int(held.integers(1, min(9, CONTEXT - n_cached + 1)))
        if n_cached:
            prefill(engine, slot, IDS[:n_cached], 0)
        wrong = (IDS[n_cached : n_cached + width] + 1) % V
        engine.forward(slot, wrong, n_cached, 1)  # refused
        scored = engine.forward(slot, IDS[n_cached : n_cached + width], n_cached, width)
        np.testing.assert_array_equal(scored.logits, wanted[n_cached : n_cached + width])
    assert slot.held == n_cached + width


@pytest.mark.parametrize("kept", range(1, 6))
def test_a_round_that_keeps_part_of_a_draft_goes_on_after_it(
    toy: Toy, engine: ConcatEngine, kept: int
) -> None:
    slot, wanted = engine.new_slot(), toy.logits(IDS)
    n_cached = 0
    while n_cached + 5 <= CONTEXT:
        call = IDS[n_cached : n_cached + 5].copy()
        call[kept:] = (call[kept:] + 1) % V
        scored = engine.forward(slot, call, n_cached, 5)
        np.testing.assert_array_equal(scored.logits[:kept], wanted[n_cached : n_cached + kept])
        n_cached += kept


def test_only_the_last_rows_are_scored(plain: ConcatEngine) -> None:
    wanted = Toy().logits(IDS[:9])
    for rows in (1, 4, 9):
        scored = plain.forward(plain.new_slot(), IDS[:9], 0, rows)
        np.testing.assert_array_equal(scored.logits, wanted[-rows:])


def test_padded_ids_are_cut_though_they_score_best(plain: ConcatEngine) -> None:
    scored = plain.forward(plain.new_slot(), IDS, 0, CONTEXT)
    assert scored.logits.shape == (CONTEXT, V)
    assert COLUMNS > V > scored.greedy_ids.max()


def test_rows_that_nobody_wrote_count_as_zeros(plain: ConcatEngine) -> None:
    """A probe times calls after a long past that it never computed."""
    toy, slot = Toy(), plain.new_slot()
    prefill(plain, slot, IDS[:50], 0)
    slot.touch()
    own = toy.values[IDS[:1]] + toy.places[40]
    scored = plain.forward(slot, IDS[:1], 40, 1)
    np.testing.assert_array_equal(scored.logits, (own @ toy.head)[:, :V])
    # and those that a longer text left behind, in both buffers
    for at in range(0, 50, 5):
        plain.forward(slot, IDS[at : at + 5], at, 1)
    prefill(plain, slot, IDS[:5], 0)
    before = (toy.values[IDS[:5]] + toy.places[:5]).sum(axis=0)
    scored = plain.forward(slot, IDS[:1], 40, 1)
    np.testing.assert_array_equal(scored.logits, ((before + own) @ toy.head)[:, :V])


def test_a_released_slot_serves_the_next_text(plain: ConcatEngine) -> None:
    slot = plain.new_slot()
    prefill(plain, slot, IDS[:30], 0)
    plain.release(slot)
    again = plain.new_slot()
    assert again is slot, "the buffers are kept"
    scored = plain.forward(again, IDS[:7], 0, 7)
    np.testing.assert_array_equal(scored.logits, Toy().logits(IDS[:7]))


def test_two_slots_do_not_know_of_each_other(plain: ConcatEngine) -> None:
    one, two = plain.new_slot(), plain.new_slot()
    other = (IDS + 3) % V
    for at in range(0, 20, 4):
        plain.forward(one, IDS[at : at + 4], at, 1)
        plain.forward(two, other[at : at + 4], at, 1)
    scored = plain.forward(one, IDS[20:24], 20, 4)
    np.testing.assert_array_equal(scored.logits, Toy().logits(IDS)[20:24])


def test_the_context_ends_where_it_ends(plain: ConcatEngine, tmp_path: Path) -> None:
    slot = plain.new_slot()
    prefill(plain, slot, IDS[:-1], 0)
    scored = plain.forward(slot, IDS[-1:], CONTEXT - 1, 1)
    np.testing.assert_array_equal(scored.logits, Toy().logits(IDS)[-1:])
    for tokens, n_cached, rows in ((IDS[:2], CONTEXT - 1, 1), (IDS[:1], -1, 1), (IDS[:2], 0, 3)):
        with pytest.raises(ShapeError):
            plain.forward(slot, tokens, n_cached, rows)
    short = open_engine(tmp_path, Toy().spec(), threads=1, context=20)
    assert short.new_slot().context == short.prefill_chunk == 20
    with pytest.raises(EngineError, match=r"context 65 is outside 1\.\.64"):
        open_engine(tmp_path, Toy().spec(), context=65)


def test_equal_sums_at_every_width_are_no_noise(plain: ConcatEngine) -> None:
    assert (plain.width_step, plain.width_noise) == (1, 0.0)


def test_the_noise_between_widths_is_what_measuring_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def measure(score: Callable[[int, int], Any], widest: int, *, places: int) -> Any:
        np.testing.assert_array_equal(score(2, 3), score(2, 8)[:3])
        asked.append((widest, places))
        return concat.widths.Widths(None, 0.25)

    monkeypatch.setattr(concat.widths, "measure", measure)
    engine = open_engine(tmp_path, Toy().write(tmp_path), threads=1)
    assert engine.width_noise == 0.25
    assert asked == [(16, 24)]


def test_a_value_that_is_not_finite_is_an_error_and_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slotted, "PREFILL_CHUNK", 16)
    late = Toy()
    late.places[55] = np.nan
    engine = open_engine(tmp_path, late.write(tmp_path), threads=1)
    slot = engine.new_slot()
    prefill(engine, slot, IDS[:54], 0)
    with pytest.raises(EngineError, match="not finite at position 55"):
        engine.forward(slot, IDS[54:58], 54, 4)
    one_id = Toy()
    one_id.head[0, 7] = np.inf
    with pytest.raises(EngineError, match="not finite"):
        open_engine(tmp_path, one_id.write(tmp_path), threads=1)


def test_a_slot_of_another_engine_or_a_closed_one_is_refused(
    plain: ConcatEngine, tmp_path: Path
) -> None:
    other = open_engine(tmp_path, Toy().spec(), threads=1)
    foreign = other.new_slot()
    with pytest.raises(EngineError, match="another engine's"):
        plain.forward(foreign, IDS[:1], 0, 1)
    other.release(foreign)
    with pytest.raises(EngineError, match="released"):
        other.forward(foreign, IDS[:1], 0, 1)
    other.close()
    with pytest.raises(EngineError, match="closed"):
        other.new_slot()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layers": 2}, "layers = 2, the graph has 1"),
        ({"head_dim": 4}, "kv_heads [*] head_dim = 8, the graph has 6"),
        ({"vocab": 15}, "vocab = 15, the graph's logits have 14"),
    ],
)
def test_a_manifest_that_promises_other_sizes_is_refused(
    tmp_path: Path, change: dict[str, int], said: str
) -> None:
    Toy().write(tmp_path)
    with pytest.raises(EngineError, match=said):
        open_engine(tmp_path, Toy().spec(**change), threads=1)


def test_a_graph_with_an_input_that_nobody_feeds_is_refused_by_name(tmp_path: Path) -> None:
    spec = Toy().write(tmp_path, extra="use_cache_branch")
    with pytest.raises(EngineError, match="'use_cache_branch' is not of contract concat"):
        open_engine(tmp_path, spec, threads=1)


@pytest.mark.parametrize(
    "shape",
    [["batch", 2, 7, 3], ["batch", 2, "past", "width"], [2, 2, "past", 3], ["batch", 2, 3]],
)
def test_kv_whose_rows_cannot_be_found_is_refused(shape: list[Any]) -> None:
    name = "past_key_values.0.key"
    with pytest.raises(EngineError, match="is not understood"):
        kv_of({name: shape}, {"present.0.key": shape, "logits": [1, 1, 5]})


def test_what_it_cannot_honour_it_refuses(tmp_path: Path) -> None:
    spec = Toy().write(tmp_path)
    with pytest.raises(EngineError, match="on cpu only, not on cuda"):
        open_engine(tmp_path, spec, provider="cuda")
    with pytest.raises(EngineError, match="threads = 0"):
        open_engine(tmp_path, spec, threads=0)
    with pytest.raises(EngineError, match="option"):
        open_engine(tmp_path, spec, options={"arena": 1})


def test_the_registry_opens_it_by_the_lowering_alone(tmp_path: Path) -> None:
    spec = Toy().write(tmp_path)
    engine = registry.create("cpu", tmp_path, spec, threads=1, context=32)
    assert isinstance(engine, ConcatEngine)
    assert "growing KV" in engine.description
    engine.close()


def test_the_memory_plan_counts_growing_kv_twice_and_logits_of_every_row() -> None:
    growing, fixed = Toy().spec(), Toy().spec(lowering="ort")
    assert fixed.kv_bytes(10) == 2 * 10 * (H * D) * 4
    assert growing.kv_bytes(10) == 2 * fixed.kv_bytes(10)
    more = activation_bytes(growing, CONTEXT, 8) - activation_bytes(fixed, CONTEXT, 8)
    logits, scores = (CONTEXT - 8) * V, H * CONTEXT * CONTEXT
    assert more == 4 * (logits + scores)

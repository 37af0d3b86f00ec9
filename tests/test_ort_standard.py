"""Lowering standard on ONNX Runtime: T in steps, types of KV, and the path of a device."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

import specedge
from specedge.acceptance import RoundDraws
from specedge.acceptance.device import Question
from specedge.contract import GREEDY_LOGITS, WIDEST_STEP, GraphSpec, Ids, Logits
from specedge.engines import widths
from specedge.engines.base import Engine, Slot, prefill
from specedge.engines.ort import OrtEngine, engine, open_engine
from specedge.engines.ort.accepting import Accepting
from specedge.engines.ort.bindings import Ports
from specedge.engines.ort.memory import Memory
from specedge.engines.ort.providers import open_session
from specedge.engines.ort.rows import DeviceRows, HostRows, rows_for, step_at
from specedge.errors import EngineError
from specedge.export import acceptance_graph
from specedge.randomness import Randomness
from test_ort_engine import ids_for, with_a_nan
from tiny_exports import TinyExports, read_spec

CONTEXT = 700


def bundle_of(exports: TinyExports, family: str = "llama", **given: Any) -> Path:
    said = {"lowering": "standard", "activations": "fp32", **given}
    checkpoint = exports.checkpoint(family, max_position_embeddings=1024)
    return exports.bundle(checkpoint, context=CONTEXT, **said)


def opened(bundle: Path, *, exact: bool = True, **how: Any) -> OrtEngine:
    """An engine of ONNX Runtime's CPU provider, with buffers and steps as asked."""
    spec = read_spec(bundle)
    made = OrtEngine(spec, open_session(bundle, spec, "cpu", 1), "cpu, 1 threads", None, **how)
    made.warm_up(exact=exact)
    return made


@pytest.fixture
def bundle(tiny_exports: TinyExports) -> Path:
    return bundle_of(tiny_exports)


@pytest.fixture
def growing(bundle: Path) -> Iterator[OrtEngine]:
    made = open_engine(bundle, read_spec(bundle), threads=1)
    yield made
    made.close()


def score(engine: Engine, slot: Slot, ids: Ids, start: int, widths: list[int]) -> Logits:
    """Logits of every token from `start` on, in calls of these widths, again and again."""
    found = []
    while start < len(ids):
        width = min(widths[len(found) % len(widths)], len(ids) - start)
        found.append(engine.forward(slot, ids[start : start + width], start, width).logits.copy())
        start += width
    return np.concatenate(found)


# --- the same model as lowering ort's -----------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3"])
def test_both_lowerings_say_the_same_across_every_step_of_t(
    tiny_exports: TinyExports, family: str
) -> None:
    standard = bundle_of(tiny_exports, family)
    fused = bundle_of(tiny_exports, family, lowering="ort")
    a = open_engine(standard, read_spec(standard), threads=1)
    b = open_engine(fused, read_spec(fused), threads=1)
    ids = ids_for(a, 300)
    wanted = score(b, b.new_slot(), ids, 0, [100, 1, 5, 16, 1])
    got = score(a, a.new_slot(), ids, 0, [100, 1, 5, 16, 1])
    np.testing.assert_allclose(got, wanted, atol=2e-4)
    np.testing.assert_array_equal(got.argmax(-1), wanted.argmax(-1))


def test_every_step_equals_the_whole_text_computed_anew(growing: OrtEngine) -> None:
    ids = ids_for(growing, 264)
    slot, anew = growing.new_slot(), growing.new_slot()
    prefill(growing, slot, ids[:120], 0)
    for at in (*range(120, 136), *range(248, 264)):
        if at == 248:
            prefill(growing, slot, ids[136:248], 136)
        got = growing.forward(slot, ids[at : at + 1], at, 1).logits.copy()
        wanted = prefill(growing, anew, ids[: at + 1], 0).logits
        np.testing.assert_allclose(got, wanted, atol=2e-4)


def test_the_bits_do_not_depend_on_how_long_t_is(bundle: Path, growing: OrtEngine) -> None:
    """Or speculation, which reaches further, could change the text."""
    fixed = opened(bundle, steps=False)
    ids = ids_for(growing, CONTEXT)
    grown, whole = growing.new_slot(), fixed.new_slot()
    assert whole.cache.rows >= CONTEXT > grown.cache.rows
    widths = [50, 1, 1, 3, 16, 8, 1]
    np.testing.assert_array_equal(
        score(growing, grown, ids, 0, widths), score(fixed, whole, ids, 0, widths)
    )
    assert whole.cache.rows >= CONTEXT


@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_greedy_text_is_the_same_with_speculation_on_and_off(
    tiny_exports: TinyExports, precision: str
) -> None:
    bundle = bundle_of(tiny_exports, precision=precision)
    texts = []
    for speculation in ("off", "on"):
        with specedge.load(bundle, speculation=speculation, threads=1) as model:
            result = model.generate("the cat and the cat and", max_tokens=200)
            texts.append(result.tokens)
            drafted = result.metrics.proposed
    assert drafted > 0
    assert len(texts[0]) == 200
    assert texts[0] == texts[1]


# --- T ------------------------------------------------------------------------------------------


def test_t_follows_the_sequence_and_forgets_a_long_one(growing: OrtEngine) -> None:
    slot, ids = growing.new_slot(), ids_for(growing, 600)
    seen = []
    for n_cached in (0, 100, 126, 130, 120, 380, 500, 390, 0, 130):
        growing.forward(slot, ids[:5], n_cached, 1)
        seen.append(slot.cache.rows)
    assert seen == [128, 128, 256, 256, 256, 512, 512, 512, 128, 256]


def test_a_touched_slot_is_measured_at_the_t_that_each_past_would_have(
    growing: OrtEngine,
) -> None:
    """As the probe measures: any past, in any order, behind rows that nobody has written."""
    slot = growing.new_slot()
    slot.touch()
    for past in (600, 128, 384, 16, 600, 16):
        growing.forward(slot, np.ones(1, np.int64), past, 1)
        assert slot.cache.rows == rows_for(past + 8 // growing.width_step, CONTEXT + 7)


def test_going_back_and_on_keeps_the_rows_before(growing: OrtEngine) -> None:
    ids, other = ids_for(growing, 650), ids_for(growing, 650, seed=1)
    slot = growing.new_slot()
    prefill(growing, slot, ids, 0)
    for kept in (520, 300, 90):
        text = np.concatenate([ids[:kept], other[kept : kept + 200]])
        prefill(growing, slot, text[kept:], kept)
        got = growing.forward(slot, text[-3:], len(text) - 3, 3).logits.copy()
        fresh = growing.new_slot()
        prefill(growing, fresh, text[:-3], 0)
        wanted = growing.forward(fresh, text[-3:], len(text) - 3, 3).logits
        np.testing.assert_allclose(got, wanted, atol=2e-4)


@pytest.mark.parametrize("step", [1, 2, 4, 8])
def test_padding_of_any_step_fits_behind_the_last_row(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(engine.widths, "measure", lambda *_, **__: engine.widths.Widths(step, 0.0))
    made = opened(bundle)
    slot, ids = made.new_slot(), ids_for(made, CONTEXT)
    prefill(made, slot, ids, 0)
    wanted = made.forward(slot, ids[-16:], CONTEXT - 16, 16).logits.copy()
    for width in (1, 3, 7):
        got = made.forward(slot, ids[-width:], CONTEXT - width, width).logits
        np.testing.assert_allclose(got, wanted[-width:], atol=2e-4)


@pytest.mark.parametrize("memory", [Memory(), Memory(is_apart=True)], ids=["host", "device"])
def test_a_runtime_that_compiles_for_one_t_is_never_shown_another(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, memory: Memory
) -> None:
    seen = set()
    bind = engine.bind

    def watched(*given: Any, **named: Any) -> Any:
        seen.add(given[4][0][0].shape()[2])
        return bind(*given, **named)

    monkeypatch.setattr(engine, "bind", watched)
    made = opened(bundle, steps=False, memory=memory)
    prefill(made, made.new_slot(), ids_for(made, 300), 0)
    assert seen == {CONTEXT + WIDEST_STEP - 1}


def test_a_slot_whose_device_is_full_stays_as_it_was(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = opened(bundle, memory=Memory(is_apart=True))
    slot, ids = made.new_slot(), ids_for(made, 600)
    wanted = score(made, slot, ids[:505], 480, [5])
    with monkeypatch.context() as patch:
        patch.setattr(onnxruntime.OrtValue, "ortvalue_from_shape_and_type", full_after(2))
        with pytest.raises(
            EngineError, match=r"^no room on cpu for .* more: out of memory; choose"
        ):
            made.forward(slot, ids[505:513], 505, 1)
    # another width is bound anew, to the values that are there now
    np.testing.assert_allclose(score(made, slot, ids[:505], 480, [6]), wanted, atol=2e-4)
    made.forward(slot, ids[505:513], 505, 1)
    np.testing.assert_allclose(score(made, slot, ids[:505], 480, [7]), wanted, atol=2e-4)


def full_after(count: int) -> Any:
    """In place of an allocation: that many succeed."""
    really, left = onnxruntime.OrtValue.ortvalue_from_shape_and_type, [None] * count

    def allocate(*given: Any) -> Any:
        if not left:
            raise RuntimeError("Failed to allocate memory for requested buffer of size 123456")
        left.pop()
        return really(*given)

    return allocate


@given(st.integers(1, 100_000), st.integers(0, 100_000))
def test_t_is_enough_never_more_than_a_step_too_long_and_bounded(needed: int, more: int) -> None:
    most = needed + more
    rows = rows_for(needed, most)
    assert needed <= rows <= most
    assert rows - needed < step_at(needed)
    assert rows == most or rows % 128 == 0


SPEC = GraphSpec(
    role="target",
    model="m",
    weights="w",
    model_type="llama",
    lowering="standard",
    precision="fp32",
    vocab=10,
    layers=2,
    hidden=8,
    heads=3,
    kv_heads=3,
    head_dim=2,
    context=900,
    max_verify=16,
    weight_bytes=0,
    parameters=0,
)


@given(st.lists(st.tuples(st.integers(1, 900), st.integers(0, 20)), min_size=1, max_size=12))
@pytest.mark.parametrize("element", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("is_apart", [False, True])
def test_rows_stay_what_they_were_whatever_t_becomes(
    is_apart: bool, element: Any, moves: list[tuple[int, int]]
) -> None:
    """Against one array of all rows that never moves."""
    spec, memory = SPEC.model_copy(update={"kv_dtype": element}), Memory(is_apart=is_apart)
    rows = (DeviceRows if is_apart else HostRows)(memory, spec, 907, steps=True)
    plain = [np.zeros((1, 3, 907, 2), np.float32) for _ in range(4)]
    rng = np.random.default_rng(0)
    for needed, width in moves:
        rows.fit(needed)
        assert needed <= rows.rows <= 907
        flat = [each for pair in rows.values for each in pair]
        for value, held in zip(flat, plain, strict=True):
            array = memory.read(value)
            held[:, :, rows.rows :] = 0  # what no longer fits is gone
            np.testing.assert_array_equal(array, held[:, :, : rows.rows].astype(array.dtype))
            new = rng.integers(1, 99, (1, 3, min(width, needed), 2))
            array[:, :, needed - new.shape[2] : needed] = new
            held[:, :, needed - new.shape[2] : needed] = new
            value.update_inplace(array)
    rows.scrub(5)
    assert not any(memory.read(v)[:, :, 5:].any() for pair in rows.values for v in pair)
    rows.clear()
    assert not any(memory.read(v).any() for pair in rows.values for v in pair)


# --- types of keys and values -------------------------------------------------------------------


@pytest.mark.parametrize("lowering", ["standard", "ort"])
def test_float16_takes_half_the_memory_and_nearly_the_same_logits(
    tiny_exports: TinyExports, growing: OrtEngine, lowering: str
) -> None:
    bundle = bundle_of(tiny_exports, precision="fp16", activations="auto", lowering=lowering)
    half = open_engine(bundle, read_spec(bundle), threads=1)
    assert half.spec.kv_bytes() * 2 == growing.spec.kv_bytes()
    slot, ids = half.new_slot(), ids_for(half, 300)
    got = score(half, slot, ids, 0, [100, 1, 5, 16])
    assert {array.dtype for pair in slot.kv for array in pair} == {np.dtype(np.float16)}
    wanted = score(growing, growing.new_slot(), ids, 0, [100, 1, 5, 16])
    assert np.abs(got - wanted).max() < 0.01 * np.abs(wanted).max()
    assert np.abs(got - wanted).max() > 0


@pytest.mark.parametrize(("element", "step"), [("float32", 1), ("float16", 2), ("bfloat16", 2)])
def test_a_type_that_hides_what_rounding_does_is_never_taken_to_agree(
    element: str, step: int
) -> None:
    spec = SPEC.model_copy(update={"kv_dtype": element})

    def run(how: widths.Padding, tokens: Ids, n_cached: int, rows: int) -> Logits:
        return np.full((rows, spec.vocab), 4.0, np.float32)  # nothing shows

    found = widths.padding(run, spec, widths.ROWS, exact=True)
    assert (found.step, found.head_step, found.noise) == (step, 1, 0.0)
    narrow = widths.padding(run, spec, widths.ROWS, exact=False)
    assert (narrow.step, narrow.noise > 0) == (1, step > 1)


def test_one_row_of_float16_says_what_many_say_all_along_a_text(tiny_exports: TinyExports) -> None:
    bundle = bundle_of(tiny_exports, lowering="ort", precision="fp16", activations="auto")
    engine = open_engine(bundle, read_spec(bundle), threads=1)
    ids, slot, told = ids_for(engine, CONTEXT), engine.new_slot(), []
    prefill(engine, slot, ids, 0)
    for start in range(0, CONTEXT - 16, 5):
        many = engine.forward(slot, ids[start : start + 16], start, 16).logits[:1].copy()
        one = engine.forward(slot, ids[start : start + 1], start, 1).logits
        told.append(not np.array_equal(one, many))
        prefill(engine, slot, ids[start : start + 16], start)
    assert not any(told), f"{sum(told)} of {len(told)} rows"
    engine.close()


def test_bfloat16_is_refused_on_a_cpu_before_anything_is_loaded(tmp_path: Path) -> None:
    spec = SPEC.model_copy(update={"kv_dtype": "bfloat16"})
    with pytest.raises(EngineError, match=r"^target: ONNX Runtime's CPU provider has no bfloat16"):
        open_engine(tmp_path, spec)


# --- buffers on a device: the same code, on the host --------------------------------------------


@pytest.fixture(params=["standard", "ort"])
def pair(tiny_exports: TinyExports, request: Any) -> Iterator[tuple[OrtEngine, OrtEngine]]:
    """One engine that keeps everything on the host, one that keeps it apart."""
    bundle = bundle_of(tiny_exports, lowering=request.param)
    host, apart = opened(bundle), opened(bundle, memory=Memory(is_apart=True))
    yield host, apart
    host.close()
    apart.close()


def test_a_device_says_the_same_bits_as_the_host(pair: tuple[OrtEngine, OrtEngine]) -> None:
    host, apart = pair
    assert (host.width_step, host.width_noise) == (apart.width_step, apart.width_noise)
    ids = ids_for(host, 600)
    widths = [90, 1, 1, 16, 5, 8, 120]
    slots = host.new_slot(), apart.new_slot()
    wanted = score(host, slots[0], ids, 0, widths)
    np.testing.assert_array_equal(score(apart, slots[1], ids, 0, widths), wanted)
    again = score(host, slots[0], ids[:40], 20, [3])
    np.testing.assert_array_equal(score(apart, slots[1], ids[:40], 20, [3]), again)


def test_only_greedy_ids_and_their_logits_come_back_unless_logits_are_read(
    pair: tuple[OrtEngine, OrtEngine],
) -> None:
    apart, ids = pair[1], ids_for(pair[1], 40)
    slot, memory = apart.new_slot(), apart._memory
    prefill(apart, slot, ids[:30], 0)
    before = memory.bytes_back
    scored = apart.forward(slot, ids[30:35], 30, 5)
    padded = -(-5 // apart._padding.head_step) * apart._padding.head_step
    assert memory.bytes_back - before == padded * (8 + 4)
    assert scored.greedy_ids.tolist() == scored.logits.argmax(-1).tolist()
    fetched = padded * (8 + 4 + 4 * apart.spec.vocab)
    assert memory.bytes_back - before == fetched
    assert scored.logits is scored.logits
    assert memory.bytes_back - before == fetched


def test_logits_that_were_not_read_in_time_are_not_those_of_another_call(
    pair: tuple[OrtEngine, OrtEngine],
) -> None:
    apart, ids = pair[1], ids_for(pair[1], 8)
    slot = apart.new_slot()
    late = apart.forward(slot, ids, 0, 2)
    read = apart.forward(slot, ids, 0, 2)
    assert read.logits.shape == (2, apart.spec.vocab)
    apart.forward(slot, ids, 0, 2)
    with pytest.raises(EngineError, match="target: logits must be read before the engine's next"):
        late.logits.sum()
    assert np.isfinite(read.logits).all()


def test_a_verdict_that_was_not_asked_for_in_time_is_not_of_another_calls_logits(
    bundle: Path, tmp_path: Path
) -> None:
    acceptance_graph.write(tmp_path, read_spec(bundle).vocab)
    apart = opened(bundle, memory=Memory(is_apart=True), accepting=Accepting.of(tmp_path))
    ids, slot = ids_for(apart, 8), apart.new_slot()
    question = Question(1.0, ids[:1], None, RoundDraws(Randomness(0), 8))
    scored = [apart.forward(slot, ids, 0, 2) for _ in range(2)]
    late, last = (each.decide for each in scored)
    assert late is not None
    assert last is not None
    with pytest.raises(EngineError, match="target: logits must be read before the engine's next"):
        late(question)
    assert last(question) == last(question)
    apart.close()
    with pytest.raises(EngineError, match="target: the engine is closed"):
        last(question)
    with pytest.raises(EngineError, match="target: the engine is closed"):
        scored[1].logits.sum()


def test_a_closed_engine_keeps_nothing_of_a_device(bundle: Path, tmp_path: Path) -> None:
    acceptance_graph.write(tmp_path, read_spec(bundle).vocab)
    accepting = Accepting.of(tmp_path)
    apart = opened(bundle, memory=Memory(is_apart=True), accepting=accepting)
    graph, logits = weakref.ref(accepting), weakref.ref(apart._outputs)
    del accepting
    apart.close()
    gc.collect()
    assert graph() is None
    assert logits() is None


@pytest.mark.parametrize(
    "asked",
    [{}, {"temperature": 0.8, "acceptance": "rejection", "seed": 3}],
    ids=["greedy", "drawn"],
)
def test_a_run_fetches_no_logits_and_says_what_it_says_on_the_host(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: dict[str, Any]
) -> None:
    acceptance_graph.write(tmp_path, read_spec(bundle).vocab)
    accepting = Accepting.of(tmp_path)
    apart = opened(bundle, memory=Memory(is_apart=True), accepting=accepting)
    said = []
    for _ in range(2):
        with specedge.load(bundle, speculation="on", threads=1) as model:
            said.append(model.generate("a b a b a", max_tokens=40, **asked).tokens)
        monkeypatch.setattr("specedge.engines.ort.open_engine", lambda *_, **__: apart)
        monkeypatch.setattr(apart, "_fetched", lambda *_: pytest.fail("logits were fetched"))
    assert len(said[0]) == 40
    assert said[0] == said[1]


def test_a_nan_on_a_device_is_found_and_does_not_stay_in_the_slot(
    tiny_exports: TinyExports, tmp_path: Path
) -> None:
    copy, bad = with_a_nan(bundle_of(tiny_exports, "qwen3"), tmp_path)
    for memory in (Memory(), Memory(is_apart=True)):
        made = opened(copy, memory=memory)
        slot, ids = made.new_slot(), np.array([7, 8, 9], np.int64)
        wanted = made.forward(slot, ids, 0, 1).logits.copy()
        with pytest.raises(EngineError, match=r"^target: logits are not finite at position 3; th"):
            made.forward(slot, np.array([bad]), 3, 1)
        with pytest.raises(EngineError, match=r"^target: logits are not finite at position 2; th"):
            made.forward(slot, np.full(16, bad), 2, 16)
        np.testing.assert_array_equal(made.forward(slot, ids[2:], 2, 1).logits, wanted)


def test_a_device_with_no_room_says_how_much_was_wanted_and_what_to_do(
    pair: tuple[OrtEngine, OrtEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime.OrtValue, "ortvalue_from_shape_and_type", full_after(1))
    with pytest.raises(
        EngineError,
        match=r"^target: keys .* context of 700 take .*KiB: no room on cpu for .*; choose a sm",
    ) as error:
        pair[1]._slot(CONTEXT)
    assert "\n" not in str(error.value)


def test_a_device_that_this_runtime_cannot_reach_is_an_error() -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")
    with pytest.raises(EngineError, match="cuda:1"):
        Memory("cuda", 1).zeros((2, 3), "float16")


class Info:
    def __init__(self, name: str) -> None:
        self.name = name


class StubSession:
    """Names and places of a session's inputs, as one on CUDA would have them."""

    def __init__(self, places: dict[str, str], outputs: list[str]) -> None:
        self.places, self.outputs = places, outputs

    def get_inputs(self) -> list[Info]:
        return [Info(name) for name in self.places]

    def get_outputs(self) -> list[Info]:
        return [Info(name) for name in self.outputs]

    def get_input_memory_infos(self) -> list[Info]:
        return [Info(place) for place in self.places.values()]


def test_an_input_that_the_session_wants_on_the_host_stays_there() -> None:
    places = {"input_ids": "Cpu", "total_length": "CudaPinned"}  # "Cpu" plays the device
    session: Any = StubSession(places, [GREEDY_LOGITS])
    ports = Ports(SPEC, session, Memory(is_apart=True))
    assert ports.mirror("input_ids", np.zeros(1)).memory.is_apart
    assert not ports.mirror("total_length", np.zeros(1)).memory.is_apart
    assert ports.has_total


def test_an_old_graph_without_greedy_logits_is_refused_on_a_device_alone() -> None:
    session: Any = StubSession({"input_ids": "Cpu"}, ["logits"])
    assert not Ports(SPEC, session, Memory()).has_greedy_logits
    with pytest.raises(EngineError, match=r"^m: the graph has no output 'greedy_logits'"):
        Ports(SPEC, session, Memory(is_apart=True))


# --- CUDA graphs: what a session would be told --------------------------------------------------


def test_each_verification_is_a_graph_of_its_own_and_a_prefill_is_none(
    bundle: Path, growing: OrtEngine
) -> None:
    made = opened(bundle, memory=Memory(is_apart=True), captures=True)
    slot, other, ids = made.new_slot(), made.new_slot(), ids_for(made, 60)
    for each in (slot, other):
        for width, rows in ((60, 1), (1, 1), (5, 5), (5, 1), (17, 1)):
            made.forward(each, ids[:width], 0, rows)
            made.forward(each, ids[:width], 300, rows)
    graphs = {
        (each is slot, key[1:]): int(binding.options.get_run_config_entry("gpu_graph_id"))
        for each in (slot, other)
        for key, binding in each.bindings.items()
        if binding.options is not None
    }
    captured = [graph for (_, (width, _)), graph in graphs.items() if width <= 16]
    assert len(set(captured)) == len(captured) == 2 * 3
    assert {graph for (_, (width, _)), graph in graphs.items() if width > 16} == {-1}
    # an address or a shape that changed would be replayed as it was
    assert slot.cache.rows >= CONTEXT
    prefill(made, slot, ids, 0)
    wanted = prefill(growing, growing.new_slot(), ids, 0).logits
    np.testing.assert_allclose(made.forward(slot, ids[-1:], 59, 1).logits, wanted, atol=2e-4)


def test_a_graph_that_would_not_see_total_length_change_is_refused(tmp_path: Path) -> None:
    fused = SPEC.model_copy(update={"lowering": "ort"})
    for on in (1, "1", True):
        with pytest.raises(
            EngineError, match=r"^target: CUDA graphs need lowering standard, .*ort"
        ):
            open_engine(tmp_path, fused, provider="cuda", options={"enable_cuda_graph": on})
    for off in (0, "0", False):
        with pytest.raises(EngineError, match=r"^(?!target: CUDA graphs)"):
            open_engine(tmp_path, fused, provider="cuda", options={"enable_cuda_graph": off})

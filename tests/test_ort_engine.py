"""The ONNX Runtime engine: widths, slots, and what goes wrong, on real tiny graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import onnxruntime
import pytest

import specedge
from specedge.cli import invoke
from specedge.contract import GraphSpec, Ids, Logits
from specedge.engines import ort, registry, slotted, widths
from specedge.engines.base import Engine, Slot, prefill
from specedge.engines.fake import fake_spec
from specedge.engines.ort import OrtEngine, open_engine, slots
from specedge.engines.widths import (
    Padding,
    Widths,
    measure,
    measure_head,
    padded,
    places_for,
    some_tokens,
)
from specedge.errors import EngineError, ShapeError
from tiny_exports import TinyExports, read_spec

CONTEXT = 160
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "int4, block 32": {"precision": "int4", "block_size": 32},
    "int4, block 64": {"precision": "int4", "block_size": 64},
    "int8, block 64": {"precision": "int8", "block_size": 64},
}


def bundle_of(exports: TinyExports, precision: str = "fp32", family: str = "llama") -> Path:
    return exports.bundle(exports.checkpoint(family), context=CONTEXT, **PRECISIONS[precision])


def ids_for(engine: Engine, count: int, seed: int = 0) -> Ids:
    return np.random.default_rng(seed).integers(5, engine.spec.vocab, count)


@pytest.fixture
def bundle(tiny_exports: TinyExports) -> Path:
    return bundle_of(tiny_exports)


@pytest.fixture
def engine(bundle: Path) -> Iterator[OrtEngine]:
    engine = open_engine(bundle, read_spec(bundle))
    yield engine
    engine.close()


# --- widths -------------------------------------------------------------------------------------


def score_in_steps(engine: Engine, slot: Slot, ids: Ids, width: int, start: int) -> Logits:
    """Logits of ids[start:], `width` tokens a call, after a prefill of what comes before."""
    prefill(engine, slot, ids[:start], 0)
    calls = [
        engine.forward(slot, part, start + at, len(part)).logits.copy()
        for at in range(0, len(ids) - start, width)
        for part in [ids[start + at : start + at + width]]
    ]
    return np.concatenate(calls)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_logits_are_the_same_bits_in_calls_of_every_width(
    tiny_exports: TinyExports, precision: str, family: str
) -> None:
    bundle = bundle_of(tiny_exports, precision, family)
    engine = open_engine(bundle, read_spec(bundle))
    if engine.width_noise:
        pytest.skip(f"no widths agree on this processor: {engine.width_noise:.3g} between them")
    slot, ids = engine.new_slot(), ids_for(engine, CONTEXT)
    wanted = score_in_steps(engine, slot, ids, 1, 90)
    for width in range(2, 17):
        np.testing.assert_array_equal(score_in_steps(engine, slot, ids, width, 90), wanted)
    engine.close()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_prompt_in_chunks_of_any_size_ends_in_nearly_the_same_logits(
    tiny_exports: TinyExports, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """Exactly the same where chunks are no wider than what was measured."""
    bundle = bundle_of(tiny_exports, precision)
    engine = open_engine(bundle, read_spec(bundle))
    slot, ids = engine.new_slot(), ids_for(engine, 131)
    wanted = prefill(engine, slot, ids, 0, rows=5).logits.copy()
    size = np.abs(wanted).max()
    for chunk in (3, 8, 16, 50, 130, 131):
        monkeypatch.setattr(slotted, "PREFILL_CHUNK", chunk)
        assert engine.prefill_chunk == chunk
        got = prefill(engine, slot, ids, 0, rows=5).logits
        assert np.abs(got - wanted).max() <= (1e-5 if precision == "fp32" else 0.05) * size
        np.testing.assert_array_equal(got.argmax(-1), wanted.argmax(-1))
    engine.close()


def test_narrow_kernels_are_there_for_the_asking(bundle: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(widths, "measure", lambda *_, **__: Widths(4, 0.5))
    exact = open_engine(bundle, read_spec(bundle))
    assert (exact.width_step, exact.width_noise) == (4, 0.0)
    narrow = open_engine(bundle, read_spec(bundle), exact=False)
    assert (narrow.width_step, narrow.width_noise) == (1, 0.5)
    monkeypatch.setattr(widths, "measure", lambda *_, **__: Widths(None, 0.7))
    hopeless = open_engine(bundle, read_spec(bundle))
    assert (hopeless.width_step, hopeless.width_noise) == (1, 0.7)
    monkeypatch.setattr(widths, "measure", lambda *_, **__: Widths(1, 0.0))
    alike = open_engine(bundle, read_spec(bundle), exact=False)
    assert (alike.width_step, alike.width_noise) == (1, 0.0)


def test_exact_widths_are_the_targets_alone(
    tiny_exports: TinyExports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft is a guess, whichever kernel made it."""
    checkpoint = tiny_exports.checkpoint("llama")
    bundle = tiny_exports.bundle(checkpoint, checkpoint, context=CONTEXT)
    asked: list[tuple[str, bool]] = []
    really = ort.open_engine

    def recorded(path: Path, spec: GraphSpec, **options: Any) -> OrtEngine:
        asked.append((spec.role, options["exact"]))
        return really(path, spec, **options)

    monkeypatch.setattr(ort, "open_engine", recorded)
    specedge.load(bundle).close()
    specedge.load(bundle, exact=False).close()
    assert invoke(["run", str(bundle), "the", "--max-tokens", "2", "--no-exact"]) == 0
    narrow = [("target", False), ("draft", False)]
    assert asked == [("target", True), ("draft", False), *narrow, *narrow]


def test_a_result_says_that_speculation_may_change_a_near_tie(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(widths, "measure", lambda *_, **__: Widths(None, 0.123))
    with specedge.load(bundle, speculation="auto") as model:
        assert "logits differ by up to 0.12 with" in model.generate("a").speculation.reason
    with specedge.load(bundle, speculation="off") as model:
        assert "differ" not in model.generate("a").speculation.reason


@pytest.mark.parametrize("step", [1, 2, 4, 8])
def test_padding_of_any_step_fits_behind_the_last_row(
    bundle: Path, monkeypatch: Any, step: int
) -> None:
    monkeypatch.setattr(widths, "measure", lambda *_, **__: Widths(step, 0.0))
    engine = open_engine(bundle, read_spec(bundle))
    slot, ids = engine.new_slot(), ids_for(engine, CONTEXT)
    whole = engine.forward(slot, ids, 0, 20).logits.copy()
    for width in (1, 2, 3, 7, 16):
        start = CONTEXT - width
        prefill(engine, slot, ids[:start], 0)
        got = engine.forward(slot, ids[start:], start, width).logits
        np.testing.assert_allclose(got, whole[-width:], atol=1e-4)
    engine.close()


def test_the_widths_found_do_not_depend_on_the_context_asked_for(bundle: Path) -> None:
    steps = []
    for context in (1, 2, 3, 5, 17, CONTEXT):
        engine = open_engine(bundle, read_spec(bundle), context=context)
        steps.append(engine.width_step)
        slot, ids = engine.new_slot(), ids_for(engine, context)
        assert slot.context == context
        engine.forward(slot, ids, 0, 1)
        engine.close()
    assert len(set(steps)) == 1


class Kernels:
    """A made-up `score`: `noise(width)` is added to what every other width says.

    Rows of a text that an earlier call of another width left behind are noticed, as a KV buffer
    would notice them.
    """

    def __init__(self, noise: Callable[[int, int], float]) -> None:
        self.noise = noise
        self.rows = [0.0] * 2 * widths.WIDEST
        self.calls: list[tuple[int, int]] = []

    def __call__(self, start: int, width: int) -> Logits:
        self.calls.append((start, width))
        said = []
        for row in range(start, start + width):
            self.rows[row] = self.noise(row, width)
            said.append([row, row + sum(self.rows[: row + 1])])
        return np.array(said, np.float32)


@pytest.mark.parametrize(
    ("agrees", "step"),
    [
        (lambda width: True, 1),
        (lambda width: width % 2 == 0, 2),
        (lambda width: width % 4 == 0, 4),
        (lambda width: width in (8, 16), 8),
        (lambda width: width > 1, 2),  # a kernel of its own for one row
        (lambda width: width == 16, None),
    ],
)
def test_the_step_is_the_smallest_whose_multiples_agree(
    agrees: Callable[[int], bool], step: int | None
) -> None:
    found = measure(Kernels(lambda row, width: 0.0 if agrees(width) else 0.25))
    assert found.step == step
    assert found.noise >= 0.25 if step != 1 else found.noise == 0.0


@pytest.mark.parametrize("row", [0, 5, 17, 24])
def test_one_row_that_differs_is_found_wherever_it_is(row: int) -> None:
    """A kernel that differs may still give the same bits in most rows."""
    found = measure(Kernels(lambda at, width: 0.5 if (at, width) == (row, 1) else 0.0))
    assert found == Widths(2, 0.5)


@pytest.mark.parametrize("widest", [2, 3, 6, 15])
def test_a_short_text_is_measured_as_far_as_it_goes(widest: int) -> None:
    kernels = Kernels(lambda row, width: 0.0)
    assert measure(kernels, widest) == Widths(1, 0.0)
    assert max(start + width for start, width in kernels.calls) == 2 * widest
    nothing_agrees = Kernels(lambda row, width: 0.0 if width == widest else 1.0)
    assert measure(nothing_agrees, widest).step is None


def test_large_models_are_compared_at_fewer_places() -> None:
    assert [places_for(n) for n in (1, 10**5, 10**7, 135 * 10**6, 10**10)] == [24, 24, 9, 2, 2]
    kernels = Kernels(lambda row, width: 0.0)
    measure(kernels, places=2)
    assert {start for start, _ in kernels.calls} == {0, 16, 24}


@pytest.mark.parametrize(
    ("agrees", "step", "head_step"),
    [
        (lambda rows: True, 2, 1),  # the head needs no second row
        (lambda rows: rows % 2 == 0, 2, 2),
        (lambda rows: rows % 2 == 0, 8, 2),
        (lambda rows: rows == 8, 4, 4),  # nothing smaller agrees: the common step stays
    ],
)
def test_the_heads_step_is_measured_apart_and_never_larger(
    agrees: Callable[[int], bool], step: int, head_step: int
) -> None:
    logits = np.arange(24, dtype=np.float32).reshape(8, 3)

    def score(rows: int) -> Logits:
        return logits[-rows:] + (0 if agrees(rows) else 1)

    assert measure_head(score, 8, step) == head_step


class Rounding:
    """A slot of so many rows, and a model whose logits depend on how a call is rounded up: layers
    agree on calls of 4n tokens, the head on 2n scored rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.text: list[int] = []

    def __call__(self, padding: Padding, tokens: Ids, n_cached: int, rows: int) -> Logits:
        assert n_cached <= len(self.text), "rows before the call were never written"
        assert n_cached + len(tokens) <= self.rows
        self.text[n_cached:] = tokens.tolist()
        assert self.text == some_tokens(len(self.text), 997).tolist()
        off = 0.5 * (padded(len(tokens), padding.step) % 4 != 0)
        off += 0.25 * (padded(rows, padding.head_step) % 2 != 0)
        return tokens[-rows:, None].astype(np.float32) + np.float32(off)


@pytest.mark.parametrize("rows", [44, widths.ROWS, 1000])
def test_calls_and_head_are_rounded_up_each_as_far_as_it_needs(rows: int) -> None:
    spec = fake_spec(997)
    found = widths.padding(Rounding(rows), spec, rows, exact=True)
    assert (found.step, found.head_step, found.noise) == (4, 2, 0.0)
    narrow = widths.padding(Rounding(rows), spec, rows, exact=False)
    assert (narrow.step, narrow.head_step, narrow.noise) == (1, 1, 0.75)


@pytest.mark.parametrize("rows", range(1, 12))
def test_a_slot_too_short_to_tell_widths_apart_is_left_alone_or_measured(rows: int) -> None:
    slot = Rounding(rows)
    found = widths.padding(slot, fake_spec(997), rows, exact=True)
    assert (found.widths is None) == (len(slot.text) == 0) == (rows < 5)


# --- slots --------------------------------------------------------------------------------------


def test_a_slot_is_used_again_and_remembers_nothing(engine: OrtEngine) -> None:
    first, ids = engine.new_slot(), ids_for(engine, 40)
    wanted = engine.forward(first, ids, 0, 3).logits.copy()
    engine.forward(first, ids_for(engine, 100, seed=1), 40, 1)
    engine.release(first)
    second = engine.new_slot()
    assert second is first
    np.testing.assert_array_equal(engine.forward(second, ids, 0, 3).logits, wanted)


def test_a_touched_slot_is_zero_in_every_row_and_still_bound(engine: OrtEngine) -> None:
    ids = ids_for(engine, 30)
    slot = engine.new_slot()
    before = prefill(engine, slot, ids, 0).logits.copy()
    slot.touch()
    assert not any(key.any() or value.any() for key, value in slot.kv)
    assert np.array_equal(prefill(engine, slot, ids, 0).logits, before)
    assert slot.kv[0][0].any()


def test_two_slots_do_not_see_each_other(engine: OrtEngine) -> None:
    a, b = engine.new_slot(), engine.new_slot()
    ids, other = ids_for(engine, 30), ids_for(engine, 30, seed=1)
    wanted = engine.forward(a, ids, 0, 30).logits[-1].copy()
    for at in range(30):
        alone = engine.forward(a, ids[at : at + 1], at, 1).logits[0].copy()
        engine.forward(b, other[at : at + 1], at, 1)
    np.testing.assert_allclose(alone, wanted, atol=1e-4)


def test_a_slot_that_was_released_or_is_anothers_is_refused(
    bundle: Path, engine: OrtEngine
) -> None:
    slot, ids = engine.new_slot(), ids_for(engine, 4)
    engine.release(slot)
    for call in (lambda: engine.forward(slot, ids, 0, 1), lambda: engine.release(slot)):
        with pytest.raises(EngineError, match="target: the slot was released, or is another"):
            call()
    other = open_engine(bundle, read_spec(bundle))
    with pytest.raises(EngineError, match="is another engine's"):
        engine.forward(other.new_slot(), ids, 0, 1)


@pytest.mark.parametrize(
    ("n_cached", "width", "rows"),
    [(CONTEXT, 1, 1), (CONTEXT - 3, 4, 1), (0, CONTEXT + 1, 1), (-1, 2, 1), (0, 4, 5), (0, 4, 0)],
)
def test_a_call_outside_the_slot_is_refused_before_it_runs(
    engine: OrtEngine, n_cached: int, width: int, rows: int
) -> None:
    with pytest.raises(ShapeError, match=r"rows|scored"):
        engine.forward(engine.new_slot(), ids_for(engine, width), n_cached, rows)


def test_no_tokens_are_no_call(engine: OrtEngine) -> None:
    with pytest.raises(ShapeError):
        engine.forward(engine.new_slot(), np.empty(0, np.int64), 0, 1)


def test_a_closed_engine_says_so(bundle: Path) -> None:
    engine = open_engine(bundle, read_spec(bundle))
    slot = engine.new_slot()
    engine.close()
    engine.close()
    for call in (engine.new_slot, lambda: engine.forward(slot, ids_for(engine, 1), 0, 1)):
        with pytest.raises(EngineError, match="target: the engine is closed; load the bundle"):
            call()


def test_bindings_of_prefill_remainders_do_not_pile_up(engine: OrtEngine) -> None:
    slot = engine.new_slot()
    for width in range(1, CONTEXT + 1):
        engine.forward(slot, ids_for(engine, width), 0, 1)
    assert len(slot.bindings) <= engine.spec.max_verify + slots.ODD_WIDTHS_KEPT
    engine.forward(slot, ids_for(engine, 100), 0, 1)


# --- what goes wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize("context", [0, -1, CONTEXT + 1])
def test_a_context_that_was_not_exported_is_refused(bundle: Path, context: int) -> None:
    with pytest.raises(EngineError, match=rf"context {context} is outside 1\.\.{CONTEXT}"):
        open_engine(bundle, read_spec(bundle), context=context)


@pytest.mark.parametrize("size", ["layers", "kv_heads", "head_dim", "vocab"])
def test_a_manifest_of_other_sizes_than_the_graphs_is_refused(bundle: Path, size: str) -> None:
    spec = read_spec(bundle)
    other = spec.model_copy(update={size: getattr(spec, size) + 1})
    with pytest.raises(
        EngineError,
        match=rf"^target/model\.onnx: the manifest says {size} = \d+, the graph has \d+;",
    ):
        open_engine(bundle, other)


def test_a_manifest_of_another_type_than_the_graphs_is_refused(bundle: Path) -> None:
    other = read_spec(bundle).model_copy(update={"kv_dtype": "float16"})
    with pytest.raises(EngineError, match="says kv_dtype = float16, the graph has float32; one"):
        open_engine(bundle, other)


def with_a_nan(bundle: Path, folder: Path) -> tuple[Path, int]:
    """A copy whose embedding of one id is NaN, and that id; warming up does not meet it."""
    import onnx

    copy = copytree(bundle, folder / "copy")
    graph = onnx.load(copy / "target" / "model.onnx", load_external_data=False).graph
    (table,) = [tensor for tensor in graph.initializer if tensor.name == "embed.weight"]
    offset = next(int(entry.value) for entry in table.external_data if entry.key == "offset")
    rows, hidden = table.dims
    bad = next(id_ for id_ in range(rows) if id_ not in {at * 7919 % rows for at in range(128)})
    with (copy / "target" / "weights.bin").open("r+b") as file:
        file.seek(offset + 4 * hidden * bad)
        file.write(np.full(hidden, np.nan, np.float32).tobytes())
    return copy, bad


def test_a_weight_that_is_no_number_is_named_with_the_position(
    tiny_exports: TinyExports, tmp_path: Path
) -> None:
    untied = tiny_exports.bundle(tiny_exports.checkpoint("qwen3"), context=CONTEXT)
    bundle, bad = with_a_nan(untied, tmp_path)
    engine = open_engine(bundle, read_spec(bundle))
    slot, ids = engine.new_slot(), np.array([7, 8, 9], np.int64)
    wanted = engine.forward(slot, ids, 0, 1).logits.copy()
    with pytest.raises(EngineError, match=r"^target: logits are not finite at position 3; the we"):
        engine.forward(slot, np.array([bad]), 3, 1)
    # rows of that call, and of a wider one, are overwritten or never read
    with pytest.raises(EngineError, match="not finite"):
        engine.forward(slot, np.full(16, bad), 2, 16)
    np.testing.assert_array_equal(engine.forward(slot, ids[2:], 2, 1).logits, wanted)


def test_a_head_that_is_no_number_is_found_when_the_engine_opens(
    bundle: Path, tmp_path: Path
) -> None:
    """The table is tied: the id's own logit is NaN at every position, the best ones are not."""
    copy, bad = with_a_nan(bundle, tmp_path)
    with pytest.raises(EngineError, match=rf"^target: the logit of id {bad} is not finite; the w"):
        open_engine(copy, read_spec(copy))


def test_a_graph_that_is_damaged_is_one_line(bundle: Path, tmp_path: Path) -> None:
    copy = copytree(bundle, tmp_path / "copy")
    model = copy / "target" / "model.onnx"
    raw = model.read_bytes()
    for damage in (b"", raw[: len(raw) // 2], b"not a graph at all", raw[::-1]):
        model.write_bytes(damage)
        with pytest.raises(EngineError, match=r"^model\.onnx: ONNX Runtime cannot load") as error:
            open_engine(copy, read_spec(copy))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("missing", [False, True])
def test_weights_that_are_cut_short_or_gone_are_one_line(
    bundle: Path, tmp_path: Path, missing: bool
) -> None:
    copy = copytree(bundle, tmp_path / "copy")
    weights = copy / "target" / "weights.bin"
    if missing:
        weights.unlink()
    else:
        with weights.open("r+b") as file:
            file.truncate(weights.stat().st_size // 2)
    with pytest.raises(EngineError, match=r"^model\.onnx: ONNX Runtime cannot load") as error:
        open_engine(copy, read_spec(copy))
    assert "\n" not in str(error.value)
    with pytest.raises(specedge.BundleError, match=r"weights\.bin: (missing|\d+ bytes, expected)"):
        specedge.load(copy, verify=False)


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="has CUDA"
)
def test_a_runtime_without_the_provider_is_an_error_with_the_way_out(bundle: Path) -> None:
    half = read_spec(bundle).model_copy(update={"kv_dtype": "float16"})
    with pytest.raises(EngineError, match=r"built without CUDAExec.*specedge\[gpu\]"):
        open_engine(bundle, half, provider="cuda")


def test_an_unknown_provider_or_engine_names_the_known_ones(bundle: Path) -> None:
    with pytest.raises(EngineError, match="unknown provider 'npu'; known: cpu"):
        open_engine(bundle, read_spec(bundle), provider="npu")
    with pytest.raises(EngineError, match=r"no engine 'cpus'.*did you mean cpu"):
        registry.create("cpus", bundle, read_spec(bundle))


def test_the_description_says_runtime_provider_and_threads(engine: OrtEngine) -> None:
    assert engine.description.startswith(f"onnxruntime {onnxruntime.__version__}, cpu, ")
    assert engine.description.endswith(" threads")


def test_each_load_has_its_own_number_of_threads(bundle: Path) -> None:
    with specedge.load(bundle, threads=1) as one, specedge.load(bundle, threads=2) as two:
        assert one.engine.endswith(", 1 threads")
        assert two.engine.endswith(", 2 threads")
        texts = [model.generate("abc", max_tokens=8).tokens for model in (one, two)]
    assert texts[0] == texts[1]


def test_the_apps_own_sessions_load_and_run_beside_ours(bundle: Path) -> None:
    graph = bundle / "target" / "model.onnx"
    providers = ["CPUExecutionProvider"]
    onnxruntime.InferenceSession(graph, providers=providers)
    with specedge.load(bundle) as model:
        after = onnxruntime.InferenceSession(graph, providers=providers)
        assert after.get_providers() == providers
        assert len(model.generate("abc", max_tokens=8, ignore_eos=True).tokens) == 8


def test_zero_threads_are_refused(bundle: Path) -> None:
    with pytest.raises(EngineError, match="threads = 0; expected 1 or more"):
        open_engine(bundle, read_spec(bundle), threads=0)

"""The engine that runs plans, over a GPU and a TensorRT that are none but compute real numbers.

`trt_machine` runs the same `standard` graph that a plan is built from, so what is tested is all
around the kernels: what is bound, copied, captured, waited for, freed and said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from shutil import copytree
from threading import Thread
from typing import Any

import numpy as np
import pytest

import specedge
from cuda_stub import CAPTURE_UNSUPPORTED, NO_DEVICE, NO_DRIVER, NO_MEMORY, FakeCuda
from specedge.contract import GREEDY_LOGITS, LOGITS, GraphSpec, Ids, Logits, past, present
from specedge.engines import ort, widths
from specedge.engines.base import Engine, Slot, prefill
from specedge.engines.matching import Backend
from specedge.engines.trt import building, library, plans, runtime
from specedge.engines.trt.cudart import Cuda
from specedge.engines.trt.deserialising import deserialise
from specedge.engines.trt.memory import RESERVE
from specedge.engines.trt.runtime import TrtEngine
from specedge.engines.widths import Widths
from specedge.errors import EngineError, PlanError, ShapeError
from tiny_exports import TinyExports, read_spec
from trt_machine import ACTIVATIONS, Kernels, Machine, forget

CONTEXT, MAX_VERIFY = 160, 8
CLOSE = {"rtol": 0.0, "atol": 2e-4}  # float32, logits of about 1


@pytest.fixture(scope="session")
def exported(tiny_exports: TinyExports) -> Path:
    return tiny_exports.bundle(
        tiny_exports.checkpoint("llama"),
        context=CONTEXT,
        max_verify=MAX_VERIFY,
        lowering="standard",
    )


@pytest.fixture
def bundle(exported: Path, tmp_path: Path, private_cache: Path) -> Path:
    """A copy, so that plans of one test are not found by another."""
    return copytree(exported, tmp_path / "bundle")


@pytest.fixture
def spec(bundle: Path) -> GraphSpec:
    return read_spec(bundle)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Machine]]:
    """Makes a `Machine`, and takes it away again."""
    yield lambda **given: Machine(monkeypatch, **given)
    monkeypatch.undo()
    forget()


@pytest.fixture
def machine(install: Callable[..., Machine], bundle: Path, spec: GraphSpec) -> Machine:
    """With a plan of the bundle."""
    made = install()
    made.plan(bundle, spec)
    return made


def opened(bundle: Path, backend: str = "tensorrt-rtx", **given: Any) -> TrtEngine:
    return runtime.open_engine(bundle, read_spec(bundle), backend=backend, **given)


@pytest.fixture
def engine(machine: Machine, bundle: Path) -> Iterator[TrtEngine]:
    engine = opened(bundle)
    yield engine
    engine.close()
    assert not machine.cuda.leaks


@pytest.fixture(scope="session")
def reference(tiny_exports: TinyExports) -> Iterator[Engine]:
    """The same checkpoint in the other lowering, on the CPU."""
    folder = tiny_exports.bundle(
        tiny_exports.checkpoint("llama"), context=CONTEXT, max_verify=MAX_VERIFY
    )
    engine = ort.open_engine(folder, read_spec(folder), threads=1, exact=False)
    yield engine
    engine.close()


@pytest.fixture
def ids(spec: GraphSpec) -> Ids:
    return np.random.default_rng(7).integers(5, spec.vocab, CONTEXT)


def whole(reference: Engine, ids: Ids, rows: int) -> Logits:
    """Logits of the last rows of a text, computed from nothing, one call a chunk."""
    slot = reference.new_slot()
    try:
        return prefill(reference, slot, ids, 0, rows).logits.copy()
    finally:
        reference.release(slot)


def agrees(engine: Engine, slot: Slot, ids: Ids, at: int, width: int, wanted: Logits) -> None:
    scored = engine.forward(slot, ids[at : at + width], at, width)
    np.testing.assert_array_equal(scored.greedy_ids, wanted.argmax(-1))
    np.testing.assert_allclose(scored.logits, wanted, **CLOSE)


# --- the same numbers as on a CPU ---------------------------------------------------------------


@pytest.mark.parametrize("backend", ["tensorrt", "tensorrt-rtx"])
@pytest.mark.parametrize("n_cached", [0, 1, 20, 140])
def test_scores_a_text_as_the_cpu_does_in_calls_of_every_width(
    install: Any, bundle: Path, reference: Engine, ids: Ids, backend: str, n_cached: int
) -> None:
    machine = install(backend=backend)
    machine.plan(bundle, read_spec(bundle))
    engine = opened(bundle, backend)
    slot = engine.new_slot()
    if n_cached:
        prefill(engine, slot, ids[:n_cached], 0)
    for width in range(1, MAX_VERIFY + 1):
        wanted = whole(reference, ids[: n_cached + width], width)
        for _ in range(3):  # plain, plain and captured, launched
            agrees(engine, slot, ids, n_cached, width, wanted)
    assert machine.cuda.launches
    engine.close()


@pytest.mark.parametrize("length", [1, 8, 9, 127, 128, 129, CONTEXT])
@pytest.mark.parametrize("rows", [1, 3])
def test_prefills_as_the_cpu_does(
    engine: TrtEngine, reference: Engine, ids: Ids, length: int, rows: int
) -> None:
    rows = min(rows, length)
    scored = prefill(engine, engine.new_slot(), ids[:length], 0, rows)
    np.testing.assert_allclose(scored.logits, whole(reference, ids[:length], rows), **CLOSE)


def test_a_rejected_draft_leaves_nothing_behind(engine: TrtEngine, ids: Ids) -> None:
    clean, used = engine.new_slot(), engine.new_slot()
    for slot in (clean, used):
        prefill(engine, slot, ids[:30], 0)
    engine.forward(used, ids[100:107], 30, 7)
    for at in range(30, 50):
        wanted = engine.forward(clean, ids[at : at + 1], at, 1).logits.copy()
        got = engine.forward(used, ids[at : at + 1], at, 1).logits
        np.testing.assert_array_equal(got, wanted)


def test_a_conversation_goes_on_where_it_was_cut(
    engine: TrtEngine, reference: Engine, ids: Ids
) -> None:
    slot = engine.new_slot()
    prefill(engine, slot, ids[:100], 0)
    turned = np.concatenate([ids[:40], ids[100:150]])
    scored = prefill(engine, slot, turned[40:], 40, 2)
    np.testing.assert_allclose(scored.logits, whole(reference, turned, 2), **CLOSE)


def test_two_sequences_do_not_see_each_other(
    engine: TrtEngine, reference: Engine, ids: Ids
) -> None:
    texts = [ids[:40], ids[60:100]]
    slots = [engine.new_slot() for _ in texts]
    for slot, text in zip(slots, texts, strict=True):
        prefill(engine, slot, text[:20], 0)
    for at in range(20, 40, 2):
        for slot, text in zip(slots, texts, strict=True):
            agrees(engine, slot, text, at, 2, whole(reference, text[: at + 2], 2))


def test_fills_the_context_to_its_last_row_and_not_further(
    engine: TrtEngine, reference: Engine, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = engine.new_slot()
    assert slot.context == CONTEXT
    prefill(engine, slot, ids[:-3], 0)
    for at in range(CONTEXT - 3, CONTEXT):
        agrees(engine, slot, ids, at, 1, whole(reference, ids[: at + 1], 1))
    with pytest.raises(ShapeError, match="160 cached rows \\+ 1 tokens, but the slot holds 160"):
        engine.forward(slot, ids[:1], CONTEXT, 1)
    with pytest.raises(ShapeError, match="0 scored rows of 2 tokens"):
        engine.forward(slot, ids[:2], 0, 0)


@pytest.mark.parametrize(("width", "rows"), [(150, 1), (150, 20), (20, 20), (140, 140)])
def test_a_call_too_wide_for_the_profiles_is_made_in_pieces(
    engine: TrtEngine, reference: Engine, ids: Ids, width: int, rows: int
) -> None:
    scored = engine.forward(engine.new_slot(), ids[:width], 0, rows)
    wanted = whole(reference, ids[:width], rows)
    np.testing.assert_array_equal(scored.greedy_ids, wanted.argmax(-1))
    np.testing.assert_allclose(scored.logits, wanted, **CLOSE)


def test_computes_in_float16_near_to_float32(
    install: Any, tiny_exports: TinyExports, reference: Engine, ids: Ids
) -> None:
    checkpoint = tiny_exports.checkpoint("llama")
    sizes = {"context": CONTEXT, "max_verify": MAX_VERIFY}
    bundle = tiny_exports.bundle(checkpoint, precision="fp16", lowering="standard", **sizes)
    spec = read_spec(bundle)
    assert spec.kv_dtype == "float16"
    install().plan(bundle, spec)
    engine = opened(bundle)
    scored = prefill(engine, engine.new_slot(), ids, 0, 4)
    wanted = whole(reference, ids, 4)
    assert np.abs(scored.logits - wanted).max() < 0.02 * np.abs(wanted).max()
    engine.close()


# --- widths -------------------------------------------------------------------------------------


def test_logits_are_the_same_bits_in_calls_of_every_width(engine: TrtEngine, ids: Ids) -> None:
    if engine.width_noise:
        pytest.skip(f"no widths agree on this processor: {engine.width_noise:.3g} between them")
    slot = engine.new_slot()

    def score(width: int) -> Logits:
        prefill(engine, slot, ids[:30], 0)
        calls = [(at, ids[at : at + width]) for at in range(30, CONTEXT, width)]
        return np.concatenate(
            [engine.forward(slot, part, at, len(part)).logits.copy() for at, part in calls]
        )

    wanted = score(1)
    for width in range(2, MAX_VERIFY + 1):
        np.testing.assert_array_equal(score(width), wanted)


@pytest.mark.parametrize("step", [1, 2, 4, 8, None])
@pytest.mark.parametrize("max_verify", [5, 8])
def test_pads_to_widths_that_agree_but_never_past_max_verify(
    machine: Machine, bundle: Path, monkeypatch: Any, ids: Ids, step: int | None, max_verify: int
) -> None:
    spec = read_spec(bundle).model_copy(update={"max_verify": max_verify})
    machine.plan(bundle, spec)
    monkeypatch.setattr(widths, "measure", lambda *_, **__: Widths(step, 0.5))
    monkeypatch.setattr(widths, "measure_head", lambda *_: step)
    plain: dict[str, Any] = {"backend": "tensorrt-rtx", "options": {"cuda_graphs": False}}
    engine = runtime.open_engine(bundle, spec, **plain)
    narrow = runtime.open_engine(bundle, spec, **plain, exact=False)
    assert (engine.width_step, narrow.width_step) == (step or 1, 1)
    assert engine.width_noise == (0.0 if step else 0.5)
    assert narrow.width_noise == (0.0 if step == 1 else 0.5)
    for each, padding in ((engine, step or 1), (narrow, 1)):
        slot = each.new_slot()
        for width in range(1, max_verify + 1):
            machine.trt.runs.clear()
            each.forward(slot, ids[:width], CONTEXT - width, width)
            padded = min(-(-width // padding) * padding, max_verify)
            assert machine.trt.runs[0] == (0, padded, padded)
        each.close()


def test_says_that_padding_has_no_room_where_the_plan_has_no_spare_rows(
    install: Any, bundle: Path, spec: GraphSpec, reference: Engine, ids: Ids, monkeypatch: Any
) -> None:
    monkeypatch.setattr(widths, "measure", lambda *_, **__: Widths(4, 0.5))
    install().plan(bundle, spec, rows=CONTEXT)
    engine = opened(bundle)
    assert engine.width_noise == 0.5
    slot = engine.new_slot()
    prefill(engine, slot, ids[:-1], 0)
    agrees(engine, slot, ids, CONTEXT - 1, 1, whole(reference, ids, 1))
    engine.close()


def test_kernels_do_not_change_between_calls(engine: TrtEngine, machine: Machine) -> None:
    """By default TensorRT-RTX compiles better ones in the background."""
    assert machine.trt.kernels == [Kernels.EAGER, Kernels.NONE]


def test_kernels_are_compiled_once_for_a_gpu(
    machine: Machine, bundle: Path, spec: GraphSpec
) -> None:
    path = machine.plan(bundle, spec).path.with_suffix(".kernels")
    opened(bundle).close()
    compiled = machine.trt.compilations
    assert compiled >= MAX_VERIFY  # one a width
    first = path.read_bytes()
    opened(bundle).close()
    assert machine.trt.compilations == compiled
    assert path.read_bytes() == first
    for refused in (b"damaged", first.replace(b"Stub", b"Blub")):
        path.write_bytes(refused)
        machine.trt.compilations = 0
        opened(bundle).close()
        assert machine.trt.compilations == compiled
        assert path.read_bytes() == first
    path.unlink()
    path.mkdir()  # cannot be written: no error
    opened(bundle).close()
    assert not machine.cuda.leaks


# --- graphs, copies, threads --------------------------------------------------------------------


def test_a_launched_graph_reads_the_ids_lengths_and_rows_of_its_own_call(
    engine: TrtEngine, machine: Machine, reference: Engine, ids: Ids
) -> None:
    slot = engine.new_slot()
    prefill(engine, slot, ids[:40], 0)
    for at in range(40, 46):
        engine.forward(slot, ids[at : at + 2], at, 2)
    launched = machine.cuda.launches
    for at in (60, 12, 40):
        text = np.roll(ids, at)
        prefill(engine, slot, text[:at], 0)
        agrees(engine, slot, text, at, 2, whole(reference, text[: at + 2], 2))
    assert machine.cuda.launches >= launched + 3


def test_widths_that_come_once_are_not_captured(
    engine: TrtEngine, machine: Machine, ids: Ids
) -> None:
    slot, before = engine.new_slot(), len(machine.cuda.executables)
    slots = [slot, engine.new_slot()]
    for width in (3, 5, 7, 100):
        engine.forward(slots[1], ids[:width], 0, 1)
    assert len(machine.cuda.executables) == before
    for _ in range(3):
        engine.forward(slots[1], ids[:100], 0, 1)  # a prefill: nothing to gain
        engine.forward(slots[1], ids[:3], 0, 1)
    assert len(machine.cuda.executables) == before + 1


def refuse_capture(machine: Machine) -> None:
    machine.trt.capturable = False


def fail_begin(machine: Machine) -> None:
    machine.cuda.failing["cudaStreamBeginCapture"] = (CAPTURE_UNSUPPORTED, 0)


def refuse_inside(machine: Machine) -> None:
    machine.trt.refuses_captured = True


def fail_graph(machine: Machine) -> None:
    machine.cuda.failing["cudaGraphInstantiate"] = (NO_MEMORY, 0)


@pytest.mark.parametrize("refuse", [refuse_capture, fail_begin, refuse_inside, fail_graph])
def test_goes_on_without_graphs_where_they_are_refused(
    machine: Machine,
    bundle: Path,
    reference: Engine,
    ids: Ids,
    refuse: Callable[[Machine], None],
) -> None:
    refuse(machine)
    engine = opened(bundle)
    slot = engine.new_slot()
    for _ in range(4):
        agrees(engine, slot, ids, 0, 4, whole(reference, ids[:4], 4))
    (note,) = engine.notes
    assert re.match(r"target: no CUDA graph of a call of \d tokens \(", note)
    assert machine.cuda.launches == 0
    engine.close()
    assert not machine.cuda.leaks


def test_graphs_can_be_turned_off(machine: Machine, bundle: Path, ids: Ids) -> None:
    engine = opened(bundle, options={"cuda_graphs": False, "tune_for": 4})
    assert engine.description == (
        "tensorrt-rtx 1.7.1, Stub GPU (SM89), T 168, no CUDA graphs"  # 160 and 7, a multiple of 8
    )
    slot = engine.new_slot()
    for _ in range(5):
        engine.forward(slot, ids[:2], 0, 2)
    assert "cudaStreamBeginCapture" not in machine.cuda.called
    assert engine.notes == ()
    engine.close()


def test_logits_stay_on_the_device_until_they_are_read(
    engine: TrtEngine, machine: Machine, spec: GraphSpec, ids: Ids
) -> None:
    slot = engine.new_slot()
    for width in (1, 4, 8, 100):
        before = machine.cuda.bytes_out
        scored = engine.forward(slot, ids[:width], 0, 1)
        assert machine.cuda.bytes_out - before <= 256 + 4 * MAX_VERIFY  # ids, and a logit for each
        before = machine.cuda.bytes_out
        assert scored.logits is scored.logits
        assert machine.cuda.bytes_out - before == 4 * spec.vocab


def test_logits_of_an_earlier_call_cannot_be_read(engine: TrtEngine, ids: Ids) -> None:
    slot = engine.new_slot()
    earlier = engine.forward(slot, ids[:2], 0, 2)
    greedy = earlier.greedy_ids.copy()
    engine.forward(slot, ids[5:7], 0, 2)
    with pytest.raises(EngineError, match="logits of an earlier call were read after a later one"):
        _ = earlier.logits
    np.testing.assert_array_equal(earlier.greedy_ids, greedy)


def test_other_threads_compute_on_the_same_device(
    install: Any, bundle: Path, spec: GraphSpec, ids: Ids
) -> None:
    machine = install(devices=3)
    machine.plan(bundle, spec)
    engine = opened(bundle, options={"device": 2})
    slot = engine.new_slot()
    for work in (partial(engine.forward, slot, ids[:2], 0, 2), engine.new_slot, slot.touch):
        machine.cuda.current = 0  # where a thread starts
        thread = Thread(target=work)
        thread.start()
        thread.join()
        assert machine.cuda.current == 2, work
    engine.close()


# --- slots and closing --------------------------------------------------------------------------


def test_slots_are_used_again_and_can_be_cleared(
    engine: TrtEngine, machine: Machine, ids: Ids
) -> None:
    first = engine.new_slot()
    allocated = machine.cuda.called["cudaMalloc"]
    engine.release(first)
    again = engine.new_slot()
    assert machine.cuda.called["cudaMalloc"] == allocated
    prefill(engine, again, ids[:20], 0)
    address, size = again.cache.address, again.cache.size
    assert any(machine.cuda.bytes_at(address, size))
    again.touch()
    assert not any(machine.cuda.bytes_at(address, size))


def test_slots_belong_to_one_engine_and_end_with_it(
    machine: Machine, bundle: Path, ids: Ids
) -> None:
    engine, other = opened(bundle), opened(bundle)
    slot = engine.new_slot()
    with pytest.raises(EngineError, match="the slot was released, or is another engine's"):
        other.forward(slot, ids[:1], 0, 1)
    engine.release(slot)
    with pytest.raises(EngineError, match="the slot was released"):
        engine.forward(slot, ids[:1], 0, 1)
    held = engine.new_slot()
    scored = engine.forward(held, ids[:1], 0, 1)
    engine.close()
    engine.close()
    for use in (engine.new_slot, lambda: engine.forward(held, ids[:1], 0, 1), held.touch):
        with pytest.raises(EngineError, match="the engine is closed"):
            use()
    with pytest.raises(EngineError, match="the engine is closed"):
        _ = scored.logits
    other.close()
    assert not machine.cuda.leaks


@pytest.mark.parametrize(
    "name",
    [
        "cudaMalloc",
        "cudaMallocHost",
        "cudaStreamCreateWithFlags",
        "cudaMemsetAsync",
        "cudaMemcpyAsync",
        "cudaStreamSynchronize",
        "cudaGraphLaunch",
    ],
)
@pytest.mark.parametrize("first", [1, 2, 5])
def test_nothing_is_left_on_the_device_when_opening_fails(
    machine: Machine, bundle: Path, name: str, first: int
) -> None:
    machine.cuda.failing[name] = (NO_MEMORY, first)
    held: EngineError | None = None
    try:
        opened(bundle).close()
    except EngineError as error:
        held = error
    assert (held is None) == (machine.cuda.called[name] < first)  # so few of these are made
    assert not machine.cuda.leaks, held  # while somebody still has the error


def test_an_interrupted_start_frees_what_it_took(
    machine: Machine, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(widths, "measure", interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        opened(bundle)
    assert not machine.cuda.leaks, caught  # while somebody still has the error


def test_a_call_that_is_refused_says_why_and_the_engine_closes(
    machine: Machine, bundle: Path, ids: Ids
) -> None:
    engine = opened(bundle, options={"cuda_graphs": False})
    machine.trt.refuses_calls = True
    with pytest.raises(EngineError, match=r"target: tensorrt-rtx 1\.7\.1 refuses a .*told"):
        engine.forward(engine.new_slot(), ids[:2], 0, 2)
    engine.close()
    assert not machine.cuda.leaks


def test_a_broken_device_is_said_so_and_closing_goes_on(
    machine: Machine, bundle: Path, ids: Ids
) -> None:
    engine = opened(bundle)
    machine.cuda.broken = 700
    with pytest.raises(EngineError, match=r"illegal memory access.*\(error 700\); .*restart"):
        engine.forward(engine.new_slot(), ids[:2], 0, 2)
    with pytest.raises(EngineError, match="error 700"):
        engine.close()


def test_logits_that_are_no_numbers_are_found_without_fetching_them(
    engine: TrtEngine, machine: Machine, ids: Ids
) -> None:
    slot = engine.new_slot()
    machine.trt.poisoned = True
    with pytest.raises(EngineError, match="logits are not finite at position 13"):
        engine.forward(slot, ids[:4], 10, 1)


def test_what_a_call_without_numbers_left_behind_reaches_no_later_call(
    engine: TrtEngine, machine: Machine, reference: Engine, ids: Ids
) -> None:
    """A masked weight of 0 times NaN is NaN."""
    slot = engine.new_slot()
    prefill(engine, slot, ids[:10], 0)
    machine.trt.poisoned = True
    with pytest.raises(EngineError, match="not finite"):
        engine.forward(slot, ids[10:14], 10, 4)
    machine.trt.poisoned = False
    agrees(engine, slot, ids[:12], 10, 2, whole(reference, ids[:12], 2))
    engine.release(slot)
    slot = engine.new_slot()
    agrees(engine, slot, ids[:5], 0, 5, whole(reference, ids[:5], 5))


def test_a_damaged_row_of_the_head_is_found_when_the_engine_is_opened(
    machine: Machine, bundle: Path
) -> None:
    machine.trt.damaged_id = 77
    with pytest.raises(EngineError, match="the logit of id 77 is not finite; the weights are"):
        opened(bundle)
    assert not machine.cuda.leaks


# --- what can be wrong with a machine -----------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        (
            {"count_code": NO_DRIVER, "driver": 0},
            "the NVIDIA driver is not installed here",
        ),
        (
            {"count_code": NO_DRIVER, "driver": 12020},
            r"driver serves CUDA 12\.2, cuda-bindings is for 13\.0; update the driver",
        ),
        ({"count_code": 804, "driver": 12020}, r"driver serves CUDA 12\.2"),
        ({"count_code": 803}, "of different versions; restart the machine, or use --engine cpu"),
        ({"count_code": NO_DEVICE}, "the driver finds no GPU; see whether nvidia-smi"),
        ({"devices": 0}, "the driver finds no GPU; see whether nvidia-smi"),
        ({"count_code": 999}, "the driver does not start; see dmesg"),
        ({"count_code": 998}, r"cudaGetDeviceCount: something else \(error 998\)"),
    ],
)
def test_a_machine_without_a_usable_gpu_is_told_what_it_lacks(
    install: Any, bundle: Path, gpu: dict[str, int], said: str
) -> None:
    install(**gpu)
    with pytest.raises(EngineError, match=said):
        opened(bundle)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": 1}, r"device = 1, but CUDA sees 1 GPU\(s\)"),
        ({"device": "0"}, r"\[engines.tensorrt-rtx\] device = '0': expected a whole number"),
        ({"device": True}, "device = True: expected a whole number"),
        ({"tune_for": 0}, "tune_for = 0: expected a whole number from 1 to 512"),
        ({"optimization_level": 9}, "optimization_level = 9: expected a whole number from 0 to 5"),
        ({"cuda_graphs": 1}, "cuda_graphs = 1: expected true or false"),
        ({"cuda_graph": True}, "no option 'cuda_graph'; did you mean cuda_graphs?"),
        ({"zzz": True}, "no option 'zzz'; known are device, cuda_graphs, tune_for"),
    ],
)
def test_options_are_honoured_or_refused(
    machine: Machine, bundle: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(EngineError, match=said):
        opened(bundle, options=options)


def test_a_context_above_the_graphs_is_refused(machine: Machine, bundle: Path) -> None:
    for context in (0, CONTEXT + 1):
        with pytest.raises(EngineError, match=f"context {context} is outside 1..160"):
            opened(bundle, context=context)


def test_missing_packages_are_named_with_their_extra(
    install: Any, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings.runtime", None)
    with pytest.raises(EngineError, match=r"cuda-bindings cannot be imported.*specedge\[tensorrt"):
        opened(bundle)
    monkeypatch.setitem(__import__("sys").modules, "tensorrt", None)
    with pytest.raises(EngineError, match=r"tensorrt is not installed; pip install"):
        opened(bundle, "tensorrt")


def test_what_does_not_fit_is_refused_before_anything_is_allocated(
    install: Any, bundle: Path, spec: GraphSpec
) -> None:
    machine = install(memory=RESERVE + 500_000)
    machine.plan(bundle, spec, device_bytes=100_000)
    with pytest.raises(EngineError) as caught:
        opened(bundle)
    said = str(caught.value)
    assert "cudaMalloc" not in machine.cuda.called
    assert re.search(r"T of 168 needs .*weights .*KV .*activations 97\.7 KiB.*buffers", said)
    fits = int(re.search(r"largest context that fits is (\d+)", said)[1])  # type: ignore[index]
    assert said.endswith(
        f"specedge build {bundle} --backend tensorrt-rtx --compute-capability 89 --role target "
        f"--context {fits}"
    )
    assert 16 <= fits < CONTEXT


def test_the_context_named_as_fitting_does_fit(
    install: Any, tiny_exports: TinyExports, private_cache: Path, tmp_path: Path
) -> None:
    sizes = {"context": 512, "max_verify": MAX_VERIFY, "lowering": "standard"}
    made = tiny_exports.bundle(tiny_exports.checkpoint("llama"), **sizes)
    bundle = copytree(made, tmp_path / "long")
    machine = install(memory=RESERVE + 500_000)
    machine.plan(bundle, read_spec(bundle))
    with pytest.raises(EngineError, match="largest context that fits is") as caught:
        opened(bundle)
    fits = int(str(caught.value).split()[-1])
    assert 16 <= fits < 512
    machine.plan(bundle, read_spec(bundle), context=fits)
    opened(bundle, context=fits).close()
    assert not machine.cuda.leaks


def test_nothing_fits_is_said_too(install: Any, bundle: Path, spec: GraphSpec) -> None:
    install(memory=RESERVE + 10_000).plan(bundle, spec)
    with pytest.raises(EngineError, match="no context fits: free some of it, use a smaller model"):
        opened(bundle)


def test_memory_that_runs_out_while_a_plan_is_loaded_is_said_so(
    install: Any, bundle: Path, spec: GraphSpec
) -> None:
    machine = install()
    machine.plan(bundle, spec, said={"weight_bytes": 2 << 30})
    with pytest.raises(EngineError, match="out of device memory while the plan was loaded"):
        opened(bundle)
    assert not machine.cuda.leaks


def test_memory_that_runs_out_later_says_for_what(
    engine: TrtEngine, machine: Machine, spec: GraphSpec
) -> None:
    machine.cuda.memory = machine.cuda.live_bytes + spec.kv_bytes() // 2
    engine.new_slot()  # one was opened, and is free again
    with pytest.raises(EngineError, match=r"out of device memory: KV of 168 rows needs 84\.0 K"):
        engine.new_slot()


def test_the_plan_counts_what_is_allocated(
    engine: TrtEngine, machine: Machine, spec: GraphSpec
) -> None:
    buffers = 4 * MAX_VERIFY * spec.vocab
    assert engine.device_bytes == machine.cuda.live_bytes - spec.weight_bytes
    known = spec.kv_bytes(168) + ACTIVATIONS + buffers
    assert known <= engine.device_bytes <= known + 4096


# --- what can be wrong with a plan --------------------------------------------------------------


def test_a_missing_plan_is_said_with_the_command_that_builds_it(install: Any, bundle: Path) -> None:
    install()
    with pytest.raises(PlanError, match=r"there is none; run: specedge build .* --backend ten"):
        opened(bundle)


def test_a_plan_of_another_gpu_is_not_loaded(install: Any, bundle: Path, spec: GraphSpec) -> None:
    install().plan(bundle, spec, compute_capability=90)
    with pytest.raises(PlanError, match="compute capability 90, this is compute capability 89"):
        opened(bundle)


def test_a_plan_of_a_smaller_context_is_not_loaded(
    install: Any, bundle: Path, spec: GraphSpec
) -> None:
    machine = install()
    machine.plan(bundle, spec, context=64)
    with pytest.raises(PlanError, match="holds a context of 64, asked for are 160"):
        opened(bundle)
    opened(bundle, context=64).close()
    assert not machine.cuda.leaks


def test_a_larger_plan_serves_a_smaller_context(
    machine: Machine, bundle: Path, reference: Engine, ids: Ids
) -> None:
    engine = opened(bundle, context=50)
    slot = engine.new_slot()
    assert (slot.context, engine.prefill_chunk) == (50, 50)
    prefill(engine, slot, ids[:49], 0)
    agrees(engine, slot, ids, 49, 1, whole(reference, ids[:50], 1))
    with pytest.raises(ShapeError, match="the slot holds 50"):
        engine.forward(slot, ids[:1], 50, 1)
    engine.close()


@pytest.mark.parametrize("backend", ["tensorrt", "tensorrt-rtx"])
def test_a_plan_that_the_library_refuses_is_said_with_its_reason(
    install: Any, bundle: Path, spec: GraphSpec, backend: str
) -> None:
    machine = install(backend=backend)
    machine.plan(bundle, spec, said={"compute_capability": 120})
    reason = {
        "tensorrt": "cannot load the plan here: the plan is for an incompatible device",
        "tensorrt-rtx": "refuses the plan: it is for another compute capability",
    }[backend]
    with pytest.raises(PlanError, match=f"{reason}.*--force"):
        opened(bundle, backend)
    assert not machine.cuda.leaks


def test_a_damaged_plan_is_not_loaded(machine: Machine, bundle: Path, spec: GraphSpec) -> None:
    path = machine.plan(bundle, spec).path
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    with pytest.raises(PlanError, match="damaged"):
        opened(bundle)
    assert "cudaMalloc" not in machine.cuda.called


OLD = ("FLOAT", (1, 2, 168, 16), "INPUT")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"missing": [GREEDY_LOGITS]}, "it lacks the tensor greedy_logits"),
        ({"tensors": {"hidden.1": OLD}}, "it has a tensor hidden.1, which the contract"),
        ({"tensors": {LOGITS: ("HALF", (-1, 295), "OUTPUT")}}, "logits is .*HALF, expected FLOAT"),
        ({"tensors": {LOGITS: ("FLOAT", (-1, 300), "OUTPUT")}}, r"logits are \[-1, 300\], exp"),
        ({"tensors": {past(1, "key"): ("HALF", *OLD[1:])}}, "past.1.key is .*HALF"),
        ({"tensors": {past(1, "key"): (OLD[0], (1, 2, 99, 16), OLD[2])}}, "its caches are"),
        ({"tensors": {past(0, "value"): (OLD[0], (1, 2, 168, 8), OLD[2])}}, "its caches are"),
        ({"tensors": {past(0, "key"): (*OLD[:2], "OUTPUT")}}, "past.0.key is an output"),
        ({"location": {"cached_lengths": "HOST"}}, "cached_lengths is read on the host"),
        ({"aliases": {present(1, "value"): None}}, "present.1.value shares its memory with nothi"),
    ],
)
def test_a_plan_whose_tensors_are_not_the_contracts_is_refused(
    machine: Machine, bundle: Path, damage: dict[str, Any], said: str
) -> None:
    machine.trt.damage = damage
    with pytest.raises(PlanError, match=f"{said}.*build it again: specedge build") as caught:
        opened(bundle)
    assert not machine.cuda.leaks, caught  # while somebody still has the error


# --- the stub is spelled as the real thing ------------------------------------------------------


def test_every_cuda_call_is_spelled_as_the_bindings_spell_it() -> None:
    real = pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed")
    source = Path(runtime.__file__).with_name("cudart.py").read_text()
    names = set(re.findall(r"\bcuda[A-Z]\w+", source)) - {"cudaMemcpyKind"}
    assert len(names) > 20
    kinds = (real, real.cudaMemcpyKind, real.cudaStreamCaptureMode)
    for name in names:
        assert any(hasattr(each, name) for each in kinds), name
        found = getattr(FakeCuda, name, None)
        said = (getattr(real, name, None) or "").__doc__ if callable(found) else None
        if said and said.startswith(f"{name}("):
            wanted = said[len(name) + 1 : said.index(")")].split(",")
            inner = getattr(found, "__wrapped__", found)
            given = inner.__code__.co_varnames[1 : inner.__code__.co_argcount]
            assert len(given) == len([each for each in wanted if each.strip()]), name


def test_every_call_of_the_library_is_there() -> None:
    real = pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    folder = Path(runtime.__file__).parent
    files = ("contexts", "deserialising", "execution", "kernels")
    texts = "".join((folder / f"{name}.py").read_text() for name in files)
    known = {*dir(real.Runtime), *dir(real.ICudaEngine), *dir(real.IExecutionContext)}
    known |= {*dir(real.IRuntimeConfig), *dir(real.IRuntimeCache), *dir(real)}
    objects = "inner|engine|runtime|config|module|_cache"
    names = set(re.findall(rf"(?:\b|_)(?:{objects})\.([A-Za-z]\w+)", texts))
    some = {"execute_async_v3", "set_device_memory", "deserialize_cuda_engine", "serialize"}
    assert some <= names
    assert names - known == set()
    assert hasattr(real.ExecutionContextAllocationStrategy, "USER_MANAGED")
    for name in ("EAGER", "NONE"):
        assert hasattr(real.DynamicShapesKernelSpecializationStrategy, name)


@pytest.fixture
def without_gpu() -> None:
    """Skips where there is one."""
    with suppress(EngineError):
        pytest.skip(f"this machine has a GPU: {Cuda().gpu.name}")
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")


@pytest.mark.usefixtures("without_gpu")
def test_the_real_library_says_here_why_it_loads_no_plan(bundle: Path, spec: GraphSpec) -> None:
    backend: Backend = "tensorrt-rtx"
    loaded = library.load(backend)
    key = plans.key_for(
        bundle,
        spec,
        backend=backend,
        version=loaded.version,
        compute_capability=89,
        device=None,
        options=building.build_options(spec),
    )
    plan = building.build(bundle, spec, key)
    with pytest.raises(PlanError, match=r"cannot load the plan here: .*driver.*: rebuild"):
        deserialise(loaded, plan, spec, "rebuild")
    with pytest.raises(EngineError, match="the NVIDIA driver is not installed here"):
        opened(bundle)


# --- through the front door ---------------------------------------------------------------------

PROMPTS = ["the rain in the other street", "def thing(a, b): return a + b; def thing("]


@pytest.mark.parametrize("speculation", ["on", "off"])
def test_generates_the_text_that_the_cpu_generates(
    install: Any, tiny_exports: TinyExports, tmp_path: Path, private_cache: Path, speculation: Any
) -> None:
    checkpoint = tiny_exports.checkpoint("llama")
    sizes = {"context": CONTEXT, "max_verify": MAX_VERIFY, "draft_precision": "fp32"}
    bundle = tiny_exports.bundle(checkpoint, checkpoint, **sizes)
    with specedge.load(bundle, speculation="off") as model:
        wanted = [model.generate(prompt, max_tokens=40).tokens for prompt in PROMPTS]
    made = tiny_exports.bundle(checkpoint, checkpoint, **sizes, lowering="standard")
    standard = copytree(made, tmp_path / "standard")
    machine = install()
    for role in ("target", "draft"):
        machine.plan(standard, read_spec(standard, role))
    with specedge.load(
        standard, engine="tensorrt-rtx", speculation=speculation, proposers=["ngram", "draft"]
    ) as model:
        results = [model.generate(prompt, max_tokens=40) for prompt in PROMPTS]
        assert [result.tokens for result in results] == wanted
        proposed = sum(result.metrics.proposed for result in results)
        assert bool(proposed) == (speculation == "on")
    assert machine.cuda.launches
    assert not machine.cuda.leaks


def test_a_result_says_where_graphs_were_refused(machine: Machine, bundle: Path) -> None:
    machine.trt.capturable = False
    with specedge.load(bundle, engine="tensorrt-rtx", speculation="on") as model:
        assert "no CUDA graph of a call of" in model.generate("a", max_tokens=2).speculation.reason


# --- on a real one ------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["tensorrt", "tensorrt-rtx"])
def test_a_real_gpu_scores_a_text_as_the_cpu_does(
    bundle: Path, spec: GraphSpec, reference: Engine, ids: Ids, backend: Backend
) -> None:
    """A plan is built for the GPU at hand first."""
    try:
        loaded, gpu = library.load(backend), Cuda().gpu
    except EngineError as error:
        pytest.skip(str(error))
    if loaded.builds_ahead and gpu.compute_capability not in loaded.capabilities:
        pytest.skip(f"{backend} does not compile for SM{gpu.compute_capability}")
    key = plans.key_for(
        bundle,
        spec,
        backend=backend,
        version=loaded.version,
        compute_capability=gpu.compute_capability,
        device=gpu.name,
        options=building.build_options(spec),
    )
    building.build(bundle, spec, key)
    engine = opened(bundle, backend)
    slot = engine.new_slot()
    prefill(engine, slot, ids[:140], 0)
    for width in range(1, MAX_VERIFY + 1):
        wanted = whole(reference, ids[: 140 + width], width)
        for _ in range(4):
            scored = engine.forward(slot, ids[140 : 140 + width], 140, width)
            np.testing.assert_allclose(scored.logits, wanted, rtol=0, atol=2e-3)
    assert engine.notes == ()
    engine.close()

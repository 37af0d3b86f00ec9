"""Every call of the CUDA runtime fails, from its n-th use on: one line, and nothing is left."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

from cuda_stub import CAPTURE_UNSUPPORTED, ILLEGAL_ADDRESS, NO_MEMORY, FakeCuda
from specedge.engines.trt import runtime
from specedge.engines.trt.cudart import Cuda
from specedge.errors import EngineError
from tiny_exports import TinyExports, read_spec
from trt_machine import Machine, forget

CALLS = (
    *("cudaMalloc", "cudaMallocHost", "cudaHostRegister", "cudaStreamCreateWithFlags"),
    *("cudaMemcpyAsync", "cudaMemsetAsync", "cudaStreamSynchronize", "cudaMemGetInfo"),
    *("cudaStreamBeginCapture", "cudaGraphInstantiate", "cudaGraphLaunch"),
    "cudaGetDeviceProperties",
)
FREEING = {
    "cudaFreeHost": "host",
    "cudaHostUnregister": "registered",
    "cudaStreamDestroy": "streams",
}
"""What fails to be given back where one of them fails."""


@pytest.fixture
def bundle(tiny_exports: TinyExports, tmp_path: Path, private_cache: Path) -> Path:
    made = tiny_exports.bundle(
        tiny_exports.checkpoint("llama"), context=160, max_verify=8, lowering="standard"
    )
    return copytree(made, tmp_path / "bundle")


@pytest.fixture
def machine(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    made = Machine(monkeypatch)
    made.plan(bundle, read_spec(bundle))
    yield made
    monkeypatch.undo()
    forget()


def a_life(bundle: Path) -> None:
    """Two sequences, graphs, logits that are read, and the end."""
    spec = read_spec(bundle)
    engine = runtime.open_engine(bundle, spec, backend="tensorrt-rtx")
    try:
        slots = engine.new_slot(), engine.new_slot()
        for slot in (*slots, *slots):
            for n_cached in (0, 4, 8):
                engine.forward(slot, np.arange(4) % spec.vocab, n_cached, 4).logits.sum()
        slots[1].touch()
        engine.release(slots[0])
    except BaseException:
        with suppress(EngineError):
            engine.close()
        raise
    engine.close()


@pytest.mark.parametrize("first", [1, 30])
@pytest.mark.parametrize("name", [*CALLS, *FREEING])
def test_a_call_that_fails_says_so_in_one_line_and_leaves_nothing(
    machine: Machine, bundle: Path, name: str, first: int
) -> None:
    machine.cuda.failing[name] = (NO_MEMORY, first)
    said = None
    try:
        a_life(bundle)
    except EngineError as error:
        said = str(error)
    assert said is None or "\n" not in said
    gc.collect()
    machine.cuda.failing.clear()
    assert {*machine.cuda.leaks} <= {FREEING.get(name)}


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (NO_MEMORY, r"out of memory \(error 2\); end what else uses the GPU"),
        (ILLEGAL_ADDRESS, r"\(error 700\); the device's state is lost: restart the program$"),
        (CAPTURE_UNSUPPORTED, r"when stream is capturing \(error 900\)$"),
    ],
)
def test_an_error_says_what_can_be_done_about_it(machine: Machine, code: int, said: str) -> None:
    cuda: FakeCuda = machine.cuda
    device = Cuda()
    stream = device.new_stream()
    cuda.failing["cudaStreamSynchronize"] = (code, 1)
    with pytest.raises(EngineError, match=said):
        device.wait(stream)

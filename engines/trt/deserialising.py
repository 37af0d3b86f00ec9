"""A plan's bytes to an engine on the device, held against what the manifest promises.

TensorRT says why it refuses a plan in its log only; the log's errors become the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from specedge.contract import (
    CACHED_LENGTHS,
    GREEDY_IDS,
    GREEDY_LOGITS,
    INPUT_IDS,
    LOGIT_ROWS,
    LOGITS,
    GraphSpec,
    past,
    present,
)
from specedge.engines.trt import library as libraries
from specedge.engines.trt.library import Library
from specedge.engines.trt.log import logged, name_of, reason
from specedge.engines.trt.plans import PREFILL, VERIFY, Plan
from specedge.errors import EngineError, PlanError

_MEMORY_WORDS = ("out of memory", "outofmemory", "out_of_memory", "insufficient_gpu_memory")
_DTYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16"}
_DIAGNOSTICS = {  # what TensorRT-RTX may hold against a plan; what a person can do
    "VERSION_MISMATCH": "it is of another version of the library",
    "UNSUPPORTED_CC": "it is for another compute capability",
    "OLD_CUDA_DRIVER": "the NVIDIA driver is too old for it: update the driver",
    "OLD_CUDA_RUNTIME": "the CUDA runtime is too old for it",
    "INSUFFICIENT_GPU_MEMORY": "the GPU has too little memory for it",
    "MALFORMED_ENGINE": "it is damaged",
    "CUDA_ERROR": "CUDA does not work here: run specedge doctor",
}


@dataclass
class Deserialised:
    """An engine on the device, until `close`.

    Args:
        library: that runs it.
        runtime, engine: the library's objects; the runtime outlives the engine.
        rows: T.
        activation_bytes: that its execution contexts need between them, one at a time.
    """

    library: Library
    runtime: Any
    engine: Any
    rows: int
    activation_bytes: int

    def close(self) -> None:
        """Let go of the library's objects, whoever else still knows this one."""
        self.engine = self.runtime = None


def deserialise(library: Library, plan: Plan, spec: GraphSpec, command: str) -> Deserialised:
    """Load a plan on the current device.

    Args:
        command: what builds the plan anew.

    Raises:
        PlanError: damaged, of another GPU or version, or not of this graph.
        EngineError: out of device memory.
    """
    data, name = plan.read(), plan.path.name
    with logged(library) as errors:
        runtime = library.module.Runtime(libraries.logger(library.backend))
        _check_valid(library, runtime, data, name, command)
        engine = runtime.deserialize_cuda_engine(data)
    if engine is None:
        said = reason(errors)
        if _is_memory(said):
            raise EngineError(
                f"{name}: out of device memory while the plan was loaded ({said}); close what else "
                "uses the GPU, or use a smaller model or precision"
            )
        raise PlanError(
            f"{name}: {name_of(library)} cannot load the plan here: {said}; "
            f"build it again: {command}"
        )
    fault = next(_faults(library.module, engine, spec), None)
    if fault is not None:
        del engine  # or the error's frames would keep it on the device
        raise PlanError(f"{name}: {fault}; build it again: {command}")
    rows = int(engine.get_tensor_shape(past(0, "key"))[2])
    return Deserialised(library, runtime, engine, rows, max(0, int(engine.device_memory_size_v2)))


def _check_valid(library: Library, runtime: Any, data: bytes, name: str, command: str) -> None:
    """TensorRT-RTX can tell beforehand; TensorRT tells when it loads."""
    if not hasattr(runtime, "get_engine_validity"):
        return
    validity, found = runtime.get_engine_validity(data)
    if validity != library.module.EngineValidity.INVALID:
        return
    known = library.module.EngineInvalidityDiagnostics.__members__
    why = [_DIAGNOSTICS.get(key, key) for key, bit in known.items() if int(found) & int(bit)]
    if not why:  # loading will say more
        return
    raise PlanError(
        f"{name}: {name_of(library)} refuses the plan: {' and '.join(why)}; unless that can be "
        f"mended, build it again: {command}"
    )


def _is_memory(said: str) -> bool:
    return any(word in said.lower() for word in _MEMORY_WORDS)


def _faults(module: Any, engine: Any, spec: GraphSpec) -> Iterator[str]:
    """Where its tensors are not those of the contract: names, kinds, types, places and sizes. The
    device would write past our buffers."""
    found = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
    caches = [(past(n, "key"), present(n, "key")) for n in range(spec.layers)]
    caches += [(past(n, "value"), present(n, "value")) for n in range(spec.layers)]
    inputs = {INPUT_IDS, CACHED_LENGTHS, LOGIT_ROWS, *(old for old, _ in caches)}
    outputs = {LOGITS, GREEDY_IDS, GREEDY_LOGITS, *(new for _, new in caches)}
    for missing in sorted((inputs | outputs) - found):
        yield f"it lacks the tensor {missing}"
    for extra in sorted(found - inputs - outputs):
        yield f"it has a tensor {extra}, which the contract does not know"
    if found != inputs | outputs:
        return
    if engine.num_optimization_profiles <= max(VERIFY, PREFILL):
        yield f"it has {engine.num_optimization_profiles} optimisation profile(s), expected 2"
    element = _DTYPES[spec.kv_dtype]
    types = {INPUT_IDS: "INT64", CACHED_LENGTHS: "INT32", LOGIT_ROWS: "INT64"}
    types |= {LOGITS: "FLOAT", GREEDY_IDS: "INT64", GREEDY_LOGITS: "FLOAT"}
    types |= dict.fromkeys((each for pair in caches for each in pair), element)
    for tensor, wanted in types.items():
        said = engine.get_tensor_dtype(tensor)
        if said != getattr(module.DataType, wanted):
            yield f"{tensor} is {said}, expected {wanted}"
        if engine.get_tensor_location(tensor) != module.TensorLocation.DEVICE:
            yield f"{tensor} is read on the host, expected on the device"
        is_input = engine.get_tensor_mode(tensor) == module.TensorIOMode.INPUT
        if is_input != (tensor in inputs):
            yield f"{tensor} is {'an input' if is_input else 'an output'}"
    shapes = {tuple(engine.get_tensor_shape(each))[1:] for pair in caches for each in pair}
    rows = [shape[1] for shape in shapes if len(shape) == 3]
    if len(shapes) != 1 or shapes != {(spec.kv_heads, rows[0], spec.head_dim)} or rows[0] < 1:
        yield (
            f"its caches are {sorted(shapes)}, expected one T and [{spec.kv_heads}, T, "
            f"{spec.head_dim}]"
        )
    logits = tuple(engine.get_tensor_shape(LOGITS))
    if logits[-1:] != (spec.vocab,):
        yield f"its logits are {list(logits)}, expected [M, {spec.vocab}]"
    if hasattr(engine, "get_aliased_input_tensor"):
        for old, new in caches:
            aliased = engine.get_aliased_input_tensor(new)
            if aliased != old:
                yield f"{new} shares its memory with {aliased or 'nothing'}, expected {old}"

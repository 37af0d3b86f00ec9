"""TensorRT without a GPU: plans that run the bundle's own `standard` graph on ONNX Runtime.

`Machine` puts a stub of `tensorrt_rtx` or `tensorrt` and one of `cuda.bindings.runtime` where the
engine looks for them, and `plan` keeps a plan for it that names the graph. The numbers are real:
`execute_async_v3` queues a run of the graph over the memory behind the addresses it was given.
"""

from __future__ import annotations

import ctypes
import json
import sys
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from cuda_stub import ILLEGAL_ADDRESS, Failed, FakeCuda
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
from specedge.engines.matching import Backend
from specedge.engines.trt import library, plans
from specedge.engines.trt.plans import BuildReport, Plan, PlanKey

VERSION = "1.7.1"
ACTIVATIONS = 4096
_NUMPY = {"FLOAT": np.float32, "HALF": np.float16, "INT32": np.int32, "INT64": np.int64}

DataType = Enum("DataType", "FLOAT HALF BF16 INT32 INT64")
TensorLocation = Enum("TensorLocation", "DEVICE HOST")
TensorIOMode = Enum("TensorIOMode", "NONE INPUT OUTPUT")
Strategy = Enum("ExecutionContextAllocationStrategy", "STATIC ON_PROFILE_CHANGE USER_MANAGED")
Kernels = Enum("DynamicShapesKernelSpecializationStrategy", "LAZY EAGER NONE")
Validity = Enum("EngineValidity", "VALID SUBOPTIMAL INVALID")


class Diagnostics(IntEnum):
    VERSION_MISMATCH = 1
    UNSUPPORTED_CC = 2


class ILogger:
    def log(self, severity: int, message: str) -> None: ...


class RuntimeCache:
    """Holds, in bytes, how many kernels were compiled; knows those of its own GPU only."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.compiled: list[tuple[int, ...]] = []

    def deserialize(self, data: bytes) -> bool:
        try:
            said = json.loads(data)
        except ValueError:
            return False
        if said["gpu"] != self.module.cuda.name.decode():
            return False
        self.compiled = [tuple(each) for each in said["compiled"]]
        return True

    def serialize(self) -> bytes:
        said = {"gpu": self.module.cuda.name.decode(), "compiled": self.compiled}
        return json.dumps(said).encode()

    def take(self, kernel: tuple[int, ...]) -> None:
        if kernel not in self.compiled:
            self.compiled.append(kernel)
            self.module.compilations += 1


class RuntimeConfig:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.cache = RuntimeCache(module)
        self.strategy = Strategy.STATIC
        self.dynamic_shapes_kernel_specialization_strategy = Kernels.LAZY

    def create_runtime_cache(self) -> RuntimeCache:
        return RuntimeCache(self.module)

    def set_runtime_cache(self, cache: RuntimeCache) -> bool:
        self.cache = cache
        return True

    def set_execution_context_allocation_strategy(self, strategy: Strategy) -> None:
        self.strategy = strategy


class Module:
    """`tensorrt_rtx`, or with rtx=False `tensorrt`, which knows less."""

    def __init__(self, cuda: FakeCuda, *, rtx: bool = True) -> None:
        self.__version__ = VERSION
        self.cuda, self.rtx = cuda, rtx
        self.Builder = object
        self.ILogger = ILogger
        self.DataType, self.TensorLocation, self.TensorIOMode = (
            DataType,
            TensorLocation,
            TensorIOMode,
        )
        self.ExecutionContextAllocationStrategy = Strategy
        if rtx:
            self.DynamicShapesKernelSpecializationStrategy = Kernels
            self.EngineValidity, self.EngineInvalidityDiagnostics = Validity, Diagnostics
        self.refuses_calls = False  # execute_async_v3 gives False
        self.refuses_captured = False  # the same while a stream is captured
        self.capturable = True
        self.poisoned = False  # greedy logits are NaN, and so are keys and values of the call
        self.damaged_id: int | None = None  # its logit is NaN, and not the greatest
        self.kernels: list[Kernels | None] = []  # of contexts, in the order they were made
        self.compilations = 0
        self.runs: list[tuple[int, int, int]] = []  # profile, S, M of what was queued
        self.damage: dict[str, Any] = {}  # what an engine says instead of the truth

    def Runtime(self, logger: Any) -> Runtime:
        return Runtime(self, logger) if self.rtx else PlainRuntime(self, logger)


class PlainRuntime:
    def __init__(self, module: Module, logger: Any) -> None:
        self.module, self.logger = module, logger

    def deserialize_cuda_engine(self, data: bytes) -> Engine | None:
        said, cuda = json.loads(data), self.module.cuda
        major, minor = cuda.capability
        if said["compute_capability"] != 10 * major + minor:
            self.logger.log(1, "the plan is for an incompatible device")
            return None
        code, address = cuda.cudaMalloc(said["weight_bytes"])
        if code:
            self.logger.log(1, "Error Code 2: OutOfMemory (no further information)")
            return None
        kind = RtxEngine if self.module.rtx else Engine
        return kind(self.module, self.logger, said, address)


class Runtime(PlainRuntime):
    def get_engine_validity(self, data: bytes) -> tuple[Validity, int]:
        major, minor = self.module.cuda.capability
        if json.loads(data)["compute_capability"] != 10 * major + minor:
            return Validity.INVALID, 2
        return Validity.VALID, 0


class Engine:
    num_optimization_profiles = 2
    device_memory_size_v2 = ACTIVATIONS

    def __init__(self, module: Module, logger: Any, said: dict[str, Any], weights: int) -> None:
        self.module, self.logger, self.said, self.weights = module, logger, said, weights
        spec = self.spec = GraphSpec.model_validate(said["spec"])
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = settings.inter_op_num_threads = 1
        settings.log_severity_level = 4
        self.session = ort.InferenceSession(
            said["model"], settings, providers=["CPUExecutionProvider"]
        )
        cache = (1, spec.kv_heads, said["rows"], spec.head_dim)
        element = {"float32": "FLOAT", "float16": "HALF"}[spec.kv_dtype]
        self.tensors: dict[str, tuple[str, tuple[int, ...], str]] = {
            INPUT_IDS: ("INT64", (1, -1), "INPUT"),
            CACHED_LENGTHS: ("INT32", (1,), "INPUT"),
            LOGIT_ROWS: ("INT64", (-1,), "INPUT"),
            LOGITS: ("FLOAT", (-1, spec.vocab), "OUTPUT"),
            GREEDY_IDS: ("INT64", (-1,), "OUTPUT"),
            GREEDY_LOGITS: ("FLOAT", (-1,), "OUTPUT"),
        }
        self.aliases = {}
        for layer in range(spec.layers):
            for part in ("key", "value"):
                self.tensors[past(layer, part)] = (element, cache, "INPUT")
                self.tensors[present(layer, part)] = (element, cache, "OUTPUT")
                self.aliases[present(layer, part)] = past(layer, part)
        for name in module.damage.get("missing", ()):
            del self.tensors[name]
        self.tensors |= module.damage.get("tensors", {})
        self.aliases |= module.damage.get("aliases", {})

    def __del__(self) -> None:
        self.module.cuda.cudaFree(self.weights)

    @property
    def num_io_tensors(self) -> int:
        return len(self.tensors)

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType[self.tensors[name][0]]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name][1]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode[self.tensors[name][2]]

    def get_tensor_location(self, name: str) -> TensorLocation:
        return TensorLocation[self.module.damage.get("location", {}).get(name, "DEVICE")]

    def get_aliased_input_tensor(self, name: str) -> str | None:
        return self.aliases.get(name)

    def create_execution_context(self, how: Any) -> Context:
        strategy = how.strategy if isinstance(how, RuntimeConfig) else how
        assert strategy is Strategy.USER_MANAGED
        told = isinstance(how, RuntimeConfig)
        kernels = how.dynamic_shapes_kernel_specialization_strategy if told else None
        self.module.kernels.append(kernels)
        return Context(self, how.cache if told else None)


class RtxEngine(Engine):
    def create_runtime_config(self) -> RuntimeConfig:
        return RuntimeConfig(self.module)


class Context:
    """Shapes and addresses as they are now; a run keeps those of the moment it was queued."""

    def __init__(self, engine: Engine, cache: RuntimeCache | None) -> None:
        self.engine, self.cache = engine, cache
        self.profile = 0
        self.memory = (0, 0)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.settled = False  # a plain run has been made since a shape was set

    def _no(self, why: str) -> bool:
        self.engine.logger.log(1, f"IExecutionContext: Error Code 3: {why}")
        return False

    def set_device_memory(self, address: int, size: int) -> None:
        assert size >= ACTIVATIONS
        self.memory = (address, size)

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        assert stream in self.engine.module.cuda.streams
        self.profile, self.shapes = index, {}
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self.settled = False
        fixed = self.engine.tensors[name][1]
        said = self.engine.said
        widest = said["max_verify"] if self.profile == 0 else said["chunk"]
        most = {INPUT_IDS: widest, LOGIT_ROWS: said["max_verify"]}.get(name, 1)
        for asked, size in zip(shape, fixed, strict=True):
            if size != asked and not (size == -1 and 1 <= asked <= most):
                return self._no(f"{name} of {shape} is outside profile {self.profile}")
        self.shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        if name not in self.engine.tensors or address % 256:
            return self._no(f"bad address of {name}")
        self.addresses[name] = address
        return True

    def is_stream_capturable(self, stream: int) -> bool:
        return self.engine.module.capturable

    def execute_async_v3(self, stream: int) -> bool:
        engine, cuda = self.engine, self.engine.module.cuda
        if engine.module.refuses_calls:
            return self._no("told to refuse")
        captured = cuda.streams[stream].graph is not None
        if captured and engine.module.refuses_captured:
            return self._no("told to refuse")
        if captured and not self.settled:
            cuda.streams[stream].invalid = True
            return self._no("shapes were changed and no plain call was made since")
        shapes = dict(self.shapes)
        for name, (_, _, mode) in engine.tensors.items():
            if name not in self.addresses or (mode == "INPUT" and name not in shapes):
                return self._no(f"{name} is not bound")
        rows = shapes[LOGIT_ROWS][0]
        shapes |= {LOGITS: (rows, engine.spec.vocab), GREEDY_IDS: (rows,), GREEDY_LOGITS: (rows,)}
        for new, old in engine.aliases.items():
            if self.addresses[new] != self.addresses[old]:
                return self._no(f"{new} is not where {old} is")
            shapes[new] = shapes[old]
        self.settled = self.settled or not captured
        engine.module.runs.append((self.profile, shapes[INPUT_IDS][1], rows))
        if self.cache is not None:
            self.cache.take((self.profile, shapes[INPUT_IDS][1]) if not self.profile else (1,))
        addresses, memory = dict(self.addresses), self.memory
        binding = self._bound(shapes, addresses)

        def work() -> None:
            cuda.require(*memory, on_device=True)
            for name, shape in shapes.items():
                size = int(np.prod(shape)) * np.dtype(_NUMPY[engine.tensors[name][0]]).itemsize
                cuda.require(addresses[name], size, on_device=True)
            try:
                engine.session.run_with_iobinding(binding)
            except Exception as error:
                cuda.broken = ILLEGAL_ADDRESS
                raise Failed(ILLEGAL_ADDRESS) from error
            if engine.module.damaged_id is not None:
                ctypes.memset(addresses[LOGITS] + 4 * engine.module.damaged_id, 0xFF, 4)
            if engine.module.poisoned:
                ctypes.memset(addresses[GREEDY_LOGITS], 0xFF, 4 * rows)
                first = ctypes.c_int32.from_address(addresses[CACHED_LENGTHS]).value
                for name in engine.aliases:
                    _, heads, length, width = shapes[name]
                    row = width * np.dtype(_NUMPY[engine.tensors[name][0]]).itemsize
                    for head in range(heads):
                        at = addresses[name] + (head * length + first) * row
                        ctypes.memset(at, 0xFF, shapes[INPUT_IDS][1] * row)

        cuda.enqueue(stream, work)
        return True

    def _bound(self, shapes: dict[str, tuple[int, ...]], addresses: dict[str, int]) -> Any:
        engine, binding = self.engine, self.engine.session.io_binding()
        for name, (kind, _, mode) in engine.tensors.items():
            bind = binding.bind_input if mode == "INPUT" else binding.bind_output
            bind(name, "cpu", 0, _NUMPY[kind], list(shapes[name]), addresses[name])
        return binding


class Machine:
    """A GPU and a library, installed for one test.

    Args:
        backend: whose module is put in place.
        gpu: arguments of `FakeCuda`.
    """

    def __init__(
        self, patch: pytest.MonkeyPatch, *, backend: Backend = "tensorrt-rtx", **gpu: Any
    ) -> None:
        self.backend = backend
        self.cuda = FakeCuda(**gpu)
        self.trt = Module(self.cuda, rtx=backend == "tensorrt-rtx")
        patch.setitem(sys.modules, "cuda.bindings.runtime", self.cuda)
        patch.setitem(sys.modules, backend.replace("-", "_"), self.trt)
        forget()

    def plan(self, bundle: Path, spec: GraphSpec, **changes: Any) -> Plan:
        """Keep a plan of a graph.

        Args:
            changes: "rows", T of the plan where it is not the key's; "device_bytes" of the report;
                the rest as `PlanKey` has it.
        """
        major, minor = self.cuda.capability
        key = plans.key_for(
            bundle,
            spec,
            backend=self.backend,
            version=VERSION,
            compute_capability=10 * major + minor,
            device=self.cuda.name.decode(),
            context=changes.pop("context", None),
        )
        rows = changes.pop("rows", key.rows)
        device_bytes = changes.pop("device_bytes", None)
        said = changes.pop("said", {})
        key = PlanKey.model_validate(key.model_dump() | changes)
        data = json.dumps(
            {
                "model": str(bundle / spec.model),
                "spec": spec.model_dump(mode="json"),
                "rows": rows,
                "max_verify": key.max_verify,
                "chunk": key.prefill_chunk,
                "compute_capability": key.compute_capability,
                "weight_bytes": spec.weight_bytes,
            }
            | said
        ).encode()
        data += b" " * (min(spec.weight_bytes, 1 << 20) - len(data))  # as large as a plan would be
        report = BuildReport(
            seconds=1.0,
            parse_seconds=0.1,
            plan_bytes=len(data),
            weight_bytes=spec.weight_bytes,
            kv_bytes=spec.kv_bytes(rows),
            device_bytes=device_bytes,
            peak_host_bytes=None,
            layers=1,
            profiles=[],
        )
        return plans.store(bundle, key, data, report)


def forget() -> None:
    """Imports and loggers that `library` keeps for the life of a process."""
    library.load.cache_clear()
    library.logger.cache_clear()

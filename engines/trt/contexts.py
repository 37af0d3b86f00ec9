"""Execution contexts: one for each optimisation profile, told shapes and addresses as they change.

Contexts allocate nothing: one block of activations serves both, whose calls never overlap.
"""

from __future__ import annotations

from typing import Any

from specedge.contract import CACHED_LENGTHS, INPUT_IDS, LOGIT_ROWS, GraphSpec, past
from specedge.engines.trt.deserialising import Deserialised
from specedge.engines.trt.kernels import Kernels
from specedge.engines.trt.layout import Cache, Call
from specedge.engines.trt.log import Refused, name_of
from specedge.engines.trt.plans import VERIFY


class Context:
    """An execution context that stays in one optimisation profile.

    Args:
        inner: the library's own.
        activations: address and bytes.
    """

    def __init__(self, inner: Any, activations: tuple[int, int]) -> None:
        inner.set_device_memory(*activations)
        self.inner: Any = inner
        self._call: Call | None = None
        self._cache: Cache | None = None

    def bind(self, spec: GraphSpec, rows: int, addresses: dict[str, int]) -> None:
        """What stays the same for ever: a call's buffers, and shapes that never change.

        Args:
            rows: T.
            addresses: of every tensor but the caches.
        """
        for name, address in addresses.items():
            self._address(name, address)
        self._shape(CACHED_LENGTHS, (1,))
        for layer in range(spec.layers):
            self._shape(past(layer, "key"), (1, spec.kv_heads, rows, spec.head_dim))
            self._shape(past(layer, "value"), (1, spec.kv_heads, rows, spec.head_dim))

    def prepare(self, cache: Cache, call: Call) -> None:
        """Shapes and addresses of this call, where the last one had others."""
        if self._cache is not cache:
            self._cache = None
            for name, address in cache.tensors.items():
                self._address(name, address)
            self._cache = cache
        if self._call != call:
            self._call = None
            width, rows = call
            self._shape(INPUT_IDS, (1, width))
            self._shape(LOGIT_ROWS, (rows,))
            self._call = call

    def close(self) -> None:
        """Let go of the library's object, whoever else still knows this one."""
        self.inner = None

    def _address(self, name: str, address: int) -> None:
        if not self.inner.set_tensor_address(name, address):
            raise Refused(f"the plan refuses the address of {name}")

    def _shape(self, name: str, shape: tuple[int, ...]) -> None:
        if not self.inner.set_input_shape(name, shape):
            raise Refused(f"the plan refuses {name} of shape {list(shape)}")


def new_context(
    plan: Deserialised, kernels: Kernels, profile: int, stream: int, activations: int
) -> Context:
    """A context in `profile`; the stream must be waited for before it is used.

    Args:
        kernels: where compiled ones are found and left.
        activations: address of `plan.activation_bytes` bytes.

    Raises:
        Refused: inside `logged`.
    """
    inner = _created(plan, kernels, profile)
    if inner is None:
        raise Refused(f"{name_of(plan.library)} makes no execution context")
    context = Context(inner, (activations, plan.activation_bytes))
    if not inner.set_optimization_profile_async(profile, stream):
        raise Refused(f"the plan refuses optimisation profile {profile}")
    return context


def _created(plan: Deserialised, kernels: Kernels, profile: int) -> Any:
    module, engine = plan.library.module, plan.engine
    managed = module.ExecutionContextAllocationStrategy.USER_MANAGED
    kinds = getattr(module, "DynamicShapesKernelSpecializationStrategy", None)
    if kinds is None:
        return engine.create_execution_context(managed)
    # TensorRT-RTX would by default compile a shape's kernels in the background and change over when
    # they are ready: results would change with time, and a graph captured before would keep the
    # slow ones. Verification has few shapes, prefill as many as prompts have lengths.
    config = engine.create_runtime_config()
    config.set_execution_context_allocation_strategy(managed)
    config.dynamic_shapes_kernel_specialization_strategy = (
        kinds.EAGER if profile == VERIFY else kinds.NONE
    )
    kernels.use_in(config)
    return engine.create_execution_context(config)

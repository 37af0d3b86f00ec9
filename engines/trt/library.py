"""TensorRT and TensorRT-RTX seen as one: which is installed, and what it can compile for.

Both have the same builder, parser and runtime under different module names. They differ in who may
build: TensorRT compiles on the GPU that will run the plan; TensorRT-RTX compiles for a compute
capability, needs no GPU and finishes on the device when the plan is loaded.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any

from specedge.engines.matching import Backend
from specedge.errors import EngineError, PlanError, one_line

_MODULES: dict[Backend, str] = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
_SM80 = 80  # the first that multiplies bfloat16


@dataclass(frozen=True)
class Library:
    """One of the two, imported.

    Args:
        backend: which.
        module: `tensorrt` or `tensorrt_rtx`.
        version: in full; a plan is loaded by the version that built it.
    """

    backend: Backend
    module: Any
    version: str

    @property
    def builds_ahead(self) -> bool:
        """Whether it compiles for a named compute capability, without that GPU."""
        return hasattr(self.module, "ComputeCapability")

    @property
    def capabilities(self) -> tuple[int, ...]:
        """What it compiles for ahead of time, 89 for SM 8.9; empty: only for the GPU at hand."""
        if not self.builds_ahead:
            return ()
        names = self.module.ComputeCapability.__members__
        return tuple(sorted(int(name[2:]) for name in names if name[2:].isdigit()))

    def network(self, builder: Any) -> Any:
        """An empty network whose layers compute in the types that the graph names."""
        flags = self.module.NetworkDefinitionCreationFlag
        typed = getattr(flags, "STRONGLY_TYPED", None)  # newer versions know nothing else
        return builder.create_network(0 if typed is None else 1 << int(typed))

    def check_recent(self) -> None:
        """Raise EngineError where it lacks what a `standard` graph needs."""
        if not hasattr(self.module.LayerType, "KV_CACHE_UPDATE"):
            raise EngineError(
                f"engine: {self.backend} {self.version} is too old: it has no update of a KV "
                "cache, which came with TensorRT 10.15; "
                f'pip install --upgrade "specedge[{self.backend}]"'
            )

    def check_capability(self, capability: int) -> None:
        """Raise PlanError where it does not compile for it."""
        if self.builds_ahead and capability not in self.capabilities:
            known = ", ".join(map(str, self.capabilities))
            raise PlanError(
                f"{self.backend} {self.version} does not compile for compute capability "
                f"{capability}; it knows {known}; use one of them, or --backend tensorrt on the GPU"
            )

    def aim(self, config: Any, capability: int) -> None:
        """Make `config` compile for a compute capability; TensorRT compiles for its own GPU."""
        if self.builds_ahead:
            config.num_compute_capabilities = 1
            named = getattr(self.module.ComputeCapability, f"SM{capability}")
            config.set_compute_capability(named, 0)


@cache
def load(backend: Backend) -> Library:
    """Import one of the two.

    Raises:
        EngineError: not installed, only its name is, or its shared libraries do not load.
    """
    name = _MODULES[backend]
    extra = f'pip install "specedge[{backend}]"'
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in (name, f"{name}_libs", f"{name}_bindings"):
            raise
        raise EngineError(f"engine: {backend} is not installed; {extra}") from error
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise EngineError(
            f"engine: {backend} is installed and does not load: {one_line(error)[:200]}; {extra} "
            "on a machine whose package index has NVIDIA's libraries"
        ) from error
    if not hasattr(module, "Builder"):  # a placeholder of the package index
        raise EngineError(
            f"engine: the package {name} that is installed is empty, a placeholder of the package "
            f"index; uninstall it, then {extra} from NVIDIA's index"
        )
    return Library(backend, module, str(getattr(module, "__version__", "unknown")))


def check_precision(backend: Backend, capability: int, kv_dtype: str, precision: str) -> None:
    """Refuse what the hardware cannot multiply before anything is parsed.

    Raises:
        PlanError: bfloat16 below SM80; with TensorRT-RTX float32 and int4 too.
    """
    if capability >= _SM80:
        return
    if kv_dtype == "bfloat16" or precision == "bf16":
        raise PlanError(
            f"compute capability {capability} has no bfloat16, which needs {_SM80}; export with "
            "--precision fp16"
        )
    if backend == "tensorrt-rtx" and (kv_dtype == "float32" or precision == "int4"):
        what = "int4 weights" if precision == "int4" else "float32 matrix products"
        raise PlanError(
            f"tensorrt-rtx has no {what} for compute capability {capability}, only from {_SM80} "
            "on; export with --precision fp16, or use --backend tensorrt"
        )


@cache
def logger(backend: Backend) -> Any:
    """The one logger of a process: TensorRT keeps the first it is given and ignores others.

    Its `lines` are (severity, text), severity 0 internal error, 1 error, 2 warning, 3 information.
    """
    base = load(backend).module.ILogger

    class Lines(base):  # type: ignore[misc, valid-type]
        """Keeps what is said instead of printing it."""

        def __init__(self) -> None:
            base.__init__(self)
            self.lines: list[tuple[int, str]] = []

        def log(self, severity: Any, message: str) -> None:
            if int(severity) < 4:
                self.lines.append((int(severity), " ".join(message.split())))

    return Lines()

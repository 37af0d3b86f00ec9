"""Name to engine; a runtime library is imported when its engine is asked for, never before.

What runs where, and which graphs: `engines/matching.py`.

    auto, cpu      ONNX Runtime on the CPU
    cuda           ONNX Runtime's CUDA provider
    ort-tensorrt   ONNX Runtime's TensorRT provider
    tensorrt       TensorRT itself, from plans that `specedge build` made on this device
    tensorrt-rtx   TensorRT-RTX, from plans that `specedge build` made for this compute capability
    fake           no weights: a rule over token ids, for tests (see `specedge.engines.fake`)

The fake engine opens any bundle. When the graph's file is JSON it holds the rule, otherwise the
rule is {"rule": "hashed"}:

    {"rule": "hashed", "last": 8, "seed": 0}              next id by a hash of the last ids
    {"rule": "table", "successors": {"5": 6}, "default": 0}
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specedge.contract import EngineOptions, GraphSpec
from specedge.engines import cuda, matching
from specedge.engines.base import Engine
from specedge.engines.matching import NAMES as NAMES
from specedge.errors import EngineError


def create(
    name: str,
    bundle_path: Path,
    spec: GraphSpec,
    *,
    options: EngineOptions | None = None,
    threads: int | None = None,
    context: int | None = None,
    exact: bool = True,
    takes_turns: bool = False,
) -> Engine:
    """Open one graph of a bundle.

    Args:
        name: one of NAMES.
        bundle_path: the bundle's folder.
        spec: which graph of it.
        options: of the runtime, in its own words ([engines.NAME] of a config).
        threads: of the runtime, where it has any; None: the engine's own choice.
        context: T of its slots, at most spec.context; None: spec.context.
        exact: logits that do not depend on how many tokens a call has, where the engine can.
        takes_turns: another engine runs on the same processor between this one's calls.

    Raises:
        EngineError: an unknown name, a graph that this engine does not run, no GPU for it, a
            runtime that is missing or installed twice, or a graph that does not load.
        PlanError: no plan for this graph, runtime and device.
    """
    name = matching.checked(name)
    matching.check(name, spec)
    if name == "fake":
        return _fake(bundle_path, spec, context)
    try:
        if name in matching.PLANNED:
            from specedge.engines.trt import runtime

            return runtime.open_engine(
                bundle_path, spec, backend=name, options=options, context=context, exact=exact
            )
        return _onnxruntime(
            name,
            bundle_path,
            spec,
            options=options,
            threads=threads,
            context=context,
            exact=exact,
            takes_turns=takes_turns,
        )
    except EngineError:
        if name in matching.ON_GPU:
            # whatever it lacks: without a GPU there is nothing to install or to build
            cuda.required(f"engine {name}")
        raise


def _onnxruntime(name: str, bundle_path: Path, spec: GraphSpec, **settings: Any) -> Engine:
    """One of its providers; `settings` as `create` takes them."""
    check_onnxruntime()
    opens: Callable[..., Engine]
    if spec.lowering == "concat":
        from specedge.engines import concat

        opens = concat.open_engine
    else:
        from specedge.engines import ort

        opens = ort.open_engine
    return opens(
        bundle_path,
        spec,
        provider=matching.PROVIDERS[name],
        **settings,
    )


def check_onnxruntime() -> None:
    """Raise EngineError unless exactly one ONNX Runtime distribution is installed."""
    both = all(_installed(name) for name in ("onnxruntime", "onnxruntime-gpu"))
    if both:
        extra = "gpu" if isinstance(cuda.find(), cuda.Device) else "cpu"
        raise EngineError(
            "engine: onnxruntime and onnxruntime-gpu are both installed and overwrite each other; "
            f"uninstall both, then install specedge[{extra}]"
        )
    if importlib.util.find_spec("onnxruntime") is None:
        raise EngineError(
            "engine: ONNX Runtime is not installed; install specedge[cpu], or specedge[gpu] "
            "for a machine with an NVIDIA GPU"
        )


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _fake(bundle_path: Path, spec: GraphSpec, context: int | None) -> Engine:
    from specedge.engines.fake import FakeEngine, hashed, table

    try:
        said = json.loads((bundle_path / spec.model).read_bytes())
    except (OSError, ValueError):  # a real graph, or none
        said = {}
    if isinstance(said, dict) and said.get("rule") == "table":
        successors = {int(key): int(value) for key, value in said["successors"].items()}
        rule = table(successors, int(said.get("default", 0)))
    else:
        said = said if isinstance(said, dict) else {}
        rule = hashed(spec.vocab, last=int(said.get("last", 8)), seed=int(said.get("seed", 0)))
    return FakeEngine(spec, rule, context=context)

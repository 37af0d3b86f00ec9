"""All plans that a bundle needs: what is missing or stale is built, the rest is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specedge.bundle import Bundle
from specedge.contract import GraphSpec
from specedge.engines import cuda
from specedge.engines.matching import Backend
from specedge.engines.trt import library as libraries
from specedge.engines.trt import plans
from specedge.engines.trt.building import build, build_options, check_buildable
from specedge.engines.trt.cudart import Cuda
from specedge.engines.trt.options import Settings
from specedge.engines.trt.plans import Plan, PlanKey
from specedge.errors import EngineError, PlanError
from specedge.progress import Progress, Silent

Role = Literal["target", "draft", "both"]


@dataclass(frozen=True)
class Made:
    """A plan that is there now.

    Args:
        why: it was built; None: it was kept.
    """

    plan: Plan
    why: str | None


def make(
    bundle: Bundle,
    *,
    backend: Backend,
    capabilities: Sequence[int] = (),
    context: int | None = None,
    tune_for: int | None = None,
    role: Role = "both",
    force: bool = False,
    progress: Progress | None = None,
) -> list[Made]:
    """Build what is missing or stale. All of it is checked before the first build begins, and what
    was built stays when a later one fails.

    Args:
        capabilities: 89 for SM 8.9, for tensorrt-rtx only; empty: that of the GPU at hand.
        context: rows that a sequence may fill; None: what each graph was exported with. The
            draft's is never larger than its own.
        tune_for: see `building.build_options`.
        role: "both" is the target alone where there is no draft.
        force: build what could be kept, too.

    Raises:
        EngineError: no GPU and no capability is named, or the library is not installed.
        PlanError: as `building.build`; a draft that is not there.
    """
    ordinal = Settings.checked(backend, bundle.manifest.engines.get(backend)).device
    graphs = _graphs(bundle, role)
    # before the library: without a GPU there may be nothing to install it for
    devices = _devices(backend, capabilities, ordinal)
    library = libraries.load(backend)
    if backend == "tensorrt":
        Cuda(ordinal)  # makes it current: TensorRT builds on the current device
    wanted = [
        _key(bundle, spec, library.version, backend, device, context, tune_for)
        for spec in graphs
        for device in devices
    ]
    for spec, key in wanted:
        library.check_capability(key.compute_capability)
        check_buildable(bundle.path, spec, key)
    report = progress or Silent()
    made = []
    for spec, key in wanted:
        found = plans.current(bundle.path, key)
        if isinstance(found, Plan) and not force:
            damage = found.damage()
            if damage is None:
                made.append(Made(found, None))
                continue
            found = damage
        why = "asked for" if isinstance(found, Plan) else found or "there was none"
        plan = build(bundle.path, spec, key, library=library, progress=report)
        made.append(Made(plan, why))
    return made


def _graphs(bundle: Bundle, role: Role) -> list[GraphSpec]:
    manifest = bundle.manifest
    if role == "draft" and manifest.draft is None:
        raise PlanError(f"{bundle.path}: has no draft to build a plan of; leave out --role draft")
    graphs = [spec for spec in (manifest.target, manifest.draft) if spec is not None]
    return [spec for spec in graphs if role in ("both", spec.role)]


def _devices(
    backend: Backend, capabilities: Sequence[int], ordinal: int
) -> list[tuple[int, str | None]]:
    """Compute capability and name of what is built for."""
    if backend == "tensorrt-rtx" and capabilities:
        return [(each, None) for each in dict.fromkeys(capabilities)]
    if capabilities:
        raise PlanError(
            "tensorrt compiles on the GPU that runs the plan, for that GPU; leave out "
            "--compute-capability, or use --backend tensorrt-rtx"
        )
    found = cuda.find(ordinal)
    if isinstance(found, str):
        hint = (
            "name what to build for, as in --compute-capability 89"
            if backend == "tensorrt-rtx"
            else "build on the machine with the GPU, or ahead of time with --backend tensorrt-rtx"
        )
        raise EngineError(f"build: no NVIDIA GPU can be used: {found}; {hint}")
    high, low = found.capability
    if backend == "tensorrt-rtx":
        return [(10 * high + low, None)]
    return [(10 * high + low, found.name)]


def _key(
    bundle: Bundle,
    spec: GraphSpec,
    version: str,
    backend: Backend,
    device: tuple[int, str | None],
    context: int | None,
    tune_for: int | None,
) -> tuple[GraphSpec, PlanKey]:
    rows = spec.context if context is None else context
    if spec.role == "draft" and context is not None:
        rows = min(context, spec.context)
    options = build_options(
        spec,
        context=rows,
        draft_length=bundle.manifest.speculation.draft_length,
        tune_for=tune_for,
        given=bundle.manifest.engines.get(backend),
    )
    capability, name = device
    key = plans.key_for(
        bundle.path,
        spec,
        backend=backend,
        version=version,
        compute_capability=capability,
        device=name,
        context=rows,
        options=options,
    )
    return spec, key

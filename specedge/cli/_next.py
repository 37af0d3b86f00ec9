"""What a person may type next: commands that the bundle at hand can honour."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specedge.engines import matching
from specedge.errors import EngineError
from specedge.load_options import LoadOptions

if TYPE_CHECKING:
    from pathlib import Path

    from specedge.bundle import Bundle
    from specedge.contract import GraphSpec
    from specedge.engines.matching import Backend
    from specedge.engines.trt.plans import PlanKey


def after_export(bundle: Bundle, made: Path) -> list[str]:
    """Lines, most likely first.

    Args:
        made: where the bundle lies, as the person named it.
    """
    path = shlex.quote(str(made))
    manifest = bundle.manifest
    graphs = [spec for spec in (manifest.target, manifest.draft) if spec is not None]
    lines = []
    if all(map(_runs_on_cpu, graphs)):
        lines.append(f'next: specedge run {path} "..."  or  specedge chat {path}')
    if all(spec.lowering == "standard" for spec in graphs):
        lines.append(
            f"{'for TensorRT' if lines else 'next'}: specedge build {path} --backend tensorrt-rtx"
            "  or, on the machine that will run it,  --backend tensorrt"
        )
    return lines or [f'next: specedge run {path} "..." --engine cuda']


def after_build(
    bundle: Bundle, named: Path, keys: Sequence[PlanKey], there: Sequence[PlanKey], rows: int | None
) -> str:
    """The line.

    Args:
        named: where the bundle lies, as the person named it.
        keys: of what was asked for, one at least.
        there: of all plans that are beside the bundle.
        rows: --context, where it was given.
    """
    from specedge.engines.trt.plans import graph_hash

    path, backend, target = shlex.quote(str(named)), keys[0].backend, bundle.manifest.target
    draft = bundle.manifest.draft

    def has_plan(spec: GraphSpec) -> bool:
        graph = graph_hash(bundle.path, spec)
        least = spec.context if rows is None else min(rows, spec.context)
        return any(
            (key.role, key.graph, key.backend, key.version)
            == (spec.role, graph, backend, keys[0].version)
            and key.context >= least
            for key in there
        )

    context = "" if rows is None or rows >= target.context else f" --context {rows}"
    if not has_plan(target) and not _runs_on_cpu(target):
        return f"next: specedge build {path}{_aim(backend, keys)}{context} --role target"
    options = f" --engine {backend}" if has_plan(target) else ""
    if draft is not None and has_plan(draft) != has_plan(target):
        asked = LoadOptions.checked(bundle.manifest)
        if not has_plan(target):
            options = f" --draft-engine {backend}"
            options += "" if asked.wants_draft else " --speculation on --proposers ngram,draft"
        elif asked.wants_draft and _runs_on_cpu(draft):
            options += " --draft-engine cpu"
    return f'next: specedge run {path} "..."{options}{context}'


def _aim(backend: Backend, keys: Sequence[PlanKey]) -> str:
    """Options of a build for the same devices."""
    said = f" --backend {backend}"
    if backend == "tensorrt-rtx":
        for capability in dict.fromkeys(key.compute_capability for key in keys):
            said += f" --compute-capability {capability}"
    return said


def _runs_on_cpu(spec: GraphSpec) -> bool:
    try:
        matching.check("cpu", spec)
    except EngineError:
        return False
    return True

"""A graph of a bundle becomes a plan: profiles, the build itself, and a report of what it takes.

Two optimisation profiles, with B = 1 and a static T:

    VERIFY    S and M from 1 to max_verify, kernels chosen for `tune_for` tokens
    PREFILL   S from 1 to the prefill chunk, kernels chosen for a whole chunk and one scored row

T (`PlanKey.rows`) is static because the cache update asks for it: every call attends over T rows,
masked, whatever is cached, and one sequence's KV takes T rows. A smaller --context makes both
cheaper.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from specedge.contract import INPUT_IDS, LOGIT_ROWS, EngineOptions, GraphSpec
from specedge.engines.trt import library as libraries
from specedge.engines.trt import plans
from specedge.engines.trt.library import Library
from specedge.engines.trt.parsing import (
    WARNING,
    Parsed,
    check_warnings,
    last_error,
    parse,
    warnings,
)
from specedge.engines.trt.plans import BuildReport, Plan, PlanKey, Widths
from specedge.engines.trt.progress import monitor, stoppable
from specedge.errors import PlanError
from specedge.metrics import peak_rss_bytes
from specedge.progress import Progress, Silent

_WEIGHTS = re.compile(r"Total Weights Memory: (\d+) bytes")
_ACTIVATIONS = re.compile(r"Total Activation Memory: (\d+) bytes")
_NO_MEMORY = re.compile(r"out of memory|outofmemory|insufficient memory|alloc\w* fail", re.I)


def build_options(
    spec: GraphSpec,
    *,
    context: int | None = None,
    draft_length: int = 4,
    tune_for: int | None = None,
    given: EngineOptions | None = None,
) -> EngineOptions:
    """What a build may be told, with its defaults; part of a plan's key.

    A draft is always tuned for one token: it makes its tokens one by one.

    Args:
        context: rows that a sequence may fill, which no call is wider than; None: the graph's.
        draft_length: K of the bundle.
        tune_for: S that the target's profile VERIFY is tuned for; None: as `given`, else K + 1.
        given: "tune_for", and "optimization_level" (0..5), of [engines.NAME]; other names are for
            the runtime and are left out.

    Raises:
        PlanError: outside its range.
    """
    said = given or {}
    widest = min(spec.max_verify, spec.context if context is None else context)
    tuned = said.get("tune_for", min(draft_length + 1, widest))
    tuned = tuned if tune_for is None else tune_for
    if spec.role == "draft":
        tuned = 1
    level = said.get("optimization_level", 3)
    asked = "the bundle's [engines] tune_for =" if tune_for is None else "--tune-for"
    for name, value, least, most in (
        (asked, tuned, 1, widest),
        ("the bundle's [engines] optimization_level =", level, 0, 5),
    ):
        if type(value) is not int or not least <= value <= most:
            raise PlanError(f"{name} {value!r}: expected a whole number from {least} to {most}")
    return {"tune_for": tuned, "optimization_level": level}


def build(
    bundle: Path,
    spec: GraphSpec,
    key: PlanKey,
    *,
    library: Library | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Compile one graph and keep the plan. What was there stays until the new one is whole.

    Args:
        key: from `plans.key_for`, with the options of `build_options`.

    Raises:
        EngineError: the library is not installed, or too old.
        PlanError: the graph, its precision or the capability will not do, memory or the disk ran
            out, or the build failed.
    """
    library = library or libraries.load(key.backend)
    report = progress or Silent()
    library.check_recent()
    library.check_capability(key.compute_capability)
    check_buildable(bundle, spec, key)
    began = time.monotonic()
    report.stage(f"{key.role}: parsing {spec.model}")
    parsed = parse(library, bundle, spec, key.rows)
    parse_seconds = time.monotonic() - began
    config, profiles = _configured(parsed, key)
    report.stage(f"{key.role}: compiling for {key.folder}")
    plan = _compiled(parsed, config, bundle / spec.model, report)
    log = libraries.logger(key.backend)
    check_warnings(bundle / spec.model, log.lines)
    activations, weights = _logged(log, _ACTIVATIONS), _logged(log, _WEIGHTS)
    if len(activations) == len(profiles):  # logged once for each, in their order
        profiles = [
            widths.model_copy(update={"device_bytes": size})
            for widths, size in zip(profiles, activations, strict=True)
        ]
    made = BuildReport(
        seconds=round(time.monotonic() - began, 2),
        parse_seconds=round(parse_seconds, 2),
        plan_bytes=len(plan),
        weight_bytes=spec.weight_bytes,
        kv_bytes=spec.kv_bytes(key.rows),
        device_bytes=max((widths.device_bytes or 0 for widths in profiles), default=0) or None,
        device_weight_bytes=weights[-1] if weights else None,
        peak_host_bytes=peak_rss_bytes() or None,
        layers=parsed.network.num_layers,
        profiles=profiles,
        notes=warnings(log.lines),
    )
    report.stage(f"{key.role}: writing {len(plan) / 1e6:.0f} MB")
    return plans.store(bundle, key, plan, made)


def _logged(log: Any, size: re.Pattern[str]) -> list[int]:
    """Sizes that a build says only in its log."""
    return [int(found) for _, text in log.lines for found in size.findall(text)]


def check_buildable(bundle: Path, spec: GraphSpec, key: PlanKey) -> None:
    """Refuse before anything is parsed what could not become a plan.

    Raises:
        PlanError: another lowering, a context above the graph's, a precision that the hardware
            lacks, or a disk too full for the weights.
    """
    if spec.lowering == "concat":
        raise PlanError(
            f"{bundle}: the {spec.role}'s KV grows by concatenation (front end optimum), which no "
            "plan can hold; export it with --frontend native --lowering standard"
        )
    if spec.lowering != "standard":
        raise PlanError(
            f"{bundle}: the {spec.role} has lowering {spec.lowering}, whose operators are ONNX "
            "Runtime's own; export the bundle with --lowering standard"
        )
    if key.context > spec.context:
        raise PlanError(
            f"{bundle}: context {key.context} is above {spec.context}, which the {spec.role} was "
            "exported with; lower --context, or export again with a larger one"
        )
    libraries.check_precision(key.backend, key.compute_capability, spec.kv_dtype, spec.precision)
    free = plans.free_bytes(bundle)
    if free is None:
        raise PlanError(
            f"{bundle}: neither the bundle nor the user's cache can be written, and a plan has to "
            "lie in one of them; set SPECEDGE_CACHE to a folder that can"
        )
    if free < spec.weight_bytes:
        raise PlanError(
            f"{bundle}: a plan of about {spec.weight_bytes / 1e6:.0f} MB does not fit the disk, "
            f"which has {free / 1e6:.0f} MB free; free space, or set SPECEDGE_CACHE to a folder on "
            "another disk"
        )


def _configured(parsed: Parsed, key: PlanKey) -> tuple[Any, list[Widths]]:
    """The builder's config with both profiles."""
    library, builder, trt = parsed.library, parsed.builder, parsed.library.module
    config = builder.create_builder_config()
    library.aim(config, key.compute_capability)
    config.builder_optimization_level = key.options["optimization_level"]
    # float32 is asked for where it matters; products of 10 bits would part from ONNX Runtime's
    config.clear_flag(trt.BuilderFlag.TF32)
    # TensorRT-RTX promises then that a call allocates nothing, and can be captured as a CUDA graph
    allocating = getattr(trt.BuilderFlag, "REQUIRE_USER_ALLOCATION", None)
    if allocating is not None:
        config.set_flag(allocating)
    tuned = int(key.options["tune_for"])
    profiles = [
        Widths(name="verify", widest=key.max_verify, tuned=tuned, rows=key.max_verify),
        Widths(
            name="prefill", widest=key.prefill_chunk, tuned=key.prefill_chunk, rows=key.max_verify
        ),
    ]
    for widths in profiles:
        profile = builder.create_optimization_profile()
        rows = tuned if widths.name == "verify" else 1
        shapes = {
            INPUT_IDS: ((1, 1), (1, widths.tuned), (1, widths.widest)),
            LOGIT_ROWS: ((1,), (rows,), (key.max_verify,)),
        }
        for name, (least, usual, most) in shapes.items():
            profile.set_shape(name, least, usual, most)
        if config.add_optimization_profile(profile) < 0:  # it says no more than that
            said = ", ".join(f"{name} {sizes}" for name, sizes in shapes.items())
            raise PlanError(
                f"{library.backend} {library.version} takes no profile {widths.name} of {said}; "
                "lower --tune-for, or build with a larger --context"
            )
    return config, profiles


def _compiled(parsed: Parsed, config: Any, path: Path, report: Progress) -> memoryview:
    """Run the build; the plan's bytes.

    Raises:
        PlanError: it failed.
        KeyboardInterrupt: Ctrl-C, once the library has stopped.
    """
    log = libraries.logger(parsed.library.backend)
    watching = monitor(parsed.library, report)
    config.progress_monitor = watching
    try:
        with stoppable(watching, report):
            plan = parsed.builder.build_serialized_network(parsed.network, config)
    except MemoryError as error:
        raise _no_memory(path, "host memory") from error
    if watching.stopped_by is not None:
        raise watching.stopped_by
    if plan is not None:
        return memoryview(plan).cast("B")
    if any(_NO_MEMORY.search(text) for level, text in log.lines if level < WARNING):
        raise _no_memory(path, "memory of the GPU")
    raise PlanError(
        f"{path}: {parsed.library.backend} {parsed.library.version} built no plan: "
        f"{last_error(log.lines)}; the bundle still runs with --engine cpu"
    )


def _no_memory(path: Path, what: str) -> PlanError:
    return PlanError(
        f"{path}: {what} ran out while the plan was built; end what else uses it (`nvidia-smi`), "
        "build with a smaller --context, or with --role target and --role draft one after the "
        "other; the bundle still runs with --engine cpu"
    )

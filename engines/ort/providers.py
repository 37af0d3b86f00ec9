"""ONNX Runtime's providers: a session on the one that was asked for, or an error.

cpu        the CPU
cuda       CUDA; the CPU computes nothing but shapes
tensorrt   TensorRT, and CUDA for what TensorRT leaves out; engines it compiles are kept with plans

The runtime falls back in silence: to the CPU where a library is missing, node by node where a
provider has no kernel. So libraries and driver are looked at before a session is made, and what
each provider was given is looked at after.

A session's threads spin between calls, which an engine alone gains from: they are there when the
next call comes. But a target's idle threads that spin while its draft runs make a round almost
twice as long on two cores, so engines that take turns stop spinning (docs/decisions/0003).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import onnxruntime as ort

from specedge.contract import LOGITS, WIDEST_STEP, EngineOptions, GraphSpec, past
from specedge.engines import cuda, matching, ort_options, widths
from specedge.engines.ort import libraries
from specedge.engines.trt import plans
from specedge.errors import EngineError, one_line
from specedge.memory import format_size

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
_NO_ROOM = re.compile("out of memory|failed to allocate memory|bad_alloc", re.IGNORECASE)
_SHAPES = {  # what the runtime keeps on the CPU on purpose: integers beside the data
    *("Add", "Cast", "Concat", "Constant", "ConstantOfShape", "Div", "Equal", "Expand", "Gather"),
    *("Identity", "Max", "Min", "Mul", "Neg", "Range", "ReduceMax", "ReduceProd", "Reshape"),
    *("Shape", "Size", "Slice", "Split", "Squeeze", "Sub", "Unsqueeze", "Where"),
}
_SHOWN = 3  # nodes to name
_ELEMENTS = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
}


def pool_size(threads: int | None) -> int:
    """Threads of a session; None: every core this process may run on.

    Raises:
        EngineError: fewer than one.
    """
    size = len(os.sched_getaffinity(0)) if threads is None else threads
    if size < 1:
        raise EngineError(f"engine: threads = {threads}; expected 1 or more")
    return size


def open_session(
    bundle_path: Path,
    spec: GraphSpec,
    provider: str,
    threads: int,
    *,
    options: EngineOptions | None = None,
    context: int | None = None,
    entries: Mapping[str, str] | None = None,
    takes_turns: bool = False,
) -> ort.InferenceSession:
    """Load a graph on one provider and no other.

    Args:
        bundle_path: the bundle's folder.
        spec: which graph of it.
        provider: a key of PROVIDERS.
        threads: of the intra-op pool, at least 1.
        options: of the provider or the session, in the runtime's own words; they win.
        context: T, most rows of KV that a call will have; None: spec.context.
        entries: of the session's configuration.
        takes_turns: threads stop spinning when a call ends.

    Raises:
        EngineError: the graph does not load, or the provider, its libraries, the driver or the GPU
            are not there, or cannot run it.
    """
    if provider not in PROVIDERS:
        raise EngineError(f"engine: unknown provider {provider!r}; known: {', '.join(PROVIDERS)}")
    model = bundle_path / spec.model
    split = ort_options.split(provider, options)
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    if takes_turns:
        settings.add_session_config_entry("session.force_spinning_stop", "1")
    for name, value in ({**(entries or {})} | split.session).items():
        settings.add_session_config_entry(name, value)
    # failures arrive as exceptions; a second copy on stderr is noise
    settings.log_severity_level = 4
    wanted = [(PROVIDERS[provider], split.provider)]
    device = None
    if provider != "cpu":
        settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        device = _ready(spec, provider, split.device)
    if provider == "tensorrt":
        assert device is not None
        # widths are measured in a slot of their own, whatever the context
        rows = max(context or spec.context, min(spec.context, widths.ROWS)) + WIDEST_STEP - 1
        folder = engine_cache(bundle_path, spec, device, rows)
        given = ort_options.tensorrt_defaults(spec, rows, folder) | split.provider
        wanted = [
            (PROVIDERS[provider], given),
            (PROVIDERS["cuda"], {"device_id": str(split.device)}),
        ]
    try:
        session = ort.InferenceSession(model, settings, providers=wanted, enable_fallback=0)
    except Exception as error:  # the runtime's exceptions share no base below Exception
        reason = (device and libraries.trouble(provider)) or explained(error, device, split.device)
        raise EngineError(f"{model.name}: ONNX Runtime cannot load the graph: {reason}") from error
    _check_placement(spec, session, provider)
    return session


def explained(error: Exception, device: cuda.Device | None = None, ordinal: int = 0) -> str:
    """What an exception of the runtime says, in one line; with a remedy where memory ran out.

    Args:
        device: that the session computes on; None: the host, or the one that the error speaks of.
        ordinal: of it.
    """
    said = one_line(error)
    if not _NO_ROOM.search(said):
        return said
    if device is None and "cuda" in said.lower():
        found = cuda.find(ordinal)
        device = found if isinstance(found, cuda.Device) else None
    where, elsewhere = "memory", ""
    if device is not None:
        free = cuda.free_bytes(ordinal)
        left = "" if free is None else f"{format_size(free)} free "
        where = f"device memory ({left}of {format_size(device.total_bytes)} on {device.name})"
        elsewhere = ", or --engine cpu"
    return (
        f"out of {where}; choose a smaller --context or a lower precision{elsewhere}, or end what "
        f"else uses it ({said})"
    )


def _ready(spec: GraphSpec, provider: str, ordinal: int) -> cuda.Device:
    """The GPU. Raises EngineError where the runtime, a library, the driver or it will not do."""
    where = f"engine {ort_options.NAMES[provider]}"
    if PROVIDERS[provider] not in ort.get_available_providers():
        raise EngineError(
            f"{where}: the ONNX Runtime installed here was built without {PROVIDERS[provider]}; "
            'pip uninstall -y onnxruntime, then pip install "specedge[gpu]"'
        )
    device = cuda.required(where, ordinal)
    built = libraries.built_for()
    if built is not None and device.cuda[0] < built[0]:
        raise EngineError(
            f"{where}: the NVIDIA driver serves CUDA {device.cuda[0]}.{device.cuda[1]}, ONNX "
            f"Runtime {ort.__version__} is built for CUDA {built[0]}.{built[1]}; update the driver"
        )
    device.check_dtype(spec.kv_dtype, f"{where}: {spec.role}", matching.activations_key(spec))
    libraries.prepare(provider)
    return device


def engine_cache(bundle_path: Path, spec: GraphSpec, device: cuda.Device, rows: int) -> Path:
    """A folder that can be written, for what the TensorRT provider compiles of this graph.

    Its name holds what the provider's own file names lack: versions, weights and T.

    Raises:
        EngineError: no place beside the bundle or in the cache can be written.
    """
    gpu = re.sub(r"[^A-Za-z0-9.]+", "-", device.name).strip("-")
    name = (
        f"{spec.role}-ort-tensorrt-{ort.__version__}-{libraries.tensorrt_version()}-"
        f"{device.sm.lower()}-{plans.graph_hash(bundle_path, spec)[:12]}-T{rows}"
    )
    failures = []
    for folder in plans.folders(bundle_path):
        place = folder / gpu / name
        try:
            place.mkdir(parents=True, exist_ok=True)
            probe = place / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            failures.append(f"{place}: {error.strerror}")
        else:
            return place
    raise EngineError(
        f"engine ort-tensorrt: compiled engines cannot be kept ({'; '.join(failures)}); make one "
        "of them writable, or set SPECEDGE_CACHE to a folder that is"
    )


def _check_placement(spec: GraphSpec, session: ort.InferenceSession, provider: str) -> None:
    """Raise EngineError where another provider than the one asked for would compute."""
    found = session.get_providers()
    if found[0] != PROVIDERS[provider]:
        why = None if provider == "cpu" else libraries.trouble(provider)
        raise EngineError(
            f"{spec.model}: asked for {PROVIDERS[provider]}, ONNX Runtime chose {found[0]}; "
            f"{why or 'run `specedge doctor`'}"
        )
    if provider == "cpu":
        return
    given: dict[str, list[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        given.setdefault(part.ep_name, []).extend(
            f"{node.op_type} {node.name}".strip()
            for node in part.get_nodes()
            if part.ep_name != PROVIDERS["cpu"] or node.op_type not in _SHAPES
        )
    left = given.get(PROVIDERS["cpu"], [])
    if left:
        more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        remedy = "run with --engine cpu"
        if spec.lowering == "ort":
            remedy = f"export with --lowering standard, or {remedy}"
        raise EngineError(
            f"{spec.model}: {PROVIDERS[provider]} has no kernel for {', '.join(left[:_SHOWN])}"
            f"{more}, and the CPU would run them in silence; {remedy}"
        )
    if provider == "tensorrt" and not given.get(PROVIDERS[provider]):
        raise EngineError(
            f"{spec.model}: TensorRT takes no node of this graph, CUDA would run all of it; "
            "run with --engine cuda"
        )


def check_graph(spec: GraphSpec, session: ort.InferenceSession) -> None:
    """Raise EngineError where the manifest promises other sizes than the graph has.

    A binding of another shape or type would let the runtime write past our buffers, or stay empty.
    """
    inputs = {node.name: node.shape for node in session.get_inputs()}
    outputs = {node.name: node.shape for node in session.get_outputs()}
    kv = [name for name in inputs if name.startswith("past.")]
    first = inputs.get(past(0, "key"), [])
    found = {
        "layers": len(kv) / 2 if len(kv) % 2 else len(kv) // 2,
        "kv_heads": first[1] if len(first) == 4 else None,
        "head_dim": first[3] if len(first) == 4 else None,
        "vocab": (outputs.get(LOGITS) or [None])[-1],
        "kv_dtype": _ELEMENTS.get(next((n.type for n in session.get_inputs() if n.name in kv), "")),
    }
    for name, size in found.items():
        if size != getattr(spec, name):
            raise EngineError(
                f"{spec.model}: the manifest says {name} = {getattr(spec, name)}, the graph has "
                f"{size}; one of them was altered: export the bundle again"
            )

"""A bundle's graph to an engine on one provider.

CUDA graphs are captured where the option "enable_cuda_graph" asks for them, one for each width and
number of rows of a verification. They need addresses and shapes that stay, so T is then the whole
context. Lowering "ort" cannot have them: it is told total_length on the host, and a captured graph
would go on with the one that it was captured with.
"""

from __future__ import annotations

from pathlib import Path

from specedge.contract import EngineOptions, GraphSpec
from specedge.engines import matching, ort_options
from specedge.engines.ort.accepting import Accepting
from specedge.engines.ort.engine import OrtEngine
from specedge.engines.ort.memory import Memory
from specedge.engines.ort.providers import PROVIDERS, check_graph, open_session, pool_size
from specedge.errors import EngineError

_CAPTURES = ("enable_cuda_graph", "trt_cuda_graph_enable")  # options


def open_engine(
    bundle_path: Path,
    spec: GraphSpec,
    *,
    provider: str = "cpu",
    options: EngineOptions | None = None,
    threads: int | None = None,
    context: int | None = None,
    exact: bool = True,
    takes_turns: bool = False,
) -> OrtEngine:
    """Load a bundle's graph and run it once.

    Args:
        bundle_path: the bundle's folder.
        spec: which graph of it.
        provider: a key of PROVIDERS.
        options: of the provider, in its own words.
        threads: of the intra-op pool; None: every core this process may run on.
        context: rows of the KV buffer, at most spec.context; None: all of them.
        exact: pad calls, where that makes logits independent of how many tokens a call has;
            False: the narrowest and fastest kernels.
        takes_turns: another engine runs between this one's calls: threads stop spinning when a
            call ends.

    Raises:
        EngineError: the graph does not load, the provider is not the one asked for or cannot run
            this graph, or a device has no room.
    """
    wanted = pool_size(threads)
    captures = any(_is_on((options or {}).get(name)) for name in _CAPTURES)
    _check_asked(spec, provider, captures=captures)
    session = open_session(
        bundle_path,
        spec,
        provider,
        wanted,
        options=options,
        context=context,
        takes_turns=takes_turns,
    )
    check_graph(spec, session)
    device_id = ort_options.split(provider, options).device
    engine = OrtEngine(
        spec,
        session,
        f"{provider}, {wanted} threads",
        context,
        memory=Memory() if provider == "cpu" else Memory("cuda", device_id),
        captures=captures,
        accepting=_accepting(bundle_path, spec, provider, device_id),
        # TensorRT has one T, and is slow to prepare another
        steps=provider != "tensorrt",
    )
    engine.warm_up(exact=exact)
    return engine


def _accepting(
    bundle_path: Path, spec: GraphSpec, provider: str, device_id: int
) -> Accepting | None:
    """Of a target whose logits stay on a device, where the bundle has the graph."""
    if provider == "cpu" or spec.role != "target":
        return None
    return Accepting.of(
        bundle_path,
        provider=PROVIDERS["cuda"],
        options={"device_id": str(device_id)},
        kind="cuda",
        ordinal=device_id,
    )


def _is_on(option: str | int | float | bool | None) -> bool:
    return str(option).lower() in ("1", "true")


def _check_asked(spec: GraphSpec, provider: str, *, captures: bool) -> None:
    """Raise EngineError where a provider could load the graph, but not run it as asked."""
    if provider == "cpu" and spec.kv_dtype == "bfloat16":
        raise EngineError(
            f"{spec.role}: ONNX Runtime's CPU provider has no bfloat16; use --engine cuda, or "
            f"export with --set {matching.activations_key(spec)}=fp16 or fp32"
        )
    if captures and spec.lowering == "ort":
        raise EngineError(
            f"{spec.role}: CUDA graphs need lowering standard, this graph is of lowering ort, "
            "whose total_length a captured graph would not see change; export with "
            f"--lowering standard, or leave {_CAPTURES[0]} out"
        )

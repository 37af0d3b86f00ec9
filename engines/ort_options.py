"""What [engines.NAME] of a config may say to ONNX Runtime, and what we say to its providers.

An option is the provider's own ("gpu_mem_limit", "trt_builder_optimization_level") or an entry of
the session ("session.intra_op.allow_spinning"). One that is not known is refused: the runtime
passes over some spelling mistakes in silence. Options that hold a pointer, or that would take the
cache, the profiles or the fall-back out of our hands, are not known here.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from specedge.contract import (
    CACHED_LENGTHS,
    INPUT_IDS,
    LOGIT_ROWS,
    WIDEST_STEP,
    EngineOptions,
    GraphSpec,
    past,
)
from specedge.engines import matching
from specedge.errors import EngineError
from specedge.limits import shown
from specedge.memory import PREFILL_CHUNK

NAMES = {provider: name for name, provider in matching.PROVIDERS.items()}
SESSION = (
    "ep.cuda.fpa_intb_gemm",
    "ep.cuda.gqa_workspace_max_total_sequence_length",
    "memory.enable_memory_arena_shrinkage",
    "mlas.qnbit.force_fp32",
    "mlas.use_lut_gemm",
    "session.disable_prepacking",
    "session.intra_op.allow_spinning",
    "session.intra_op.spin_backoff_max",
    "session.intra_op.spin_duration_us",
    "session.intra_op_thread_affinities",
    "session.qdq_matmulnbits_accuracy_level",
    "session.qdq_matmulnbits_block_size",
    "session.set_denormal_as_zero",
    "session.use_deterministic_compute",
    "session.use_device_allocator_for_initializers",
)
CUDA = (
    "arena_extend_strategy",
    "cudnn_conv_algo_search",
    "cudnn_conv_use_max_workspace",
    "device_id",
    "do_copy_in_default_stream",
    "enable_cuda_graph",
    "enable_skip_layer_norm_strict_mode",
    "fuse_conv_bias",
    "gpu_mem_limit",
    "prefer_nhwc",
    "sdpa_kernel",
    "tunable_op_enable",
    "tunable_op_max_tuning_duration_ms",
    "tunable_op_tuning_enable",
    "use_ep_level_unified_stream",
    "use_tf32",
)
TENSORRT = (
    "device_id",
    "trt_auxiliary_streams",
    "trt_bf16_enable",
    "trt_build_heuristics_enable",
    "trt_builder_optimization_level",
    "trt_context_memory_sharing_enable",
    "trt_cuda_graph_enable",
    "trt_detailed_build_log",
    "trt_force_sequential_engine_build",
    "trt_force_timing_cache",
    "trt_fp16_enable",
    "trt_layer_norm_fp32_fallback",
    "trt_max_partition_iterations",
    "trt_max_workspace_size",
    "trt_min_subgraph_size",
    "trt_op_types_to_exclude",
    "trt_preview_features",
    "trt_sparsity_enable",
    "trt_tactic_sources",
)
_SWITCHES = (  # entries of a session of which the runtime takes whatever is not "1" for off
    "session.disable_prepacking",
    "session.intra_op.allow_spinning",
    "session.set_denormal_as_zero",
    "session.use_device_allocator_for_initializers",
)
KNOWN = {"cpu": (), "cuda": CUDA, "tensorrt": TENSORRT}


@dataclass(frozen=True, slots=True)
class Split:
    """Options, by who is told, as the text that ONNX Runtime takes."""

    provider: dict[str, str]
    session: dict[str, str]

    @property
    def device(self) -> int:
        """Ordinal of the GPU."""
        return int(self.provider.get("device_id", "0"))


def split(provider: str, options: EngineOptions | None) -> Split:
    """Check every name.

    Args:
        provider: a key of KNOWN.
        options: in the runtime's own words.

    Raises:
        EngineError: one is not known, by the nearest that is; device_id is no ordinal, or a switch
            neither on nor off.
    """
    known = KNOWN[provider]
    found = Split({}, {})
    for name, value in (options or {}).items():
        text = str(int(value)) if isinstance(value, bool) else str(value)
        if name in _SWITCHES and text not in ("0", "1"):
            raise EngineError(
                f"[engines.{NAMES[provider]}] {name} = {shown(value)}: expected true or false"
            )
        if name in SESSION:
            found.session[name] = text
        elif name in known:
            found.provider[name] = text
        else:
            raise EngineError(f"[engines.{NAMES[provider]}] {_unknown(name, known)}")
    if not found.provider.get("device_id", "0").isdecimal():
        raise EngineError(
            f"[engines.{NAMES[provider]}] device_id = {found.provider['device_id']!r}: expected "
            "the number of a GPU, counted from 0"
        )
    return found


def _unknown(name: str, own: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, (*own, *SESSION), n=1)
    if near:
        return f"no option {name!r}; did you mean {near[0]!r}?"
    entries = SESSION if not own else ("entries of the session",)
    return f"no option {name!r}; there are {', '.join((*own, *entries))}"


def profile(spec: GraphSpec, rows: int) -> dict[str, str]:
    """Shapes that TensorRT compiles its kernels for: one sequence, calls up to a prefill chunk,
    chosen for the widest verification.

    Args:
        spec: of the graph; batch 1.
        rows: T, the most a slot will have, padding included.
    """
    widest = max(PREFILL_CHUNK, spec.max_verify + WIDEST_STEP)
    widths = {"min": (1, 1, 1), "opt": (spec.max_verify,) * 2 + (rows,), "max": (widest,) * 2}
    widths["max"] += (rows,)

    def shapes(new: int, scored: int, cached: int) -> str:
        kv = f"1x{spec.kv_heads}x{cached}x{spec.head_dim}"
        parts = [f"{INPUT_IDS}:1x{new}", f"{CACHED_LENGTHS}:1", f"{LOGIT_ROWS}:{scored}"]
        for layer in range(spec.layers):
            parts += [f"{past(layer, 'key')}:{kv}", f"{past(layer, 'value')}:{kv}"]
        return ",".join(parts)

    return {f"trt_profile_{name}_shapes": shapes(*sizes) for name, sizes in widths.items()}


def tensorrt_defaults(spec: GraphSpec, rows: int, folder: Path) -> dict[str, str]:
    """What a config need not say.

    No precision is switched on: TensorRT then keeps the types that the graph has, float32 for
    norms, softmax and logits included.

    Args:
        spec, rows: see `profile`.
        folder: of compiled engines; it exists.
    """
    return {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(folder),
        "trt_engine_cache_prefix": spec.role,
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(folder),
        **profile(spec, rows),
    }

"""Model families: one small file per `model_type`, holding only what differs.

A family names tensors and reads none; `check_weights` compares those names with a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specedge.errors import SourceError, UnsupportedError
from specedge.export.decoder import DecoderSpec
from specedge.export.families import gemma3, llama, mistral, phi3, qwen2, qwen3
from specedge.export.families.weights import check_weights, unused, used

__all__ = ["SUPPORTED", "check_weights", "describe", "unused", "used"]

SUPPORTED: dict[str, Callable[[dict[str, Any], int], DecoderSpec]] = {
    "gemma3": gemma3.describe,
    "gemma3_text": gemma3.describe,
    "llama": llama.describe,
    "mistral": mistral.describe,
    "phi3": phi3.describe,
    "qwen2": qwen2.describe,
    "qwen3": qwen3.describe,
}


def describe(config: dict[str, Any], context: int) -> DecoderSpec:
    """The logical decoder of a checkpoint.

    Args:
        config: the checkpoint's config in transformers' keys, 4.x or 5.x spelling; text models
            inside a multimodal config already flattened by the source.
        context: T of the export; fixes LongRoPE's factors and drops windows that cannot fill.
            Whether it fits `DecoderSpec.max_positions` is for the caller to check.

    Raises:
        SourceError: a key that the family needs is missing or malformed; names it.
        UnsupportedError: the family, or something the config asks for, is not supported; one
            line that names it and its value.
    """
    model_type = config.get("model_type")
    if model_type is None:
        raise SourceError(
            f"model config: 'model_type' is missing; supported: {', '.join(SUPPORTED)}"
        )
    family = SUPPORTED.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise UnsupportedError(
            f"model config: model_type {model_type!r} is not supported; supported: "
            f"{', '.join(SUPPORTED)}; others go through optimum: --frontend optimum "
            "--precision fp32"
        )
    return family(config, context)

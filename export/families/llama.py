"""`llama`: Llama 1 to 3, SmolLM2, and everything published in that layout."""

from __future__ import annotations

from typing import Any

from specedge.export.decoder import DecoderSpec
from specedge.export.families._common import (
    Traits,
    decoder,
    refuse_partial_rotary,
    rope_request,
)
from specedge.export.families._settings import Settings, Sizes


def describe(config: dict[str, Any], context: int) -> DecoderSpec:
    """See `families.describe`. The first Llama configs had neither rope_theta nor kv heads."""
    settings = Settings(config)
    refuse_partial_rotary(settings)
    sizes = Sizes.read(settings, kv_heads_given=False, head_dim_given=False)
    bias = settings.flag("attention_bias")
    traits = Traits(qkv_bias=bias, o_bias=bias, mlp_bias=settings.flag("mlp_bias"))
    request = rope_request(settings, sizes, context, theta=10_000.0)
    return decoder(settings, sizes, traits, request, [None] * sizes.layers)

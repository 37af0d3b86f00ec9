"""`qwen3`: Qwen 3, dense; norms on the heads of q and k, and a head width of its own."""

from __future__ import annotations

from typing import Any

from specedge.export.decoder import DecoderSpec
from specedge.export.families import qwen2
from specedge.export.families._common import (
    Traits,
    decoder,
    refuse_partial_rotary,
    rope_request,
)
from specedge.export.families._settings import Settings, Sizes


def describe(config: dict[str, Any], context: int) -> DecoderSpec:
    """See `families.describe`."""
    settings = Settings(config)
    refuse_partial_rotary(settings)
    sizes = Sizes.read(settings)
    bias = settings.flag("attention_bias")
    traits = Traits(qkv_bias=bias, o_bias=bias, qk_norm=True)
    request = rope_request(settings, sizes, context)
    return decoder(settings, sizes, traits, request, qwen2.windows(settings, sizes))

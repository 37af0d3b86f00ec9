"""`qwen2`: Qwen 2 and 2.5, Coder included; biases on q, k and v."""

from __future__ import annotations

from typing import Any

from specedge.export.decoder import DecoderSpec
from specedge.export.families._common import (
    Traits,
    decoder,
    layer_windows,
    refuse_partial_rotary,
    rope_request,
)
from specedge.export.families._settings import Settings, Sizes


def describe(config: dict[str, Any], context: int) -> DecoderSpec:
    """See `families.describe`."""
    settings = Settings(config)
    refuse_partial_rotary(settings)
    sizes = Sizes.read(settings, head_dim_given=False)
    request = rope_request(settings, sizes, context)
    return decoder(settings, sizes, Traits(qkv_bias=True), request, windows(settings, sizes))


def windows(settings: Settings, sizes: Sizes) -> list[int | None]:
    """Qwen's windows: off unless `use_sliding_window`, then on from `max_window_layers` up."""
    if not settings.flag("use_sliding_window"):
        return [None] * sizes.layers
    kinds = settings.config.get("layer_types")
    if kinds is None:
        first = settings.config.get("max_window_layers")
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise settings.malformed("max_window_layers", "a number of layers")
        full = min(first, sizes.layers)
        kinds = ["full_attention"] * full + ["sliding_attention"] * (sizes.layers - full)
    return layer_windows(settings, sizes, kinds)

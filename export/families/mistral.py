"""`mistral`: Mistral 7B and Nemo; one window for all layers, or none."""

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
    """See `families.describe`. `sliding_window` must be given: null and 4096 are both common."""
    settings = Settings(config)
    refuse_partial_rotary(settings)
    sizes = Sizes.read(settings, head_dim_given=False)
    if "sliding_window" not in config:
        raise settings.malformed("sliding_window", "a number of positions, or null for none")
    window = settings.optional_integer("sliding_window")
    same = ["full_attention" if window is None else "sliding_attention"] * sizes.layers
    kinds = config.get("layer_types")
    if layer_windows(settings, sizes, same if kinds is None else kinds) != [window] * sizes.layers:
        settings.refuse("layer_types", "layers with different windows in this family")
    request = rope_request(settings, sizes, context)
    return decoder(settings, sizes, Traits(), request, [window] * sizes.layers)

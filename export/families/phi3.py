"""`phi3`: Phi-3 and Phi-4-mini; fused projections, LongRoPE, partly rotated heads."""

from __future__ import annotations

from typing import Any

from specedge.export.decoder import DecoderSpec
from specedge.export.families._common import Traits, decoder, rope_request, rope_table
from specedge.export.families._settings import Settings, Sizes


def describe(config: dict[str, Any], context: int) -> DecoderSpec:
    """See `families.describe`.

    LongRoPE's factors are fixed by `context`: the short ones up to
    `original_max_position_embeddings`, the long ones beyond. A long-context export therefore
    uses the long factors for short texts too, where transformers would use the short ones.
    """
    settings = Settings(config)
    sizes = Sizes.read(settings, kv_heads_given=False, head_dim_given=False)
    table = rope_table(settings)
    if "short_factor" in table and table.get("type") in ("su", "yarn"):
        # Early Phi-3 configs call LongRoPE by these names.
        table = {**table, "type": "longrope", "rope_type": "longrope"}
    partial = table.get("partial_rotary_factor")
    if partial is None:
        partial = settings.number("partial_rotary_factor", 1.0)
    if isinstance(partial, bool) or not isinstance(partial, int | float) or not 0 < partial <= 1:
        raise settings.malformed("partial_rotary_factor", "a share of a head, above 0 and up to 1")
    request = rope_request(settings, sizes, context, scaling=table, partial=float(partial))
    window = settings.optional_integer("sliding_window")
    return decoder(settings, sizes, Traits(fused=True), request, [window] * sizes.layers)

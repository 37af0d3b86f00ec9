"""`gemma3_text`, and the text part of `gemma3`: local and global layers, four norms a block."""

from __future__ import annotations

import math
from typing import Any

from specedge.export.decoder import DecoderSpec
from specedge.export.families._common import (
    Traits,
    decoder,
    layer_windows,
    rope_request,
)
from specedge.export.families._settings import Settings, Sizes

# Published configs leave out what equals the defaults of their class in transformers.
_DEFAULTS = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}


def describe(config: dict[str, Any], context: int) -> DecoderSpec:
    """See `families.describe`.

    The embedding is scaled by sqrt(hidden) in float32; transformers rounds that
    scale to the dtype of the weights first, so a bfloat16 run there differs by up to 0.4 %.
    """
    given = {key: value for key, value in config.items() if value is not None}
    settings = Settings({**_DEFAULTS, **given})
    sizes = Sizes.read(settings)
    bias = settings.flag("attention_bias")
    traits = Traits(qkv_bias=bias, o_bias=bias, qk_norm=True, post_norms=True)
    ropes = settings.table("rope_parameters")
    if isinstance(ropes.get("full_attention"), dict):  # transformers 5: one table for each kind
        local_table = dict(ropes.get("sliding_attention") or {})
        full = rope_request(settings, sizes, context, scaling=ropes["full_attention"])
    else:
        local_table = {"rope_theta": settings.number("rope_local_base_freq", 10_000.0)}
        full = rope_request(settings, sizes, context, theta=1_000_000.0)
    return decoder(
        settings,
        sizes,
        traits,
        full,
        layer_windows(settings, sizes, _kinds(settings, sizes)),
        local_rope=rope_request(settings, sizes, context, scaling=local_table, theta=10_000.0),
        activation_key="hidden_activation",
        activation="gelu_pytorch_tanh",
        tied=True,
        norm_offset=1.0,
        embedding_scale=math.sqrt(sizes.hidden),
        attention_scale=settings.number("query_pre_attn_scalar") ** -0.5,
        final_softcap=settings.optional_number("final_logit_softcapping"),
    )


def _kinds(settings: Settings, sizes: Sizes) -> Any:
    given = settings.config.get("layer_types")
    if given is not None:
        return given
    every = settings.optional_integer("sliding_window_pattern")
    every = settings.integer("_sliding_window_pattern", 6) if every is None else every
    return [
        "full_attention" if (index + 1) % every == 0 else "sliding_attention"
        for index in range(sizes.layers)
    ]

"""What all families share: the names of the transformers layout, and the block they describe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specedge.export.decoder import Activation, DecoderSpec, Layer, Linear, Rope, Rows
from specedge.export.families._settings import Settings, Sizes
from specedge.export.rope import RopeRequest, make_rope, reachable_positions

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclass(frozen=True)
class Traits:
    """What the blocks of families differ in, beyond sizes."""

    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    fused: bool = False  # the checkpoint holds qkv_proj and gate_up_proj
    post_norms: bool = False  # a norm on each branch too; the MLP's own norm has another name


def rope_request(
    settings: Settings,
    sizes: Sizes,
    context: int,
    *,
    scaling: dict[str, Any] | None = None,
    theta: float | None = None,
    partial: float = 1.0,
) -> RopeRequest:
    """The rotary embedding that a config asks for, in either spelling of transformers.

    Args:
        settings: the config; `rope_parameters` (5.x) wins over `rope_scaling` (4.x).
        sizes: for the width of a head.
        context: T of the export.
        scaling: used instead of the config's table.
        theta: when no `rope_theta` is given.
        partial: rotated share of a head.

    Raises:
        SourceError: `rope_theta` is nowhere and has no default.
    """
    table = rope_table(settings) if scaling is None else scaling
    base = table.get("rope_theta")
    if base is None:
        base = settings.number("rope_theta", theta)
    elif isinstance(base, bool) or not isinstance(base, int | float) or not base > 0:
        raise settings.malformed("rope_parameters", "a table with a positive rope_theta")
    return RopeRequest(
        scaling=table,
        theta=float(base),
        rotary_dim=int(sizes.head_dim * partial),
        max_positions=settings.integer("max_position_embeddings"),
        context=context,
        original_positions=settings.optional_integer("original_max_position_embeddings"),
    )


def rope_table(settings: Settings) -> dict[str, Any]:
    """`rope_parameters`, else `rope_scaling`, else an empty table."""
    return settings.table("rope_parameters") or settings.table("rope_scaling")


def refuse_partial_rotary(settings: Settings) -> None:
    """For families whose reference implementation rotates whole heads only."""
    if settings.number("partial_rotary_factor", 1.0) != 1.0:
        settings.refuse("partial_rotary_factor", "this family rotates whole heads")
    if rope_table(settings).get("partial_rotary_factor", 1.0) != 1.0:
        settings.refuse("rope_parameters", "this family rotates whole heads")


def layer_windows(settings: Settings, sizes: Sizes, kinds: Any) -> list[int | None]:
    """The window of each layer from its kind, by the names transformers uses in `layer_types`.

    Raises:
        SourceError: there are not as many kinds as layers, or no `sliding_window` to use.
        UnsupportedError: a layer is neither full nor sliding attention; names the layer.
    """
    if not isinstance(kinds, list) or len(kinds) != sizes.layers:
        raise settings.malformed("layer_types", f"a list of {sizes.layers} names")
    for index, kind in enumerate(kinds):
        if kind not in ("full_attention", "sliding_attention"):
            settings.refuse("layer_types", f"layer {index} is {kind!r}")
    return [
        settings.integer("sliding_window") if kind == "sliding_attention" else None
        for kind in kinds
    ]


def decoder(
    settings: Settings,
    sizes: Sizes,
    traits: Traits,
    request: RopeRequest,
    windows: Sequence[int | None],
    *,
    local_rope: RopeRequest | None = None,
    activation_key: str = "hidden_act",
    activation: str = "silu",
    tied: bool = False,
    **extra: Any,
) -> DecoderSpec:
    """Put a family's choices together.

    Args:
        settings, sizes, traits: as read.
        request: the rotary embedding of layers without a window, and of all without `local_rope`.
        windows: one per layer; one that `context` cannot fill masks nothing and is dropped.
        local_rope: of layers with a window.
        activation_key: the config key that names the activation.
        activation: the one this family is made with.
        tied: when `tie_word_embeddings` is absent.
        extra: further fields of DecoderSpec.

    Raises:
        SourceError, UnsupportedError: as the parts do.
    """
    name = settings.config.get(activation_key)
    name = activation if name is None else name
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        settings.refuse(activation_key, f"activations: {', '.join(_ACTIVATIONS)}")
    rope = make_rope(request)
    local = rope if local_rope is None else make_rope(local_rope)
    layers = tuple(
        _layer(
            index,
            sizes,
            traits,
            rope if window is None else local,
            window if window is not None and window < request.context else None,
        )
        for index, window in enumerate(windows)
    )
    return DecoderSpec(
        model_type=settings.family,
        vocab_rows=sizes.vocab,
        hidden=sizes.hidden,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        intermediate=sizes.intermediate,
        norm_eps=settings.number("rms_norm_eps"),
        activation=_ACTIVATIONS[name],
        embedding="model.embed_tokens.weight",
        final_norm="model.norm.weight",
        layers=layers,
        max_positions=reachable_positions(request),
        head=None if settings.flag("tie_word_embeddings", tied) else "lm_head.weight",
        **extra,
    )


def _layer(index: int, sizes: Sizes, traits: Traits, rope: Rope, window: int | None) -> Layer:
    root = f"model.layers.{index}"
    attn, mlp = f"{root}.self_attn", f"{root}.mlp"
    q_rows, kv_rows = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim

    def linear(name: str, sources: Sequence[str], width: int, out: int, bias: bool) -> Linear:
        return Linear(
            name=f"layers.{index}.{name}",
            weights=tuple(Rows(f"{source}.weight") for source in sources),
            in_features=width,
            out_features=out,
            bias=tuple(f"{source}.bias" for source in sources) if bias else (),
        )

    qkv = [f"{attn}.qkv_proj"] if traits.fused else [f"{attn}.{part}_proj" for part in "qkv"]
    gate_up = (
        [f"{mlp}.gate_up_proj"]
        if traits.fused
        else [f"{mlp}.{part}_proj" for part in ("gate", "up")]
    )
    second = f"{root}.post_attention_layernorm.weight"
    return Layer(
        index=index,
        input_norm=f"{root}.input_layernorm.weight",
        qkv=linear("attn.qkv", qkv, sizes.hidden, q_rows + 2 * kv_rows, traits.qkv_bias),
        o=linear("attn.o", [f"{attn}.o_proj"], q_rows, sizes.hidden, traits.o_bias),
        mlp_norm=f"{root}.pre_feedforward_layernorm.weight" if traits.post_norms else second,
        gate_up=linear(
            "mlp.gate_up", gate_up, sizes.hidden, 2 * sizes.intermediate, traits.mlp_bias
        ),
        down=linear(
            "mlp.down", [f"{mlp}.down_proj"], sizes.intermediate, sizes.hidden, traits.mlp_bias
        ),
        rope=rope,
        window=window,
        q_norm=f"{attn}.q_norm.weight" if traits.qk_norm else None,
        k_norm=f"{attn}.k_norm.weight" if traits.qk_norm else None,
        post_attention_norm=second if traits.post_norms else None,
        post_mlp_norm=f"{root}.post_feedforward_layernorm.weight" if traits.post_norms else None,
    )

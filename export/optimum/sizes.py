"""What a checkpoint of any architecture says of itself, under the names its family uses.

Only what must be known before the graph is there, and what a graph does not show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from specedge.errors import UnsupportedError
from specedge.export.checkpoint import Checkpoint

_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_WINDOW = ("sliding_window", "window_size")
# Rotary scalings that depend on how long the text is: a traced graph keeps one length's.
_BY_LENGTH = ("dynamic", "longrope", "su")


@dataclass(frozen=True)
class Sizes:
    """Of one checkpoint.

    Args:
        max_positions: what it was made for; None: it does not say, or has no limit.
        window: of sliding attention; None: there is none.
        parameters: elements of all tensors in the file.
    """

    model_type: str
    hidden: int
    heads: int
    max_positions: int | None
    window: int | None
    parameters: int


def sizes_of(checkpoint: Checkpoint, where: str) -> Sizes:
    """Read them from the config.

    Args:
        where: the source, for errors.

    Raises:
        UnsupportedError: a size is missing, or the config has something that no traced graph keeps.
    """
    config = checkpoint.config
    scaling = config.get("rope_scaling")
    if isinstance(scaling, Mapping):
        kind = scaling.get("rope_type", scaling.get("type"))
        if kind in _BY_LENGTH:
            raise UnsupportedError(
                f"{where}: rope_scaling {kind!r} depends on the length of the text, and a traced "
                "graph keeps that of one; use the native front end, or a checkpoint without it"
            )
    if config.get("is_encoder_decoder"):
        raise UnsupportedError(f"{where}: an encoder-decoder; expected a decoder")
    names = checkpoint.tensors.names()
    return Sizes(
        model_type=str(config.get("model_type", "unknown")),
        hidden=_needed(config, _HIDDEN, where),
        heads=_needed(config, _HEADS, where),
        max_positions=_size(config, _POSITIONS),
        window=_size(config, _WINDOW),
        parameters=sum(prod(checkpoint.tensors.shape(name)) for name in names),
    )


def _size(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    found = (config.get(name) for name in names)
    return next((one for one in found if isinstance(one, int) and one > 0), None)


def _needed(config: Mapping[str, Any], names: tuple[str, ...], where: str) -> int:
    found = _size(config, names)
    if found is None:
        raise UnsupportedError(
            f"{where}: config.json has none of {', '.join(names)}; optimum's decoders have one"
        )
    return found

"""The logical decoder: what a family describes and a lowering writes as a graph.

    embed -> L x [norm, attention, (post norm), +residual, norm, gated MLP, (post norm), +residual]
          -> norm -> head

A family file turns a checkpoint's config into a `DecoderSpec`; it names tensors, it reads none.
Whatever a family can differ in is a field here, and every lowering honours every field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from specedge.export.checkpoint import Array

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True)
class Rows:
    """Rows start..stop of a checkpoint tensor; stop None means to the end."""

    name: str
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True)
class Linear:
    """y = x W^T + b; W is `weights` stacked along the output axis, in order."""

    name: str  # in the node-name grammar: "layers.0.attn.qkv"
    weights: tuple[Rows, ...]
    in_features: int
    out_features: int
    bias: tuple[str, ...] = ()  # 1-D tensors stacked like `weights`, or none


@dataclass(frozen=True, eq=False)
class Rope:
    """Rotary embedding over the first 2 * len(inv_freq) dimensions of a head, split-half layout.

    Every scaling (linear, llama3, yarn, longrope) ends as frequencies and one factor on the
    tables, both fixed at export.
    """

    inv_freq: npt.NDArray[np.float64]  # [rotary_dim / 2]
    factor: float = 1.0  # multiplies cos and sin

    def tables(self, positions: int) -> tuple[Array, Array]:
        """cos and sin, float32 [positions, rotary_dim / 2], computed in float64."""
        angles = np.outer(np.arange(positions, dtype=np.float64), self.inv_freq)
        cos, sin = np.cos(angles) * self.factor, np.sin(angles) * self.factor
        return cos.astype(np.float32), sin.astype(np.float32)


@dataclass(frozen=True)
class Layer:
    """One block. Norm fields are tensor names; `qkv` stacks q, k, v and `gate_up` gate, up."""

    index: int
    input_norm: str
    qkv: Linear
    o: Linear
    mlp_norm: str
    gate_up: Linear
    down: Linear
    rope: Rope
    window: int | None = None  # a position attends to itself and the window - 1 before it
    q_norm: str | None = None  # RMS norm over each head, [D]
    k_norm: str | None = None
    post_attention_norm: str | None = None  # on the branch, before the residual is added
    post_mlp_norm: str | None = None


@dataclass(frozen=True)
class DecoderSpec:
    """Everything a lowering needs to write the graph of one model."""

    model_type: str
    vocab_rows: int  # rows of the checkpoint's embedding, padded tail included
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    norm_eps: float
    activation: Activation
    embedding: str
    final_norm: str
    layers: tuple[Layer, ...]
    max_positions: int  # what the checkpoint was made for; `context` may not exceed it
    head: str | None = None  # None: tied to the embedding
    norm_offset: float = 0.0  # norms scale by (weight + offset); gemma stores weight - 1
    embedding_scale: float = 1.0
    attention_scale: float | None = None  # None: 1 / sqrt(head_dim)
    final_softcap: float | None = None  # logits = cap * tanh(logits / cap)

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

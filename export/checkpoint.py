"""What every source hands to the exporter: one lazily read tensor map, one config, one tokenizer.

Tensor names and config keys are those of the checkpoint's transformers layout
(`model.layers.0.self_attn.q_proj.weight`, `hidden_size`, ...), whatever the file format was, so a
family is written once. Weights of linear layers are [out, in].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from specedge.contract import SourceRecord

Array = npt.NDArray[np.float32]

ROWS_AT_ONCE_BYTES = 64 << 20  # float32 bytes of one block from `row_blocks`


class TensorMap(Protocol):
    """Weights by name; nothing is read before it is asked for."""

    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Raises SourceError when there is no such tensor, naming the nearest one."""
        ...

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Rows start..stop of the first axis as float32 (a 1-D tensor counts elements as rows).

        Raises:
            SourceError: the tensor is missing, cut short, or holds NaN or infinity.
        """
        ...

    def close(self) -> None: ...


def read(tensors: TensorMap, name: str) -> Array:
    """The whole tensor as float32."""
    return tensors.rows(name, 0, tensors.shape(name)[0])


def row_blocks(
    tensors: TensorMap, name: str, start: int = 0, stop: int | None = None
) -> Iterator[Array]:
    """Rows start..stop in consecutive blocks, each of about ROWS_AT_ONCE_BYTES."""
    rows, *rest = tensors.shape(name)
    stop = rows if stop is None else stop
    step = max(1, ROWS_AT_ONCE_BYTES // (4 * max(1, int(np.prod(rest)))))
    for first in range(start, stop, step):
        yield tensors.rows(name, first, min(first + step, stop))


@dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer as files: what the bundle will carry."""

    json: str  # tokenizer.json, as `tokenizers.Tokenizer.from_str` reads it
    chat_template: str | None
    bos_id: int | None
    eos_ids: list[int]
    pad_id: int | None
    adds_bos: bool
    vocab: int  # highest known id + 1


@dataclass(frozen=True)
class Checkpoint:
    """One opened model source."""

    config: dict[str, Any]
    tensors: TensorMap
    tokenizer: TokenizerFiles
    record: SourceRecord
    generation: dict[str, Any] = field(default_factory=dict)  # generation_config.json, if any

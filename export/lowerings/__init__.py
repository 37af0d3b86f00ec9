"""One file per way of writing the logical decoder as an ONNX graph of contract 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from specedge.contract import Element, Lowering
from specedge.export.decoder import DecoderSpec
from specedge.export.lowerings import ort, standard
from specedge.export.placement import Layout, PlacedModel


class Writes(Protocol):
    """What the exporter asks of a lowering."""

    def check(self, spec: DecoderSpec) -> None:
        """Raises UnsupportedError for what its operators cannot compute."""
        ...

    def layout(self, activations: Element) -> Layout:
        """How its weights are stored."""
        ...

    def write(
        self,
        spec: DecoderSpec,
        placed: PlacedModel,
        path: Path,
        *,
        weights: str,
        version: str,
        taps: Sequence[int] = (),
    ) -> None:
        """Write the model file `path`, referring to `weights` beside it; `check` has passed."""
        ...


LOWERINGS: Mapping[Lowering, Writes] = {"ort": ort, "standard": standard}

"""Rotary frequencies and the factor on the tables, fixed at export, in float64.

Every scaling that a checkpoint can ask for ends as `decoder.Rope`. Sources: rotary embedding
(Su 2021), linear position interpolation (Chen 2023), YaRN (Peng 2023), LongRoPE (Ding 2024),
and the frequency bands of Llama 3.1. A scaling whose frequencies depend on how long the text has
become is refused: keys already in the cache could not be rotated again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specedge.errors import SourceError, UnsupportedError
from specedge.export.decoder import Rope

Frequencies = npt.NDArray[np.float64]

# Keys that some scaling reads, or that are known to change nothing.
_KNOWN = {
    "type", "rope_type", "rope_theta", "partial_rotary_factor", "finetuned", "factor", "factors",
    "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
    "mscale_all_dim", "truncate", "short_factor", "long_factor", "low_freq_factor",
    "high_freq_factor",
}  # fmt: skip


@dataclass(frozen=True)
class RopeRequest:
    """What a checkpoint says about one rotary embedding.

    Args:
        scaling: the `rope_scaling` or `rope_parameters` dictionary; empty for none.
        theta: base of the frequencies.
        rotary_dim: dimensions of a head that are rotated, even.
        max_positions: `max_position_embeddings`.
        original_positions: a top-level `original_max_position_embeddings`, if any.
        context: T of the export; LongRoPE chooses its factors by it.
    """

    scaling: Mapping[str, Any]
    theta: float
    rotary_dim: int
    max_positions: int
    context: int
    original_positions: int | None = None

    @property
    def kind(self) -> str:
        """Name of the scaling; "default" when there is none."""
        return str(self.scaling.get("rope_type") or self.scaling.get("type") or "default")

    @property
    def pretrained_positions(self) -> int:
        """Positions seen before the scaling was applied."""
        if self.original_positions is not None:
            return self.original_positions
        return round(self.number("original_max_position_embeddings", self.max_positions))

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number of the scaling; a default of None makes it required."""
        value = self.scaling.get(key)
        value = default if value is None else value
        if value is None:
            raise SourceError(f"model config: rope scaling {self.kind!r} needs {key!r}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise SourceError(
                f"model config: rope scaling {key!r} must be a positive number, found {value!r}"
            )
        return float(value)

    def divisors(self, key: str) -> Frequencies:
        """A list of rotary_dim / 2 positive numbers of the scaling."""
        try:
            values = np.asarray(self.scaling[key], dtype=np.float64)
        except KeyError:
            raise SourceError(f"model config: rope scaling {self.kind!r} needs {key!r}") from None
        except (TypeError, ValueError):
            raise SourceError(
                f"model config: rope scaling {key!r} must be a list of numbers"
            ) from None
        if values.shape != (self.rotary_dim // 2,) or not (values > 0).all():
            raise SourceError(
                f"model config: rope scaling {key!r} must hold {self.rotary_dim // 2} positive "
                f"numbers (half of the rotated width), found shape {values.shape}"
            )
        return values

    @property
    def plain(self) -> Frequencies:
        """theta ** (-2i / rotary_dim), float64 [rotary_dim / 2]."""
        powers = np.arange(0, self.rotary_dim, 2, dtype=np.float64) / self.rotary_dim
        return np.asarray(self.theta**-powers, dtype=np.float64)


def make_rope(request: RopeRequest) -> Rope:
    """Frequencies and factor of one rotary embedding.

    Raises:
        SourceError: a number that the scaling needs is missing or has the wrong form.
        UnsupportedError: the scaling is unknown, depends on the text's length, or has a key that
            would change the result and is not known here.
    """
    if request.kind == "dynamic":
        raise UnsupportedError(
            "model config: rope scaling 'dynamic' changes its frequencies with the length of the "
            f"text, which a KV cache cannot follow; supported: {', '.join(_KINDS)}"
        )
    scaled = _KINDS.get(request.kind)
    if scaled is None:
        raise UnsupportedError(
            f"model config: rope scaling {request.kind!r} is not supported; supported: "
            f"{', '.join(_KINDS)}"
        )
    unknown = sorted(key for key in request.scaling if key not in _KNOWN)
    if unknown:
        raise UnsupportedError(
            f"model config: rope scaling {request.kind!r} has {unknown[0]!r} = "
            f"{request.scaling[unknown[0]]!r}, which is not supported"
        )
    if request.rotary_dim < 2 or request.rotary_dim % 2:
        raise SourceError(
            f"model config: rotary embedding of {request.rotary_dim} dimensions; it must be even"
        )
    return scaled(request)


def reachable_positions(request: RopeRequest) -> int:
    """Longest context this embedding is meant for.

    Configs that turn YaRN on by hand leave `max_position_embeddings` at its trained value.
    """
    if request.kind == "yarn":
        stretched = request.number("factor") * request.pretrained_positions
        return max(request.max_positions, round(stretched))
    return request.max_positions


def _default(request: RopeRequest) -> Rope:
    return Rope(request.plain)


def _linear(request: RopeRequest) -> Rope:
    return Rope(request.plain / request.number("factor"))


def _factors(request: RopeRequest) -> Rope:
    """Divisors by frequency: how a GGUF file stores what another scaling computed."""
    return Rope(request.plain / request.divisors("factors"), request.number("attention_factor", 1))


def _llama3(request: RopeRequest) -> Rope:
    """Long waves are stretched by `factor`, short ones kept, those between interpolated."""
    factor = request.number("factor")
    low, high = request.number("low_freq_factor"), request.number("high_freq_factor")
    trained = request.number("original_max_position_embeddings")
    if high <= low:
        raise SourceError(
            f"model config: rope scaling 'llama3' needs high_freq_factor above low_freq_factor, "
            f"found {high:g} and {low:g}"
        )
    plain = request.plain
    waves_in_context = trained * plain / (2 * math.pi)
    keep = np.clip((waves_in_context - low) / (high - low), 0.0, 1.0)
    return Rope(keep * plain + (1 - keep) * plain / factor)


def _yarn(request: RopeRequest) -> Rope:
    """NTK-by-parts: Peng 2023, section 3.2; the factor on the tables is their section 3.3."""
    factor = request.number("factor")
    width = request.rotary_dim
    plain = request.plain

    def dimension(rotations: float) -> float:
        """Index of the frequency that turns `rotations` times over the trained positions."""
        turns = request.pretrained_positions / (rotations * 2 * math.pi)
        return width * math.log(turns) / (2 * math.log(request.theta))

    low = dimension(request.number("beta_fast", 32))
    high = dimension(request.number("beta_slow", 1))
    if request.scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001
    interpolate = np.clip((np.arange(width // 2) - low) / (high - low), 0.0, 1.0)
    return Rope(
        interpolate * plain / factor + (1 - interpolate) * plain, _yarn_factor(request, factor)
    )


def _yarn_factor(request: RopeRequest, factor: float) -> float:
    if request.scaling.get("attention_factor") is not None:
        return request.number("attention_factor")

    def growth(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1

    mscale, everywhere = request.scaling.get("mscale"), request.scaling.get("mscale_all_dim")
    if mscale and everywhere:
        return growth(request.number("mscale")) / growth(request.number("mscale_all_dim"))
    return growth(1.0)


def _longrope(request: RopeRequest) -> Rope:
    """Ding 2024. The reference switches factors when a text outgrows the trained positions; keys
    already cached would be stale then, so `context` decides once, for every length."""
    trained = request.pretrained_positions
    divisors = request.divisors("long_factor" if request.context > trained else "short_factor")
    request.divisors("short_factor")
    factor = request.max_positions / trained
    if request.original_positions is None:
        factor = request.number("factor", factor)
    if request.scaling.get("attention_factor") is not None:
        scale = request.number("attention_factor")
    elif factor <= 1:
        scale = 1.0
    else:
        scale = math.sqrt(1 + math.log(factor) / math.log(trained))
    return Rope(request.plain / divisors, scale)


_KINDS: dict[str, Callable[[RopeRequest], Rope]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "factors": _factors,
}

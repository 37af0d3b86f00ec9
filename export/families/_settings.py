"""Reading a checkpoint's config: typed, and every complaint names the key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specedge.errors import SourceError, UnsupportedError

# Keys that would change the result if they were set, in any family.
_UNSUPPORTED = {
    "attn_logit_softcapping": "attention scores with a softcap",
    "clip_qkv": "clamped queries, keys and values",
    "num_experts": "mixture of experts",
    "num_local_experts": "mixture of experts",
    "n_routed_experts": "mixture of experts",
    "quantization_config": "weights quantised by another tool; give the unquantised checkpoint",
    "use_bidirectional_attention": "attention to later positions",
}


_LARGEST = 1 << 31  # of a size; 100 times what any checkpoint has, and still an int32
_GREATEST = 1e30  # of any other number; a rotary base squared must stay a float32
_MOST_LAYERS = 4096  # a description has one object a layer, made before weights are looked at


class Settings:
    """A config with typed access; a missing or odd value raises SourceError by its key."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.family = str(config["model_type"])
        for key, meaning in _UNSUPPORTED.items():
            if config.get(key):
                self.refuse(key, meaning)

    def refuse(self, key: str, meaning: str) -> None:
        """Raise UnsupportedError for the value of `key`."""
        raise UnsupportedError(
            f"model config ({self.family}): {key} = {self.config.get(key)!r} is not supported: "
            f"{meaning}"
        )

    def malformed(self, key: str, expected: str) -> SourceError:
        found = f"{self.config[key]!r:.80}" if key in self.config else "nothing"
        return SourceError(
            f"model config ({self.family}): {key!r} must be {expected}, found {found}"
        )

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer; a default of None makes the key required."""
        value = self.optional_integer(key)
        value = default if value is None else value
        if value is None:
            raise self.malformed(key, "a positive integer")
        return value

    def optional_integer(self, key: str) -> int | None:
        """A positive integer, or None when the key is absent or null."""
        value = self.config.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.malformed(key, "a positive integer")
        if not 1 <= value < _LARGEST or value != int(value):
            raise self.malformed(key, "a positive integer below 2**31")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number; a default of None makes the key required."""
        value = self.optional_number(key)
        value = default if value is None else value
        if value is None:
            raise self.malformed(key, "a positive number")
        return value

    def optional_number(self, key: str) -> float | None:
        """A positive number, or None when the key is absent or null."""
        value = self.config.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.malformed(key, "a positive number")
        if not 0 < value < _GREATEST:
            raise self.malformed(key, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.malformed(key, "true or false")
        return value

    def table(self, key: str) -> dict[str, Any]:
        """A dictionary; empty when the key is absent or null."""
        value = self.config.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.malformed(key, "a table")
        return dict(value)


@dataclass(frozen=True)
class Sizes:
    """The sizes every family has."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int

    @classmethod
    def read(
        cls, settings: Settings, *, kv_heads_given: bool = True, head_dim_given: bool = True
    ) -> Sizes:
        """Sizes from the usual keys.

        Args:
            settings: the config.
            kv_heads_given: False: an absent `num_key_value_heads` means as many as heads.
            head_dim_given: False: an absent `head_dim` means hidden / heads.

        Raises:
            SourceError: a key is missing, or the sizes do not divide.
        """
        hidden = settings.integer("hidden_size")
        heads = settings.integer("num_attention_heads")
        kv_heads = settings.integer("num_key_value_heads", None if kv_heads_given else heads)
        if heads % kv_heads:
            raise SourceError(
                f"model config ({settings.family}): num_attention_heads = {heads} is not a "
                f"multiple of num_key_value_heads = {kv_heads}"
            )
        layers = settings.integer("num_hidden_layers")
        if layers > _MOST_LAYERS:
            raise settings.malformed("num_hidden_layers", f"at most {_MOST_LAYERS}")
        head_dim = settings.optional_integer("head_dim")
        if head_dim is None:
            if head_dim_given or hidden % heads:
                raise settings.malformed("head_dim", "a positive integer")
            head_dim = hidden // heads
        return cls(
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate=settings.integer("intermediate_size"),
            vocab=settings.integer("vocab_size"),
        )

"""Tiny random checkpoints of every family, made by transformers: what parity is tested on.

`make_checkpoint("qwen2", folder)` writes config.json, model.safetensors, tokenizer.json and
tokenizer_config.json, and returns the transformers model. The tokenizer knows fewer ids than the
embedding has rows, as real checkpoints do.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from specedge.errors import SourceError
from specedge.export.checkpoint import Array

VOCAB_ROWS = 304
_SPECIAL = ["<|pad|>", "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"]
_MERGES = """Ġ t|h e|i n|r e|Ġt he|a n|o n|e r|a t|Ġ a|e n|i s|o r|Ġ s|in g|Ġ =|e s|Ġ f|t h|d e
|de f|r o|u r|s e|l l|Ġ c|Ġ (|Ġ w|o u|e d|Ġ Ġ|ĠĠ ĠĠ|i t|a l"""
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_ROWS,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {"tie_word_embeddings": True, "rope_theta": 1_000_000.0},
    "qwen3": {"tie_word_embeddings": False, "head_dim": 32},
    "mistral": {"tie_word_embeddings": False, "sliding_window": 24, "num_hidden_layers": 3},
    "phi3": {"tie_word_embeddings": False, "original_max_position_embeddings": 512},
    "gemma3": {
        "tie_word_embeddings": True,
        "num_hidden_layers": 7,  # the sixth is global
        "head_dim": 32,
        "query_pre_attn_scalar": 24,
        "sliding_window": 16,
        "rope_local_base_freq": 1_000.0,
    },
}
FAMILIES = tuple(_FAMILIES)


def make_checkpoint(family: str, folder: Path, *, seed: int = 0, **overrides: Any) -> Any:
    """Write a checkpoint of `family` and return its model, float32, eager attention, in eval.

    Args:
        family: one of FAMILIES.
        folder: made if absent.
        seed: of the weights; the same seed gives the same bytes.
        overrides: config keys of transformers.
    """
    import torch
    import transformers

    classes = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
        "phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM),
        "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
    }
    config_class, model_class = classes[family]
    config = config_class(**{**_COMMON, **_FAMILIES[family], **overrides})
    config._attn_implementation = "eager"
    model = model_class(config).eval().float()
    _fill(model, torch.Generator().manual_seed(seed), unit_norms=family != "gemma3")
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, safe_serialization=True)
    write_tokenizer(folder)
    return model


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a checkpoint."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config


class ArrayTensors:
    """A `TensorMap` over arrays in memory."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.arrays = arrays

    @classmethod
    def from_folder(cls, folder: Path) -> ArrayTensors:
        """All of model.safetensors, read at once."""
        from safetensors.numpy import load_file

        return cls(load_file(folder / "model.safetensors"))

    def names(self) -> list[str]:
        return list(self.arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self.arrays:
            raise SourceError(f"no tensor {name}")
        return self.arrays[name].shape

    def rows(self, name: str, start: int, stop: int) -> Array:
        return self.arrays[name][start:stop].astype(np.float32)

    def close(self) -> None: ...


def _fill(model: Any, generator: Any, *, unit_norms: bool) -> None:
    """Weights that keep signal and attention lively; norms and biases that matter."""
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 2 and "embed" not in name and "lm_head" not in name:
                weight.copy_(noise * 1.5 / weight.shape[1] ** 0.5)
            else:
                weight.copy_(noise * 0.3)
                if "norm" in name and unit_norms:
                    weight.add_(1.0)


def tiny_tokenizer_json() -> str:
    """A byte-level BPE: every byte, a few merges, five special tokens in front."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    merges = [tuple(pair.split(" ")) for pair in _MERGES.replace("\n", "").split("|")]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*_SPECIAL, *alphabet, *(left + right for left, right in merges)]
    vocab = {token: index for index, token in enumerate(tokens)}
    assert len(vocab) == len(tokens) < VOCAB_ROWS
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    return str(tokenizer.to_str())


def write_tokenizer(folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json, with a chat template."""
    (folder / "tokenizer.json").write_text(tiny_tokenizer_json(), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<|pad|>",
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")

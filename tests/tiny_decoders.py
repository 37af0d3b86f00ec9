"""Tiny random checkpoints of architectures that only the optimum front end has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_models import VOCAB_ROWS, write_tokenizer

_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_FALCON = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "alibi": False,
}
# name: config class of transformers, its arguments
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "opt": (
        "OPTConfig",
        {
            "hidden_size": 32,
            "word_embed_proj_dim": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 64,
            "max_position_embeddings": 128,
        },
    ),
    "bloom": ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "falcon, one kv head": ("FalconConfig", {**_FALCON, "multi_query": True, "bias": False}),
    "falcon, grouped": (
        "FalconConfig",
        {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": False},
    ),
    "gpt-neox": (
        "GPTNeoXConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "max_position_embeddings": 128,
        },
    ),
}


def make_decoder(name: str, folder: Path, *, seed: int = 0) -> Any:
    """Write a checkpoint of one of DECODERS; its model, float32, in eval."""
    import torch
    import transformers

    config_class, arguments = DECODERS[name]
    config = getattr(transformers, config_class)(vocab_size=VOCAB_ROWS, **arguments, **_IDS)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 2 and VOCAB_ROWS not in weight.shape:
                weight.copy_(noise * 1.5 / weight.shape[1] ** 0.5)
            elif weight.ndim == 2:
                weight.copy_(noise * 0.5)
            else:
                weight.add_(noise * 0.2)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, safe_serialization=True)
    write_tokenizer(folder)
    return model

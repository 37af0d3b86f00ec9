"""What parity is tested on: families, rotary scalings, windows, biases, and how to compare."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiny_models import FAMILIES, VOCAB_ROWS

TRAINED = 48  # positions before a scaling applies; sequences are longer
_RNG = np.random.default_rng(11)
LONGROPE = {
    "type": "longrope",
    "short_factor": (1 + _RNG.random(8)).tolist(),
    "long_factor": (1 + 9 * _RNG.random(8)).tolist(),
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": TRAINED,
}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": TRAINED}

# family, overrides of its config, tokens, context
CASES: dict[str, tuple[str, dict[str, Any], int, int]] = {
    **{family: (family, {}, 80, 512) for family in FAMILIES},
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}, 40, 512),
    "llama untied, wide heads": ("llama", {"tie_word_embeddings": False, "head_dim": 32}, 40, 512),
    "llama one kv head": ("llama", {"num_key_value_heads": 1}, 40, 512),
    "llama linear": ("llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}, 80, 512),
    "llama llama3": ("llama", {"rope_scaling": LLAMA3}, 100, 512),
    "qwen2 yarn": ("qwen2", {"rope_scaling": YARN}, 100, 512),
    "qwen2 upper layers windowed": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1},
        60,
        512,
    ),
    "qwen3 biases, mixed layers": (
        "qwen3",
        {
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        60,
        512,
    ),
    "mistral window of one": ("mistral", {"sliding_window": 1}, 30, 512),
    "mistral no window": ("mistral", {"sliding_window": None, "head_dim": 32}, 60, 512),
    "mistral window beyond the context": ("mistral", {"sliding_window": 64}, 64, 64),
    "phi3 window": ("phi3", {"sliding_window": 20}, 60, 512),
    "phi3 partial": ("phi3", {"hidden_size": 128, "partial_rotary_factor": 0.5}, 60, 512),
    "phi3 longrope short": (
        "phi3",
        {"rope_scaling": LONGROPE, "original_max_position_embeddings": TRAINED},
        TRAINED,
        TRAINED,
    ),
    "phi3 longrope long": (
        "phi3",
        {"rope_scaling": LONGROPE, "original_max_position_embeddings": TRAINED},
        100,
        512,
    ),
    "phi3 longrope partial": (
        "phi3",
        {
            "rope_scaling": LONGROPE,
            "hidden_size": 128,
            "partial_rotary_factor": 0.5,
            "original_max_position_embeddings": TRAINED,
        },
        100,
        512,
    ),
    "gemma3 linear, softcap": (
        "gemma3",
        {
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "final_logit_softcapping": 3.0,
            "rope_theta": 1_000_000.0,
        },
        60,
        512,
    ),
    "gemma3 pattern of two": ("gemma3", {"sliding_window_pattern": 2}, 60, 512),
}


def ids_for(tokens: int) -> np.ndarray:
    return np.random.default_rng(tokens).integers(0, VOCAB_ROWS, tokens)


def transformers_logits(model: Any, ids: np.ndarray) -> np.ndarray:
    import torch

    with torch.no_grad():
        logits: np.ndarray = model(torch.from_numpy(ids)[None]).logits[0].numpy()
    return logits


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())

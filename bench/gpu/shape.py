"""A model of the 1.5B's shape without its weights, and what torch alone takes for its arithmetic.

Both are for timing only: a call costs the same whatever the weights are. `gpu_check.py` asks for
them on the box itself, so that 3 GB of weights need not travel.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHAPE = {
    "hidden_size": 1536,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "intermediate_size": 8960,
    "vocab_size": 151_936,
}
SMALL = {  # for trying the script out
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 2048,
}
MB = 1_000_000
POOL = 1 << 22  # numbers drawn; every tensor is cut out of them, each from another place
STEP_WIDTHS = (1, 2, 4, 8, 16)
Shape = dict[str, int]


def tensor_sizes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a qwen2 checkpoint with a tied head."""
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    head = hidden // shape["num_attention_heads"]
    kv = head * shape["num_key_value_heads"]
    sizes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape["vocab_size"], hidden)}
    for layer in range(shape["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        for part, rows in (("q", hidden), ("k", kv), ("v", kv)):
            sizes[f"{at}.self_attn.{part}_proj.weight"] = (rows, hidden)
            sizes[f"{at}.self_attn.{part}_proj.bias"] = (rows,)
        sizes[f"{at}.self_attn.o_proj.weight"] = (hidden, hidden)
        for part in ("gate", "up"):
            sizes[f"{at}.mlp.{part}_proj.weight"] = (inner, hidden)
        sizes[f"{at}.mlp.down_proj.weight"] = (hidden, inner)
        for part in ("input", "post_attention"):
            sizes[f"{at}.{part}_layernorm.weight"] = (hidden,)
    sizes["model.norm.weight"] = (hidden,)
    return sizes


def draw_checkpoint(shape: Shape, folder: Path, seed: int = 0) -> Path:
    """A qwen2 checkpoint of this shape, bfloat16, out of one pool of normal numbers.

    Returns:
        `folder`, which is written beside and then renamed.
    """
    import numpy as np

    sizes = tensor_sizes(shape)
    vocab = shape["vocab_size"]
    header, end = {}, 0
    for name, size in sizes.items():
        begin, end = end, end + 2 * int(np.prod(size))
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [begin, end]}
    said = json.dumps(header).encode()
    staging = folder.with_name(folder.name + ".part")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    pool = (rng.standard_normal(POOL, np.float32) * 0.02).view(np.uint32) >> 16
    pool = pool.astype(np.uint16)
    ones = np.uint16(0x3F80)  # 1.0
    with (staging / "model.safetensors").open("wb") as file:
        file.write(len(said).to_bytes(8, "little") + said)
        for name, size in sizes.items():
            left = int(np.prod(size))
            if "norm" in name:
                file.write(np.full(left, ones).tobytes())
                continue
            while left:
                start = int(rng.integers(len(pool)))
                part = pool[start : start + left]
                file.write(part.tobytes())
                left -= len(part)
    _write_tokenizer(staging, vocab)
    config = shape | {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "eos_token_id": 0,
    }
    (staging / "config.json").write_text(json.dumps(config), encoding="utf-8")
    staging.rename(folder)
    return folder


def _write_tokenizer(folder: Path, vocab: int) -> None:
    """Byte-level, with as many words as the embedding has rows: a row without a word is cut."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<eos>", *alphabet, *(f"w{n}" for n in range(vocab - len(alphabet) - 1))]
    tokenizer = Tokenizer(models.BPE({word: n for n, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}', encoding="utf-8")


def torch_baseline(
    shape: Shape, *, on_gpu: bool, pasts: tuple[int, ...], samples: int
) -> dict[str, Any]:
    """What torch alone takes for the matrix products and attention of a step of N tokens after P
    rows: a baseline, with no code of specedge in it. Norms, rotation and KV writes are left out,
    so it is a little cheaper than a whole step.

    Args:
        on_gpu: float16 and CUDA graphs; else float32 on the CPU.
        samples: calls of each point.

    Returns:
        points [{N, past, calls, ms, low_ms, high_ms}] (medians, 10 to 90 %), runs_on, and on a GPU
        device_mb, the most that torch had allocated.
    """
    import torch

    device, dtype = ("cuda", torch.float16) if on_gpu else ("cpu", torch.float32)
    step = _torch_step(torch, shape, device, dtype)
    points = []
    for past in pasts:
        for width in STEP_WIDTHS:
            call = step(width, past)
            spent = []
            for _ in range(samples):
                began = time.perf_counter()
                call()
                spent.append(1e3 * (time.perf_counter() - began))
            spent.sort()
            low, high = spent[len(spent) // 10], spent[-1 - len(spent) // 10]
            points.append(
                {"N": width, "past": past, "calls": len(spent)}
                | {"ms": statistics.median(spent), "low_ms": low, "high_ms": high}
            )
    figures: dict[str, Any] = {"points": points, "runs_on": f"torch {torch.__version__}, {device}"}
    if on_gpu:
        figures["device_mb"] = torch.cuda.max_memory_allocated() / MB
    return figures


def _torch_step(torch: Any, shape: Shape, device: str, dtype: Any) -> Callable[..., Any]:
    """Makes callables that run one step of N tokens after P rows and wait for it."""
    hidden, heads = shape["hidden_size"], shape["num_attention_heads"]
    kv_heads, inner = shape["num_key_value_heads"], shape["intermediate_size"]
    width = hidden // heads
    matrix = torch.nn.functional.linear

    def drawn(*size: int) -> Any:
        return torch.randn(*size, device=device, dtype=dtype) * 0.02

    layers = [
        (
            drawn(hidden + 2 * kv_heads * width, hidden),
            drawn(hidden, hidden),
            drawn(2 * inner, hidden),
            drawn(hidden, inner),
        )
        for _ in range(shape["num_hidden_layers"])
    ]
    head = drawn(shape["vocab_size"], hidden)

    def make(n: int, past: int) -> Callable[[], Any]:
        state = drawn(n, hidden)
        kv = [drawn(2, 1, heads, past + n, width) for _ in layers]

        @torch.inference_mode()
        def run() -> Any:
            x = state
            for (qkv, out, up, down), cache in zip(layers, kv, strict=True):
                q = matrix(x, qkv)[:, :hidden].view(1, n, heads, width).transpose(1, 2)
                mixed = torch.nn.functional.scaled_dot_product_attention(q, cache[0], cache[1])
                x = x + matrix(mixed.transpose(1, 2).reshape(n, hidden), out)
                gate, wide = matrix(x, up).chunk(2, dim=-1)
                x = x + matrix(torch.nn.functional.silu(gate) * wide, down)
            return matrix(x, head).argmax(dim=-1)

        run()
        if device == "cpu":
            return run
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()

        def replay() -> None:
            graph.replay()
            torch.cuda.synchronize()

        replay()
        return replay

    return make

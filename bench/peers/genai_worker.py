"""onnxruntime-genai behind the protocol of `process.py`; runs in an environment of its own.

python genai_worker.py '{"model": FOLDER, "threads": 2}'
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og


def load(given: dict[str, Any]) -> tuple[Any, int]:
    """The model and its context."""
    folder = Path(given["model"])
    stated = json.loads((folder / "genai_config.json").read_text())["model"]
    config = og.Config(str(folder))
    # Untold, it takes more threads than there are cores. It insists on an id that ends a request:
    # the last of the vocabulary is padding, or rare.
    session = {"intra_op_num_threads": given["threads"], "inter_op_num_threads": 1}
    model = {"eos_token_id": [stated["vocab_size"] - 1], "decoder": {"session_options": session}}
    config.overlay(json.dumps({"model": model}))
    return og.Model(config), stated["context_length"]


def generate(model: Any, ids: list[int], max_tokens: int) -> dict[str, Any]:
    """One greedy request; making its generator, which allocates the KV, is part of it."""
    started = time.perf_counter()
    params = og.GeneratorParams(model)
    params.set_search_options(
        do_sample=False, max_length=len(ids) + max_tokens, past_present_share_buffer=True
    )
    generator = og.Generator(model, params)
    generator.append_tokens(np.array([ids], dtype=np.int32))
    tokens = []
    first = started
    for _ in range(max_tokens):
        generator.generate_next_token()
        tokens.append(int(generator.get_next_tokens()[0]))
        if len(tokens) == 1:
            first = time.perf_counter()
    ended = time.perf_counter()
    return {
        "tokens": tokens,
        "ttft_ms": (first - started) * 1e3,
        "decode_ms": (ended - first) * 1e3,
    }


def main() -> None:
    given = json.loads(sys.argv[1])
    model, context = load(given)
    ready = f"onnxruntime-genai {og.__version__}, cpu, {given['threads']} threads"
    print(json.dumps({"ready": ready}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        ids, max_tokens = request["ids"], request["max_tokens"]
        if len(ids) + max_tokens > context:
            raise SystemExit(f"{len(ids)} + {max_tokens} tokens, the context is {context}")
        print(json.dumps(generate(model, ids, max_tokens)), flush=True)


if __name__ == "__main__":
    main()

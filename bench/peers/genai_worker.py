"""onnxruntime-genai behind the protocol of `process.py`; runs in an environment of its own.

    python genai_worker.py '{"model": FOLDER, "threads": 2, "context": 2048, "mode": "plain"}'

Mode "lookup" takes "k", mode "draft" takes "k" and "draft", another such folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og
from serving import Delivery, serve

NGRAM = 3  # tokens that must match


def stated(folder: str) -> dict[str, Any]:
    """What a folder says of its model."""
    text = (Path(folder) / "genai_config.json").read_text(encoding="utf-8")
    model: dict[str, Any] = json.loads(text)["model"]
    return model


def load_model(given: dict[str, Any]) -> Any:
    # Untold, a session takes another number of threads. It insists on an id that ends a request:
    # the last of the vocabulary is padding, or rare.
    session = {"intra_op_num_threads": given["threads"], "inter_op_num_threads": 1}
    target = stated(given["model"])
    model: dict[str, Any] = {
        "eos_token_id": [target["vocab_size"] - 1],
        "decoder": {"session_options": session},
    }
    if given["mode"] == "draft":
        draft = stated(given["draft"])["decoder"]
        file = Path(given["draft"]) / draft["filename"]
        # File names are taken from the target's folder.
        draft["filename"] = os.path.relpath(file, given["model"])
        model["draft"] = {**draft, "session_options": session}
    config = og.Config(given["model"])
    config.overlay(json.dumps({"model": model}))
    return og.Model(config)


def load(given: dict[str, Any]) -> tuple[str, Callable[[list[int], int], dict[str, Any]]]:
    model = load_model(given)
    speculative = {
        "plain": {},
        "lookup": {"ngram_size": NGRAM, "max_draft_tokens": given.get("k")},
        "draft": {"max_draft_tokens": given.get("k")},
    }[given["mode"]]

    def generate(ids: list[int], max_tokens: int) -> dict[str, Any]:
        """One greedy request; making its generator, which allocates the KV, is part of it."""
        delivery = Delivery()
        params = og.GeneratorParams(model)
        params.set_search_options(
            do_sample=False, max_length=len(ids) + max_tokens, past_present_share_buffer=True
        )
        if speculative:
            params.set_speculative_options(**speculative)
        generator = og.Generator(model, params)
        generator.append_tokens(np.array([ids], dtype=np.int32))
        waiting = 0
        while len(delivery.tokens) < max_tokens:
            generator.generate_next_token()
            delivery.push(generator.get_next_tokens())
            if speculative and len(delivery.tokens) == 1:
                # Tokens of the first round wait to be fetched one by one.
                waiting = generator.get_speculative_stats()["tokens_buffered"]
        if not speculative:
            return delivery.answer(speculative=False)
        stats = generator.get_speculative_stats()
        return delivery.answer(
            speculative=False,
            first_tokens=1 + waiting,
            rounds=stats["rounds"],
            acceptance_length=stats["mean_emitted_tokens_per_round"],
            acceptance_rate=stats["acceptance_rate"] if stats["draft_tokens_proposed"] else None,
        )

    ready = f"onnxruntime-genai {og.__version__}, cpu, {given['threads']} threads, "
    ready += Path(given["model"]).name
    if given["mode"] == "draft":
        ready += f", draft {Path(given['draft']).name}"
    return ready, generate


if __name__ == "__main__":
    serve(load)

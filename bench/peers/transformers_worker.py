"""transformers behind the protocol of `process.py`; runs in an environment of its own.

    python transformers_worker.py '{"model": FOLDER, "threads": 2, "context": 2048,
                                    "mode": "plain"}'

Mode "lookup" takes "k", mode "draft" takes "k" and "draft", another such folder: assisted
generation. Weights are run in bfloat16, whatever the folder holds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from serving import Delivery, serve
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer


class Streamer(BaseStreamer):  # type: ignore[misc]
    """Hands on every round's tokens as they come, and leaves out the prompt, which comes first."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._prompt = True

    def put(self, value: Any) -> None:
        if not self._prompt:
            self._delivery.push(value.reshape(-1).tolist())
        self._prompt = False

    def end(self) -> None:
        pass


def load_model(folder: str) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.eval()
    model.generation_config.eos_token_id = None  # an end-of-sequence token ends nothing
    return model


def load(given: dict[str, Any]) -> tuple[str, Callable[[list[int], int], dict[str, Any]]]:
    torch.set_num_threads(given["threads"])
    transformers.utils.logging.disable_progress_bar()
    mode = given["mode"]
    model = load_model(given["model"])
    drafting: dict[str, Any] = {}
    if mode == "lookup":
        drafting["prompt_lookup_num_tokens"] = given["k"]
    if mode == "draft":
        draft = load_model(given["draft"])
        draft.generation_config.num_assistant_tokens = given["k"]
        drafting["assistant_model"] = draft

    def generate(ids: list[int], max_tokens: int) -> dict[str, Any]:
        delivery = Delivery()
        prompt = torch.tensor([ids])
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_tokens,
            do_sample=False,
            pad_token_id=0,
            streamer=Streamer(delivery),
            **drafting,
        )
        return delivery.answer(speculative=mode != "plain")

    ready = f"transformers {transformers.__version__}, torch {torch.__version__}, bfloat16, cpu, "
    ready += f"{torch.get_num_threads()} threads, {Path(given['model']).name}"
    if mode == "draft":
        ready += f", draft {Path(given['draft']).name}"
    return ready, generate


if __name__ == "__main__":
    serve(load)

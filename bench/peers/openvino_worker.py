"""OpenVINO GenAI behind the protocol of `process.py`; runs in an environment of its own.

    python openvino_worker.py '{"model": GGUF_OR_FOLDER, "threads": 2, "context": 2048,
                                "mode": "plain"}'

Mode "lookup" takes "k", mode "draft" takes "k" and "draft", a folder with openvino_model.xml.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as ovg
from serving import Delivery, serve

NGRAM = 3  # tokens that must match, at most


class Streamer(ovg.StreamerBase):  # type: ignore[misc]
    """Hands on every round's tokens as they come."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__()
        self._delivery = delivery

    def write(self, token: int | list[int]) -> Any:
        self._delivery.push(token if isinstance(token, list) else [token])
        return ovg.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


def load_pipeline(given: dict[str, Any]) -> Any:
    threads = {"INFERENCE_NUM_THREADS": given["threads"]}
    # As its own latency-oriented default has it, a prompt in one piece; but no prefix kept between
    # requests.
    scheduler = ovg.SchedulerConfig()
    scheduler.max_num_batched_tokens = given["context"]
    scheduler.enable_prefix_caching = False
    drafting: dict[str, Any] = {}
    if given["mode"] == "lookup":
        drafting["prompt_lookup"] = True
    if given["mode"] == "draft":
        drafting["draft_model"] = ovg.draft_model(given["draft"], "CPU", **threads)
    return ovg.LLMPipeline(given["model"], "CPU", scheduler_config=scheduler, **threads, **drafting)


def load(given: dict[str, Any]) -> tuple[str, Callable[[list[int], int], dict[str, Any]]]:
    pipeline = load_pipeline(given)
    mode = given["mode"]
    config = ovg.GenerationConfig()
    config.do_sample = False
    config.ignore_eos = True
    config.apply_chat_template = False
    if mode != "plain":
        config.num_assistant_tokens = given["k"]
    if mode == "lookup":
        config.max_ngram_size = NGRAM

    def generate(ids: list[int], max_tokens: int) -> dict[str, Any]:
        delivery = Delivery()
        config.max_new_tokens = max_tokens
        prompt = np.array([ids], dtype=np.int64)
        inputs = ovg.TokenizedInputs(ov.Tensor(prompt), ov.Tensor(np.ones_like(prompt)))
        result = pipeline.generate(inputs, config, Streamer(delivery))
        answer = delivery.answer(speculative=mode != "plain")
        assert answer["tokens"] == list(result.tokens[0]), "the streamer heard other tokens"
        metrics = result.extended_perf_metrics
        if mode == "draft" and metrics is not None:
            drafted = metrics.get_num_draft_tokens()
            answer["acceptance_rate"] = metrics.get_num_accepted_tokens() / max(drafted, 1)
        return answer

    ready = f"OpenVINO GenAI {ovg.__version__}, cpu, {given['threads']} threads, "
    ready += Path(given["model"]).name
    if mode == "draft":
        ready += f", draft {Path(given['draft']).name}"
    return ready, generate


if __name__ == "__main__":
    serve(load)

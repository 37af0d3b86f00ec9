"""specedge behind the protocol of `process.py`; its Python environment needs specedge[cpu].

    python specedge_worker.py '{"bundle": FOLDER, "threads": 2, "context": 2048, "k": 0,
                                "exact": true}'

`k` is the draft length of n-gram lookup, or of `"proposer": "draft"`; 0 decodes plainly. It
alone also answers {"encode": TEXT, "chat": BOOL} and {"decode": IDS}, so that all engines get the
same ids.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import specedge


def load(given: dict[str, Any]) -> Any:
    k = given["k"]
    return specedge.load(
        given["bundle"],
        engine="cpu",
        threads=given["threads"],
        speculation="on" if k else "off",
        draft_length=k,
        proposers=[given.get("proposer", "ngram")],
        context=given["context"],
        exact=given["exact"],
        verify=False,
    )


def generate(model: Any, ids: list[int], max_tokens: int) -> dict[str, Any]:
    """One greedy request from an empty KV."""
    # Target and draft keep rows of the prefix shared with the request before: make that prefix
    # empty. A draft runs from the second token on, if there is room for a third.
    model.generate(
        [(ids[0] + 1) % model.bundle.manifest.target.vocab], max_tokens=3, ignore_eos=True
    )
    started = time.perf_counter()
    result = None
    for event in model.stream(ids, max_tokens=max_tokens, ignore_eos=True):
        result = event.result or result
    wall_ms = (time.perf_counter() - started) * 1e3
    assert result is not None, "a request ended without a result"
    metrics = result.metrics
    assert metrics.prefill_tokens == len(ids), "part of the prompt was still cached"
    return {
        "tokens": result.tokens,
        "ttft_ms": metrics.ttft_ms,
        # by this clock, not the metrics' own: what follows the last token is paid as well
        "decode_ms": wall_ms - metrics.ttft_ms,
        "engine_ms": metrics.engine_ms,
        "rounds": metrics.rounds,
        "acceptance_length": metrics.acceptance_length,
        "acceptance_rate": metrics.acceptance_rate,
    }


def answer(model: Any, request: dict[str, Any]) -> dict[str, Any]:
    if "encode" in request:
        text = request["encode"]
        prompt = [{"role": "user", "content": text}] if request["chat"] else text
        return {"ids": model.encode(prompt)[0].tolist()}
    if "decode" in request:
        return {"text": model.tokenizer.decode(request["decode"])}
    return generate(model, request["ids"], request["max_tokens"])


def main() -> None:
    with load(json.loads(sys.argv[1])) as model:
        print(json.dumps({"ready": f"specedge {specedge.__version__}, {model.engine}"}), flush=True)
        for line in sys.stdin:
            print(json.dumps(answer(model, json.loads(line))), flush=True)


if __name__ == "__main__":
    try:
        main()
    except specedge.SpecedgeError as error:
        sys.exit(str(error))

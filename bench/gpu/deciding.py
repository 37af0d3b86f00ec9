"""Acceptance where the logits are, against the same rounds decided on the host.

The host's way includes fetching K + 1 rows of the vocabulary, which is what the `accept` graph
saves. Rounds are drawn: logits, a draft that agrees now and then, laws that it came from or none.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from gpu.running import Emit, Json, line

K = 4
TEMPERATURE = 0.8
STRAY = 100  # of so many rounds one may differ: a draw that lies where float32 rounds
PROVIDERS = {"cuda": ("CUDAExecutionProvider", "cuda"), "cpu": ("CPUExecutionProvider", "cpu")}


def accept(request: Json, emit: Emit) -> None:
    """Verdicts and microseconds of both ways, for lookups and for drafts with laws of their own."""
    from specedge.engines.ort import libraries
    from specedge.engines.ort.accepting import Accepting
    from specedge.errors import SpecedgeError
    from specedge.export import acceptance_graph

    provider, kind = PROVIDERS[request["engine"]]
    if kind == "cuda":
        libraries.prepare("cuda")
    for vocab in request["vocabularies"]:
        folder = Path(request["work"]) / f"accept-{vocab}"
        model = folder / acceptance_graph.write(folder, vocab)
        try:
            accepting = Accepting(model, provider=provider, kind=kind)
        except SpecedgeError as error:
            emit(case=f"V={vocab}", status="refused", reason=line(error))
            continue
        for lookup in (True, False):
            figures = compare(accepting, kind, vocab, lookup=lookup, rounds=request["rounds"])
            right = figures["other_verdicts"] <= 1 + figures["rounds"] // STRAY
            emit(
                case=f"V={vocab}, {'lookup' if lookup else 'draft'} K={K}",
                status="passed" if right else "failed",
                reason="" if right else "the device decides otherwise than the host",
                figures=figures,
            )


def compare(accepting: Any, kind: str, vocab: int, *, lookup: bool, rounds: int) -> Json:
    """Both ways on the same rounds, one after the other."""
    import numpy as np
    import onnxruntime as ort

    from specedge.acceptance import RoundDraws, rejection
    from specedge.acceptance.device import Question
    from specedge.randomness import Randomness
    from specedge.sampling.law import Law

    rng, scale = np.random.default_rng(vocab), 1 / TEMPERATURE
    other, device_us, host_us = 0, [], []
    for number in range(rounds + 1):
        rows = 3 * rng.standard_normal((K + 1, vocab), np.float32)
        near = rows[:K] + rng.standard_normal((K, vocab), np.float32) / 2
        q = tuple(Law(None, row, scale) for row in near)
        draft = np.array([law.sample(rng.random()) for law in q], np.int64)
        draws = RoundDraws(Randomness(number), 7)
        value = ort.OrtValue.ortvalue_from_numpy(rows, kind, 0)

        began = time.perf_counter()
        question = Question(scale, draft, None if lookup else q, draws)
        found = accepting.decider(value)(question)
        middle = time.perf_counter()
        p = tuple(Law(None, row, scale) for row in value.numpy())
        laws = tuple(map(Law.certain, draft.tolist())) if lookup else q
        expected = rejection(draft, p, laws, draws)
        ended = time.perf_counter()

        if number:  # the first binds, and on a GPU loads kernels
            other += found != expected
            device_us.append(1e6 * (middle - began))
            host_us.append(1e6 * (ended - middle))
    return {
        "rounds": rounds,
        "other_verdicts": other,
        "device_us": statistics.median(device_us),
        "host_us": statistics.median(host_us),
    }

"""Benchmarks as they could have been: a serial engine's queue, simulated with seeded noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specedge.loadtest.keeping import Kept
from specedge.loadtest.records import Header, Load, RequestRecord, RoundRecord
from specedge.probe.fingerprint import Fingerprint

CLASSES = ("chat", "code writing", "code editing", "summarising", "structured output")
WAYS = {"plain": 1.0, "auto": 1.45, "draft K=3": 1.3, "ngram K=7": 0.9}
DRAFTED = {"plain": 0, "auto": 5, "draft K=3": 3, "ngram K=7": 7}  # tokens a round
ONE = Load(kind="closed", concurrency=1)
FOUR = Load(kind="closed", concurrency=4)
PLAIN_MS = 8.0


def header(**changed: Any) -> Header:
    known: dict[str, Any] = {
        "created": "2026-11-30T09:12:44+00:00",
        "bundle": "smollm2",
        "bundle_hash": "5f1d0c9be7a24b86" * 4,
        "command": "specedge bench bundles/smollm2 --concurrency 1,4",
        "versions": {"specedge": "0.1.0", "python": "3.11.14", "onnxruntime": "1.32.0"},
        "fingerprint": fingerprint(),
        "ways": list(WAYS),
        "loads": [ONE],
        "repeats": 3,
        "warmup": 2,
        "max_tokens": 64,
        "peak_rss_bytes": {"plain": 612_000_000, "auto": 655_000_000},
    }
    return Header(**(known | changed))


def fingerprint(**changed: Any) -> Fingerprint:
    known: Fingerprint = {
        "bundle": "5f1d0c9be7a24b86" * 4,
        "specedge": "0.1.0",
        "engine": "onnxruntime 1.32.0",
        "threads": 2,
        "exact": True,
        "processor": "a processor of two cores",
    }
    return known | changed


def kept(
    *,
    seed: int = 0,
    per_class: int = 4,
    classes: Sequence[str] = CLASSES,
    loads: Sequence[Load] = (ONE,),
    ways: Mapping[str, float] = WAYS,
    repeats: int = 3,
    slower: float = 1.0,
    noise: float = 0.02,
    drift: float = 0.0,
    **changed: Any,
) -> Kept:
    """A whole benchmark.

    Args:
        seed: of the noise; prompts, their lengths and their drafts are the same for every seed.
        per_class: prompts.
        classes, loads: see `Header`.
        ways: speed of each while decoding, over plain.
        repeats: of everything.
        slower: factor on every time.
        noise: standard deviation of a request's log time.
        drift: the same of a whole repetition's.
        changed: of the header.
    """
    rng = np.random.default_rng([7, seed])
    head = header(ways=list(ways), loads=list(loads), repeats=repeats, **changed)
    requests: list[RequestRecord] = []
    rounds: list[RoundRecord] = []
    for load, arriving in enumerate(loads):
        for repeat in range(repeats):
            shift = rng.normal(0, drift)
            for way, speed in ways.items():
                served = _pass(rng, head, load, repeat, way, speed, per_class, classes)
                factors = slower * np.exp(rng.normal(shift, noise, len(served)))
                requests += _queued(arriving, served, factors)
                rounds += [each for request in served for each in _rounds(request)]
    return Kept(head, tuple(requests), tuple(rounds))


def _pass(
    rng: np.random.Generator,
    head: Header,
    load: int,
    repeat: int,
    way: str,
    speed: float,
    per_class: int,
    classes: Sequence[str],
) -> list[RequestRecord]:
    """Requests as if each were alone: arrival 0, its end the time it takes."""
    known = np.random.default_rng(11)
    found = []
    for number in range(per_class * len(classes)):
        tokens = int(known.integers(24, head.max_tokens + 1))
        prompt_tokens = int(known.integers(40, 400))
        kind = float(np.exp(known.normal(0, 0.15)))  # prompts differ, equally for every way
        luck = float(np.exp(known.normal(0, 0.1)))  # of the drafts
        gain = speed if way == "plain" else speed * luck
        prefill = prompt_tokens * 0.9e-3
        decode = (tokens - 1) * PLAIN_MS * kind * 1e-3 / gain
        k = DRAFTED.get(way, 3)
        count = max(1, round((tokens - 1) / (1 if k == 0 else 2.2)))
        stood = [round(count * 0.8 ** (place + 10 / (k + 7))) for place in range(k)]
        found.append(
            RequestRecord(
                way=way,
                load=load,
                repeat=repeat,
                number=number,
                prompt=f"{classes[number // per_class]} {number % per_class + 1}",
                workload=classes[number // per_class],
                arrived_s=0,
                began_s=0,
                first_s=prefill,
                ended_s=prefill + decode,
                prompt_tokens=prompt_tokens,
                tokens=tokens,
                output=f"{number:016x}",
                prefill_ms=prefill * 1e3,
                rounds=count,
                propose_ms=0.1 * decode * 1e3 if k else 0,
                verify_ms=0.85 * decode * 1e3,
                accept_ms=0.03 * decode * 1e3,
                other_ms=0.02 * decode * 1e3,
                proposed_by_position=[count] * k,
                accepted_by_position=stood,
                on=k > 0,
                reason="fixed" if k else "plain",
            )
        )
    return found


def _queued(load: Load, served: list[RequestRecord], factors: Any) -> list[RequestRecord]:
    """The same on one serial engine: each begins when it has arrived and the last has ended."""
    clients = [0.0] * (load.concurrency or 1)  # when each asks next
    free = 0.0
    found = []
    for place, (each, factor) in enumerate(zip(served, factors, strict=True)):
        assert each.first_s is not None
        if load.kind == "closed":
            arrived = clients[place % len(clients)]
        else:
            arrived = place / (load.rate or 1.0)
        began = max(arrived, free)
        free = began + each.ended_s * float(factor)
        clients[place % len(clients)] = free
        found.append(
            each.model_copy(
                update={
                    "arrived_s": arrived,
                    "began_s": began,
                    "first_s": began + each.first_s * float(factor),
                    "ended_s": free,
                }
            )
        )
    return found


def _rounds(request: RequestRecord) -> list[RoundRecord]:
    """Tokens after the first, spread over the request's rounds."""
    left = request.tokens - 1
    found = []
    for number in range(request.rounds):
        share = round(left / (request.rounds - number))
        left -= share
        found.append(
            RoundRecord(
                way=request.way,
                load=request.load,
                repeat=request.repeat,
                number=request.number,
                round=number + 1,
                past=request.prompt_tokens,
                proposer="draft" if request.on else None,
                drafted=len(request.proposed_by_position),
                accepted=min(max(share - 1, 0), len(request.proposed_by_position)),
                committed=share,
                ms=8,
                draft_ms=0.8,
            )
        )
    return found


def replaced(kept_: Kept, change: Any) -> Kept:
    """Every request through `change`, which gives a record, or None to leave it out."""
    made = [change(each) for each in kept_.requests]
    return Kept(kept_.header, tuple(each for each in made if each is not None), kept_.rounds)

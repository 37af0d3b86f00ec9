"""From an answered request to its records."""

from __future__ import annotations

import hashlib

import numpy as np

from specedge.loadtest.records import RequestRecord, RoundRecord
from specedge.loadtest.serving import Served
from specedge.result import Result

Recorded = tuple[RequestRecord, list[RoundRecord]]


def recorded(served: Served, way: str, load: int, repeat: int) -> Recorded:
    """The record of a request, and those of its rounds.

    Args:
        served: with `explain` among its options, for the rounds.
        way, load, repeat: see `RequestRecord`.
    """
    result = served.result
    whose = {"way": way, "load": load, "repeat": repeat, "number": served.number}
    request = RequestRecord(
        **whose,
        prompt=served.job.asked.name,
        workload=served.job.asked.workload,
        arrived_s=served.arrived_s,
        began_s=served.began_s,
        first_s=served.first_s,
        ended_s=served.ended_s,
        failure=served.failure,
        prompt_tokens=0 if result is None else result.prompt_tokens,
        tokens=0 if result is None else len(result.tokens),
        output=output_hash([] if result is None else result.tokens),
        **({} if result is None else _measured(result)),
    )
    rounds = [
        RoundRecord(
            **whose,
            round=one.number,
            past=one.past,
            proposer=one.proposer,
            drafted=one.drafted,
            accepted=one.accepted,
            committed=one.committed,
            ms=one.ms,
            draft_ms=one.draft_ms,
        )
        for one in (result.rounds if result is not None else None) or ()
    ]
    return request, rounds


def _measured(result: Result) -> dict[str, object]:
    metrics = result.metrics
    return {
        "prefill_ms": metrics.prefill_ms,
        "rounds": metrics.rounds,
        "propose_ms": metrics.propose_ms,
        "verify_ms": metrics.verify_ms,
        "accept_ms": metrics.accept_ms,
        "other_ms": metrics.other_ms,
        "proposed_by_position": metrics.proposed_by_position,
        "accepted_by_position": metrics.accepted_by_position,
        "on": result.speculation.on,
        "reason": result.speculation.reason,
    }


def output_hash(tokens: list[int]) -> str:
    """16 hexadecimal digits of the sha256 of ids as int64, little-endian."""
    return hashlib.sha256(np.asarray(tokens, "<i8").tobytes()).hexdigest()[:16]

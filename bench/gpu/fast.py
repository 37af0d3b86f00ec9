"""How fast it is: cost curves, plain against speculative, and torch beside them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from gpu import shape
from gpu.box import device_mb
from gpu.cases import cases, desk, noted, opened, prompts, variants
from gpu.running import Emit, Json


def curves(request: Json, emit: Emit) -> None:
    """T(N): milliseconds of a call of N = 1..16 after several pasts; medians, 10 to 90 %."""
    from specedge.probe.measuring import measure

    for case in cases(request, emit):
        ways = variants(case, request["engine"])
        for name, options in ways:
            with opened(request, case, emit, options, name) as engine:
                if engine is None:
                    continue
                costs = measure(engine, budget_s=request["seconds"] / len(ways))
                points = [
                    {"N": p.width, "past": p.past, "calls": p.count, "ms": p.ms}
                    | {"low_ms": p.low_ms, "high_ms": p.high_ms}
                    for p in costs.target.points
                ]
                figures = {"points": points, "passes": costs.passes, "runs_on": engine.description}
                figures |= noted(engine) | {"device_mb": device_mb()}
                emit(case=name, status="measured", figures=figures)


def speed(request: Json, emit: Emit) -> None:
    """Plain, lookup and draft in turn: ratios of neighbours, and what a round costs beside its
    engine calls."""
    for case in cases(request, emit):
        with desk(request, case, emit) as opened_desk:
            if opened_desk is None:
                continue
            runs = _in_turn(opened_desk, request)
            plain = [run.tokens_per_second for run in next(iter(runs.values()))]
            for name, metrics in runs.items():
                emit(case=case.name, status="measured", figures=_speeds(name, metrics, plain))


def _in_turn(opened_desk: Any, request: Json) -> dict[str, list[Any]]:
    """Metrics of every way, plain first, from empty KV each time."""
    from specedge.desk import PLAIN, Way

    options = {"temperature": 0.0, "max_tokens": request["tokens"], "ignore_eos": True}
    names = opened_desk.proposers
    ways = [PLAIN, *(Way("on", (name,), k) for name in names for k in request["ks"])]
    runs: dict[str, list[Any]] = {way.name: [] for way in ways}
    prompt = prompts(request)["code edit"]
    for repeat in range(request["repeats"] + 1):
        for way in ways:
            opened_desk.forget()
            result = opened_desk.ask(way, prompt, **options)
            if repeat:  # the first makes bindings and graphs
                runs[way.name].append(result.metrics)
    return runs


def _speeds(name: str, metrics: Sequence[Any], plain: Sequence[float]) -> Json:
    """Of one way; ratios are to the plain run of the same turn."""
    ratios = [m.tokens_per_second / p for m, p in zip(metrics, plain, strict=True)]
    outside_us = [1e3 * _outside_ms(m) / m.rounds for m in metrics]
    return {
        "way": name,
        "tokens_per_second": statistics.median(m.tokens_per_second for m in metrics),
        "ratio": statistics.median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "acceptance_length": metrics[0].acceptance_length,
        "outside_us": statistics.median(outside_us),
        "runs": len(metrics),
    }


def _outside_ms(m: Any) -> float:
    """Of a request's rounds, what is not inside the runtimes' own calls."""
    return float(m.propose_ms + m.verify_ms + m.accept_ms + m.other_ms - m.engine_ms)


def torch_baseline(request: Json, emit: Emit) -> None:
    """See `gpu.shape`."""
    figures = shape.torch_baseline(
        request["shape"],
        on_gpu=request["provider"] == "gpu",
        pasts=tuple(request["pasts"]),
        samples=request["samples"],
    )
    emit(
        case="torch alone, 1.5B's shape" if request["shape"] == shape.SHAPE else "torch alone",
        status="measured",
        figures=figures,
    )

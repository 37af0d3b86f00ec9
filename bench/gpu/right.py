"""Is it right: logits against the CPU's, and greedy text with speculation and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu.box import device_mb
from gpu.cases import Case, cases, desk, folder, noted, opened, prompts, variants
from gpu.running import Emit, Json

BOUNDS = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 1e-1, "int4": 3e-2}
INT8 = 1e-1  # int4 weights in int8 arithmetic, which is what ONNX Runtime does on the CPU
"""Most that a row of logits may differ: root mean square of the difference, over the standard
deviation of the row it is held against. int4 is held against float32 arithmetic over the same
rounded weights."""

AGAIN = ((1, 1), (5, 5)) * 3
"""Through a binding that is there: a captured CUDA graph is replayed, with other tokens at another
place."""

CALLS = ((1, 1), (2, 2), (5, 5), (16, 16), (3, 3), *AGAIN)  # (S, M) in turn, behind a prefill
PREFILL = 100
FLOAT_ARITHMETIC = {"session.qdq_matmulnbits_accuracy_level": "0"}
BACK = 7  # rows that are rolled back before the last call


def reference(request: Json, emit: Emit) -> None:
    """The CPU's logits of one text, kept for `logits`."""
    import numpy as np

    for case in cases(request, emit):
        with opened(request | {"engine": "cpu"}, case, emit, FLOAT_ARITHMETIC) as engine:
            if engine is None:
                continue
            tokens = _tokens(request, case)
            rows, _ = score(engine, tokens)
            np.savez(_kept(request, case.name), tokens=tokens, logits=rows)
            emit(case=case.name, status="measured", figures={"rows": len(rows)})


def logits(request: Json, emit: Emit) -> None:
    """Every case against the CPU's logits of the same weights."""
    import numpy as np

    for case in cases(request, emit):
        if not _kept(request, case.reference).exists():
            emit(case=case.name, status="skipped", reason=f"the CPU did not run {case.reference}")
            continue
        kept = np.load(_kept(request, case.reference))
        for name, options in variants(case, request["engine"]):
            with opened(request, case, emit, options, name) as engine:
                if engine is None:
                    continue
                found, greedy_ids = score(engine, kept["tokens"])
                if request["plant"]:
                    found = plant(found, request["plant"])
                figures = compare(found, greedy_ids, kept["logits"])
                figures |= {"bound": bound(case, request["engine"]), "runs_on": engine.description}
                figures |= noted(engine) | {"device_mb": device_mb()}
                error, wrong_ids = figures["error"], figures["wrong_ids"]
                reason = ""
                if error is None or error > figures["bound"]:
                    reason = "the logits are not those of the CPU"
                elif wrong_ids:
                    reason = f"{wrong_ids} greedy ids are not the argmax of their row"
                status = "failed" if reason else "passed"
                emit(case=name, status=status, reason=reason, figures=figures)


def _kept(request: Json, name: str) -> Path:
    return Path(request["work"]) / f"{name}.npz"


def bound(case: Case, engine: str) -> float:
    """Of the error of a row."""
    return INT8 if case.precision == "int4" and engine == "cpu" else BOUNDS[case.precision]


def score(engine: Any, tokens: Any) -> tuple[Any, Any]:
    """Prefill, calls of several widths, some again, and one more after a rollback.

    Returns:
        logits float32 [R, V] of every scored row, and the greedy ids [R].
    """
    import numpy as np

    from specedge.engines.base import prefill

    rows, ids = [], []

    def keep(scored: Any) -> None:
        ids.append(scored.greedy_ids.copy())
        rows.append(scored.logits.copy())

    slot = engine.new_slot()
    try:
        n_cached = min(PREFILL, slot.context // 2)
        keep(prefill(engine, slot, tokens[:n_cached], 0))
        for width, scored_rows in CALLS:
            keep(engine.forward(slot, tokens[n_cached : n_cached + width], n_cached, scored_rows))
            n_cached += width
        n_cached -= BACK
        keep(engine.forward(slot, tokens[::-1][:4].copy(), n_cached, 4))
    finally:
        engine.release(slot)
    return np.concatenate(rows), np.concatenate(ids)


def _tokens(request: Json, case: Case) -> Any:
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(folder(request, case)) / "tokenizer.json"))
    ids = tokenizer.encode(" ".join(prompts(request).values())).ids
    need = PREFILL + sum(width for width, _ in CALLS)
    return np.array((ids * (need // len(ids) + 1))[:need], np.int64)


def compare(found: Any, greedy_ids: Any, expected: Any) -> Json:
    """How far logits [R, V] are from those expected; error is None where they are no numbers."""
    import numpy as np

    if found.shape != expected.shape or not np.isfinite(found).all():
        return {"error": None, "wrong_ids": 0, "same_argmax": 0.0}
    difference = np.sqrt(np.mean((found - expected) ** 2, axis=1))
    own = found.argmax(axis=1)
    return {
        "error": float((difference / expected.std(axis=1)).max()),
        "wrong_ids": int((found[np.arange(len(found)), greedy_ids] < found.max(axis=1)).sum()),
        "same_argmax": float((own == expected.argmax(axis=1)).mean()),
    }


def plant(found: Any, size: float) -> Any:
    """The same logits with an error in one row, of `size` standard deviations."""
    damaged = found.copy()
    damaged[-1] += size * damaged[-1].std() * (-1.0) ** (1 + (damaged[-1] > damaged[-1].mean()))
    return damaged


def greedy(request: Json, emit: Emit) -> None:
    """The gate of `specedge verify` on every case: same text, drafted or not."""
    from specedge.gates import equality
    from specedge.gates.prompts import Asked

    asked = [Asked(name, name, text) for name, text in prompts(request).items()]
    for case in cases(request, emit):
        with desk(request, case, emit) as opened_desk:
            if opened_desk is None:
                continue
            gate = equality.check(
                opened_desk,
                asked,
                report=lambda name, share: None,
                max_tokens=request["tokens"],
                ks=request["ks"],
            )
            keys = ("runs", "equal", "tokens", "proposed", "accepted", "differences", "outside")
            figures = {key: gate.figures.get(key) for key in keys}
            figures |= noted(opened_desk.model.target)
            reason = "" if gate.outcome == "passed" else gate.said
            emit(case=case.name, status=gate.outcome, reason=reason, figures=figures)

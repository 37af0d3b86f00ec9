"""Verifications as gates would make them, for what shows them."""

from __future__ import annotations

from specedge.gates.findings import Case, Gate, Verified

HOSTILE = "a\0b\x1b[31m \ud800 </td><script>alert('1')</script> ]]> &amp; \uffff é漢\n\tend"


def greedy(*, failed: bool = False) -> Gate:
    """Equal on two ways, or parted on one."""
    cases = [
        Case(
            "ngram K=3",
            "passed",
            "equal on 20 of 20 prompts",
            4.25,
            {"prompts": 20, "equal": 20, "acceptance_rate": 0.6125},
        ),
        Case("draft K=7", "passed", "equal on 20 of 20 prompts", 6.5, {"prompts": 20, "equal": 20}),
    ]
    said = "equal on 40 of 40 prompts"
    if failed:
        parted = "chat 3: token 17: expected 402, found 11; margin 0.031, beyond the noise of 0"
        figures = {
            "prompts": 20,
            "equal": 19,
            "parted": [{"prompt": "chat 3", "position": 17, "tokens": [402, 11], "margin": 0.031}],
        }
        cases[1] = Case("draft K=7", "failed", parted, 6.5, figures)
        said = "1 of 40 texts differs beyond the width noise of this engine"
    notes = ("Prompts: 20, 4 of each class.",)
    return Gate("greedy", "Greedy equality", said, cases, 11.0, {"texts": 40}, notes)


def limits() -> Gate:
    """One case skipped, samples of memory."""
    samples = [[n, 300_000_000 + (n // 400) * 65_536] for n in range(200, 1001, 50)]
    cases = [
        Case("context filled to the last slot", "passed", "33 tokens fill T = 1024", 7.7),
        Case("draft with a shorter context", "skipped", "there is no draft model"),
        Case(
            "short requests without growth",
            "passed",
            "1,000 requests: RSS start 300.1 MB, end 300.2 MB",
            22.9,
            {"rss_bytes_by_request": samples, "rss_end_bytes": 300_131_072},
        ),
    ]
    return Gate("limits", "Limits", "2 limits hold in 5 ways, T = 1024", cases, 31.0)


def hostile() -> Gate:
    """What a model may have said, everywhere."""
    figures = {HOSTILE: HOSTILE, "texts": [HOSTILE, HOSTILE]}
    cases = [
        Case(f"{outcome} {HOSTILE}", outcome, HOSTILE, 0.1, figures)
        for outcome in ("failed", "skipped", "passed")
    ]
    return Gate("quality", HOSTILE, HOSTILE, cases, 0.3, figures, (HOSTILE,))


def verified(*gates: Gate, **changed: object) -> Verified:
    """Over these gates; none given: two that pass."""
    given: dict[str, object] = {
        "bundle": "smollm2",
        "created": "2026-11-30T12:48:12+00:00",
        "command": "specedge verify bundles/smollm2 --html page.html",
        "versions": {"specedge": "0.1.0", "python": "3.11.9", "onnxruntime": "1.32.0"},
        "fingerprint": {
            "bundle": "5f" * 32,
            "engine": "ONNX Runtime 1.32.0",
            "threads": 2,
            "exact": True,
            "governor": None,
        },
        "gates": gates or (greedy(), limits()),
    }
    return Verified(**(given | changed))  # type: ignore[arg-type]

"""Numbers out of the raw runs of bench/speed.py.

A record is one run: prompt, engine, group, repeat, tokens, ttft_ms, decode_ms and what its worker
adds. Engines of a group were loaded together and ran in turn, plain decoding always among them.
Ratios to plain are taken within a group's repeat, between runs a few seconds apart, and then
summarised: a machine that slows down over minutes cancels out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
LOOP = 0.35  # a text with fewer new 4-grams than this says the same over and over
EDITED = 0.5  # an edit has more of its lines from the prompt than this


def tokens_per_second(record: Record) -> float:
    """After the first delivery: 1 / TPOT."""
    rest = len(record["tokens"]) - record.get("first_tokens", 1)
    return float(rest * 1e3 / record["decode_ms"])


def spread(values: Iterable[float], digits: int = 1) -> str:
    """Median and range."""
    known = sorted(values)
    if not known:
        return ""
    low, middle, high = known[0], statistics.median(known), known[-1]
    return f"{middle:.{digits}f} ({low:.{digits}f}..{high:.{digits}f})"


def agreement(ours: list[int], theirs: list[int]) -> int:
    """Tokens that both have before they part."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))


def distinct(tokens: list[int]) -> float:
    """Share of its runs of four tokens that are new: near 0 is a loop, near 1 is prose."""
    grams = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
    return len(set(grams)) / len(grams) if grams else 1.0


def copied(text: str, prompt: str) -> float:
    """Share of its whole lines, empty ones left out, that stand in the prompt."""
    known = set(prompt.splitlines())
    lines = [line for line in text.splitlines()[:-1] if line.strip()]
    return sum(line in known for line in lines) / len(lines) if lines else 0.0


def by_engine(result: Record, prompt: str) -> dict[str, list[Record]]:
    """Runs of one prompt, by engine in the order of the plan, in the order they ran in."""
    runs: dict[str, list[Record]] = {engine["name"]: [] for engine in result["engines"]}
    for run in result["runs"]:
        if run["prompt"] == prompt:
            runs[run["engine"]].append(run)
    return runs


def over_plain(result: Record, runs: dict[str, list[Record]], name: str) -> list[float]:
    """An engine's tokens per second over plain decoding's of the same group and repeat."""
    plain = {(run["group"], run["repeat"]): run for run in runs[result["baseline"]]}
    return [
        tokens_per_second(run) / tokens_per_second(plain[run["group"], run["repeat"]])
        for run in runs[name]
    ]


def sense(result: Record, prompt: str, name: str, tokens: list[int]) -> str:
    """ "ok", or what is wrong with an engine's text as an answer to the prompt."""
    if distinct(tokens) < LOOP:
        return "loops"
    asked = result["prompts"][prompt]
    said = result["texts"][prompt][name]
    if asked["edit"] and copied(said, asked["text"]) < EDITED:
        return "no edit"
    return "ok"


@dataclass(frozen=True)
class Best:
    """The fastest engine of a sort on one prompt; `ratio` is its median over plain decoding."""

    name: str
    ratio: float


def best(result: Record, prompt: str, *, own: bool, speculative: bool) -> Best | None:
    """Among engines of that sort; speculative ones only if their text makes sense."""
    runs = by_engine(result, prompt)
    found = [
        Best(name, statistics.median(over_plain(result, runs, name)))
        for engine in result["engines"]
        if engine["own"] == own
        and (engine["mode"] != "plain") == speculative
        and runs[name := engine["name"]]
        and (not speculative or sense(result, prompt, name, runs[name][0]["tokens"]) == "ok")
    ]
    return max(found, key=lambda each: each.ratio, default=None)

"""Raw runs of bench/speed.py as tables.

A record is one run: prompt, engine, repeat, tokens, ttft_ms, decode_ms and what its worker adds.
Ratios are taken within a repeat, between runs a few seconds apart, and then summarised: a machine
that slows down over minutes cancels out.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

Record = dict[str, Any]
NOISY = 0.03  # share of the machine that others may use before the report says so


def tokens_per_second(record: Record) -> float:
    """After the first token: 1 / TPOT."""
    return float((len(record["tokens"]) - 1) * 1e3 / record["decode_ms"])


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
    """Runs of one prompt, by engine in the order of the plan, repeats in order."""
    runs: dict[str, list[Record]] = {engine["name"]: [] for engine in result["engines"]}
    for run in result["runs"]:
        if run["prompt"] == prompt:
            runs[run["engine"]].append(run)
    return runs


def ratios(over: list[Record], under: list[Record]) -> list[float]:
    pairs = zip(over, under, strict=True)
    return [tokens_per_second(a) / tokens_per_second(b) for a, b in pairs]


def rows(result: Record, prompt: str) -> tuple[list[str], list[list[str]]]:
    """Heading and cells of one prompt's table."""
    runs = by_engine(result, prompt)
    plain = result["baseline"]
    peers = [engine["name"] for engine in result["engines"] if not engine["own"]]
    against = [plain, *peers]
    head = ["engine", "tokens/s", "first token ms", *(f"× {name}" for name in against)]
    head += ["tokens a round", "outside engine ms a token", "same tokens", "distinct"]
    reference = runs[plain][0]["tokens"]
    body = []
    for name, own in runs.items():
        first = own[0]
        lengths = [run["acceptance_length"] for run in own if run.get("acceptance_length")]
        outside = [
            (run["decode_ms"] - run["engine_ms"]) / (len(run["tokens"]) - 1)
            for run in own
            if "engine_ms" in run
        ]
        same = agreement(reference, first["tokens"])
        body.append(
            [
                name,
                spread(map(tokens_per_second, own)),
                spread((run["ttft_ms"] for run in own), 0),
                *(spread(ratios(own, runs[other]), 2) for other in against),
                f"{statistics.median(lengths):.2f}" if lengths else "",
                f"{statistics.median(outside):.2f}" if outside else "",
                f"{same} of {len(reference)}",
                f"{distinct(first['tokens']):.2f}",
            ]
        )
    return head, body


def texts(result: Record, prompt: str) -> list[str]:
    """The beginning of every engine's text."""
    said = result["texts"][prompt]
    source = result["prompts"][prompt]["text"]
    width = max(map(len, said))
    return [
        f"{name:<{width}}  {copied(text, source):>4.0%} copied  {text[:60]!r}"
        for name, text in said.items()
    ]


def unequal(result: Record) -> list[str]:
    """Exact engines whose tokens are not those of plain decoding, and runs that vary."""
    found = []
    exact = {engine["name"] for engine in result["engines"] if engine["exact"]}
    for prompt in result["prompts"]:
        runs = by_engine(result, prompt)
        reference = runs[result["baseline"]][0]["tokens"]
        for name, own in runs.items():
            wanted = reference if name in exact else own[0]["tokens"]
            for run in own:
                place = agreement(wanted, run["tokens"])
                if run["tokens"] != wanted:
                    other = result["baseline"] if name in exact else f"its first run of {prompt}"
                    found.append(f"{prompt}, {name}: differs from {other} at token {place}")
                    break
    return found


def noise(result: Record) -> str:
    """How idle the machine was, in one line."""
    shares = [run["others_share"] for run in result["runs"]]
    idle = max(run["idle_workers_share"] for run in result["runs"])
    verdict = "" if max(shares) <= NOISY else "; NOT IDLE: do not use these figures"
    return (
        f"others used {statistics.median(shares):.1%} of the processors (median of the runs, at "
        f"most {max(shares):.1%}), waiting workers at most {idle:.1%}{verdict}"
    )


def table(head: list[str], body: list[list[str]], markdown: bool) -> str:
    if markdown:
        lines = [head, ["---"] * len(head), *body]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [head, *body]
    )


def render(result: Record, *, markdown: bool = False) -> str:
    """Everything a reader needs beside the command."""
    machine, settings = result["machine"], result["settings"]
    parts = [
        f"{result['when']}, specedge {result['commit']}. {machine['processor']}, "
        f"{machine['processors']} processors, {machine['memory_gib']:.0f} GiB, "
        f"{machine['system']}. {settings['threads']} threads, {settings['tokens']} tokens, "
        f"{settings['repeat']} repeats in turn; median (lowest..highest).",
        "\n".join(f"- {each['name']}: {each['description']}" for each in result["engines"]),
        noise(result)[0].upper() + noise(result)[1:] + ".",
    ]
    for name, prompt in result["prompts"].items():
        title = f"{name}: {prompt['tokens']} tokens of prompt"
        parts.append(f"### {title}" if markdown else f"== {title}")
        parts.append(table(*rows(result, name), markdown))
        said = "\n".join(texts(result, name))
        parts.append(f"```\n{said}\n```" if markdown else said)
    wrong = unequal(result)
    parts.append(
        "\n".join(wrong)
        if wrong
        else "Speculative tokens equal plain ones in every exact run; every engine repeats itself."
    )
    return "\n\n".join(parts)

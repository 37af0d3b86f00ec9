"""Raw runs of bench/speed.py as tables."""

from __future__ import annotations

import statistics

from peers.figures import (
    Record,
    agreement,
    best,
    by_engine,
    copied,
    distinct,
    over_plain,
    sense,
    spread,
    tokens_per_second,
)

NOISY = 0.03  # share of the machine that others may use before the report says so
HEAD = [
    "engine",
    "tokens/s",
    "first token ms",
    "× plain",
    "× best specedge",
    "tokens a round",
    "accepted",
    "outside engine ms a token",
    "peak MiB",
    "same tokens",
    "distinct",
    "text",
]


def median(runs: list[Record], field: str, digits: int) -> str:
    """Of the runs that state it."""
    known = [run[field] for run in runs if run.get(field) is not None]
    return f"{statistics.median(known):.{digits}f}" if known else ""


def outside(runs: list[Record]) -> str:
    """Milliseconds a token that the runtime's own call does not account for."""
    known = [
        (run["decode_ms"] - run["engine_ms"]) / (len(run["tokens"]) - run.get("first_tokens", 1))
        for run in runs
        if "engine_ms" in run
    ]
    return f"{statistics.median(known):.2f}" if known else ""


def rows(result: Record, prompt: str) -> list[list[str]]:
    """Cells of one prompt's table; engines that could not run have their reason below it."""
    runs = by_engine(result, prompt)
    reference = runs[result["baseline"]][0]["tokens"]
    ours = best(result, prompt, own=True, speculative=True)
    ours = ours or best(result, prompt, own=True, speculative=False)
    assert ours is not None, "plain decoding is ours"
    peak = {engine["name"]: engine["peak_mib"] for engine in result["engines"]}
    body = []
    for name, own in runs.items():
        if not own:
            continue
        first = own[0]["tokens"]
        ratios = over_plain(result, runs, name)
        same = agreement(reference, first)
        body.append(
            [
                name,
                spread(map(tokens_per_second, own)),
                spread((run["ttft_ms"] for run in own), 0),
                spread(ratios, 2),
                spread((ratio / ours.ratio for ratio in ratios), 2),
                median(own, "acceptance_length", 2),
                median(own, "acceptance_rate", 2),
                outside(own),
                f"{peak[name]:.0f}",
                f"{same} of {len(reference)}",
                f"{distinct(first):.2f}",
                sense(result, prompt, name, first),
            ]
        )
    return body


def verdicts(result: Record, prompt: str) -> list[str]:
    """The best of ours over the best peer, plain and speculative."""
    said = []
    for speculative, title in ((False, "Plain"), (True, "Speculative")):
        ours = best(result, prompt, own=True, speculative=speculative)
        peer = best(result, prompt, own=False, speculative=speculative)
        if ours is not None and peer is not None:
            ratio = ours.ratio / peer.ratio
            said.append(f"{title}: {ours.name} is {ratio:.2f} times the best peer, {peer.name}.")
    return said


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
            wanted = reference if name in exact or not own else own[0]["tokens"]
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
        f"Others used {statistics.median(shares):.1%} of the processors (median of the runs, at "
        f"most {max(shares):.1%}), waiting workers at most {idle:.1%}{verdict}."
    )


def engines(result: Record) -> list[str]:
    """Every engine's versions and memory, or why it could not run."""
    lines = []
    for each in result["engines"]:
        if each["failed"] is None:
            load = f"{each['load_peak_mib']:.0f} MiB at most while loading"
            lines.append(f"- {each['name']}: {each['description']}; {load}")
        else:
            lines.append(f"- {each['name']}: could not run: {each['failed']}")
    return lines


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
    together = {
        "all": "all engines loaded at once",
        "kind": "engines of one runtime loaded at once, and plain decoding beside them",
        "one": "one engine loaded at a time, and plain decoding beside it",
    }[settings["together"]]
    parts = [
        f"{result['when']}, specedge {result['commit']}. {machine['processor']}, "
        f"{machine['processors']} processors, {machine['memory_gib']:.0f} GiB, "
        f"{machine['system']}. {settings['threads']} threads, {settings['tokens']} tokens, "
        f"{settings['repeat']} repeats in turn, {together}; median (lowest..highest).",
        "\n".join(engines(result)),
        noise(result),
    ]
    for name, prompt in result["prompts"].items():
        title = f"{name}: {prompt['tokens']} tokens of prompt"
        parts.append(f"### {title}" if markdown else f"== {title}")
        parts.append(table(HEAD, rows(result, name), markdown))
        if verdicts(result, name):
            parts.append("\n".join(verdicts(result, name)))
        said = "\n".join(texts(result, name))
        parts.append(f"```\n{said}\n```" if markdown else said)
    wrong = unequal(result)
    parts.append(
        "\n".join(wrong)
        if wrong
        else "Speculative tokens equal plain ones in every exact run; every engine repeats itself."
    )
    return "\n\n".join(parts)

"""Cost of a round outside the engines' own run calls, with streaming on.

    python bench/loop_overhead.py bundles/smollm2
    python bench/loop_overhead.py bundles/smollm2 --proposer draft --json
    python bench/loop_overhead.py bundles/smollm2 --profile profile.txt

A round's cost is its wall time, the consumer that writes and flushes the text included, less the
time inside the runtimes' run calls. The limit is 150 microseconds and 2 % of a round. Each K is
run `--repeats` times and the median is reported; let nothing else run on the machine.

The prompt repeats itself, so that lookups draft K tokens in nearly every round: a round with a
full draft costs most. `drafted` is the mean, so that a run that drafted little shows.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import os
import pstats
import sys
from typing import Any, TextIO

import specedge

PROMPT = "one two three four five six\n" * 6
AUTO = -1  # the controller chooses, round by round; a first run measures costs in its stream
LIMIT_US = 150
LIMIT_SHARE = 0.02
PHASES = ("propose", "verify", "accept", "other")


def stream(model: Any, tokens: int, sink: TextIO) -> Any:
    """One request into `sink`; its metrics."""
    for event in model.stream(PROMPT, max_tokens=tokens, ignore_eos=True):
        sink.write(event.text)
        sink.flush()
    return model.last_result.metrics


def per_round(metrics: Any) -> dict[str, float]:
    """Microseconds a round; `drafted` in tokens."""
    phases = {name: getattr(metrics, f"{name}_ms") for name in PHASES}
    wall = sum(phases.values())
    scale = 1e3 / metrics.rounds
    row = {f"{name}_us": ms * scale for name, ms in phases.items()}
    row["round_us"] = wall * scale
    row["engine_us"] = metrics.engine_ms * scale
    row["outside_us"] = (wall - metrics.engine_ms) * scale
    row["share"] = (wall - metrics.engine_ms) / wall
    row["drafted"] = metrics.proposed / metrics.rounds
    return row


def measure(arguments: argparse.Namespace, k: int, sink: TextIO) -> dict[str, Any]:
    """The run that is the median of the repeats by microseconds outside the engines."""
    with load(arguments, k) as model:
        stream(model, arguments.tokens, sink)  # bindings of each width are made on first use
        runs = [per_round(stream(model, arguments.tokens, sink)) for _ in range(arguments.repeats)]
        engine = model.engine
    runs.sort(key=lambda run: run["outside_us"])
    median = runs[len(runs) // 2]
    return {
        "k": k,
        "engine": engine,
        **median,
        "outside_us_runs": [run["outside_us"] for run in runs],
        "within": median["outside_us"] <= LIMIT_US and median["share"] <= LIMIT_SHARE,
    }


def load(arguments: argparse.Namespace, k: int) -> Any:
    return specedge.load(
        arguments.bundle,
        engine=arguments.engine,
        threads=arguments.threads,
        speculation="auto" if k == AUTO else "on" if k else "off",
        draft_length=None if k == AUTO else k,
        proposers=[arguments.proposer],
        verify=False,
    )


def profile(arguments: argparse.Namespace, k: int, sink: TextIO) -> str:
    """The 25 functions that take most time of their own, streaming with K drafted tokens."""
    with load(arguments, k) as model:
        stream(model, arguments.tokens, sink)
        profiler = cProfile.Profile()
        profiler.enable()
        metrics = stream(model, arguments.tokens, sink)
        profiler.disable()
    out = io.StringIO()
    pstats.Stats(profiler, stream=out).strip_dirs().sort_stats("tottime").print_stats(25)
    return f"K = {k}, {metrics.rounds} rounds, {metrics.generated} tokens\n{out.getvalue()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--proposer", choices=["ngram", "draft"], default="ngram")
    parser.add_argument("--k", type=int, nargs="+", default=[0, 4, 15, AUTO], help="K; -1: auto")
    parser.add_argument("--tokens", type=int, default=256, help="tokens a run")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one object a line, all runs in it")
    parser.add_argument("--profile", metavar="FILE", help="write a profile of each K there")
    arguments = parser.parse_args()
    with open(os.devnull, "w") as sink:
        rows = []
        for k in arguments.k:
            rows.append(measure(arguments, k, sink))
            print(json.dumps(rows[-1]) if arguments.json else line(rows), flush=True)
        if arguments.profile:
            with open(arguments.profile, "w") as file:
                file.write("\n".join(profile(arguments, k, sink) for k in arguments.k))
    return 0 if all(row["within"] for row in rows) else 1


def line(rows: list[dict[str, Any]]) -> str:
    """The table's newest row, under a heading when it is the first."""
    row = rows[-1]
    names = ["outside_us", *(f"{name}_us" for name in PHASES), "engine_us", "round_us"]
    head = f"{row['engine']}; microseconds a round\n" if len(rows) == 1 else ""
    if head:
        head += f"{'K':>3} {'drafted':>8} " + " ".join(f"{name[:-3]:>9}" for name in names)
        head += f" {'outside':>8}\n"
    cells = " ".join(f"{row[name]:>9.1f}" for name in names)
    verdict = "" if row["within"] else f"  over {LIMIT_US} us or {LIMIT_SHARE:.0%}"
    return f"{head}{row['k']:>3} {row['drafted']:>8.2f} {cells} {row['share']:>8.2%}{verdict}"


if __name__ == "__main__":
    sys.exit(main())

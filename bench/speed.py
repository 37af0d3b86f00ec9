"""Tokens per second and time to the first token: plain, speculative, and peers, in turn.

    python bench/speed.py bundles/smollm2
    python bench/speed.py bundles/smollm2 --peer genai=PYTHON:MODELDIR \\
        --peer llamacpp=NODE_DIR:GGUF --json speed.json
    python bench/speed.py --markdown speed.json

Every engine is a process that loads once. Requests go round: every engine once, then again, so
that a machine that slows down slows all alike; only one computes at a time, and what the others
and the rest of the machine used meanwhile is measured and reported. All get the same token ids,
threads and number of tokens, greedy, from an empty KV. Exit code 1 when an exact engine's tokens
differ from plain decoding's. How peers are installed: bench/peers/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers.process import Plan, Worker, WorkerError, peer, specedge
from peers.report import render, unequal

PROMPTS = Path(__file__).parent / "prompts"
# name: file, and whether it is a user's message or a text to go on with
TASKS = {"chat": ("chat.md", True), "code edit": ("edit_60_lines.md", False)}
BASELINE = "plain"
SETTLE_S = 0.2  # the runtimes' threads spin for up to 20 ms after a call


def plans(given: argparse.Namespace) -> list[Plan]:
    """Plain decoding first: it is what the others are compared with."""
    same = {"bundle": given.bundle, "threads": given.threads, "context": given.context}
    ours = [specedge(sys.executable, BASELINE, exact=True, k=0, **same)]
    if not given.exact_only:
        ours.append(specedge(sys.executable, "plain, not exact", exact=False, k=0, **same))
    for k in given.k:
        ours.append(specedge(sys.executable, f"ngram K={k}", exact=True, k=k, **same))
    for k in given.draft_k:
        plan = specedge(sys.executable, f"draft K={k}", exact=True, k=k, proposer="draft", **same)
        ours.append(plan)
    others = [peer(each, threads=given.threads, context=given.context) for each in given.peer]
    return ours + others


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(line.split("\t: ", 1) for line in info if "\t: " in line.replace("\t\t", "\t"))
    fields = {name.strip(): value for name, value in fields.items()}
    model = f"{fields.get('model name', platform.processor())}"
    family = f"family {fields.get('cpu family', '?')} model {fields.get('model', '?')}"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": f"{model} ({family})",
        "processors": len(os.sched_getaffinity(0)),
        "memory_gib": memory / 2**30,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def commit() -> str:
    """Of the working tree this file lies in; "+" when files differ from it."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(
            ["git", "describe", "--always", "--dirty=+"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    return "unknown"


def busy_seconds() -> float:
    """Processor time that the whole machine has used, stolen time included."""
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def measure(worker: Worker, workers: Sequence[Worker], request: dict[str, Any]) -> dict[str, Any]:
    """One run, and what everything else used while it ran, as shares of the machine."""
    time.sleep(SETTLE_S)
    idle = [other for other in workers if other is not worker]
    began, busy = time.perf_counter(), busy_seconds()
    own, waiting = worker.cpu_seconds(), sum(other.cpu_seconds() for other in idle)
    run = worker.ask(request)
    capacity = (time.perf_counter() - began) * (os.cpu_count() or 1)
    waiting = sum(other.cpu_seconds() for other in idle) - waiting
    others = busy_seconds() - busy - (worker.cpu_seconds() - own) - waiting
    run["others_share"] = max(0.0, others / capacity)
    run["idle_workers_share"] = waiting / capacity
    if len(run["tokens"]) != request["max_tokens"]:
        raise WorkerError(f"{worker.plan.name}: stopped after {len(run['tokens'])} tokens")
    return run


def benchmark(given: argparse.Namespace, chosen: list[Plan]) -> dict[str, Any]:
    prompts: dict[str, Any] = {}
    runs: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        workers = []
        for plan in chosen:
            print(f"loading {plan.name}", file=sys.stderr)
            workers.append(Worker(plan))
            stack.callback(workers[-1].close)
        plain = workers[0]
        for name, (file, chat) in TASKS.items():
            text = (PROMPTS / file).read_text(encoding="utf-8")
            ids = plain.ask({"encode": text.strip() if chat else text, "chat": chat})["ids"]
            prompts[name] = {"text": text, "tokens": len(ids), "ids": ids}
        for repeat in range(-1, given.repeat):  # the first round warms up and is not kept
            for name, prompt in prompts.items():
                for worker in workers:
                    request = {"ids": prompt["ids"], "max_tokens": given.tokens}
                    run = measure(worker, workers, request)
                    print(f"{repeat + 1}/{given.repeat} {name} {worker.plan.name}", file=sys.stderr)
                    if repeat >= 0:
                        runs.append(
                            {"prompt": name, "engine": worker.plan.name, "repeat": repeat, **run}
                        )
        first = [run for run in runs if run["repeat"] == 0]
        texts: dict[str, dict[str, str]] = {name: {} for name in prompts}
        for run in first:
            said = plain.ask({"decode": run["tokens"]})["text"]
            texts[run["prompt"]][run["engine"]] = said
    return {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": sys.argv,
        "machine": machine(),
        "settings": {
            name: getattr(given, name) for name in ("threads", "context", "tokens", "repeat", "k")
        },
        "baseline": BASELINE,
        "engines": [
            {
                "name": worker.plan.name,
                "description": worker.description,
                "own": worker.plan.own,
                "exact": worker.plan.exact,
            }
            for worker in workers
        ],
        "prompts": prompts,
        "texts": texts,
        "runs": runs,
    }


def parse() -> argparse.Namespace:
    assert __doc__ is not None, "it is the help text"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", nargs="?", help="a bundle's folder")
    parser.add_argument("--peer", action="append", default=[], metavar="KIND=WHERE:MODEL")
    parser.add_argument("--k", type=int, nargs="+", default=[3, 7, 15], help="of n-gram lookup")
    parser.add_argument(
        "--draft-k", type=int, nargs="+", default=[], help="draft lengths of the bundle's draft"
    )
    parser.add_argument("--exact-only", action="store_true", help="leave out exact=False")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=160, help="tokens a run")
    parser.add_argument("--threads", type=int, default=2, help="of every engine")
    parser.add_argument("--context", type=int, default=2048, help="rows of KV")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all raw runs there")
    parser.add_argument("--markdown", type=Path, metavar="JSON", help="show such a file and stop")
    given = parser.parse_args()
    if (given.bundle is None) == (given.markdown is None):
        parser.error("expected a BUNDLE, or --markdown JSON")
    if given.repeat < 1 or given.tokens < 2:
        parser.error("--repeat must be 1 or more and --tokens 2 or more")
    return given


def main() -> int:
    given = parse()
    if given.markdown is not None:
        print(render(json.loads(given.markdown.read_text(encoding="utf-8")), markdown=True))
        return 0
    try:
        result = benchmark(given, plans(given))
    except (WorkerError, ValueError) as error:
        sys.exit(f"error: {error}")
    if given.json is not None:
        given.json.write_text(json.dumps(result), encoding="utf-8")
    print(render(result))
    return 1 if unequal(result) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

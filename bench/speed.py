"""Tokens per second, time to the first token and memory: plain, speculative, and peers, in turn.

    python bench/speed.py bundles/smollm2
    python bench/speed.py bundles/smollm2 --together kind --json speed.json \\
        --peer genai=PYTHON:FOLDER --peer llamacpp=NODE_DIR:GGUF:lookup:k=7 \\
        --peer openvino=PYTHON:FOLDER:draft=FOLDER:k=3 --peer transformers=PYTHON:FOLDER
    python bench/speed.py --markdown speed.json

Every engine is a process that loads once. Requests go round: every engine once, then again, so
that a machine that slows down slows all alike; only one computes at a time, and what the others
and the rest of the machine used meanwhile is measured and reported. All get the same token ids,
threads and number of tokens, greedy, from an empty KV. Where memory does not hold all of them,
`--together kind` loads one runtime's engines at a time and `one` a single one; plain decoding runs
beside each, and ratios are to those runs. A peer that cannot run has its reason in the result.
Exit code 1 when an exact engine's tokens differ from plain decoding's. How peers are installed and
what --peer takes: bench/peers/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from peers.machine import busy_seconds, commit, machine
from peers.plans import peers, specedge
from peers.process import Plan, Worker, WorkerError
from peers.report import render, unequal

PROMPTS = Path(__file__).parent / "prompts"
# name: file, and whether it is an edit, a text to go on with; else it is a user's message
TASKS = {"chat": ("chat.md", False), "code edit": ("edit_60_lines.md", True)}
BASELINE = "plain"
SETTLE_S = 0.2  # the runtimes' threads spin for up to 20 ms after a call
WARM_UP_TOKENS = 32


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
    return ours + peers(given.peer, threads=given.threads, context=given.context)


def groups(chosen: Sequence[Plan], together: str) -> list[list[Plan]]:
    """Which engines are loaded at once, without plain decoding, which always is."""
    rest = list(chosen[1:])
    if together == "all":
        return [rest]
    if together == "one":
        return [[plan] for plan in rest] or [[]]
    return [list(members) for _, members in groupby(rest, key=lambda plan: plan.kind)] or [[]]


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


@dataclass
class Bench:
    """A benchmark under way: the worker of plain decoding stays, the others come and go."""

    given: argparse.Namespace
    plain: Worker
    prompts: dict[str, Any]
    runs: list[dict[str, Any]] = field(default_factory=list)
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)

    def load(self, plan: Plan) -> Worker | None:
        """Its worker; None for a peer that does not start."""
        print(f"loading {plan.name}", file=sys.stderr)
        try:
            worker = Worker(plan, patience_s=self.given.patience)
        except WorkerError as error:
            self.fail(plan, error)
            return None
        self.loaded(worker)
        return worker

    def loaded(self, worker: Worker) -> None:
        entry = self.entry(worker.plan)
        entry["description"] = worker.description
        entry["load_peak_mib"] = worker.peak_mib()
        worker.forget_peak()

    def fail(self, plan: Plan, error: WorkerError) -> None:
        """Note a peer's reason; an engine of ours has to run."""
        if plan.own:
            raise error
        print(f"{error}", file=sys.stderr)
        self.entry(plan)["failed"] = str(error).removeprefix(f"{plan.name}: ")
        self.runs = [run for run in self.runs if run["engine"] != plan.name]

    def entry(self, plan: Plan) -> dict[str, Any]:
        """What the result says of an engine."""
        stated = {"name": plan.name, "own": plan.own, "exact": plan.exact, "mode": plan.mode}
        unknown = {"description": "", "load_peak_mib": 0.0, "peak_mib": 0.0, "failed": None}
        return self.engines.setdefault(plan.name, {**stated, **unknown})

    def run(self, number: int, members: Sequence[Plan]) -> None:
        """Load a group, let its engines and plain decoding take turns, and close it."""
        with contextlib.ExitStack() as stack:
            workers = [self.plain]
            for plan in members:
                worker = self.load(plan)
                if worker is not None:
                    workers.append(worker)
                    stack.callback(worker.close)
            for repeat in range(-1, self.given.repeat):  # the first round warms up
                for prompt in self.prompts:
                    for worker in list(workers):
                        if repeat < 0 and number > 0 and worker is self.plain:
                            continue  # warm since the first group
                        if not self.turn(number, repeat, prompt, worker, workers):
                            workers.remove(worker)
            for worker in workers:
                entry = self.entry(worker.plan)
                entry["peak_mib"] = max(entry["peak_mib"], worker.peak_mib())

    def turn(
        self, group: int, repeat: int, prompt: str, worker: Worker, workers: Sequence[Worker]
    ) -> bool:
        """One run; False when the engine cannot go on."""
        name = worker.plan.name
        print(f"{repeat + 1}/{self.given.repeat} {prompt} {name}", file=sys.stderr)
        tokens = self.given.tokens if repeat >= 0 else min(self.given.tokens, WARM_UP_TOKENS)
        request = {"ids": self.prompts[prompt]["ids"], "max_tokens": tokens}
        try:
            run = measure(worker, workers, request)
        except WorkerError as error:
            self.fail(worker.plan, error)
            return False
        if repeat >= 0:
            where = {"prompt": prompt, "engine": name, "group": group, "repeat": repeat}
            self.runs.append(where | run)
        return True

    def texts(self) -> dict[str, dict[str, str]]:
        """What every engine said first, by prompt."""
        said: dict[str, dict[str, str]] = {prompt: {} for prompt in self.prompts}
        for run in self.runs:
            if run["engine"] not in said[run["prompt"]]:
                text = self.plain.ask({"decode": run["tokens"]})["text"]
                said[run["prompt"]][run["engine"]] = text
        return said

    def result(self) -> dict[str, Any]:
        """What reports are made of."""
        settings = ("threads", "context", "tokens", "repeat", "k", "together")
        return {
            "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "command": sys.argv,
            "machine": machine(),
            "settings": {name: getattr(self.given, name) for name in settings},
            "baseline": BASELINE,
            "engines": list(self.engines.values()),
            "prompts": self.prompts,
            "texts": self.texts(),
            "runs": self.runs,
        }


def encode(plain: Worker) -> dict[str, Any]:
    """The prompts as all engines get them."""
    prompts = {}
    for name, (file, edit) in TASKS.items():
        text = (PROMPTS / file).read_text(encoding="utf-8")
        request = {"encode": text if edit else text.strip(), "chat": not edit}
        ids = plain.ask(request)["ids"]
        prompts[name] = {"text": text, "edit": edit, "tokens": len(ids), "ids": ids}
    return prompts


def benchmark(given: argparse.Namespace, chosen: list[Plan]) -> dict[str, Any]:
    """The whole result; what there is of it is saved after every group."""
    print(f"loading {chosen[0].name}", file=sys.stderr)
    plain = Worker(chosen[0], patience_s=given.patience)
    with contextlib.closing(plain):
        bench = Bench(given, plain, encode(plain))
        bench.loaded(plain)
        for number, members in enumerate(groups(chosen, given.together)):
            bench.run(number, members)
            result = bench.result()
            if given.json is not None:
                given.json.write_text(json.dumps(result), encoding="utf-8")
    return result


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    assert __doc__ is not None, "it is the help text"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", nargs="?", help="a bundle's folder")
    parser.add_argument("--peer", action="append", default=[], metavar="KIND=WHERE:MODEL[:HOW]")
    parser.add_argument("--k", type=int, nargs="+", default=[3, 7, 15], help="of n-gram lookup")
    parser.add_argument(
        "--draft-k", type=int, nargs="+", default=[], help="draft lengths of the bundle's draft"
    )
    parser.add_argument("--exact-only", action="store_true", help="leave out exact=False")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=160, help="tokens a run")
    parser.add_argument("--threads", type=int, default=2, help="of every engine")
    parser.add_argument("--context", type=int, default=2048, help="rows of KV")
    parser.add_argument(
        "--together", choices=("all", "kind", "one"), default="all", help="loaded at once"
    )
    parser.add_argument(
        "--patience", type=float, default=180.0, metavar="S", help="seconds an answer may take"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all raw runs there")
    parser.add_argument("--markdown", type=Path, metavar="JSON", help="show such a file and stop")
    given = parser.parse_args(argv)
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
    print(render(result))
    return 1 if unequal(result) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

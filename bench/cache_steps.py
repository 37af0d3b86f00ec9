"""What a target call costs when T follows the sequence, beside a T that is the whole context.

    specedge export configs/smollm2.toml --lowering standard --precision fp32 -o bundles/smollm2-std
    python bench/cache_steps.py bundles/smollm2-std
    python bench/cache_steps.py bundles/smollm2-std --past 64 --width 1 --json

Both engines share one session, and their calls take turns in an order that is drawn anew each
time: a machine that slows down slows both. Each timed call follows an untimed one of one token at
the same place, as a step of a run does. Shown are medians, the middle 80 % of the samples, and the
median of the ratios of calls that were timed together.

Below that: what a new T costs, all layers together, and that cost over the tokens of its step.
Let nothing else run on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from specedge import bundle
from specedge.contract import GraphSpec
from specedge.engines.ort import OrtEngine
from specedge.engines.ort.providers import open_session
from specedge.engines.ort.rows import rows_for
from specedge.engines.ort.slots import OrtSlot
from specedge.probe.curves import percentile

PASTS = (16, 128, 256, 512, 1024, 2048)
WIDTHS = (1, 4, 8)


def opened(folder: Path, threads: int, context: int | None) -> tuple[OrtEngine, OrtEngine]:
    """Engines over one session: T in steps, and T fixed."""
    spec: GraphSpec = bundle.Bundle.open(folder, verify=False).manifest.target
    if spec.lowering != "standard":
        sys.exit(f"{folder}: lowering {spec.lowering}; T has steps in lowering standard alone")
    session = open_session(folder, spec, "cpu", threads)
    where = f"cpu, {threads} threads"
    made = [OrtEngine(spec, session, where, context, steps=steps) for steps in (True, False)]
    for engine in made:
        engine.warm_up(exact=True)
    return made[0], made[1]


def call_ms(engine: OrtEngine, slot: OrtSlot, past: int, width: int) -> float:
    ids = np.arange(width, dtype=np.int64) % engine.spec.vocab
    engine.forward(slot, ids[:1], past, 1)
    began = time.perf_counter()
    engine.forward(slot, ids, past, width)
    return (time.perf_counter() - began) * 1e3


def points(
    engines: tuple[OrtEngine, OrtEngine], pasts: list[int], widths: list[int], repeats: int
) -> list[dict[str, Any]]:
    """One row for each past and width."""
    slots = [engine.new_slot() for engine in engines]
    for slot in slots:
        slot.touch()  # memory that was never written is cheaper to read than it is in a run
    calls = [(past, width, which) for past in pasts for width in widths for which in (0, 1)]
    samples: dict[tuple[int, int, int], list[float]] = {key: [] for key in calls}
    order = random.Random(0)
    for repeat in range(repeats + 1):
        order.shuffle(calls)
        for past, width, which in calls:
            ms = call_ms(engines[which], slots[which], past, width)
            if repeat:  # the first makes bindings
                samples[past, width, which].append(ms)
    rows = []
    for past in pasts:
        for width in widths:
            steps, fixed = samples[past, width, 0], samples[past, width, 1]
            ratios = [a / b for a, b in zip(steps, fixed, strict=True)]
            rows.append(
                {
                    "past": past,
                    "width": width,
                    "t": rows_for(past + width, slots[0].context),
                    "t_fixed": slots[1].cache.rows,
                    "steps_ms": summary(steps),
                    "fixed_ms": summary(fixed),
                    "ratio": statistics.median(ratios),
                }
            )
    for engine, slot in zip(engines, slots, strict=True):
        engine.release(slot)
    return rows


def summary(samples: list[float]) -> dict[str, float]:
    rising = sorted(samples)
    return {
        "median": statistics.median(rising),
        "p10": percentile(rising, 0.1),
        "p90": percentile(rising, 0.9),
    }


def growths(engine: OrtEngine) -> list[dict[str, Any]]:
    """What each new T of a sequence that fills its context costs."""
    slot, found = engine.new_slot(), []
    slot.fit(1)
    while slot.cache.rows < slot.context:
        before = slot.cache.rows
        began = time.perf_counter()
        slot.fit(before + 1)
        ms = (time.perf_counter() - began) * 1e3
        found.append({"from": before, "to": slot.cache.rows, "ms": ms})
    engine.release(slot)
    return found


def table(rows: list[dict[str, Any]], moved: list[dict[str, Any]]) -> str:
    head = f"{'past':>5} {'N':>3} {'T':>5} {'fixed T':>8}  {'ms, T in steps':>22}"
    lines = [f"{head}  {'ms, T fixed':>22}  {'ratio':>6}"]
    for row in rows:
        both = [row["steps_ms"], row["fixed_ms"]]
        cells = [f"{x['median']:.2f} ({x['p10']:.2f} to {x['p90']:.2f})" for x in both]
        lines.append(
            f"{row['past']:>5} {row['width']:>3} {row['t']:>5} {row['t_fixed']:>8}  "
            f"{cells[0]:>22}  {cells[1]:>22}  {row['ratio']:>6.2f}"
        )
    lines += ["", f"{'T':>5} {'new T':>6} {'ms':>8} {'ms a token':>11}"]
    for each in moved:
        tokens = each["to"] - each["from"]
        lines.append(
            f"{each['from']:>5} {each['to']:>6} {each['ms']:>8.2f} {each['ms'] / tokens:>11.3f}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--context", type=int, help="T of the fixed cache; default: the bundle's")
    parser.add_argument("--past", type=int, nargs="+", default=PASTS, help="rows before a call")
    parser.add_argument("--width", type=int, nargs="+", default=WIDTHS, help="N, tokens of a call")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", action="store_true", help="one object instead of the tables")
    arguments = parser.parse_args()
    engines = opened(arguments.bundle, arguments.threads, arguments.context)
    most = engines[0].new_slot().context - max(arguments.width)
    pasts = [past for past in arguments.past if past <= most]
    if not pasts:
        parser.error(f"--past: none is {most} or less, where the widest call still fits")
    rows = points(engines, pasts, list(arguments.width), arguments.repeats)
    moved = growths(engines[0])
    if arguments.json:
        print(json.dumps({"engine": engines[0].description, "points": rows, "growths": moved}))
    else:
        print(f"{engines[0].description}\n\n{table(rows, moved)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Constrained output, plainly and with speculation, in turn: what tokens without alternative save.

    python bench/structured.py bundles/smollm2

Every schema, pattern and grammar of `specedge verify`, greedy, each in both ways one right after
the other, from an empty KV, `--repeat` times after one round that is not counted. Ratios are taken
over all tokens after the first, with a 90 % interval over the forms (each form's repeats are added
up). Exit code 1 when the two ways differ in a token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from specedge.desk import AUTO, PLAIN, Desk
from specedge.gates.schemas import entries
from specedge.guidance.drafting import GRAMMAR
from specedge.probe.intervals import ratio_interval


def main() -> int:
    assert __doc__ is not None, "it is the help text"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all raw runs there")
    given = parser.parse_args()
    times: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    forced = drafted = tokens = rounds = 0
    unequal = []
    runs = []
    with Desk(given.bundle) as desk:
        for repeat in range(-1, given.repeat):  # the first round warms up and is not kept
            for form in entries():
                said = {}
                for way in (PLAIN, AUTO) if repeat % 2 else (AUTO, PLAIN):
                    desk.forget()
                    result = desk.ask(way, form.prompt, **form.options)
                    said[way.name] = result.tokens
                    if repeat < 0 or len(result.tokens) < 2:
                        continue
                    metrics = result.metrics
                    assert metrics.tpot_ms is not None, "there are two tokens"
                    ms = metrics.tpot_ms * (metrics.generated - 1)
                    times[form.name][way.name] += ms
                    runs.append([form.name, repeat, way.name, len(result.tokens), ms])
                    if way == AUTO:
                        share = metrics.proposers.get(GRAMMAR)
                        forced += share.accepted if share else 0
                        drafted += metrics.accepted
                        tokens += metrics.generated
                        rounds += metrics.rounds
                if said[PLAIN.name] != said[AUTO.name]:
                    unequal.append(form.name)
            print(f"round {repeat + 1} of {given.repeat}", file=sys.stderr)
        plain = [times[name][PLAIN.name] for name in times]
        auto = [times[name][AUTO.name] for name in times]
        gain = ratio_interval(plain, auto)
        each = sorted(a / b for a, b in zip(plain, auto, strict=True))
        print(f"{desk.bundle.manifest.name}, {desk.model.engine}")
        print(
            f"{len(times)} forms x {given.repeat}: auto {gain.gain:.2f}x of plain "
            f"({gain.low:.2f} to {gain.high:.2f}); single forms {each[0]:.2f} to {each[-1]:.2f}, "
            f"median {statistics.median(each):.2f}"
        )
        print(
            f"{tokens} tokens in {rounds} rounds; {drafted / tokens:.0%} drafted, "
            f"{forced / tokens:.0%} without alternative; unequal: {len(set(unequal))}"
        )
    if given.json is not None:
        given.json.write_text(json.dumps({"command": sys.argv, "runs": runs}), encoding="utf-8")
    return 1 if unequal else 0


if __name__ == "__main__":
    sys.exit(main())

"""Whether the probe's 90 % interval keeps its word: is a later measurement inside?

    python bench/probe_coverage.py bundles/smollm2
    python bench/probe_coverage.py bundles/smollm2-selfdraft --proposer draft --json coverage.json

One repetition probes one class of the built-in prompts with a random half of its 24, by
`specedge.probe.calibrating.calibrate`: K by replay, live pairs, an interval. Later the same
proposer at the same K runs in pairs

    others   on the other 12 prompts: what the interval promises a user, whose prompts are others
    again    on the same 12 prompts: only the machine has changed since

and it is counted how often the ratio of their summed times lies inside. Classes take turns, so 30
repetitions are 6 of each. Where the probe ran no pairs, since the replay promised nothing, the
interval is the replay's at its best K; such repetitions are also counted apart. Those without an
interval (nothing was drafted) are made again, with other halves.

At 90 %, 27 of 30 are expected, and 25 or more in 93 % of such experiments. Exit code 1 under 25 of
30 among the others. Costs are measured first, for `--costs` seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from speed import commit, machine

import specedge
from specedge.bundle import Bundle
from specedge.contract import Ids
from specedge.encoding import Encoder
from specedge.engines.base import Engine
from specedge.opening import Opener
from specedge.probe.calibrating import TOKENS, calibrate
from specedge.probe.curves import CostCurves
from specedge.probe.findings import Finding
from specedge.probe.measuring import Watch, measure
from specedge.probe.pairs import Rig
from specedge.tokenizer import Tokenizer
from specedge.workloads import Workload, builtin

HALF = 12
GOAL = 25 / 30
CONTEXT = 2048
LONG_S = 120.0  # for one probe of a dozen prompts: it ends when it has decided


@dataclass(frozen=True, slots=True)
class Repetition:
    """One probe and what was measured after it.

    Args:
        workload: name of the class.
        k: K.
        live: the interval rests on pairs, not on the replay.
        gain, low, high: of the probe.
        others, again: later gains, on the other prompts and on the same ones.
    """

    workload: str
    k: int
    live: bool
    gain: float
    low: float
    high: float
    others: float
    again: float

    def holds(self, later: float) -> bool:
        return self.low <= later <= self.high


class Site:
    """Open engines of a bundle, and how its prompts are encoded."""

    def __init__(self, bundle: Bundle, target: Engine, draft: Engine | None) -> None:
        self.bundle = bundle
        self.target = target
        self.draft = draft
        where = str(bundle.path / "tokenizer.json")
        tokenizer = Tokenizer(bundle.tokenizer_json, bundle.manifest.tokenizer, where=where)
        self.encoder = Encoder.of(bundle, tokenizer)
        said = bundle.manifest.speculation
        self.ngrams = (said.ngram_min, said.ngram_max)
        self.eos_ids = frozenset(bundle.manifest.tokenizer.eos_ids)

    def encode(self, prompt: Any) -> Ids:
        return self.encoder.encode(prompt.given(has_template=self.encoder.has_template))[0]

    def probe(self, workload: Workload, proposer: str, curves: CostCurves) -> Finding | None:
        found = calibrate(
            self.target,
            self.draft,
            curves,
            (workload,),
            self.encode,
            proposers=(proposer,),
            eos_ids=self.eos_ids,
            ngrams=self.ngrams,
            margin=self.bundle.manifest.speculation.margin,
            max_draft=self.bundle.manifest.target.max_verify - 1,
            budget_s=LONG_S,
        )
        return next(iter(found.findings.findings), None)

    def measure(self, prompts: Sequence[Ids], proposer: str, k: int) -> float:
        """Gain of the summed times; the order in a pair alternates, as in the probe."""
        plain_ms = spec_ms = 0.0
        watch = Watch(time.perf_counter)
        with Rig(
            self.target, self.draft, watch, eos_ids=self.eos_ids, tokens=TOKENS, ngrams=self.ngrams
        ) as rig:
            for number, ids in enumerate(prompts):
                rig.prefill(ids)
                if proposer == "draft":
                    rig.read()
                if number % 2 == 0:
                    plain = rig.plain()
                    spec = rig.speculative(proposer, k)
                else:
                    spec = rig.speculative(proposer, k)
                    plain = rig.plain()
                steps, spec_steps = len(plain.output) - 1, len(spec.output) - 1
                if steps and spec_steps:
                    plain_ms += plain.ms
                    spec_ms += spec.ms * steps / spec_steps
        return plain_ms / spec_ms


@contextmanager
def site(given: argparse.Namespace) -> Iterator[Site]:
    """Engines as a run of `proposer` opens them."""
    bundle = Bundle.open(given.bundle, verify=False)
    context = min(CONTEXT, bundle.manifest.target.context)
    opener = Opener(bundle, "auto", given.threads, context, True)
    with ExitStack() as stack:
        draft = None
        if given.proposer == "draft":
            opened = opener.draft()
            if isinstance(opened, str):
                sys.exit(f"error: {opened}")
            draft = opened
            stack.callback(draft.close)
        target = opener.target(takes_turns=draft is not None)
        stack.callback(target.close)
        yield Site(bundle, target, draft)


def repeat(at: Site, workload: Workload, curves: CostCurves, proposer: str, seed: int) -> Any:
    """A repetition; None where the probe gave no interval."""
    order = np.random.default_rng(seed).permutation(len(workload.prompts))
    half, rest = order[:HALF], order[HALF : 2 * HALF]
    chosen = Workload(workload.name, tuple(workload.prompts[i] for i in half), workload.source)
    finding = at.probe(chosen, proposer, curves)
    if finding is None:
        return None
    best = max(finding.expected, key=lambda each: each.estimate.gain, default=None)
    k = finding.best_k or (best.k if best is not None else 0)
    estimate = finding.measured or (best.estimate if best is not None else None)
    if not k or estimate is None or estimate.low is None or estimate.high is None:
        return None
    ids = [at.encode(prompt) for prompt in workload.prompts]
    others = at.measure([ids[i] for i in rest], proposer, k)
    again = at.measure([ids[i] for i in half], proposer, k)
    live = finding.measured is not None
    ends = estimate.gain, estimate.low, estimate.high
    return Repetition(workload.name, k, live, *ends, others, again)


def collect(at: Site, given: argparse.Namespace, curves: CostCurves) -> list[Repetition]:
    """Classes in turn; one that gives no interval for a while is left out."""
    made: list[Repetition] = []
    seed, barren = 0, dict.fromkeys((each.name for each in builtin()), 0)
    while len(made) < given.repeats:
        classes = [each for each in builtin() if barren[each.name] < 3]
        if not classes:
            sys.exit("error: no class gives an interval; is anything drafted at all?")
        for workload in classes:
            if len(made) == given.repeats:
                break
            seed += 1
            one = repeat(at, workload, curves, given.proposer, seed)
            if one is None:
                barren[workload.name] += 1
                continue
            made.append(one)
            print(f"{len(made)} of {given.repeats}: {shown(one)}", file=sys.stderr)
    return made


def shown(one: Repetition) -> str:
    inside = "inside" if one.holds(one.others) else "OUTSIDE"
    same = "inside" if one.holds(one.again) else "OUTSIDE"
    kind = "" if one.live else " (replay)"
    return (
        f"{one.workload}, K={one.k}{kind}: {one.gain:.3f} ({one.low:.3f} to {one.high:.3f}); "
        f"others {one.others:.3f} {inside}, again {one.again:.3f} {same}"
    )


def counts(made: Sequence[Repetition]) -> list[str]:
    """A line each for all, those with pairs and each class."""
    kinds = {"all": list(made), "with live pairs": [each for each in made if each.live]}
    for each in made:
        kinds.setdefault(each.workload, []).append(each)
    lines = []
    for name, its in kinds.items():
        if its:
            others = sum(each.holds(each.others) for each in its)
            again = sum(each.holds(each.again) for each in its)
            width = statistics.median(each.high / each.low for each in its)
            lines.append(
                f"{name:<18} others {others:>2} of {len(its):>2}, again {again:>2} of "
                f"{len(its):>2}; median width of the interval {width - 1:.0%}"
            )
    return lines


def main() -> int:
    assert __doc__ is not None, "it is the help text"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--proposer", choices=["ngram", "draft"], default="ngram")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--costs", type=float, default=15.0, help="seconds for the cost curves")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write every repetition there")
    given = parser.parse_args()
    began = time.monotonic()
    with site(given) as at:
        curves = measure(at.target, at.draft, budget_s=given.costs)
        name, engine = at.bundle.manifest.name, at.target.description
        made = collect(at, given, curves)
    inside = sum(each.holds(each.others) for each in made)
    least = math.ceil(GOAL * len(made))
    passed = inside >= least
    print(f"{name}, {engine}, {given.proposer}: later measurements inside the 90 % interval")
    print("\n".join(counts(made)))
    print(f"{'PASS' if passed else 'FAIL'}: {inside} of {len(made)}, goal {least}")
    print(f"{(time.monotonic() - began) / 60:.1f} minutes: {' '.join(sys.argv)}")
    if given.json is not None:
        said = {"command": sys.argv, "commit": commit(), "machine": machine(), "engine": engine}
        said |= {"inside": inside, "goal": least, "repetitions": [asdict(one) for one in made]}
        given.json.write_text(json.dumps(said), encoding="utf-8")
    return 0 if passed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except specedge.SpecedgeError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)

"""One seed, one text: coupled acceptance over many prompts, and what it accepts beside rejection.

    python bench/coupled.py [--prompts 50] [--tokens 100] [--narrow] [--output FILE]

With one seed the target's own sample is the same with speculation off, with n-gram lookup, with the
draft model, with any draft length: each text is held against the plain one. `rejection` on the same
prompts shows what coupling costs: it accepts 1 - TV of the drafted tokens, coupling at least
(1 - TV) / (1 + TV), which is a / (2 - a) or more for a mean a of the former (Jensen).

With exact widths int4 texts are equal too. With the narrow kernels (`exact=False`) logits depend on
the calls. A first difference is certified from the rows that both runs saw at its position: the
same noise must give each run its token, and the margin between the two tokens must be within what
the rows differ by.
Exits with 1 when a text differed that must not, or a difference could not be certified.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "bench")]

from verify_full import machine  # noqa: E402

import equality_cases as cases  # noqa: E402
import real  # noqa: E402
from sampling_prompts import PROMPTS  # noqa: E402
from specedge.acceptance.coupling import arrival, race  # noqa: E402
from specedge.contract import Ids, Logits  # noqa: E402
from specedge.engines.base import Engine, Scored, Slot  # noqa: E402
from specedge.loading import load  # noqa: E402
from specedge.randomness import Randomness  # noqa: E402
from specedge.sampling.law import Law  # noqa: E402
from specedge.sampling.params import Acceptance, SamplingParams  # noqa: E402

SEED = 7
TEMPERATURE = 0.8
CONTEXT = 512
Way = tuple[cases.ProposerSet, int]


@dataclass
class Tally:
    """All prompts with one proposer set and K."""

    name: str
    rule: str
    texts: int = 0
    equal: int = 0
    proposed: int = 0
    accepted: int = 0
    committed: int = 0
    rounds: int = 0
    certified: int = 0
    notes: list[str] = field(default_factory=list)

    def add(self, run: cases.Run, plain: list[int] | None) -> None:
        self.texts += 1
        self.equal += plain is not None and run.tokens == plain
        self.proposed += run.metrics.proposed
        self.accepted += run.metrics.accepted
        self.rounds += run.metrics.rounds
        self.committed += len(run.tokens) - 1

    def differs(self, prompt: int, proof: Certificate) -> None:
        self.certified += proof.holds
        self.notes.append(f"prompt {prompt}: {proof}")

    @property
    def rate(self) -> float:
        return self.accepted / max(1, self.proposed)

    def cells(self, bound: float | None) -> tuple[str, ...]:
        equal = f"{self.equal} of {self.texts}" if self.rule == "coupled" else "-"
        if self.certified:
            equal += f", {self.certified} certified"
        return (
            self.name,
            self.rule,
            equal,
            f"{self.rate:.1%} of {self.proposed}",
            "-" if bound is None else f"{bound:.1%}",
            f"{self.committed / max(1, self.rounds):.2f}",
        )


def asked(rule: Acceptance) -> SamplingParams:
    return SamplingParams(temperature=TEMPERATURE, seed=SEED, acceptance=rule)


class Watched:
    """An engine that keeps the row each position was last scored by: the one its token is from."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.rows: dict[int, Logits] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def forward(self, slot: Slot, tokens: Ids, n_cached: int, rows: int) -> Scored:
        scored = self._engine.forward(slot, tokens, n_cached, rows)
        first = n_cached + len(tokens) - rows + 1
        for row in range(rows):
            self.rows[first + row] = scored.logits[row].copy()
        return scored


def examine(
    pair: cases.Pair, prompts: list[Ids], ways: Iterable[Way], tokens: int, label: str
) -> list[Tally]:
    """Every prompt in every way, coupled and, with the draft model, by the other rules."""
    tallies: dict[tuple[Way, Acceptance], Tally] = {}
    watch = pair.target.width_noise > 0
    for number, ids in enumerate(prompts):
        target: Any = Watched(pair.target) if watch else pair.target
        plain = cases.run(target, ids, max_tokens=tokens, params=asked("coupled")).tokens
        for which, k in ways:
            rules: tuple[Acceptance, ...] = ("coupled", "rejection", "block")
            for rule in rules if which == "draft" else rules[:1]:
                other: Any = Watched(pair.target) if watch else pair.target
                run = cases.run(other, ids, k, pair.proposers(which), tokens, asked(rule))
                name = f"{label}, {which}, K = {k}"
                tally = tallies.setdefault(((which, k), rule), Tally(name, rule))
                tally.add(run, plain if rule == "coupled" else None)
                if rule == "coupled" and run.tokens != plain:
                    tally.differs(number, certificate(len(ids), plain, run.tokens, target, other))
        print(f"{label}: {number + 1} of {len(prompts)}", end="\r", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return list(tallies.values())


@dataclass(frozen=True)
class Certificate:
    """Why two texts part at one position."""

    at: int  # output tokens before it
    explained: bool  # each row and the one noise give each run its token
    margin: float  # of the plain row's two scores
    difference: float  # of the two scores' distance between the rows

    @property
    def holds(self) -> bool:
        return self.explained and 0 <= self.margin <= self.difference

    def __str__(self) -> str:
        if not self.explained:
            return f"from token {self.at} on; NOT EXPLAINED by the rows that were scored"
        return (
            f"from token {self.at} on; margin {self.margin:.3g}, {'' if self.holds else 'NOT '}"
            f"within the {self.difference:.3g} that the rows differ by"
        )


def certificate(n_prompt: int, plain: list[int], other: list[int], *runs: Any) -> Certificate:
    """Of the first difference; `runs` are the watched engines of the plain and the other run."""
    at = cases.first_difference(plain, other)
    if min(len(plain), len(other)) == at or not all(isinstance(run, Watched) for run in runs):
        return Certificate(at, False, 0.0, 0.0)
    position = n_prompt + at
    rows = [run.rows[position] for run in runs]
    noise = Randomness(SEED)
    its = [race(Law(None, row, 1 / TEMPERATURE), noise, position) for row in rows]
    both = [plain[at], other[at]]
    scores = [row[both].astype(np.float64) / TEMPERATURE for row in rows]
    arrivals = [log(arrival(noise, position, token)) for token in both]
    margin = float(scores[0][0] - scores[0][1]) - arrivals[0] + arrivals[1]
    moved = scores[1] - scores[0]
    return Certificate(at, its == both, margin, float(moved[1] - moved[0]))


def page(tallies: list[Tally], given: argparse.Namespace, engine: str, minutes: float) -> str:
    heads = (
        "bundle, proposer, K",
        "rule",
        "equal to plain",
        "accepted",
        "at least",
        "a round",
    )
    rejection = {tally.name: tally.rate for tally in tallies if tally.rule == "rejection"}
    rows = []
    for tally in tallies:
        a = rejection.get(tally.name)
        first = tally.rule == "coupled" and "K = 1" in tally.name
        rows.append(tally.cells(a / (2 - a) if first and a is not None else None))
    return "\n".join(
        [
            "# Coupled acceptance",
            "",
            f"Temperature {TEMPERATURE}, seed {SEED}, {given.prompts} prompts of {given.tokens} "
            "tokens. Made by",
            f"`python bench/coupled.py --prompts {given.prompts} --tokens {given.tokens}` in "
            f"{minutes:.0f} minutes: {engine};",
            f"{machine()}.",
            "",
            "- equal to plain: texts that are those of the same seed with speculation off",
            "- a round: tokens that one target call committed",
            "- at least: theory's bound for K = 1, from what rejection accepts on the same prompts",
            "- narrow: with `exact=False`, where logits depend on the width of a call; certified:",
            "  one noise over the rows that both runs saw explains where they part, see the script",
            "",
            f"| {' | '.join(heads)} |",
            f"|{'---|' * len(heads)}",
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
            *(f"- {tally.name}: {note}" for tally in tallies for note in tally.notes),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--prompts", type=int, default=50, help="at most 50")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--narrow", action="store_true", help="only what needs certificates")
    parser.add_argument("--output", type=Path, help="write the page here")
    given = parser.parse_args()
    began = monotonic()
    bundle, small = real.bundle("smollm2-selfdraft"), real.bundle("smollm2")
    with load(bundle, speculation="off") as model:
        engine = model.engine
        prompts = [
            model.encode([{"role": "user", "content": text}])[0]
            for text in PROMPTS[: given.prompts]
        ]
    drafted: tuple[Way, ...] = (("ngram", 4), ("draft", 1), ("draft", 4), ("both", 7))
    tallies: list[Tally] = []
    if not given.narrow:
        with cases.opened(bundle, CONTEXT) as pair:
            tallies += examine(pair, prompts, drafted, given.tokens, "fp32")
    for exact in (False,) if given.narrow else (True, False):
        with cases.opened(small, CONTEXT, exact=exact) as pair:
            label = "int4" if exact else "int4 narrow"
            tallies += examine(pair, prompts, (("ngram", 4),), given.tokens, label)
    text = page(tallies, given, engine, (monotonic() - began) / 60)
    if given.output is not None:
        given.output.write_text(text, encoding="utf-8")
    print(text)
    narrow = [tally for tally in tallies if "narrow" in tally.name]
    must = [tally for tally in tallies if tally.rule == "coupled" and tally not in narrow]
    wrong = any(tally.equal < tally.texts for tally in must)
    return int(wrong or any(t.equal + t.certified < t.texts for t in narrow))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

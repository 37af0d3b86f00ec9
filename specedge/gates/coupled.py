"""With a seed, sampled text is the same token for token, whoever drafts: every way of a desk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from specedge.acceptance.coupling import arrival
from specedge.desk import PLAIN, Desk, Way
from specedge.engines.base import prefill
from specedge.errors import SpecedgeError
from specedge.gates.findings import Case
from specedge.gates.parting import first_difference
from specedge.gates.places import ranked
from specedge.gates.prompts import Asked
from specedge.randomness import Randomness
from specedge.words import counted

KS = (1, 3, 7)
NEUTRAL: Mapping[str, Any] = {
    "acceptance": "coupled",
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
}
WHOLE: Mapping[str, float] = {"temperature": 0.6}
NARROWED: Sequence[Mapping[str, float]] = (
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 40, "min_p": 0.05},
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One prompt with a seed and options, and its plain answer."""

    asked: Asked
    seed: int
    options: Mapping[str, Any]
    tokens: tuple[int, ...]


@dataclass(slots=True)
class Compared:
    """The trials of one way."""

    texts: int = 0
    equal: int = 0
    excused: int = 0
    tokens: int = 0
    proposed: int = 0
    accepted: int = 0
    widest: float = 0.0  # excused margin
    parted: str = ""  # the first that is not excused
    seconds: float = 0.0


def trials(desk: Desk, prompts: Sequence[Asked], seed: int, n: int, tokens: int) -> list[Trial]:
    """`n` of them: plain answers with seeds of their own, options and prompts in turn.

    On an engine whose logits depend on the width of a call nothing is narrowed: no margin could say
    whether a token at the edge of what is kept was noise.
    """
    noisy = desk.model.target.width_noise > 0
    kinds = (WHOLE,) if noisy else (WHOLE, *NARROWED)
    made: list[Trial] = []
    for number, asked in enumerate(ranked(desk, prompts, tokens)[:n]):
        options = {**NEUTRAL, **kinds[number % len(kinds)], "max_tokens": tokens}
        result = desk.ask(PLAIN, asked.prompt, seed=seed + number, **options)
        made.append(Trial(asked, seed + number, options, tuple(result.tokens)))
    return made


def compare(desk: Desk, way: Way, trial: Trial, found: Compared) -> None:
    """One trial once more in this way; what comes of it is added to `found`."""
    began = perf_counter()
    try:
        _compare(desk, way, trial, found)
    except SpecedgeError as error:
        found.parted = found.parted or f"{trial.asked.name}, seed {trial.seed}: {error}"
    found.seconds += perf_counter() - began


def case(desk: Desk, way: Way, found: Compared) -> Case:
    """What all trials of a way say."""
    drafted = f"{found.accepted:,} of {found.proposed:,} drafted tokens accepted"
    figures = {
        "texts": found.texts,
        "equal_texts": found.equal,
        "excused_texts": found.excused,
        "tokens": found.tokens,
        "proposed": found.proposed,
        "accepted": found.accepted,
        "widest_excused_margin": found.widest,
        "width_noise": desk.model.target.width_noise,
    }
    spent = found.seconds
    name = f"coupled, {way.name}"
    if found.parted:
        return Case(name, "failed", found.parted, spent, figures)
    said = f"equal on {found.equal} of {found.texts} texts, {found.tokens:,} tokens; {drafted}"
    if found.excused:
        said += f"; {found.excused} parted within the width noise of this engine"
    if not found.proposed:
        said = f"nothing was drafted in {counted(found.texts, 'text')}: that proves nothing"
        return Case(name, "skipped", said, spent, figures)
    return Case(name, "passed", said, spent, figures)


def _compare(desk: Desk, way: Way, trial: Trial, found: Compared) -> None:
    result = desk.ask(way, trial.asked.prompt, seed=trial.seed, **trial.options)
    found.texts += 1
    found.tokens += len(result.tokens)
    found.proposed += result.metrics.proposed
    found.accepted += result.metrics.accepted
    plain, its = trial.tokens, result.tokens
    same = first_difference(plain, its)
    if same is None:
        found.equal += 1
        return
    noise = desk.model.target.width_noise
    where = f"{trial.asked.name}, seed {trial.seed}, token {same + 1}"
    if same == min(len(plain), len(its)):
        found.parted = found.parted or (
            f"{where}: expected {len(plain)} tokens as in plain sampling, found {len(its)}"
        )
        return
    mine, other = plain[same], its[same]
    margin = _margin(desk, trial, plain[:same], mine, other) if noise else None
    if margin is not None and margin <= 2 * noise:  # each of two logits may be off by it
        found.excused += 1
        found.widest = max(found.widest, margin)
        return
    named = desk.model.tokenizer.named
    detail = "" if margin is None else f", {margin:.2g} of a logit apart, width noise {noise:.2g}"
    found.parted = found.parted or (
        f"{where}: expected {mine} ({named(mine)!r}) as in plain sampling, found {other} "
        f"({named(other)!r}){detail}"
    )


def _margin(desk: Desk, trial: Trial, said: Sequence[int], mine: int, other: int) -> float:
    """By how much of a logit `mine` won its race against `other`."""
    prompt = desk.model.encode(trial.asked.prompt)[0]
    ids = np.concatenate([prompt, np.array(said, np.int64)])
    engine = desk.model.target
    slot = engine.new_slot()
    try:
        row = prefill(engine, slot, ids, 0).logits[0]
        temperature = float(trial.options["temperature"])
        gap = row.item(mine) - row.item(other)
    finally:
        engine.release(slot)
    randomness = Randomness(trial.seed)
    arrivals = [arrival(randomness, len(ids), token) for token in (mine, other)]
    return float(abs(gap - temperature * np.log(arrivals[0] / arrivals[1])))

"""Texts sampled under `rejection` and `block`: what is drawn, and what a case says of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from specedge.controller import Controller
from specedge.desk import Desk
from specedge.gates.drawing import Drawn, InTurn
from specedge.gates.findings import Case
from specedge.proposers import Proposer
from specedge.sampling.params import RuleName, SamplingParams

POWER = 0.99
"""Probability with which a bias of the stated size is caught."""

SELDOM = 0.05  # rounds with a draft, below which a case says nothing
NOBODY = Controller(0)
WHOLE = "temperature 1", SamplingParams(temperature=1.0)
NARROW = "temperature 0.7, top-p 0.9", SamplingParams(temperature=0.7, top_p=0.9)
TIGHT = (
    "temperature 0.9, top-k 20, min-p 0.05",
    SamplingParams(temperature=0.9, top_k=20, min_p=0.05),
)


@dataclass(slots=True)
class Setting:
    """One case: a rule, a proposer and options, and what was drawn with them.

    `NOBODY` is the control, plain sampling: where it fails, too, speculation is not to blame.
    """

    name: str
    params: SamplingParams
    controller: Controller
    drawn: Drawn = field(default_factory=Drawn)
    places: list[str] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""


def control() -> Setting:
    """Plain sampling."""
    return Setting(f"plain, {WHOLE[0]}", WHOLE[1], NOBODY)


def settings_of(proposer: Proposer, k: int) -> list[Setting]:
    """Both rules, with the whole vocabulary and narrowed. Drafts of different lengths in turn bring
    the token after a draft that stood into the tokens that are counted."""
    kinds: list[tuple[RuleName, bool, tuple[str, SamplingParams]]]
    if proposer.is_lookup:
        kinds = [
            ("rejection", False, WHOLE),
            ("rejection", True, TIGHT),
            ("block", True, NARROW),
        ]
    else:
        kinds = [
            ("rejection", False, WHOLE),
            ("rejection", True, NARROW),
            ("block", True, WHOLE),
            ("block", False, NARROW),
        ]
    return [
        Setting(
            f"{rule}, {proposer.name} K={f'1..{k}' if in_turn and k > 1 else k}, {name}",
            replace(params, acceptance=rule),
            InTurn(k) if in_turn else Controller(k),
        )
        for rule, in_turn, (name, params) in kinds
    ]


def case(desk: Desk, setting: Setting, alarm: float) -> Case:
    """What was found, with `alarm` for each of the tests."""
    drawn = setting.drawn
    tested = [(at, fit) for at, fit in enumerate(drawn.fits, start=1) if fit.freedom]
    biases = [fit.smallest_bias(alarm, POWER) for _, fit in tested]
    figures = {
        "texts": drawn.texts,
        "rounds": drawn.rounds,
        "drafted_rounds": drawn.drafted,
        "refused_rounds": drawn.refused,
        "acceptance_rate": drawn.accepted / drawn.proposed if drawn.proposed else None,
        "acceptance_length": drawn.committed / drawn.rounds if drawn.rounds else None,
        "alarm": alarm,
        "power": POWER,
        "places": setting.places,
        "positions": [
            {
                "position": at,
                "draws": fit.draws,
                "chi_square": fit.statistic if fit.statistic < float("inf") else None,
                "degrees_of_freedom": fit.freedom,
                "p_value": fit.p_value,
                "smallest_bias": bias,
                "smallest_shift": fit.smallest_shift(alarm, POWER),
            }
            for (at, fit), bias in zip(tested, biases, strict=True)
        ],
    }
    if setting.error:
        return Case(setting.name, "failed", setting.error, setting.seconds, figures)
    wrong = [at for at, fit in tested if fit.p_value <= alarm]
    if wrong:
        said = _failure(desk, drawn, wrong[0])
        return Case(setting.name, "failed", said, setting.seconds, figures)
    plain = setting.controller is NOBODY
    if not plain and (not drawn.drafted or drawn.drafted < SELDOM * drawn.rounds):
        said = f"something was drafted in {drawn.drafted:,} of {drawn.rounds:,} rounds: no test"
        return Case(setting.name, "skipped", said, setting.seconds, figures)
    if not tested or min(biases) >= 1:
        said = f"{drawn.texts:,} texts are too few for any test here"
        return Case(setting.name, "skipped", said, setting.seconds, figures)
    refused = drawn.refused / drawn.drafted if drawn.drafted else 0.0
    drafted = f"{drawn.drafted:,} rounds with a draft, {refused:.0%} of them refused some of it"
    said = (
        f"{drawn.texts:,} texts, {'nobody drafts' if plain else drafted}; "
        + ", ".join(f"position {at}: p {fit.p_value:.2g}" for at, fit in tested)
        + "; a bias of "
        + ", ".join(f"{bias:.1%}" for bias in biases)
        + f" of the mass, by position, would be caught with {POWER:.0%}"
    )
    return Case(setting.name, "passed", said, setting.seconds, figures)


def _failure(desk: Desk, drawn: Drawn, position: int) -> str:
    odd = drawn.odd[position - 1]
    assert odd is not None, "a statistic comes from cells"
    place, found = odd
    oddity, named = found.oddity, desk.model.tokenizer.named
    which = repr(named(oddity.token)) if oddity.cell == 1 else f"{oddity.cell:,} rare tokens"
    after = f", after {''.join(map(named, found.branch))!r}" if found.branch else ""
    return (
        f"position {position} (p {drawn.fits[position - 1].p_value:.2g}): {place}{after}: "
        f"expected {which} {oddity.expected:,.1f} times in {found.draws:,}, "
        f"found {oddity.observed:,.0f}"
    )

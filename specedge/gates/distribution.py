"""Gate "distribution": what is sampled with speculation follows the target's own law.

rejection, block   texts are drawn by the real loop at places of the prompts' own plain text; the
                   tokens at each position are tested, each behind its own context, against the
                   target's exact probabilities. One alarm probability covers every test
coupled            with a seed the text is the plain one, token for token

Seeds are fixed: a bundle that passes passes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from specedge.desk import PLAIN, Desk, Way
from specedge.errors import SpecedgeError
from specedge.gates import coupled
from specedge.gates.drawing import WINDOW, Drawer, judge
from specedge.gates.findings import Case, Gate, Report
from specedge.gates.places import Looked, Place, choose, look
from specedge.gates.prompts import Asked
from specedge.gates.remembered import Memory, RememberedEngine
from specedge.gates.sampled import POWER, Setting, case, control, settings_of
from specedge.proposers import DraftModelProposer, Proposer
from specedge.words import counted

NAME, TITLE = "distribution", "Sampling follows the target's own distribution"
ALARM = 1e-3
"""Probability that a sound bundle fails, over all tests of the gate."""
SEED = 5
K = 3
PLACES = 2


def check(
    desk: Desk,
    prompts: Sequence[Asked],
    *,
    report: Report,
    rounds: int = 4000,
    texts_looked_at: int = 5,
    coupled_texts: int = 3,
    coupled_tokens: int = 24,
) -> Gate:
    """Run the gate.

    Args:
        prompts: places are chosen in the plain answers to some of them.
        rounds: texts drawn in each case; each begins with a speculative round.
        texts_looked_at: plain answers in which places are looked for.
        coupled_texts, coupled_tokens: compared in each way.
    """
    began = perf_counter()
    report("plain answers", 0.0)
    looked = look(desk, prompts, texts_looked_at)
    settings, spoken = _drawn(desk, looked, rounds, report)
    report("coupled: plain answers", 0.7)
    trials = coupled.trials(desk, prompts, SEED, coupled_texts, coupled_tokens)
    ways = [way for way in desk.ways(coupled.KS) if way != PLAIN]
    compared = {way: coupled.Compared() for way in ways}
    for number, trial in enumerate(trials):  # ways inside: the prompt stays in the KV
        report(f"coupled: {trial.asked.name}", 0.75 + 0.25 * number / len(trials))
        for way in ways:
            coupled.compare(desk, way, trial, compared[way])
    report("done", 1.0)
    alarm = ALARM / max(1, sum(fit.freedom > 0 for each in settings for fit in each.drawn.fits))
    cases = [
        *spoken,
        *(case(desk, each, alarm) for each in settings),
        *(coupled.case(desk, way, found) for way, found in compared.items()),
    ]
    return _gate(cases, alarm, perf_counter() - began)


def _drawn(
    desk: Desk, looked: Sequence[Looked], texts: int, report: Report
) -> tuple[list[Setting], list[Case]]:
    """Settings with what was drawn; and cases of proposers that cannot be looked at."""
    k = min(K, desk.longest)
    settings: list[Setting] = []
    spoken: list[Case] = []
    for number, name in enumerate(desk.proposers):
        proposer = desk.speculator(Way("on", (name,), k)).proposers[0]
        places = _places(desk, looked, proposer, k)
        if isinstance(places, str):
            spoken.append(Case(f"{name} K={k}", "skipped", places))
            continue
        mine = settings_of(proposer, k)
        if not settings:
            mine.insert(0, control())
        for at, place in enumerate(places):
            share = (number + at / len(places)) / len(desk.proposers)
            report(f"{name}: {place.name}", 0.05 + 0.65 * share)
            _draw_all(desk, proposer, place, mine, texts // len(places))
        proposer.forget()
        settings += mine
    return settings, spoken


def _places(desk: Desk, looked: Sequence[Looked], proposer: Proposer, k: int) -> list[Place] | str:
    """Where this proposer drafts; or why it cannot be looked at."""
    context = desk.model.context
    if isinstance(proposer, DraftModelProposer):
        context = min(context, proposer.engine.spec.context)
    elif not proposer.is_lookup:
        return f"{proposer.name} drafts with more than one engine's logits: not covered here"
    places = choose(looked, proposer, k, window=WINDOW, context=context, most=PLACES)
    drafted, answers = counted(k, "token"), counted(len(looked), "plain answer")
    return places or f"{proposer.name} drafted {drafted} nowhere in {answers}"


def _draw_all(
    desk: Desk, proposer: Proposer, place: Place, settings: Sequence[Setting], texts: int
) -> None:
    """Draw behind one place in each setting; an error fails the setting it came in."""
    room = len(place.stem) + WINDOW + K + 2
    end_ids = desk.model.bundle.manifest.tokenizer.eos_ids
    memories: list[Memory] = []
    setting = settings[0]
    try:
        memories.append(Memory(desk.model.target, place.stem))
        drafting = proposer
        if isinstance(proposer, DraftModelProposer):
            memories.append(Memory(proposer.engine, place.stem, memories[0]))
            drafting = DraftModelProposer(RememberedEngine(memories[1], room))
        drawer = Drawer(RememberedEngine(memories[0], room), drafting, end_ids, SEED)
        for setting in settings:
            began = perf_counter()
            counted = drawer.draw(setting.drawn, setting.params, setting.controller, texts)
            judge(setting.drawn, counted, memories[0], setting.params, place.name)
            setting.places.append(place.name)
            setting.seconds += perf_counter() - began
    except SpecedgeError as error:
        setting.error = f"{place.name}: {error}"
    finally:
        for memory in memories:
            memory.close()


def _gate(cases: Sequence[Case], alarm: float, seconds: float) -> Gate:
    tests = [test for case in cases for test in case.figures.get("positions", ())]
    failed = sum(case.outcome == "failed" for case in cases)
    least = min((test["p_value"] for test in tests), default=None)
    biases = [test["smallest_bias"] for test in tests]
    texts = [case for case in cases if "equal_texts" in case.figures]
    equal = sum(case.figures["equal_texts"] for case in texts)
    of = sum(case.figures["texts"] for case in texts)
    said = [f"{failed} of {len(cases)} cases failed" if failed else ""]
    if biases:
        said.append(
            f"{len(tests)} chi-square tests, smallest p {least:.2g}, alarm {alarm:.2g} each; "
            f"biases from {min(biases):.1%} to {max(biases):.1%} of the mass would be caught "
            f"with {POWER:.0%}"
        )
    said.append(f"coupled: equal on {equal:,} of {of:,} texts" if of else "")
    return Gate(
        NAME,
        TITLE,
        "; ".join(filter(None, said)) or cases[0].said,
        cases,
        seconds,
        {
            "tests": len(tests),
            "smallest_p_value": least,
            "alarm_over_all": ALARM,
            "coupled_texts": of,
            "coupled_equal_texts": equal,
        },
        (
            f"a sound bundle fails with probability {ALARM:g} over all chi-square tests; seeds are "
            "fixed, so it does so always or never",
            "a bias is the total variation between the cells of a test, tokens rarer than 1 in 40 "
            "pooled, wherever it lies, and as large after each context that was counted",
            "positions are counted from the first token after a place in the prompt's plain answer",
        ),
    )

"""Gate "limits": the edges of context, budget, stop strings and streams, and a thousand requests.

Every way (plain, auto, each proposer with several K) meets the same edges and must give the plain
text. All of it is greedy, past end ids, and on the desk's own context: with a long one, filling it
takes as long as one prefill of it.

    subject              the desk, its ways, prompts as ids
    edges, streams       the checks; crossing: where a stop string spans two rounds
    resident             memory and its trend
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from specedge.desk import AUTO, Desk
from specedge.errors import with_class
from specedge.gates.checked import Checked
from specedge.gates.edges import filled, one_token, shorter_draft, too_long, whole
from specedge.gates.findings import Case, Gate, Report
from specedge.gates.prompts import Asked
from specedge.gates.resident import BOUND, Growth, growth, resident_bytes
from specedge.gates.streams import cancelled, stopped
from specedge.gates.subject import Subject, subject_of

_EVERY = 50  # requests between two samples of memory
_WARM = 200  # requests before the first
_SHORT = 12  # tokens of the longest short prompt
_SHORT_OUTPUT = 3  # the least that leaves room for a draft: the first, a drafted one, one more


def check(
    desk: Desk,
    prompts: Sequence[Asked],
    *,
    report: Report,
    requests: int = 1000,
    ks: Sequence[int] | None = None,
) -> Gate:
    """Run the desk into its limits.

    Args:
        desk: open; adaptive ways begin anew.
        prompts: one at least.
        report: told the check and the share that is done.
        requests: short ones, over which memory must not grow; less than 300 tell too little, and
            the check is skipped.
        ks: draft lengths of each proposer, 1..desk.longest; None: 1, 4 and the longest.

    Raises:
        PromptError: there is no prompt, or one cannot be encoded.
    """
    began = perf_counter()
    subject = subject_of(desk, prompts, ks)
    checks: list[tuple[str, float, Callable[[Subject], Checked]]] = [
        ("context filled to the last slot", 4, filled),
        ("prompt of the whole context", 1, whole),
        ("prompt one token too long", 0.1, too_long),
        ("draft with a shorter context", 1, shorter_draft),
        ("max_tokens 1", 1, one_token),
        ("stop string across rounds", 3, stopped),
        ("stream cancelled midway", 2, cancelled),
        ("short requests without growth", 8, lambda subject: short(subject, requests)),
    ]
    cases = []
    progress = _Progress(report, sum(weight for _, weight, _ in checks))
    subject.step = progress.step
    for name, weight, run in checks:
        progress.begin(name, weight)
        cases.append(_case(name, run, subject))
    report("limits", 1.0)
    desk.renew(AUTO)
    return _gate(subject, cases, perf_counter() - began)


@dataclass(slots=True)
class _Progress:
    """Shares of checks as shares of the gate; never backwards, though a check may begin again."""

    report: Report
    total: float
    name: str = ""
    done: float = 0.0
    weight: float = 0.0
    shown: float = 0.0

    def begin(self, name: str, weight: float) -> None:
        self.done += self.weight
        self.name, self.weight = name, weight
        self.step(0.0)

    def step(self, share: float) -> None:
        self.shown = max(self.shown, (self.done + self.weight * share) / self.total)
        self.report(self.name, self.shown)


def _case(name: str, run: Callable[[Subject], Checked], subject: Subject) -> Case:
    began = perf_counter()
    try:
        found = run(subject)
    except Exception as error:  # a crash at a limit is what this gate looks for
        said = f"{subject.at}: expected an answer, found {with_class(error)}"
        found = Checked(said, [said])
    return found.case(name, perf_counter() - began)


def short(subject: Subject, requests: int) -> Checked:
    """Memory over many short requests, all ways in turn; what grows must grow a second time."""
    if requests < _WARM + 2 * _EVERY:
        return Checked(f"{requests} requests tell too little of memory", applies=False)
    if resident_bytes() is None:
        return Checked("this system does not tell resident memory", applies=False)
    rounds: list[Growth] = []
    for _ in range(2):
        rounds.append(_sampled(subject, requests))
        if not rounds[-1].grows:
            break
    last = rounds[-1]
    sizes = ", ".join(
        f"{name} {size / 1e6:,.1f} MB"
        for name, size in (("start", last.start), ("end", last.end), ("peak", last.peak))
    )
    trend = f"{last.per_1000 / 1e6:+.2f} MB per 1,000"
    said = f"{requests:,} requests: RSS {sizes}; {trend} (bound {BOUND / 1e6:g} MB)"
    figures = {
        "requests": requests * len(rounds),
        "rss_start_bytes": last.start,
        "rss_end_bytes": last.end,
        "rss_peak_bytes": last.peak,
        "growth_bytes_per_1000": last.per_1000,
        "bound_bytes_per_1000": BOUND,
        "later_growth_bytes_per_1000": last.later_per_1000,
        "rss_bytes_by_request": [
            [place * requests + done, size]
            for place, each in enumerate(rounds)
            for done, size in each.samples
        ],
    }
    fault = f"memory: expected no growth, found {said}, twice in a row"
    return Checked(said, [fault] if last.grows else [], figures)


def _sampled(subject: Subject, requests: int) -> Growth:
    """Prompts of 1 to 12 tokens that share no beginning with the one before."""
    longest = max(1, min(_SHORT, subject.context - _SHORT_OUTPUT))
    samples = []
    for number in range(requests + 1):
        if number >= _WARM and number % _EVERY == 0:
            gc.collect()
            samples.append((number, resident_bytes() or 0))
            subject.step(number / requests)
        length, start = 1 + number * 7 % longest, number * 13 % (subject.context - longest + 1)
        prompt = subject.stock[start : start + length]
        subject.ask(subject.ways[number % len(subject.ways)], prompt, max_tokens=_SHORT_OUTPUT)
    return growth(samples)


def _gate(subject: Subject, cases: list[Case], seconds: float) -> Gate:
    failed = [case for case in cases if case.outcome == "failed"]
    if failed:
        said = f"{len(failed)} of {len(cases)} checks failed: {', '.join(c.name for c in failed)}"
    else:
        ran = sum(case.outcome == "passed" for case in cases)
        memory = next((c.said for c in cases if "rss_end_bytes" in c.figures), "memory not judged")
        said = f"{ran} limits hold in {len(subject.ways)} ways, T = {subject.context}; {memory}"
    notes = [f"ways: {', '.join(way.name for way in subject.ways)}; greedy, end ids ignored"]
    if not subject.exact:
        notes.append(
            "logits of this engine differ with the width of a call: lengths and reasons are "
            "compared here, tokens by the gate greedy"
        )
    figures = {"context": subject.context, "ways": [way.name for way in subject.ways]}
    return Gate("limits", "Limits", said, cases, seconds, figures, notes)

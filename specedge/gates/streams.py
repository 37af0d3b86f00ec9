"""Checks of the gate "limits": streams that a string ends, or the caller."""

from __future__ import annotations

from typing import Any

from specedge.contract import Ids
from specedge.desk import PLAIN, Way
from specedge.errors import BusyError
from specedge.gates.checked import Checked
from specedge.gates.crossing import Crossing, crossing
from specedge.gates.subject import GREEDY, LONGEST, Subject
from specedge.result import Result

_OUTPUT = 48  # tokens of a text that is stopped or cancelled


def stopped(subject: Subject) -> Checked:
    """A string that begins in one round and ends in the next stops all ways at one place."""
    faults: list[str] = []
    figures: list[dict[str, Any]] = []
    seekers = {way.proposers: way for way in subject.ways if way.mode == "on"}  # the largest K
    for share, way in enumerate(seekers.values()):
        subject.step(share / len(seekers))
        found = _place(subject, way)
        if found is None:
            continue
        prompt, full, place = found
        text = full.text[: place.at]
        for other in subject.ways:
            streamed, got = _streamed(subject, other, prompt, stop=place.stop)
            if place.stop in got.text or not (text.startswith(streamed) or not subject.exact):
                faults.append(f"{other.name}: stop string {place.stop!r} leaks: {got.text!r:.200}")
            elif subject.exact:
                want = full.tokens[: place.n_tokens]
                faults += subject.compared(other, got, place.n_tokens, want, "stop_string")
                if got.text != text:
                    faults.append(f"{other.name}: expected {text!r:.200}, found {got.text!r:.200}")
        rounds = list(place.rounds)
        figures.append({"way": way.name, "stop": place.stop, "at": place.at, "rounds": rounds})
    if not figures:
        return Checked("no text of these prompts has a round to cross", applies=False)
    stops = ", ".join(f"{each['stop']!r} ({each['way']})" for each in figures)
    return Checked(f"{len(subject.ways)} ways stop alike at {stops}", faults, {"places": figures})


def _place(subject: Subject, way: Way) -> tuple[Ids, Result, Crossing] | None:
    """The first prompt with a seam between two rounds that commit more than one token each, else
    any seam."""
    model = subject.desk.model
    fallback = None
    for prompt in (*subject.texts, subject.stock[: min(LONGEST, subject.context // 2)]):
        budget = min(_OUTPUT, subject.context - len(prompt))
        full = subject.ask(way, prompt, max_tokens=budget, explain=True)
        pieces = list(map(model.tokenizer.stream(prompt.tolist()).piece, full.tokens))
        committed = [1, *(each.committed for each in full.rounds or ())]
        place = crossing(pieces, committed, model.tokenizer.special_tokens())
        if place is not None and min(place.rounds) > 1:
            return prompt, full, place
        if place is not None and fallback is None:
            fallback = prompt, full, place
    return fallback


def _streamed(subject: Subject, way: Way, prompt: Ids, **options: Any) -> tuple[str, Result]:
    """What left in events, and the result."""
    subject.at = way.name
    budget = min(_OUTPUT, subject.context - len(prompt))
    stream = subject.desk.start(way, prompt, {**GREEDY, "max_tokens": budget, **options})
    text = "".join([event.text for event in stream])
    assert stream.result is not None
    return text, stream.result


def cancelled(subject: Subject) -> Checked:
    """A stream that is closed, or that nobody holds any more, frees the model at once."""
    prompt = subject.texts[-1]
    budget = min(_OUTPUT // 2, subject.context - len(prompt))
    few = min(6, budget)
    want = subject.ask(PLAIN, prompt, max_tokens=budget).tokens
    faults: list[str] = []
    for way in subject.each():
        stream = subject.desk.start(way, prompt, {**GREEDY, "max_tokens": budget})
        seen = 0
        while seen < few - 1:
            seen += len(next(stream).tokens)
        if seen < budget:  # else one round was the whole output
            try:
                subject.desk.start(PLAIN, prompt, GREEDY).close()
                faults.append(f"{way.name}: expected a busy model midway, found it free")
            except BusyError:
                pass
            stream.close()
            got = stream.result
            if got is None:
                faults.append(f"{way.name}: expected a result of a closed stream, found none")
            else:
                faults += subject.compared(way, got, seen, want[:seen], "cancelled")
        faults += subject.compared(way, subject.ask(way, prompt, max_tokens=budget), budget, want)
        dropped = subject.desk.start(way, prompt, {**GREEDY, "max_tokens": budget})
        next(dropped)
        del dropped
        after = subject.ask(way, prompt, max_tokens=few)
        faults += subject.compared(way, after, few, want[:few])
    return Checked(f"{len(subject.ways)} ways: closed and dropped streams free the model", faults)

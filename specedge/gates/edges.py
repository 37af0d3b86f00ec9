"""Checks of the gate "limits": where the context, the prompt or the output budget ends."""

from __future__ import annotations

from collections.abc import Iterator

from specedge.contract import Ids
from specedge.desk import PLAIN
from specedge.errors import PromptError
from specedge.gates.checked import Checked
from specedge.gates.subject import Subject
from specedge.result import Result

_ROOM = 32  # tokens left in the context for the output that fills it


def _alike(subject: Subject, prompt: Ids, n_tokens: int) -> Iterator[tuple[Result, list[str]]]:
    """Ask every way for all that fits, and compare with the plain answer."""
    want: list[int] = []
    for way in subject.each():
        got = subject.ask(way, prompt, max_tokens=None)
        want = got.tokens if way is PLAIN else want
        yield got, list(subject.compared(way, got, n_tokens, want))


def filled(subject: Subject) -> Checked:
    """A prompt near the context, an output that takes every row that is left."""
    room = min(_ROOM, subject.context // 2)
    prompt = subject.stock[: subject.context - room]
    faults, proposed = [], 0
    for got, wrong in _alike(subject, prompt, room + 1):
        faults += wrong
        proposed += got.metrics.proposed
    return Checked(
        f"{len(subject.ways)} ways: {room + 1} tokens after {len(prompt)} fill T = "
        f"{subject.context}, then a clean stop",
        faults,
        {"context": subject.context, "prompt_tokens": len(prompt), "proposed": proposed},
    )


def whole(subject: Subject) -> Checked:
    """The last row scores one token, which needs no row of its own; one row leaves no draft."""
    faults: list[str] = []
    for left in (1, 0):
        prompt = subject.stock[: subject.context - left]
        for _, wrong in _alike(subject, prompt, left + 1):
            faults += wrong
    return Checked(
        f"{len(subject.ways)} ways: {subject.context} tokens give one more, one token less two",
        faults,
    )


def too_long(subject: Subject) -> Checked:
    """Refused before anything runs, with both lengths named; the model serves on."""
    prompt, said = subject.stock, ""
    for way in subject.each():
        try:
            subject.ask(way, prompt)
        except PromptError as error:
            said = str(error)
        else:
            fault = f"{way.name}: expected {len(prompt)} tokens to be refused, found an answer"
            return Checked(fault, [fault])
        if not all(str(length) in said for length in (len(prompt), subject.context)):
            fault = f"{way.name}: expected both lengths in the message, found {said!r}"
            return Checked(fault, [fault])
        subject.ask(way, subject.texts[0], max_tokens=2)
    return Checked(f"refused: {said}")


def shorter_draft(subject: Subject) -> Checked:
    """Past its own context the draft model rests, and plain decoding goes on."""
    rows = subject.desk.fingerprint["draft_context"]
    if not isinstance(rows, int):
        return Checked("there is no draft model", applies=False)
    if rows >= subject.context:
        return Checked(f"the draft has {rows} rows, as many as the target", applies=False)
    before = min(_ROOM // 2, rows - 1)
    prompt, budget = subject.stock[: rows - before], before + min(_ROOM, subject.context - rows)
    want = subject.ask(PLAIN, prompt, max_tokens=budget).tokens
    faults: list[str] = []
    proposed = 0
    for way in subject.each():
        got = subject.ask(way, prompt, max_tokens=budget, explain=True)
        faults += subject.compared(way, got, budget, want)
        rounds = [each for each in got.rounds or () if each.proposer == "draft"]
        proposed += sum(each.drafted for each in rounds)
        # K tokens after past + 1 committed ones need past + K rows of the draft
        past = [each.past + each.drafted for each in rounds if each.past + each.drafted > rows]
        if past:
            faults.append(f"{way.name}: expected at most {rows} rows of the draft, found {past[0]}")
    if not proposed and not faults:
        faults.append("draft: expected drafts before its context ends, found none")
    said = f"{proposed} tokens drafted up to row {rows}, none past it, the text goes on"
    return Checked(said, faults, {"draft_context": rows, "proposed": proposed})


def one_token(subject: Subject) -> Checked:
    """The prefill's token is the whole output, so nobody drafts."""
    prompt = subject.texts[0]
    want = subject.ask(PLAIN, prompt, max_tokens=1).tokens
    faults: list[str] = []
    for way in subject.each():
        got = subject.ask(way, prompt, max_tokens=1)
        faults += subject.compared(way, got, 1, want)
        if got.metrics.proposed or got.metrics.rounds:
            faults.append(f"{way.name}: expected no round, found {got.metrics.rounds}")
    return Checked(f"one token, no draft, no round in {len(subject.ways)} ways", faults)

"""Lookups that were not used, against the same lookups held offline against the finished text."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.adaptive import Adaptive
from specedge.engines.fake import hashed
from specedge.proposers.base import Draft
from specedge.shadow import FOLLOWED, Shadows
from tests import oracle
from tests.timed import DEAR, Clock, Desk, install, known, steps

Heard = list[tuple[str, int, int, int]]


def matched(tokens: list[int], shortest: int, longest: int) -> int:
    """Length of the longest end of the text that occurs earlier."""
    return next(
        (n for n in range(longest, shortest - 1, -1) if oracle.ngram(tokens, 1, n, n)),
        0,
    )


def offline(
    text: list[int], marks: list[int], limits: list[int], used: frozenset[int] = frozenset()
) -> Heard:
    """Walk a finished text.

    Args:
        text: all of it.
        marks: its lengths between rounds, rising; the last is len(text).
        limits: largest K of the round that begins at each mark but the last.
        used: places in `marks` where a lookup drafted for real.
    """
    heard: Heard = []
    at = 0
    while at < len(marks) - 1:
        start = marks[at]
        most = min(limits[at], FOLLOWED)
        draft = oracle.ngram(text[:start], most, 2, 6) if most else []
        if not draft or at in used:
            at += 1
            continue
        stood = oracle.common_prefix(draft, text[start:])
        decided = start + min(stood + 1, len(draft))
        later = next((i for i in range(at + 1, len(marks)) if marks[i] >= decided), None)
        broken = next((i for i in range(at + 1, len(marks)) if i in used), None)
        if later is None or (broken is not None and broken < later):
            at = len(marks) if broken is None else broken
            continue
        heard.append(("ngram", matched(text[:start], 2, 6), len(draft), stood))
        at = later
    return heard


@given(
    st.lists(st.integers(0, 2), min_size=10, max_size=60),
    st.lists(st.integers(1, 5), min_size=60, max_size=60),
    st.integers(1, 8),
)
def test_what_is_heard_is_what_the_same_lookup_finds_offline(text, widths, limit):
    """A vocabulary of three: matches everywhere, right and wrong ones."""
    marks = [3]
    while marks[-1] < len(text):
        marks.append(min(len(text), marks[-1] + widths[len(marks)]))
    shadows, heard = Shadows(), []
    for start, stop in pairwise(marks):
        draft = oracle.ngram(text[:start], limit, 2, 6)
        if draft:
            match = matched(text[:start], 2, 6)
            shadows.offer("ngram", Draft(np.array(draft), "ngram", match=match))
        shadows.commit(text[start:stop], lambda *said: heard.append(said))
    assert heard == offline(text, marks, [limit] * (len(marks) - 1))


def follow(*commits: list[int], drafted: list[int]) -> Heard:
    heard: Heard = []
    shadows = Shadows()
    shadows.offer("a", Draft(np.array(drafted), "a", match=4))
    for tokens in commits:
        shadows.commit(tokens, lambda *said: heard.append(said))
    return heard


@pytest.mark.parametrize(
    ("commits", "heard"),
    [
        ([[9]], [("a", 4, 3, 0)]),
        ([[1]], []),
        ([[1], [2]], []),
        ([[1], [2], [3]], [("a", 4, 3, 3)]),
        ([[1, 2, 3, 4]], [("a", 4, 3, 3)]),
        ([[1], [2, 9]], [("a", 4, 3, 2)]),
        ([[1, 2], [9], [1]], [("a", 4, 3, 2)]),
    ],
)
def test_a_draft_is_heard_of_once_when_it_breaks_or_is_used_up(commits, heard):
    assert follow(*commits, drafted=[1, 2, 3]) == heard


def test_the_first_offer_is_followed_until_it_is_decided():
    shadows, heard = Shadows(), []
    shadows.offer("a", Draft(np.array([1, 2]), "a", match=2))
    shadows.offer("a", Draft(np.array([7, 7]), "a", match=5))
    shadows.offer("b", Draft(np.array([1, 7]), "b", match=3))
    shadows.commit([1, 2], lambda *said: heard.append(said))
    assert heard == [("a", 2, 2, 2), ("b", 3, 2, 1)]


@pytest.mark.parametrize("end", ["clear", "drop"])
def test_what_ends_undecided_is_not_heard_of(end):
    shadows, heard = Shadows(), []
    shadows.offer("a", Draft(np.array([1, 2]), "a", match=2))
    shadows.commit([1], lambda *said: heard.append(said))
    if end == "clear":
        shadows.clear()
    else:
        shadows.drop("a")
        shadows.drop("unknown")
    shadows.commit([9], lambda *said: heard.append(said))
    assert heard == []


class Ear:
    """What a policy is told, instead of being told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, adaptive: Adaptive) -> None:
        self.heard: Heard = []
        assert adaptive.policy is not None
        monkeypatch.setattr(adaptive.policy, "hear", lambda *said: self.heard.append(said))


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return install(monkeypatch)


@pytest.mark.parametrize("seed", range(4))
def test_a_run_hears_of_its_lookups_what_they_would_have_brought(clock, monkeypatch, seed):
    """Drafts that are used for real begin and end what is followed, nothing else does."""
    rule = hashed(5, last=None if seed % 2 else 6, seed=seed)
    desk = Desk(clock, rule=rule, cost=steps(DEAR), costs=known(DEAR), vocab=8)
    ear = Ear(monkeypatch, desk.adaptive)
    prompt = [1, 2, 3]
    ran = desk.run(prompt, 200)
    text = prompt + ran.tokens
    marks, limits, used = [len(prompt) + 1], [], set()
    for i, done in enumerate(ran.rounds):
        left = len(text) - marks[-1]
        limits.append(max(0, min(15, left - 1)))
        if done.proposer == "ngram":
            used.add(i)
        marks.append(marks[-1] + len(done.tokens))
    wanted = offline(text, marks, limits, frozenset(used))
    assert ear.heard == wanted
    assert len(wanted) > 20
    assert {stood for _, _, _, stood in wanted} >= {0, 1, 2}


def test_nothing_is_followed_into_another_request(clock, monkeypatch):
    desk = Desk(clock, cost=steps(DEAR), costs=known(DEAR))
    ear = Ear(monkeypatch, desk.adaptive)
    looping = desk.oracle([5], 40)[10:]
    ran = desk.run(looping, 50, stop_after=1)
    assert ran.rounds[0].drafted == 0  # so its lookup is followed
    desk.run([1, 2, 3], 3)
    assert ear.heard == []

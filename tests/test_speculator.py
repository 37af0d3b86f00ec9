from __future__ import annotations

import numpy as np
import pytest

from specedge.acceptance import Verdict
from specedge.controller import Controller
from specedge.engines.fake import fake_spec
from specedge.errors import OptionError, ProposerError, SpecedgeError
from specedge.proposers import Draft
from specedge.sampling.sampler import GREEDY, Sampler
from specedge.sequence import NO_TOKENS, Sequence
from specedge.speculator import Speculator

SPEC = fake_spec(vocab=10, context=32)


class Stub:
    """Drafts `tokens`, or raises `error` in the verb `fails`."""

    def __init__(self, name="stub", tokens=(), fails=None, error=None) -> None:
        self.name = name
        self.tokens = np.array(tokens, dtype=np.int64)
        self.fails = fails
        self.error = error
        self.verbs: list[str] = []

    def _enter(self, verb: str) -> None:
        self.verbs.append(verb)
        if verb == self.fails:
            raise self.error

    def start(self, seq: Sequence, sampler: Sampler) -> None:
        self._enter("start")

    def propose(self, seq: Sequence, limit: int) -> Draft:
        self._enter("propose")
        return Draft(self.tokens, self.name)

    def observe(self, committed: np.ndarray, n_accepted: int) -> None:
        self._enter("observe")

    def close(self) -> None:
        self._enter("close")


def started() -> Sequence:
    seq = Sequence([1, 2], context=32, max_tokens=20)
    seq.commit(NO_TOKENS, Verdict(0, 3))
    return seq


def run(speculator: Speculator) -> Draft:
    """One request of one round."""
    seq = started()
    speculator.start(seq, SPEC, GREEDY)
    draft = speculator.propose(seq)
    speculator.observe(np.array([1]), 0)
    return draft


ERRORS = [RuntimeError("gone\nfor good"), MemoryError(), SpecedgeError("bad"), OSError(5, "io")]


@pytest.mark.parametrize("verb", ["start", "propose", "observe"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_failure_rests_every_proposer_for_the_request(verb, error):
    bad, other = Stub("bad", fails=verb, error=error), Stub("other", [1])
    speculator = Speculator([bad, other], Controller(4))
    run(speculator)
    state = speculator.state()
    assert (state.on, state.failures) == (False, 1)
    assert f"proposer bad failed in {verb}: {type(error).__name__}" in state.reason
    assert "\n" not in state.reason
    before = list(other.verbs)
    assert len(speculator.propose(started()).tokens) == 0
    speculator.observe(np.array([1]), 0)
    assert other.verbs == before


def test_failures_are_counted_over_requests_and_each_request_tries_again():
    bad = Stub(fails="propose", error=RuntimeError("gone"))
    speculator = Speculator([bad], Controller(4))
    for count in (1, 2, 3):
        run(speculator)
        assert speculator.state().failures == count
    bad.fails = None
    run(speculator)
    assert (speculator.state().on, speculator.state().failures) == (True, 3)


@pytest.mark.parametrize("verb", ["start", "propose", "observe"])
def test_a_failure_is_an_error_when_speculation_is_forced(verb):
    error = MemoryError("no room")
    speculator = Speculator([Stub("bad", fails=verb, error=error)], Controller(4), mode="on")
    with pytest.raises(ProposerError, match=f"proposer bad failed in {verb}: MemoryError") as got:
        run(speculator)
    assert got.value.__cause__ is error
    assert speculator.state().failures == 1


@pytest.mark.parametrize("verb", ["start", "propose", "observe"])
def test_an_interrupt_is_not_taken_for_a_failure(verb):
    speculator = Speculator([Stub(fails=verb, error=KeyboardInterrupt())], Controller(4))
    with pytest.raises(KeyboardInterrupt):
        run(speculator)
    assert speculator.state().failures == 0


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([3, -1], r"drafted id -1, expected 0\.\.9"),
        ([3, 10], r"drafted id 10, expected 0\.\.9"),
        ([1] * 5, "drafted 5 tokens where at most 4 fit"),
    ],
)
def test_an_impossible_draft_is_a_failure(tokens, message):
    speculator = Speculator([Stub(tokens=tokens)], Controller(4), mode="on")
    with pytest.raises(ProposerError, match=message):
        run(speculator)
    forgiving = Speculator([Stub(tokens=tokens)], Controller(4))
    assert len(run(forgiving).tokens) == 0
    assert forgiving.state().failures == 1


@pytest.mark.parametrize(
    ("proposers", "k", "mode", "reason"),
    [
        ([Stub(tokens=[1])], 4, "off", "turned off"),
        ([], 4, "auto", "no proposer"),
        ([Stub(tokens=[1])], 0, "auto", "draft length is 0"),
    ],
)
def test_nobody_is_asked_when_there_is_nothing_to_ask(proposers, k, mode, reason):
    speculator = Speculator(proposers, Controller(k), mode=mode)
    assert len(run(speculator).tokens) == 0
    assert not speculator.state().on
    assert reason in speculator.state().reason
    assert all(proposer.verbs == [] for proposer in proposers)


@pytest.mark.parametrize(
    ("proposers", "k", "mode"), [([], 4, "on"), ([Stub()], 0, "on"), ([Stub()], 4, "always")]
)
def test_a_mode_that_cannot_be_honoured_is_refused(proposers, k, mode):
    with pytest.raises(OptionError, match="speculation"):
        Speculator(proposers, Controller(k), mode=mode)


def test_a_negative_draft_length_is_refused():
    with pytest.raises(OptionError, match="draft_length: expected 0 or more, found -1"):
        Controller(-1)


def test_the_state_names_who_drafted_most():
    first, second = Stub("first", [1]), Stub("second", [1, 2, 3])
    speculator = Speculator([first, second], Controller(4))
    assert speculator.state().proposer is None
    seq = started()
    speculator.start(seq, SPEC, GREEDY)
    speculator.propose(seq)
    assert speculator.state().proposer == "first"
    first.tokens = NO_TOKENS
    speculator.propose(seq)
    assert speculator.state().proposer == "second"
    speculator.start(seq, SPEC, GREEDY)
    assert speculator.state().proposer is None


def test_closing_closes_every_proposer():
    stubs = [Stub(), Stub()]
    Speculator(stubs, Controller(4)).close()
    assert [stub.verbs for stub in stubs] == [["close"], ["close"]]

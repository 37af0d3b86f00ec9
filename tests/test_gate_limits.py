"""The gate "limits": it passes where the limits hold, and every planted fault fails its check."""

from __future__ import annotations

import json
import mmap
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commands import alphabet
from specedge.desk import PLAIN, Desk
from specedge.encoding import Encoder
from specedge.engines.fake import FakeEngine
from specedge.errors import PromptError
from specedge.gates import limits
from specedge.gates.crossing import crossing
from specedge.gates.prompts import Asked
from specedge.gates.resident import growth, resident_bytes
from specedge.generation import Generation
from specedge.proposers import DraftModelProposer
from specedge.sequence import Sequence
from specedge.stream import TextStream
from tiny import edit_manifest, write_bundle

ASKED = [
    Asked("user 1", "user", "hello world"),
    Asked("user 2", "user", "abcdefghijklmnopqrstuvwxyz abc"),
]
CONTEXT, DRAFT_ROWS = 160, 64
CHECKS = (
    "context filled to the last slot",
    "prompt of the whole context",
    "prompt one token too long",
    "draft with a shorter context",
    "max_tokens 1",
    "stop string across rounds",
    "stream cancelled midway",
    "short requests without growth",
)


def bundle(folder: Path, *, draft_rows: int | None = DRAFT_ROWS) -> Path:
    """The alphabet over and over; the draft knows all of it but one letter."""
    folder = write_bundle(
        folder, rule=alphabet(), context=CONTEXT, draft=draft_rows is not None, max_verify=6
    )
    if draft_rows is not None:
        manifest = json.loads((folder / "specedge.json").read_text())
        edit_manifest(folder, draft=manifest["draft"] | {"context": draft_rows})
        rule = alphabet()
        at = dict(rule["successors"])  # type: ignore[call-overload]
        at[sorted(at)[3]] = rule["default"]
        (folder / "draft/model.onnx").write_text(json.dumps(rule | {"successors": at}))
    return folder


def desk_over(folder: Path) -> Desk:
    return Desk(folder, engine="fake", verify=False)


def silent(stage: str, share: float) -> None:
    pass


def run(desk: Desk, requests: int = 0):
    gate = limits.check(desk, ASKED, report=silent, requests=requests)
    return gate, {case.name: case for case in gate.cases}


@pytest.fixture
def desk(tmp_path):
    with desk_over(bundle(tmp_path / "tiny")) as desk:
        yield desk


def test_a_sound_bundle_passes_every_check(desk):
    said = []
    gate = limits.check(desk, ASKED, report=lambda *each: said.append(each))
    cases = {case.name: case for case in gate.cases}
    assert tuple(cases) == CHECKS
    assert {case.outcome for case in gate.cases} == {"passed"}, gate.said
    assert gate.outcome == "passed"
    assert gate.said.startswith("8 limits hold in 8 ways, T = 160; 1,000 requests: RSS start ")
    assert cases[CHECKS[0]].figures["proposed"] > 0
    assert cases[CHECKS[3]].figures["draft_context"] == DRAFT_ROWS
    places = cases[CHECKS[5]].figures["places"]
    assert [place["way"] for place in places] == ["ngram K=5", "draft K=5"]
    assert all(min(place["rounds"]) > 1 for place in places)
    memory = cases[CHECKS[7]].figures
    assert memory["requests"] == 1000
    assert len(memory["rss_bytes_by_request"]) == 17
    json.dumps(gate.figures | memory)
    shares = [share for _, share in said]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert desk.ask(PLAIN, "hello", max_tokens=2).tokens  # the desk serves on


def test_a_bundle_without_a_draft_skips_what_is_about_it(tmp_path):
    with desk_over(bundle(tmp_path / "tiny", draft_rows=None)) as desk:
        gate, cases = run(desk)
    assert gate.outcome == "passed"
    assert (cases[CHECKS[3]].outcome, cases[CHECKS[3]].said) == (
        "skipped",
        "there is no draft model",
    )
    assert cases[CHECKS[7]].outcome == "skipped"


def test_a_draft_with_all_rows_skips_the_shorter_one(tmp_path):
    with desk_over(bundle(tmp_path / "tiny", draft_rows=CONTEXT)) as desk:
        _, cases = run(desk)
    assert cases[CHECKS[3]].said == "the draft has 160 rows, as many as the target"


def test_no_prompt_is_one_line(desk):
    with pytest.raises(PromptError, match="limits: there is no prompt; give one"):
        limits.check(desk, [], report=silent)


def too_wide(monkeypatch):
    """A draft may be one token longer than the rows that are left."""
    narrow = Sequence.draft_limit.fget
    monkeypatch.setattr(Sequence, "draft_limit", property(lambda self: narrow(self) + 1))


def wrong_last_row(monkeypatch):
    """A call that fills the context scores its last row wrong."""
    forward = FakeEngine.forward

    def spoiled(self, slot, tokens, n_cached, rows):
        scored = forward(self, slot, tokens, n_cached, rows)
        if n_cached + len(tokens) == CONTEXT and len(tokens) > 1:
            scored.greedy_ids[-1] = (scored.greedy_ids[-1] + 1) % self.spec.vocab
        return scored

    monkeypatch.setattr(FakeEngine, "forward", spoiled)


def one_token_short(monkeypatch):
    """The context ends a token early."""
    commit = Sequence.commit

    def early(self, draft, verdict):
        committed = commit(self, draft, verdict)
        if self.n_tokens >= self.context:
            self._finish_reason = "length"
        return committed

    monkeypatch.setattr(Sequence, "commit", early)


def cut_prompts(monkeypatch):
    """A prompt that is too long is cut without a word."""
    encode = Encoder.encode

    def cut(self, prompt):
        ids, text = encode(self, prompt)
        return ids[:CONTEXT], text

    monkeypatch.setattr(Encoder, "encode", cut)


def drafting_past_its_rows(monkeypatch):
    """The draft model does not heed its own context."""
    propose = DraftModelProposer.propose

    def heedless(self, seq, limit):
        self._ids = np.resize(self._ids, CONTEXT + 8)
        return propose(self, seq, limit)

    monkeypatch.setattr(DraftModelProposer, "propose", heedless)


def a_token_too_many(monkeypatch):
    """max_tokens 1 gives two."""
    ask = Desk.ask
    monkeypatch.setattr(
        Desk,
        "ask",
        lambda self, way, prompt, **options: ask(
            self, way, prompt, **options | ({"max_tokens": 2} if options["max_tokens"] == 1 else {})
        ),
    )


def a_round_too_many(monkeypatch):
    """max_tokens 1 runs a round whose tokens are thrown away."""
    ask = Desk.ask

    def wasteful(self, way, prompt, **options):
        if options["max_tokens"] != 1:
            return ask(self, way, prompt, **options)
        result = ask(self, way, prompt, **options | {"max_tokens": 2})
        return replace(result, tokens=result.tokens[:1])

    monkeypatch.setattr(Desk, "ask", wasteful)


def silent_about_lengths(monkeypatch):
    """A prompt that is too long is refused, and nobody learns by how much."""
    check = Sequence.resume

    def terse(self, prompt, **given):
        if len(prompt) > self.context:
            raise PromptError("prompt: too long")
        return check(self, prompt, **given)

    monkeypatch.setattr(Sequence, "resume", terse)


def fewer_rows_than_used(monkeypatch):
    """The draft is said to have fewer rows than it drafts into."""
    true = Desk.fingerprint.fget
    told = property(lambda self: true(self) | {"draft_context": DRAFT_ROWS - 8})
    monkeypatch.setattr(Desk, "fingerprint", told)


def nothing_held_back(monkeypatch):
    """A stop string's beginning leaves before its end arrives."""
    monkeypatch.setattr(TextStream, "_open_suffix", lambda self: 0)


def deaf_to_close(monkeypatch):
    """A closed stream keeps the model."""
    monkeypatch.setattr(Generation, "close", lambda self: None)


def never_busy(monkeypatch):
    """A second request enters while one runs."""
    monkeypatch.setattr(Generation, "finished", property(lambda self: True))


@pytest.mark.parametrize(
    ("plant", "check", "said"),
    [
        (too_wide, CHECKS[0], "expected an answer, found"),
        (wrong_last_row, CHECKS[0], "as decoded plainly"),
        (one_token_short, CHECKS[0], "expected 33 tokens, found 32"),
        (one_token_short, CHECKS[1], "expected 2 tokens, found 1"),
        (cut_prompts, CHECKS[2], "plain: expected 161 tokens to be refused, found an answer"),
        (drafting_past_its_rows, CHECKS[3], "expected an answer, found ProposerError"),
        (a_token_too_many, CHECKS[4], "plain: expected 1 tokens, found 2"),
        (a_round_too_many, CHECKS[4], "plain: expected no round, found 1"),
        (silent_about_lengths, CHECKS[2], "plain: expected both lengths in the message, found"),
        (fewer_rows_than_used, CHECKS[3], "expected at most 56 rows of the draft, found"),
        (nothing_held_back, CHECKS[5], "leaks"),
        (deaf_to_close, CHECKS[6], "plain: expected an answer, found BusyError"),
        (never_busy, CHECKS[6], "plain: expected a busy model midway, found it free"),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_a_planted_fault_fails_its_check_and_says_where(tmp_path, monkeypatch, plant, check, said):
    desk = desk_over(bundle(tmp_path / "tiny"))
    plant(monkeypatch)
    gate, cases = run(desk)
    monkeypatch.undo()
    desk.close()
    assert gate.outcome == "failed"
    assert check in gate.said
    assert cases[check].outcome == "failed"
    assert said in cases[check].said
    assert "\n" not in cases[check].said
    assert cases[check].figures["faults"]


def test_a_planted_leak_of_a_page_a_request_fails_the_gate(desk, monkeypatch):
    kept = []
    ask = Desk.ask

    def leaking(self, *args, **options):
        page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # no heap hides it
        page[0] = 1
        kept.append(page)
        return ask(self, *args, **options)

    monkeypatch.setattr(Desk, "ask", leaking)
    gate, cases = run(desk, 1000)
    for page in kept:
        page.close()
    memory = cases[CHECKS[7]]
    assert gate.outcome == memory.outcome == "failed"
    assert "expected no growth, found 1,000 requests: RSS start" in memory.said
    assert memory.figures["requests"] == 2000
    assert memory.figures["growth_bytes_per_1000"] == pytest.approx(4_096_000, rel=0.2)


def test_where_memory_is_not_told_growth_is_not_judged(desk, monkeypatch):
    monkeypatch.setattr(limits, "resident_bytes", lambda: None)
    _, cases = run(desk, 1000)
    assert cases[CHECKS[7]].outcome == "skipped"
    assert resident_bytes(Path("/nowhere/statm")) is None
    assert resident_bytes() > 1 << 20


def test_an_engine_whose_logits_differ_by_width_is_judged_by_lengths_only(desk, monkeypatch):
    forward = FakeEngine.forward

    def noisy(self, slot, tokens, n_cached, rows):
        scored = forward(self, slot, tokens, n_cached, rows)
        if rows > 1 and n_cached % 3 == 0:
            scored.greedy_ids[-1] = (scored.greedy_ids[-1] + 1) % self.spec.vocab
        return scored

    monkeypatch.setattr(FakeEngine, "forward", noisy)
    assert run(desk)[0].outcome == "failed"
    monkeypatch.setattr(FakeEngine, "width_noise", 1e-3)
    gate, _ = run(desk)
    assert gate.outcome == "passed", gate.said
    assert "tokens by the gate greedy" in gate.notes[1]
    nothing_held_back(monkeypatch)
    _, cases = run(desk)
    assert "leaks" in cases[CHECKS[5]].said


def samples(per_request, *, steps=(), until=10**9, start=300_000_000):
    """As sampled: `per_request` bytes each up to a request, and steps at others."""
    return [
        (n, int(start + per_request * min(n, until)) + sum(size for at, size in steps if n >= at))
        for n in range(200, 1001, 50)
    ]


@pytest.mark.parametrize(
    ("given", "grows"),
    [
        (samples(0), False),
        (samples(0, steps=[(400, 5_000_000)]), False),
        (samples(0, steps=[(300, 300_000), (800, 300_000)]), False),
        (samples(1500, until=500), False),
        (samples(300), False),
        (samples(2500, until=600), False),  # 1.2 MB per 1,000 over all, and none later
        (samples(12_000, until=650), True),  # beyond the bound, though it settles
        (samples(-3000), False),
        (samples(900), True),
        (samples(2100), True),
        (samples(4096), True),
        (samples(4096, steps=[(500, -1_000_000)]), True),
    ],
)
def test_a_trend_is_told_from_a_step_and_from_settling(given, grows):
    found = growth(given)
    assert found.grows is grows
    assert (found.start, found.end) == (given[0][1], given[-1][1])
    assert found.peak == max(size for _, size in given)


def test_a_crossing_is_the_first_match_of_its_string_and_spans_a_seam():
    rng = random.Random(7)
    found = 0
    for _ in range(400):
        pieces = [
            "".join(rng.choices("abc\ufffd", (5, 5, 5, 1), k=rng.randrange(4))) for _ in range(14)
        ]
        committed = [1]
        while sum(committed) < 14:
            committed.append(rng.randrange(1, 5))
        place = crossing(pieces, committed, ("ab",))
        if place is None:
            continue
        found += 1
        text = "".join(pieces)
        assert text.index(place.stop) == place.at > 0
        assert "\ufffd" not in place.stop
        assert "ab" not in place.stop
        # each character's round, by counting
        owner = [i for i, piece in enumerate(pieces) for _ in piece]
        round_of = [number for number, n in enumerate(committed) for _ in range(n)]
        first, last = (round_of[owner[at]] for at in (place.at, place.at + len(place.stop) - 1))
        assert last == first + 1
        assert (committed[first], committed[last]) == place.rounds
        kept = [owner[at] for at in range(place.at)]
        assert place.n_tokens == kept[-1] + 1
    assert found > 100


def test_a_text_of_one_round_has_no_crossing():
    assert crossing(["ab"], [1]) is None
    assert crossing(["a", "", "b"], [1, 2]) is None  # the string would be the whole text


@pytest.mark.model
def test_smollm2_with_its_draft_holds_every_limit(selfdraft):
    with Desk(selfdraft, verify=False, context=48, proposers=("draft",)) as desk:
        asked = [Asked("user 1", "user", "one two three one two three one two")]
        gate = limits.check(desk, asked, report=silent, requests=0, ks=(5,))
    assert gate.outcome == "passed", gate.said
    assert gate.figures == {"context": 48, "ways": ["plain", "auto", "draft K=5"]}

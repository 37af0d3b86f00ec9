"""The greedy gate: equal where it is equal, failed by every planted fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from commands import alphabet
from specedge.acceptance import Verdict
from specedge.desk import PLAIN, Desk, Way
from specedge.engines.fake import FakeEngine, fake_spec
from specedge.errors import EngineError, OptionError, PromptError
from specedge.gates import certificate, equality
from specedge.gates.certificate import Runs
from specedge.gates.findings import Case, Gate
from specedge.gates.parting import Parting
from specedge.gates.prompts import Asked
from specedge.gates.scores import Difference, Score, Token
from specedge.proposers import NgramProposer
from specedge.sampling import sampler
from specedge.sampling.processors import Pipeline
from specedge.sequence import Sequence
from specedge.stream import TextStream
from tiny import byte_tokenizer, write_bundle
from uneven import UnevenEngine, raising

ID = byte_tokenizer().get_vocab()
PROMPTS = [Asked(f"chat {n}", "chat", text) for n, text in enumerate(["abc", "lm", "x y"], start=1)]


def quiet(stage: str, share: float) -> None:
    assert 0 <= share <= 1, (stage, share)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """The target says the alphabet for ever; the draft too, but stumbles over e and q."""
    folder = write_bundle(tmp_path / "tiny", draft=True, rule=alphabet(), context=200)
    said = alphabet()
    said["successors"] |= {str(ID["e"]): ID["x"], str(ID["q"]): ID["b"]}  # type: ignore[operator]
    (folder / "draft" / "model.onnx").write_text(json.dumps(said))
    sizes(folder)
    with Desk(folder, engine="fake", verify=False) as opened:
        yield opened


def sizes(folder: Path) -> None:
    """Write the sizes of the files into the manifest again."""
    said = json.loads((folder / "specedge.json").read_text())
    for name, record in said["files"].items():
        record["bytes"] = (folder / name).stat().st_size
    (folder / "specedge.json").write_text(json.dumps(said))


def gate(desk: Desk, prompts: list[Asked] | None = None, **given) -> Gate:
    chosen = PROMPTS if prompts is None else prompts
    return equality.check(desk, chosen, report=quiet, **({"ks": (1, 3)} | given))


def case(found: Gate, name: str) -> Case:
    return next(each for each in found.cases if each.name == name)


def with_engine(desk: Desk, monkeypatch: pytest.MonkeyPatch, **given) -> UnevenEngine:
    """The same bundle and proposers over another target."""
    target = UnevenEngine(desk.bundle.manifest.target, desk.model.target.rule, **given)
    slot = target.new_slot()
    monkeypatch.setattr(desk.model, "_target", target)
    monkeypatch.setattr(desk.model, "_slot", slot)
    return target


def test_a_sound_bundle_gets_a_certificate_with_its_figures(desk):
    found = gate(desk, ks=equality.KS)
    assert found.outcome == "passed"
    ways = ["auto", *(f"{who} K={k}" for who in ("ngram", "draft") for k in (1, 3, 7, 15))]
    ways.append("ngram+draft K=7")
    assert [each.name for each in found.cases] == [*ways, "penalties and bias"]
    runs = 3 * len(ways) + 3 * 4  # auto, ngram, draft, both with penalties, on each prompt
    assert found.figures["runs"] == found.figures["equal"] == runs
    assert found.said.startswith(f"equal on {runs} of {runs} runs (3 prompts, 10 ways, ")
    tokens = f"{found.figures['tokens']:,} tokens)"
    assert found.said.endswith(tokens)
    assert found.figures["tokens"] == 48 * runs  # the alphabet never ends
    alone = equality.check(desk, PROMPTS[:1], ks=[1], report=lambda stage, share: None)
    assert " runs (1 prompt, 4 ways, " in alone.said


def test_figures_of_a_way_are_those_of_its_requests(desk):
    found = case(gate(desk), "draft K=3").figures
    by_hand = [
        desk.ask(Way("on", ("draft",), 3), p.prompt, temperature=0.0, max_tokens=48).metrics
        for p in PROMPTS
    ]
    assert found["runs"] == found["equal"] == 3
    assert found["tokens"] == 3 * 48
    assert found["proposed"] == sum(each.proposed for each in by_hand)
    assert found["accepted"] == sum(each.accepted for each in by_hand)
    assert 0 < found["acceptance_rate"] < 1
    rounds = sum(each.rounds for each in by_hand)
    committed = sum(each.rounds * (each.acceptance_length or 0) for each in by_hand)
    assert found["acceptance_length"] == pytest.approx(committed / rounds)
    assert found["partings"] == []


@pytest.mark.parametrize("wrong", ["one more is accepted", "the bonus is the last drafted token"])
def test_a_wrong_acceptance_fails_the_gate_and_says_where(desk, monkeypatch, wrong):
    right = sampler.accept_greedy_ids

    def accept(draft, greedy_ids):
        verdict = right(draft, greedy_ids)
        n = verdict.n_accepted
        if wrong == "one more is accepted" and n < len(draft):
            return Verdict(n + 1, int(greedy_ids[n + 1]))
        if wrong != "one more is accepted" and n == len(draft) and n:
            return Verdict(n, int(draft[-1]))
        return verdict

    monkeypatch.setattr(sampler, "accept_greedy_ids", accept)
    found = gate(desk)
    assert found.outcome == "failed"
    assert "outside the width noise" in found.said
    failed = case(found, "draft K=3")
    assert failed.outcome == "failed"
    first = failed.figures["partings"][0]
    assert first["prompt"] == "chat 1"
    assert not first["within"]
    plain = desk.ask(PLAIN, "abc", temperature=0.0, max_tokens=48).tokens
    assert first["plain_id"] == plain[first["position"] - 1] != first["other_id"]
    assert first["plain_text"] in "abcdefghijklmnopqrstuvwxyz"
    assert f"output token {first['position']}: expected {first['plain_text']!r}" in failed.said
    assert first["margin"] > first["noise"] == 0


def test_stale_rows_that_are_read_fail_the_gate(desk, monkeypatch):
    """As if a round's refused rows were counted as cached."""
    right = Sequence.commit

    def commit(self, draft, verdict):
        kept = right(self, draft, verdict)
        if len(draft) > verdict.n_accepted + 1 and self._n_tokens < self.context:
            self._buffer[self._n_tokens - 1] = draft[verdict.n_accepted]
        return kept

    monkeypatch.setattr(Sequence, "commit", commit)
    assert gate(desk).outcome == "failed"


def test_a_token_that_is_lost_from_the_end_fails_the_gate(desk, monkeypatch):
    right = Sequence.commit

    def commit(self, draft, verdict):
        kept = right(self, draft, verdict)
        if len(draft) and self._n_tokens - self._n_prompt == 40:
            self._finish_reason = "stop"
        return kept

    monkeypatch.setattr(Sequence, "commit", commit)
    found = gate(desk, ks=(1,))
    assert found.outcome == "failed"
    parting = case(found, "ngram K=1").figures["partings"][0]
    assert (parting["position"], parting["other_id"]) == (41, None)


def test_text_that_differs_over_equal_tokens_fails_the_gate(desk, monkeypatch):
    right = TextStream.push

    def push(self, tokens):
        delta = right(self, tokens)
        if len(tokens) > 3:
            delta = type(delta)(delta.text[:-1], delta.n_tokens, delta.stopped)
        return delta

    monkeypatch.setattr(TextStream, "push", push)
    found = gate(desk)
    assert found.outcome == "failed"
    assert "the same tokens, but it ended by 'length'" in case(found, "draft K=3").said


def test_penalties_that_ignore_drafted_tokens_fail_their_case_alone(desk, monkeypatch):
    right = Pipeline._edit

    def edit(self, row, history, n_generated, out):
        if history is not None:
            history.drop()
        return right(self, row, history, n_generated, out)

    asked = []
    measure = equality.find

    def find(*args, **given):
        asked.append(given["params"].repetition_penalty)
        return measure(*args, **given)

    monkeypatch.setattr(Pipeline, "_edit", edit)
    monkeypatch.setattr(equality, "find", find)
    found = gate(desk)
    assert set(asked) == {equality.PENALTIES["repetition_penalty"]}
    assert {each.name for each in found.cases if each.outcome == "failed"} == {"penalties and bias"}
    assert found.outcome == "failed"
    assert "with penalties" in found.said


def near_ties(tokens: np.ndarray) -> np.ndarray:
    """The alphabet, where every fifth letter is nearly tied with the one after it."""
    row = np.zeros(len(ID), np.float32)
    letter = tokens[-1] - ID["a"] if tokens[-1] >= ID["a"] else -1
    following = ID["a"] + (letter + 1) % 26
    row[following] = 2.0
    if letter % 5 == 4:
        row[following + 1] = 2.0 - 0.01
    return row


def test_near_ties_of_an_engine_with_width_noise_are_certified(desk, monkeypatch):
    with_engine(desk, monkeypatch, scores=near_ties, bend=raising(ID["f"] + 1, 0.02), noise=0.02)
    found = gate(desk)
    assert found.outcome == "passed"
    assert found.figures["outside"] == 0 < found.figures["differences"]
    assert found.figures["noise"] == pytest.approx(0.02, rel=1e-3)
    assert found.figures["largest_margin"] == pytest.approx(0.01, rel=1e-2)
    assert "all within 0.02, the width noise of this engine" in found.said
    assert found.said.startswith(f"{found.figures['differences']} differences in ")
    assert found.notes[0].startswith("not exact: logits of this engine differ by up to 0.02")


def test_noise_that_was_measured_later_counts_for_earlier_differences_too():
    def differing(margin: float) -> Difference:
        parting = Parting.judged(3, 5, 6, margin, noise=0.1)
        return Difference("chat 1", "ngram K=1", 3, Token(5, "e"), Token(6, "f"), parting)

    target = FakeEngine(fake_spec())
    for margin, outcome in ((0.3, "passed"), (0.5, "failed")):
        score = Score("ngram K=1", runs=4, equal=3, proposed=9, accepted=2)
        score.differences = [differing(margin)]
        runs = Runs(prompts=4, max_tokens=8, ways=[score], noise=0.4)
        assert certificate.gate(runs, target, 1.0).outcome == outcome


def test_an_engine_that_is_less_exact_than_it_was_found_to_be_is_noted(desk, monkeypatch):
    with_engine(desk, monkeypatch, scores=near_ties, bend=raising(ID["f"] + 1, 0.02))
    found = gate(desk, ks=(3,))
    assert found.outcome == "passed"
    assert found.notes[0].startswith("not exact: logits of this engine were found to agree")
    assert gate(desk, [PROMPTS[0]], ks=(3,), max_tokens=1).notes[0].startswith("exact: ")


def test_the_reference_reads_its_prompt_as_the_runs_that_follow_it_do(desk, monkeypatch):
    """Rows of a prefill are wider than any other, and only the first request makes one."""

    def bend(width: int, place: int, row: np.ndarray) -> None:
        if (width, place) == (5, 4):
            row[7] += 9.0

    with_engine(desk, monkeypatch, scores=near_ties, bend=bend, noise=9.0)
    found = gate(desk, [Asked("ids 1", "ids", [40, 41, 42, 43, 44])], ks=(1,), max_tokens=4)
    assert found.figures["differences"] == 0


def test_a_difference_above_the_width_noise_fails_an_uneven_engine(desk, monkeypatch):
    """Only while a request is decoded the logits of wide calls are off; kernels are not."""
    from specedge.gates import parting

    with_engine(desk, monkeypatch, scores=near_ties, bend=raising(ID["f"] + 1, 0.02), noise=0.02)
    target = desk.model.target
    right = parting.find

    def find(engine, *args, **given):
        bend, target.bend = target.bend, raising(ID["f"] + 1, 0.001)
        found = right(engine, *args, **given)
        target.bend = bend
        return found

    monkeypatch.setattr(equality, "find", find)
    found = gate(desk)
    assert found.outcome == "failed"
    assert "margin 0.01, width noise 0.001" in found.said


def test_a_way_that_never_drafts_passes_and_says_that_it_shows_nothing(desk, monkeypatch):
    monkeypatch.setattr(NgramProposer, "_match", lambda self: None)
    found = gate(desk)
    idle = case(found, "ngram K=3")
    assert idle.outcome == "passed"
    assert idle.said == (
        "equal on 3 of 3 runs, but nothing was drafted: this shows nothing about drafts"
    )
    assert found.outcome == "passed"
    notes = [note for note in found.notes if note.startswith("drafted nothing on these prompts")]
    assert notes
    assert "ngram K=1, ngram K=3" in notes[0]
    assert "draft K=1" not in notes[0]


def test_when_nothing_was_ever_drafted_the_gate_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(NgramProposer, "_match", lambda self: None)
    folder = write_bundle(tmp_path / "tiny", rule=alphabet())
    with Desk(folder, engine="fake") as lonely:
        found = gate(lonely)
    assert found.outcome == "failed"
    assert found.figures["proposed"] == 0
    assert found.said.startswith("drafts: no way drafted a single token (auto, ngram K=1")


def test_draft_lengths_that_the_graph_has_no_room_for_are_left_out(tmp_path):
    folder = write_bundle(tmp_path / "tiny", rule=alphabet(), max_verify=2)
    with Desk(folder, engine="fake") as narrow:
        assert [way.name for way in equality.ways_to_compare(narrow)] == ["auto", "ngram K=1"]
        assert gate(narrow).outcome == "passed"


def test_a_proposer_that_fails_is_a_failed_case_in_every_mode(desk, monkeypatch):
    def broken(self, seq, limit):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(NgramProposer, "propose", broken)
    found = gate(desk)
    assert found.outcome == "failed"
    assert "out of luck" in case(found, "ngram K=1").said
    assert "out of luck" in case(found, "auto").said  # though its text is equal
    assert case(found, "draft K=1").outcome == "passed"


def test_plain_decoding_that_fails_is_a_failed_case_not_an_error(desk, monkeypatch):
    class Broken(FakeEngine):
        def forward(self, slot, tokens, n_cached, rows):
            raise EngineError("fake: the runtime failed")

    target = Broken(desk.bundle.manifest.target)
    monkeypatch.setattr(desk.model, "_target", target)
    found = gate(desk)
    assert found.outcome == "failed"
    assert case(found, "plain").said == ("chat 1: plain decoding failed: fake: the runtime failed")


def test_prompts_that_do_not_fit_are_left_out_and_named(desk):
    long = Asked("mine 9", "mine", "ab" * 150)
    found = gate(desk, [*PROMPTS, long], ks=(1,))
    assert found.figures["prompts"] == 3
    assert "longer than the context, left out: mine 9 (300 tokens)" in found.notes
    with pytest.raises(PromptError, match="none of 1 fits the context of 200"):
        gate(desk, [long])


def test_wrong_settings_are_an_error(desk):
    with pytest.raises(OptionError, match="max_tokens"):
        gate(desk, max_tokens=0)
    with pytest.raises(PromptError, match="it is empty"):
        gate(desk, [Asked("mine 1", "mine", "")])


def test_every_difference_is_kept_though_few_unexplained_ones_are_measured(desk, monkeypatch):
    right = sampler.accept_greedy_ids

    def accept(draft, greedy_ids):
        verdict = right(draft, greedy_ids)
        n = verdict.n_accepted
        return Verdict(n, (verdict.next_token + 1) % len(ID)) if len(draft) else verdict

    monkeypatch.setattr(sampler, "accept_greedy_ids", accept)
    letters = [Asked(f"chat {n}", "chat", chr(97 + n) * 2) for n in range(9)]
    found = gate(desk, letters, ks=(1, 3), max_tokens=16)
    partings = case(found, "draft K=3").figures["partings"]
    assert len(partings) == 9
    measured = [each["margin"] is not None for each in partings]
    assert measured == [True] * equality.MEASURED_OUTSIDE + [False] * 7
    assert found.outcome == "failed"


def test_the_report_rises_to_one(desk):
    shares: list[float] = []
    equality.check(desk, PROMPTS, report=lambda stage, share: shares.append(share), ks=(1,))
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] == 1


def test_findings_are_ready_for_json(desk, monkeypatch):
    from dataclasses import asdict

    with_engine(desk, monkeypatch, scores=near_ties, bend=raising(ID["f"] + 1, 0.02), noise=0.02)
    json.dumps(asdict(gate(desk, ks=(3,))), allow_nan=False)


def test_a_real_graph_of_quantised_weights_is_equal(tiny_exports):
    target = tiny_exports.checkpoint("llama")
    folder = tiny_exports.bundle(target, target, precision="int4", context=64)
    ids = [Asked(f"ids {n}", "ids", [*range(5, 5 + n), *range(5, 5 + n)]) for n in (3, 9)]
    with Desk(folder, threads=1) as small:
        found = gate(small, ids, ks=(3,), max_tokens=24)
    assert found.outcome == "passed", found.said
    assert found.figures["proposed"] > 0


@pytest.mark.model
def test_smollm2_with_its_int4_copy_as_the_draft_is_equal(selfdraft):
    from specedge.gates.prompts import prompts

    with Desk(selfdraft, context=1024) as real:
        found = gate(real, prompts(per_class=1)[1:2], ks=(3,), max_tokens=16)
    assert found.outcome == "passed", found.said
    assert found.figures["accepted"] > 0

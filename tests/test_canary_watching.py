"""A share of requests decoded both ways: what is compared, what it costs, what it turns off."""

from __future__ import annotations

import random
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

import specedge
from canary_desk import EVEN, GAIN, LOSS, TEXT, Wobbling, spoil_acceptance, watched
from commands import alphabet
from specedge.acceptance import Verdict
from specedge.canary.comparing import times
from specedge.errors import EngineError, OptionError
from specedge.metrics import Metrics
from specedge.sampling import sampler
from timed import install
from tiny import EOS, write_bundle

GREEDY = {"max_tokens": 22}


@pytest.fixture
def folder(tmp_path, private_cache):
    return tmp_path / "bundle"


@pytest.fixture
def clock(monkeypatch):
    return install(monkeypatch)


# --- what is compared ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({}, "equal"),
        ({"stop": ["op"]}, "equal"),
        ({"logprobs": 2, "explain": True, "echo": True}, "equal"),
        ({"max_tokens": 1}, "equal"),
        ({"repetition_penalty": 1.3, "banned_tokens": [70]}, "equal"),
        ({"temperature": 0.7, "seed": 11}, "equal"),
        ({"temperature": 0.7, "acceptance": "coupled"}, "equal"),  # with a seed that was drawn
        ({"temperature": 0.7}, "not compared"),
        ({"temperature": 0.7, "acceptance": "block", "seed": 3}, "not compared"),
    ],
)
def test_a_request_is_decoded_again_with_all_its_options(folder, options, tokens):
    desk = watched(folder)
    desk.ask(**options)
    (comparison,) = desk.canary.record.last
    result = desk.model.last_result
    assert result is not None
    assert comparison.tokens == tokens
    assert comparison.generated == len(result.tokens)
    assert (comparison.proposed, comparison.accepted) == (
        result.metrics.proposed,
        result.metrics.accepted,
    )
    assert comparison.acceptance == result.acceptance
    assert desk.canary.record.totals.failures == 0


def test_options_that_the_caller_changes_meanwhile_are_taken_as_they_were(folder):
    desk = watched(folder)
    stop = ["zzz"]
    for _ in desk.model.stream(TEXT, stop=stop, **GREEDY):
        stop[:] = ["o"]
    assert [each.tokens for each in desk.canary.record.last] == ["equal"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"logit_bias": MappingProxyType({5: 1.0})}, {"5": 1.0}),
        ({"logit_bias": {np.int64(5): np.float32(1)}}, {"5": 1.0}),
        ({"stop": ("\ud800", "zz")}, ["\\ud800", "zz"]),
        ({"banned_tokens": frozenset([7])}, [7]),
        ({"banned_tokens": range(5, 7)}, [5, 6]),
    ],
    ids=str,
)
def test_options_of_any_kind_are_compared_and_kept(folder, monkeypatch, given, kept):
    desk = watched(folder)
    desk.ask(**given)
    assert [each.tokens for each in desk.canary.record.last] == ["equal"]
    spoil_acceptance(monkeypatch, EOS + 5)
    monkeypatch.setattr(
        sampler,
        "accept_chosen",
        lambda draft, choose: Verdict(k := len(draft), EOS + 5 if k else choose(0)),
    )
    desk.ask(**given)
    record = desk.canary.record
    assert record.verdict.state == "off: mismatch"
    (name,) = given
    assert record.evidence[0].options[name] == kept


def test_a_schema_of_any_kind_of_mapping_is_compared(folder):
    pytest.importorskip("llguidance")
    desk = watched(folder)
    desk.ask(json_schema=MappingProxyType({"type": "integer", "maximum": 99}))
    assert [each.tokens for each in desk.canary.record.last] == ["equal"]


def test_structured_output_is_compared_too(folder):
    pytest.importorskip("llguidance")
    desk = watched(folder)
    desk.ask(regex="[a-c]{4}", max_tokens=20)
    assert [each.tokens for each in desk.canary.record.last] == ["equal"]


def test_the_same_calls_are_made_as_without_a_canary_and_then_one_a_token(folder):
    desk, other = watched(folder), watched(folder, share=0.0)
    desk.ask()
    other.ask()
    answer = other.engine.calls
    assert desk.engine.calls[: len(answer)] == answer
    again = desk.engine.calls[len(answer) :]
    assert [call.width for call in again] == [1] * 22  # the prompt's rows are there
    assert max(call.width for call in answer[1:]) == 5


def test_the_comparison_comes_after_the_last_event_is_out(folder):
    desk = watched(folder)
    stream = desk.model.stream(TEXT, **GREEDY)
    events = []
    while not events or events[-1].result is None:
        events.append(next(stream))
    answered = len(desk.engine.calls)
    assert desk.canary.record.totals.compared == 0
    with pytest.raises(StopIteration):
        next(stream)
    assert len(desk.engine.calls) == answered + 22
    with pytest.raises(StopIteration):
        next(stream)
    assert desk.canary.record.totals.compared == 1


def test_it_is_no_request_of_its_own(folder):
    desk = watched(folder)
    result = desk.model.generate(TEXT, **GREEDY)
    assert desk.model.last_result is result
    snapshot = desk.model.counters.snapshot()
    assert snapshot.sums["requests", ""] == 1
    assert snapshot.sums["generated_tokens", ""] == 22
    assert snapshot.sums["canary_comparisons", "equal"] == 1
    assert desk.model.speculation.on


def test_a_share_of_requests_is_drawn_one_by_one(folder):
    desk = watched(folder, share=0.3, draws=random.Random(7))
    desk.ask(60)
    draws = random.Random(7)
    assert desk.canary.record.totals.compared == sum(draws.random() < 0.3 for _ in range(60))


def test_what_ended_early_or_has_several_samples_is_not_compared(folder):
    desk = watched(folder)
    with desk.model.stream(TEXT, **GREEDY) as stream:
        next(stream)
    with pytest.raises(StopIteration):
        next(stream)
    desk.ask(temperature=1.0, n=3)
    assert desk.canary.record.totals.compared == 0


def test_a_request_that_failed_is_not_compared(folder):
    desk = watched(folder, faults={2: EngineError("broke")})
    stream = desk.model.stream(TEXT, **GREEDY)
    with pytest.raises(EngineError, match="broke"):
        list(stream)
    with pytest.raises(StopIteration):
        next(stream)
    assert desk.canary.record.totals == type(desk.canary.record.totals)()


@pytest.mark.parametrize("given", [{}, {"canary": 0}, {"canary": 0.0}])
def test_without_a_canary_nothing_is_made_or_written(folder, given):
    write_bundle(folder, rule=alphabet())
    with specedge.load(folder, engine="fake", **given) as model:
        model.generate(TEXT, **GREEDY)
        assert model.canary is None
    assert not (folder / "canaries").exists()


def test_where_speculation_is_off_there_is_nothing_to_compare(folder):
    write_bundle(folder, rule=alphabet())
    with specedge.load(folder, engine="fake", canary=1, speculation="off") as model:
        model.generate(TEXT, **GREEDY)
        assert model.canary is None


@pytest.mark.parametrize("share", [-0.01, 1.01, 5, float("nan"), float("inf"), "0.5", None, True])
def test_a_share_that_is_none_is_refused_by_name(folder, share):
    write_bundle(folder, rule=alphabet())
    with pytest.raises(OptionError, match=r"canary: expected 0\.\.1"):
        specedge.load(folder, engine="fake", canary=share)


def test_a_chat_goes_on_from_what_is_cached(folder):
    plain, desk = watched(folder, share=0.0), watched(folder)
    spent = []
    for each in (plain, desk):
        chat = each.model.chat()
        chat.send("abcdefghij", max_tokens=12)
        spent.append(chat.send("klm", max_tokens=12).metrics.prefill_tokens)
        assert len(chat.messages) == 4
    assert spent[0] == spent[1]
    assert desk.canary.record.totals.equal == 2


# --- times --------------------------------------------------------------------------------------


def test_both_ways_are_timed_from_the_first_token_to_the_last(folder, clock):
    desk = watched(folder, clock=clock, cost=GAIN)
    desk.ask()
    (comparison,) = desk.canary.record.last
    assert comparison.plain_ms == pytest.approx(21 * 20.0)
    result = desk.model.last_result
    assert result is not None
    assert comparison.spec_ms == pytest.approx(result.metrics.verify_ms)
    assert comparison.spec_ms is not None
    assert comparison.spec_ms < 200


def test_what_the_reader_does_between_events_is_nobodys_loss(folder, clock):
    desk = watched(folder, clock=clock, cost=EVEN)
    for _ in desk.model.stream(TEXT, **GREEDY):
        clock.spend(1000.0)
    (comparison,) = desk.canary.record.last
    assert comparison.spec_ms == pytest.approx(comparison.plain_ms)


def test_times_are_of_all_phases_but_the_readers_and_of_as_many_tokens():
    plain = replace(Metrics().summary(), generated=11, propose_ms=1, verify_ms=90, accept_ms=9)
    spec = replace(plain, generated=21, propose_ms=20, verify_ms=50, accept_ms=10, other_ms=999)
    assert times(plain, spec) == (100, 40)
    assert times(plain, replace(spec, generated=1)) == (None, None)
    assert times(replace(plain, generated=1), spec) == (None, None)


def test_a_single_token_has_no_time(folder):
    desk = watched(folder)
    desk.ask(max_tokens=1)
    (comparison,) = desk.canary.record.last
    assert (comparison.plain_ms, comparison.spec_ms) == (None, None)
    assert desk.canary.record.totals.timed == 0


def test_a_loss_turns_speculation_off_at_the_first_look(folder, clock):
    desk = watched(folder, clock=clock, cost=LOSS)
    desk.ask(11)
    assert desk.model.speculation.on
    assert desk.canary.record.verdict.state == "watching"
    desk.ask()
    assert desk.canary.record.verdict.state == "off: loss"
    calls = len(desk.engine.calls)
    desk.ask()
    assert [call.width for call in desk.engine.calls[calls + 1 :]] == [1] * 21  # once, plainly
    result = desk.model.last_result
    assert result is not None
    assert (result.metrics.proposed, result.speculation.on) == (0, False)
    assert "the canary turned speculation off: a loss" in result.speculation.reason


def test_a_gain_leaves_it_on(folder, clock):
    desk = watched(folder, clock=clock, cost=GAIN)
    desk.ask(30)
    assert desk.canary.record.verdict.state == "on"
    assert desk.canary.record.totals.equal == 30
    assert desk.model.speculation.on


# --- mismatches ---------------------------------------------------------------------------------


def test_a_wrong_token_turns_it_off_at_once_and_is_kept_whole(folder, monkeypatch):
    desk = watched(folder)
    right = desk.model.generate(TEXT, **GREEDY)
    wrong = right.tokens[0] - 1
    spoil_acceptance(monkeypatch, wrong)
    spoiled = desk.model.generate(TEXT, stop=["!"], **GREEDY)
    record = desk.canary.record
    assert record.verdict.state == "off: mismatch"
    (evidence,) = record.evidence
    assert evidence.prompt_ids == tuple(desk.model.encode(TEXT)[0].tolist())
    assert evidence.plain_tokens == tuple(right.tokens)
    assert evidence.spec_tokens == tuple(spoiled.tokens)
    assert evidence.options == {"max_tokens": 22, "stop": ["!"], "acceptance": "greedy"}
    at = evidence.position
    assert right.tokens[:at] == spoiled.tokens[:at]
    assert (evidence.plain_token, evidence.spec_token) == (right.tokens[at], wrong)
    assert (evidence.plain_text, evidence.spec_text) == (right.text[at], chr(ord("k") - 1))
    assert evidence.before == TEXT + right.text[:at]
    assert evidence.margin is not None
    assert evidence.margin > 0
    assert evidence.noise == 0
    after = desk.model.generate(TEXT, **GREEDY)
    assert after.tokens == right.tokens
    assert (after.metrics.proposed, after.speculation.on) == (0, False)
    assert desk.canary.record.totals.compared == 2


def test_a_sampled_text_that_should_repeat_and_does_not_is_a_mismatch(folder, monkeypatch):
    desk = watched(folder)
    true = sampler.coupled

    def wrong(tokens, p, randomness, position):
        verdict = true(tokens, p, randomness, position)
        return type(verdict)(verdict.n_accepted, EOS + 5) if len(tokens) else verdict

    monkeypatch.setattr(sampler, "coupled", wrong)
    desk.ask(temperature=0.05, seed=4)
    (evidence,) = desk.canary.record.evidence
    assert (evidence.margin, evidence.noise) == (None, None)
    assert evidence.options["seed"] == 4
    assert desk.canary.record.verdict.state == "off: mismatch"


def wobbling(folder, margin: float, shift: float):
    """Plainly "aaaa…"; a draft of a's stands unless the shift is larger than the margin."""
    write_bundle(folder, rule=alphabet())
    from specedge.bundle import Bundle
    from tiny import byte_tokenizer

    vocab = byte_tokenizer().get_vocab()
    spec = Bundle.open(folder).manifest.target
    return Wobbling(spec, a=vocab["a"], b=vocab["b"], margin=margin, shift=shift)


def test_a_near_tie_within_the_width_noise_is_no_mismatch(folder):
    desk = watched(folder, engine=wobbling(folder, margin=0.001, shift=0.01))
    desk.model.generate("aaaaaaaaaaaa", **GREEDY)
    record = desk.canary.record
    assert [each.tokens for each in record.last] == ["near-tie"]
    assert record.evidence == ()
    assert desk.model.speculation.on


def test_a_near_tie_is_one_of_the_logits_that_decided(folder):
    engine = wobbling(folder, margin=0.5, shift=0.01)
    desk = watched(folder, engine=engine)
    vocab = desk.model.tokenizer
    b = next(i for i in range(300) if vocab.token(i) == "b")
    desk.model.generate("aaaaaaaaaaaa", logit_bias={b: 0.499}, **GREEDY)
    assert [each.tokens for each in desk.canary.record.last] == ["near-tie"]


def test_a_wrong_token_beyond_the_width_noise_is_one_for_all_the_noise(folder, monkeypatch):
    desk = watched(folder, engine=wobbling(folder, margin=0.5, shift=0.01))
    vocab = desk.model.tokenizer
    b = next(i for i in range(300) if vocab.token(i) == "b")
    spoil_acceptance(monkeypatch, b)
    desk.model.generate("aaaaaaaaaaaa", **GREEDY)
    (evidence,) = desk.canary.record.evidence
    assert evidence.margin == pytest.approx(0.5, abs=1e-5)
    assert evidence.noise == pytest.approx(0.01, abs=1e-5)


def test_sampled_tokens_are_not_compared_where_logits_move_with_the_width(folder):
    desk = watched(folder, engine=wobbling(folder, margin=0.001, shift=0.01))
    desk.model.generate("aaaaaaaaaaaa", temperature=1.0, seed=2, **GREEDY)
    assert [each.tokens for each in desk.canary.record.last] == ["not compared"]


# --- trouble ------------------------------------------------------------------------------------


def test_a_failure_of_the_second_decode_never_reaches_the_user(folder):
    good = watched(folder, share=0.0)
    answer = good.model.generate(TEXT, **GREEDY)
    first = len(good.engine.calls)
    desk = watched(folder, faults={first + 3: EngineError("no more memory")})
    assert desk.model.generate(TEXT, **GREEDY).tokens == answer.tokens
    record = desk.canary.record
    assert (record.totals.failures, record.totals.compared) == (1, 0)
    assert record.last_failure == "EngineError: no more memory"
    assert desk.model.counters.snapshot().sums["canary_comparisons", "failed"] == 1
    desk.ask()
    assert desk.canary.record.totals.equal == 1


def test_a_difference_that_cannot_be_looked_into_counts_where_widths_agree(folder, monkeypatch):
    desk = watched(folder)
    wrong = desk.model.generate(TEXT, **GREEDY).tokens[0] - 1
    spoil_acceptance(monkeypatch, wrong)
    monkeypatch.setattr(
        desk.engine, "new_slot", lambda: (_ for _ in ()).throw(EngineError("no memory"))
    )
    desk.ask()
    (evidence,) = desk.canary.record.evidence
    assert (evidence.margin, evidence.noise) == (None, None)
    assert desk.canary.record.verdict.state == "off: mismatch"


def test_a_difference_that_cannot_be_looked_into_is_a_failure_where_widths_differ(
    folder, monkeypatch
):
    desk = watched(folder, engine=wobbling(folder, margin=0.001, shift=0.01))
    monkeypatch.setattr(
        desk.engine, "new_slot", lambda: (_ for _ in ()).throw(EngineError("no memory"))
    )
    desk.model.generate("aaaaaaaaaaaa", **GREEDY)
    record = desk.canary.record
    assert (record.totals.failures, record.totals.mismatches) == (1, 0)
    assert desk.model.speculation.on


def test_a_read_only_bundle_and_cache_still_turn_it_off(folder, private_cache, monkeypatch):
    desk = watched(folder)
    (folder / "canaries").write_text("")
    private_cache.write_text("")
    wrong = desk.model.generate(TEXT, **GREEDY).tokens[0] - 1
    assert "cannot be kept" in desk.canary.trouble
    assert desk.canary.record.totals.compared == 1
    spoil_acceptance(monkeypatch, wrong)
    desk.ask()
    assert not desk.model.speculation.on
    assert desk.canary.record.totals.compared == 2


def test_a_model_that_was_closed_meanwhile_is_left_alone(folder):
    desk = watched(folder)
    stream = desk.model.stream(TEXT, **GREEDY)
    while next(stream).result is None:
        pass
    desk.model.close()
    with pytest.raises(StopIteration):
        next(stream)
    assert desk.canary.record.totals.failures == 0


# --- the next load ------------------------------------------------------------------------------


def turned_off(folder, monkeypatch, **given) -> None:
    """A process that found a mismatch with these settings."""
    if not folder.exists():
        write_bundle(folder, rule=alphabet(), draft=True)
    usual = {"speculation": "on", "draft_length": 4, "proposers": ["ngram"], "canary": 1.0}
    with (
        monkeypatch.context() as patch,
        specedge.load(folder, engine="fake", **(usual | given)) as model,
    ):
        spoil_acceptance(patch, 77)
        model.generate(TEXT, **GREEDY)
        assert model.canary is not None
        assert model.canary.record.verdict.off


def test_the_next_load_decodes_plainly_and_says_why_until_it_is_forgotten(folder, monkeypatch):
    turned_off(folder, monkeypatch)
    with specedge.load(folder, engine="fake", canary=1.0) as model:
        assert model.speculator.proposers == ()
        result = model.generate(TEXT, **GREEDY)
        assert (result.metrics.proposed, result.speculation.on) == (0, False)
        assert result.speculation.reason.startswith(
            "the canary turned speculation off: output token "
        )
        assert f"`specedge canary {folder} --clear` forgets it" in result.speculation.reason
        assert model.canary is None
    from specedge.bundle import Bundle
    from specedge.canary.record import clear

    clear(Bundle.open(folder))
    with specedge.load(folder, engine="fake") as model:
        assert [each.name for each in model.speculator.proposers] == ["ngram", "draft"]


def test_nothing_that_a_grammar_forces_is_drafted_either(folder, monkeypatch):
    pytest.importorskip("llguidance")
    turned_off(folder, monkeypatch)
    with specedge.load(folder, engine="fake") as model:
        result = model.generate(TEXT, regex="hello world, hello world", max_tokens=40)
        assert (result.metrics.proposed, result.speculation.on) == (0, False)


def test_whoever_insists_keeps_it_and_is_told(folder, monkeypatch):
    turned_off(folder, monkeypatch)
    on = {"speculation": "on", "draft_length": 4, "proposers": ["ngram"]}
    with specedge.load(folder, engine="fake", canary=1.0, **on) as model:
        result = model.generate(TEXT, **GREEDY)
        assert result.metrics.proposed > 0
        assert "against the canary: output token" in result.speculation.reason
        assert model.canary is not None
        assert model.canary.record.totals.compared == 2
    with specedge.load(folder, engine="fake", **on) as model:
        assert any("against the canary" in note for note in model.notes)


def test_a_run_that_insists_is_told_at_its_next_request(folder, monkeypatch):
    desk = watched(folder, mode="on")
    wrong = desk.model.generate(TEXT, **GREEDY).tokens[0] - 1
    spoil_acceptance(monkeypatch, wrong)
    desk.ask(3)
    assert desk.model.speculation.on
    (note,) = desk.model.notes
    assert "against the canary" in note
    assert len(desk.canary.record.evidence) == 3


def test_other_settings_are_not_concerned(folder, monkeypatch):
    turned_off(folder, monkeypatch)
    with specedge.load(folder, engine="fake", context=128) as model:
        assert model.speculator.proposers
        assert "canary" not in model.speculation.reason


def test_a_draft_that_is_asked_for_or_not_makes_no_other_record(folder, monkeypatch):
    turned_off(folder, monkeypatch, proposers=["ngram", "draft"])
    with specedge.load(folder, engine="fake", proposers=["ngram"]) as model:
        assert model.speculator.proposers == ()


def test_another_process_that_turns_it_off_is_heard(folder, monkeypatch):
    first, second = watched(folder), watched(folder)
    wrong = first.model.generate(TEXT, **GREEDY).tokens[0] - 1
    with monkeypatch.context() as patch:
        spoil_acceptance(patch, wrong)
        first.ask()
    second.ask()
    assert not second.model.speculation.on
    assert second.canary.record.totals.compared == 3


def test_a_damaged_record_is_said_and_started_anew(folder, monkeypatch):
    turned_off(folder, monkeypatch)
    (path,) = (folder / "canaries").iterdir()
    path.write_text("{")
    with specedge.load(folder, engine="fake", canary=1.0) as model:
        assert model.speculator.proposers
        assert any("cannot be used and starts anew" in note for note in model.notes)
        model.generate(TEXT, **GREEDY)
        assert model.canary is not None
        record = model.canary.record
    assert (record.totals.compared, record.verdict.state) == (1, "watching")


def test_a_record_that_cannot_be_changed_for_any_reason_hurts_nobody(folder, monkeypatch):
    desk = watched(folder)

    def broken(*args, **given):
        raise RuntimeError("of a kind that nobody thought of")

    monkeypatch.setattr("specedge.canary.watching.update", broken)
    desk.ask()
    assert "nobody thought of" in desk.canary.trouble


def test_the_summary_counts_what_this_process_compared(folder, clock):
    watched(folder, clock=clock).ask()
    desk = watched(folder, clock=clock, cost=EVEN)
    assert desk.canary.summary == ""
    desk.ask(2)
    assert desk.canary.summary == "2 equal, 840 ms plainly, 840 ms with speculation"
    assert desk.canary.record.totals.compared == 3

from __future__ import annotations

import gc
import json
import os
import sys
import threading

import numpy as np
import pytest

import specedge
from specedge.acceptance import Verdict
from specedge.engines import cuda, registry
from specedge.errors import (
    BundleError,
    BusyError,
    EngineError,
    OptionError,
    PromptError,
    ProposerError,
)
from specedge.proposers import Draft, NgramProposer
from specedge.result import Result
from tests import tiny

ASKED = "x<ask>"
HELLO = [{"role": "user", "content": "hi"}]


def texts(events):
    return [event.text for event in events]


class Failing:
    """A proposer that guesses nothing until it is told to break."""

    name = "failing"

    def start(self, seq, sampler):
        self.rounds = 0

    def propose(self, seq, limit):
        self.rounds += 1
        if self.rounds == 3:
            raise MemoryError("the draft is out of memory")
        return Draft(np.array([5], dtype=np.int64), self.name)

    def observe(self, committed, n_accepted): ...

    def close(self): ...


# --- one request --------------------------------------------------------------------------------


def test_a_stream_ends_with_a_result_that_repeats_it(tiny_bundle):
    model, _ = tiny.open_model(tiny_bundle, "hello wo€ END")
    events = list(model.stream(ASKED))
    result = events[-1].result
    assert result.text == "hello wo€ END" == "".join(texts(events))
    assert result.tokens == [token for event in events for token in event.tokens]
    assert result.tokens[-1] == tiny.EOS
    assert (events[-1].finish_reason, result.finish_reason) == ("stop", "stop")
    assert all(event.result is None and event.finish_reason is None for event in events[:-1])
    assert model.last_result is result


def test_the_result_has_the_keys_that_every_surface_shows(tiny_bundle):
    model, _ = tiny.open_model(tiny_bundle, "hello")
    result = model.generate(ASKED)
    said = json.loads(result.to_json())
    assert list(said) == [
        "text",
        "tokens",
        "finish_reason",
        "prompt_tokens",
        "seed",
        "acceptance",
        "reproducible",
        "speculation",
        "metrics",
    ]
    assert {"mode", "on", "reason", "proposer"} <= set(said["speculation"])
    assert {
        "ttft_ms",
        "tpot_ms",
        "tokens_per_second",
        "rounds",
        "acceptance_rate",
        "acceptance_length",
        "accepted_by_position",
        "propose_ms",
        "verify_ms",
        "accept_ms",
        "other_ms",
        "peak_rss_bytes",
    } <= set(said["metrics"])
    assert (said["seed"], said["prompt_tokens"]) == (None, 2)


def test_max_tokens_and_the_context_end_with_length(tiny_bundle):
    model, _ = tiny.open_model(tiny_bundle, "hello" * 100)
    result = model.generate(ASKED, max_tokens=7)
    assert (len(result.tokens), result.finish_reason) == (7, "length")
    result = model.generate(ASKED, max_tokens=None, ignore_eos=True)
    assert (len(result.tokens), result.finish_reason) == (model.context + 1 - 2, "length")


def test_ignore_eos_goes_on_past_the_end(tiny_bundle):
    model, _ = tiny.open_model(tiny_bundle, "hello")
    result = model.generate(ASKED, ignore_eos=True, max_tokens=20)
    assert (result.text, result.finish_reason) == ("hello", "length")
    assert result.tokens.count(tiny.EOS) == 19


@pytest.mark.parametrize("draft_length", [0, 7])
def test_a_stop_string_cuts_text_and_tokens_across_tokens_and_rounds(tiny_bundle, draft_length):
    answer = "hello END hello END hello"
    model, _ = tiny.open_model(
        tiny_bundle, answer, proposers=[NgramProposer(1, 4)], draft_length=draft_length
    )
    prompt = "hello END hello<ask>"
    events = list(model.stream(prompt, stop=["o EN", "nothing"]))
    result = events[-1].result
    assert (result.text, result.finish_reason) == ("hell", "stop_string")
    assert "".join(texts(events)) == "hell"
    assert model.tokenizer.decode(result.tokens) == "hello"
    again = model.generate(prompt, stop=" END hello END hello")
    assert (again.text, again.finish_reason) == ("hello", "stop_string")
    assert model.generate(prompt).text == answer


def test_a_special_token_may_be_a_stop_but_not_part_of_one(tiny_bundle):
    model, _ = tiny.open_model(tiny_bundle, [260, tiny.BOS, 260, 260])
    result = model.generate(ASKED, stop=["<bos>", "zz"])
    assert (len(result.tokens), result.finish_reason) == (1, "stop_string")
    with pytest.raises(OptionError, match="contains the special token '<bos>'"):
        model.generate(ASKED, stop="a<bos>")


def test_echo_puts_the_prompts_text_first_and_counts_no_tokens_for_it(tiny_bundle):
    model, target = tiny.open_model(tiny_bundle, "hello")
    stream = model.stream(ASKED, echo=True)
    first = next(stream)
    assert (first.text, first.tokens, target.calls) == (ASKED, [], [])
    assert [event.text for event in stream][-1] == ""
    assert stream.result.text == ASKED + "hello"
    said = model.generate(HELLO, echo=True).text
    assert said == "user: hi\n<ask>hello"


def test_logprobs_come_with_every_token_and_only_when_asked_for(tiny_bundle):
    model, _ = tiny.open_model(tiny_bundle, "hello hello", proposers=[NgramProposer(1, 2)])
    events = list(model.stream("hello hello hello<ask>", logprobs=2, stop="zzz"))
    result = events[-1].result
    entries = [entry for event in events for entry in event.logprobs]
    assert [entry.token for entry in entries] == result.tokens
    assert entries == result.logprobs
    assert all(len(entry.top) == 2 and entry.top[0][0] == entry.token for entry in entries)
    assert len(json.loads(result.to_json())["logprobs"]) == len(result.tokens)
    plain = model.generate(ASKED)
    assert plain.logprobs is None
    assert "logprobs" not in plain.to_dict()


def test_no_event_carries_a_broken_character(tiny_bundle):
    model, _ = tiny.open_model(tiny_bundle, "é€😀")
    assert [text for text in texts(model.stream(ASKED)) if text] == ["é", "€", "😀"]


def test_a_plain_string_gets_bos_and_messages_get_the_template(tmp_path):
    folder = tiny.write_bundle(tmp_path / "bos", adds_bos=True)
    model, _ = tiny.open_model(folder, "hello")
    ids, text = model.encode("hello")
    assert (ids[0], text) == (tiny.BOS, "hello")
    ids, text = model.encode(HELLO)
    assert text == "user: hi\n<ask>"
    assert tiny.BOS not in ids
    assert ids[-1] == tiny.ASK
    assert model.encode(ids)[0].tolist() == ids.tolist() == model.encode(ids.tolist())[0].tolist()


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "it is empty"),
        ([], "it is empty"),
        (np.array([], dtype=np.int64), "it is empty"),
        (None, "found NoneType"),
        (b"bytes", "found bytes"),
        ([5, "x"], r"prompt\[1\]: expected a token id, found 'x'"),
        ([True], r"prompt\[0\]: expected a token id"),
        ([5, 10**6], "id 1000000 at place 1; the vocabulary has ids 0..271"),
        ([5, -1], "id -1 at place 1"),
        (np.array([0.5]), "expected token ids as integers"),
        (np.array([[1]]), "expected token ids as integers"),
        ("a\ud800", "lone surrogate"),
        ("a" * 257, "257 tokens do not fit the context of 256"),
        ([{"role": "user"}], r"messages\[0\]\.content"),
        (["hello"], r"messages\[0\]"),
    ],
)
def test_a_bad_prompt_is_refused_and_the_next_request_works(tiny_bundle, prompt, message):
    model, _ = tiny.open_model(tiny_bundle, "hello")
    with pytest.raises(PromptError, match=message):
        model.stream(prompt)
    assert model.generate(ASKED).text == "hello"


def test_a_token_that_the_model_does_not_have_is_named_before_anything_runs(tmp_path):
    bundle = tiny.write_bundle(tmp_path / "short")
    said = json.loads((bundle / "specedge.json").read_text())
    said["target"]["vocab"] = tiny.byte_tokenizer().token_to_id("<tool>")  # the last one
    (bundle / "specedge.json").write_text(json.dumps(said))
    with specedge.load(bundle, engine="fake") as model:
        for prompt in ("a <tool> b", [{"role": "user", "content": "<tool>"}]):
            with pytest.raises(PromptError, match="the model has no token '<tool>'"):
                model.generate(prompt, max_tokens=1)
        assert model.generate("a b", max_tokens=1).tokens


def ctrl_c_at_line(number, run):
    """Call `run`, interrupted at the number-th line inside specedge; whether it got that far."""
    lines, package = iter(range(1, number + 1)), os.path.dirname(specedge.__file__)

    def trace(frame, event, _):
        if not frame.f_code.co_filename.startswith(package):
            return None
        if event == "line" and next(lines, None) == number:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


# Python can only print what is raised where an object is freed, wherever the signal comes from.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_at_any_line_leaves_a_model_that_works_and_is_exact(tiny_bundle):
    with specedge.load(tiny_bundle, engine="fake", draft_length=3) as model:
        prompts = ("hello hello", "hello world")
        wanted = [model.generate(text, max_tokens=3).tokens for text in prompts]

        def one_request():
            with model.stream(prompts[0], max_tokens=3) as stream:
                list(stream)

        number = 1
        while ctrl_c_at_line(number, one_request):
            assert [model.generate(text, max_tokens=3).tokens for text in prompts] == wanted, number
            number += 1
    assert number > 100, "the request ended before anything could be interrupted"


def test_a_prompt_that_fills_the_context_gives_one_token(tiny_bundle):
    model, _ = tiny.open_model(tiny_bundle, "hello")
    result = model.generate("a" * 255 + "<ask>", max_tokens=None)
    assert (len(result.tokens), result.finish_reason) == (1, "length")


def test_options_are_checked_before_anything_runs(tiny_bundle):
    model, target = tiny.open_model(tiny_bundle, "hello")
    with pytest.raises(OptionError, match="did you mean max_tokens"):
        model.stream(ASKED, max_token=5)
    with pytest.raises(OptionError, match="temperature"):
        model.generate(ASKED, temperature=-0.5)
    assert target.calls == []


def test_without_a_template_messages_are_refused_and_plain_prompts_work(tmp_path):
    model, _ = tiny.open_model(tiny.write_bundle(tmp_path / "b", template=None), "hello")
    assert not model.has_chat_template
    with pytest.raises(PromptError, match="tiny has no chat template; pass the prompt as a string"):
        model.stream(HELLO)
    with pytest.raises(PromptError, match="chat: tiny has no chat template"):
        model.chat()
    assert model.generate(ASKED).text == "hello"


def test_a_broken_template_stops_messages_only(tmp_path):
    model, _ = tiny.open_model(tiny.write_bundle(tmp_path / "b", template="{% for %}"), "hello")
    assert model.generate(ASKED).text == "hello"
    for _ in range(2):
        with pytest.raises(PromptError, match="chat template, line 1"):
            model.generate(HELLO)


# --- one at a time, and how a request ends ------------------------------------------------------


def test_a_second_stream_while_one_runs_is_refused_until_it_is_closed(tiny_bundle):
    model, _ = tiny.open_model(tiny_bundle, "hello hello")
    first = model.stream(ASKED)
    with pytest.raises(BusyError, match="already generating; read that stream to its end or close"):
        model.stream(ASKED)
    next(first)
    with pytest.raises(BusyError):
        model.generate(ASKED)
    first.close()
    assert model.generate(ASKED).text == "hello hello"
    assert list(first) == []


def test_an_abandoned_stream_frees_the_model(tiny_bundle):
    model, _ = tiny.open_model(tiny_bundle, "hello hello")
    model.stream(ASKED)
    gc.collect()
    for _ in model.stream(ASKED):
        break
    gc.collect()
    assert model.last_result.finish_reason == "cancelled"
    assert model.generate(ASKED).text == "hello hello"


def test_closing_keeps_what_was_said_and_is_done_once(tiny_bundle):
    model, _ = tiny.open_model(tiny_bundle, "hello hello")
    with model.stream(ASKED) as stream:
        assert next(stream).text == "hello"
    assert (stream.result.text, stream.result.finish_reason) == ("hello", "cancelled")
    kept = stream.result
    stream.close()
    assert stream.result is kept is model.last_result


def test_ctrl_c_inside_a_call_leaves_a_partial_result_and_a_working_model(tiny_bundle):
    answer = "hello wo hello"
    faults = {2: KeyboardInterrupt()}
    model, _ = tiny.open_model(tiny_bundle, answer, faults=faults)
    said = []
    with pytest.raises(KeyboardInterrupt):
        said.extend(event.text for event in model.stream(ASKED))
    assert model.last_result.finish_reason == "cancelled"
    assert model.last_result.text == "hello wo"
    assert model.generate(ASKED).text == answer


def test_an_engine_that_fails_ends_the_request_but_not_the_model(tiny_bundle):
    model, _ = tiny.open_model(tiny_bundle, "hello wo", faults={1: "nan", 2: EngineError("gone")})
    for message in ("not finite", "gone"):
        with pytest.raises(EngineError, match=message):
            model.generate(ASKED)
        assert model.last_result.finish_reason == "cancelled"
    assert model.generate(ASKED).text == "hello wo"


class Held:
    """A rule that waits inside the engine's call until it is let go."""

    def __init__(self, tokenizer):
        self.inside, self.leave = threading.Event(), threading.Event()
        self.answer = tiny.answering(tokenizer, "hello wo")

    def __call__(self, tokens):
        self.inside.set()
        assert self.leave.wait(10)
        return self.answer(tokens)


def test_while_a_thread_is_inside_a_request_every_other_is_refused(tiny_bundle):
    rule = Held(tiny.wrap(tiny.byte_tokenizer()))
    model, _ = tiny.open_model(tiny_bundle, rule=rule)
    stream = model.stream(ASKED)
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(model.finish(stream)))
    thread.start()
    assert rule.inside.wait(10)
    with pytest.raises(BusyError, match="already generating"):
        model.generate(ASKED)
    with pytest.raises(BusyError, match="another thread is reading it"):
        next(stream)
    with pytest.raises(BusyError, match="another thread is reading it"):
        model.close()
    rule.leave.set()
    thread.join()
    assert results[0].text == "hello wo" == model.generate(ASKED).text


def test_a_closed_model_says_so_and_closing_ends_its_stream(tiny_bundle):
    with tiny.open_model(tiny_bundle, "hello")[0] as model:
        stream = model.stream(ASKED)
        next(stream)
    assert stream.result.finish_reason == "cancelled"
    model.close()
    for _ in range(2):
        with pytest.raises(EngineError, match="it is closed; load the bundle again"):
            model.generate(ASKED)


# --- KV re-use ----------------------------------------------------------------------------------


def rows_fed(target) -> int:
    return sum(call.width for call in target.calls)


def test_the_same_prompt_again_runs_one_row_of_it(tiny_bundle):
    model, target = tiny.open_model(tiny_bundle, "hello")
    model.generate("some long prompt<ask>", max_tokens=1)
    target.calls.clear()
    model.generate("some long prompt<ask>", max_tokens=1)
    assert rows_fed(target) == 1


def test_a_stop_string_keeps_no_rows_of_the_text_after_it(tiny_bundle):
    model, target = tiny.open_model(tiny_bundle, "hello END x", "wo")
    result = model.generate(ASKED, stop="END")
    prompt = model.encode(ASKED)[0].tolist()
    target.calls.clear()
    other = model.encode("<ask>")[0].tolist()
    model.generate([*prompt, *result.tokens, *other])
    assert target.calls[0].n_cached == len(prompt) + len(result.tokens) - 1


def test_a_chat_keeps_the_rows_of_the_common_prefix(tiny_bundle):
    model, target = tiny.open_model(tiny_bundle, "hello wo", "END", "x")
    chat = model.chat(system="be brief")
    assert chat.send("hi").text == "hello wo"
    cached = model.last_result.prompt_tokens + 2  # "hello" and " wo"
    target.calls.clear()
    events = list(chat.stream("and then"))
    assert "".join(texts(events)) == "END"
    prompt = events[-1].result.prompt_tokens
    assert target.calls[0].n_cached == cached
    assert target.calls[0].width == prompt - cached
    assert chat.messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello wo"},
        {"role": "user", "content": "and then"},
        {"role": "assistant", "content": "END"},
    ]
    chat.clear()
    assert chat.messages == [{"role": "system", "content": "be brief"}]


def test_a_cancelled_turn_keeps_what_was_said_and_a_failed_one_nothing(tiny_bundle):
    model, target = tiny.open_model(tiny_bundle, "hello wo", faults={2: EngineError("gone")})
    chat = model.chat()
    for event in chat.stream("hi"):
        assert event.text == "hello"
        break
    assert chat.messages[-1] == {"role": "assistant", "content": "hello"}
    chat.stream("never read").close()
    assert len(chat.messages) == 2
    assert len(target.calls) == 1
    with pytest.raises(EngineError, match="gone"):
        chat.send("again")
    assert model.last_result.text == "hello"
    assert len(chat.messages) == 2


def test_a_chat_refuses_nothing_said_and_echo(tiny_bundle):
    chat = tiny.open_model(tiny_bundle, "hello")[0].chat()
    with pytest.raises(PromptError, match="the message is empty"):
        chat.send("")
    with pytest.raises(OptionError, match="echo: not available in a chat"):
        chat.stream("x", echo=True)
    assert chat.messages == []


def test_a_chat_that_outgrows_the_context_says_both_numbers_and_keeps_its_history(tiny_bundle):
    chat = tiny.open_model(tiny_bundle, "hello")[0].chat()
    chat.send("hi")
    with pytest.raises(PromptError, match="do not fit the context of 256"):
        chat.send("a" * 300)
    assert len(chat.messages) == 2
    assert chat.send("hi").text == "hello"


# --- speculation --------------------------------------------------------------------------------


def test_a_proposer_that_fails_costs_the_request_nothing(tiny_bundle):
    answer = "hello wo hello wo END"
    model, _ = tiny.open_model(tiny_bundle, answer, proposers=[Failing()])
    result = model.generate(ASKED)
    assert result.text == answer
    assert (result.speculation.on, result.speculation.failures) == (False, 1)
    assert "out of memory" in result.speculation.reason


def test_a_proposer_that_fails_while_forced_on_is_an_error_and_the_model_lives(tiny_bundle):
    model, _ = tiny.open_model(
        tiny_bundle, "hello wo hello wo END", proposers=[Failing()], mode="on"
    )
    with pytest.raises(ProposerError, match="out of memory"):
        model.generate(ASKED)
    assert model.generate(ASKED, max_tokens=2).text == "hello wo"


@pytest.mark.parametrize("draft_length", [1, 4, 15])
def test_drafts_do_not_change_the_text_or_the_tokens(tmp_path, draft_length):
    folder = tiny.write_bundle(tmp_path / "pair", draft=True)
    with specedge.load(folder, engine="fake", speculation="off") as model:
        want = model.generate("hello", max_tokens=100)
        assert want.metrics.proposed == 0
    with specedge.load(folder, engine="fake", speculation="on", draft_length=draft_length) as model:
        got = model.generate("hello", max_tokens=100)
        assert got.speculation.proposer == "draft"
        assert got.metrics.accepted > 0
    assert (got.text, got.tokens) == (want.text, want.tokens)


# --- loading ------------------------------------------------------------------------------------


def test_load_takes_what_is_not_said_from_the_bundle(tmp_path):
    folder = tiny.write_bundle(
        tmp_path / "b", draft=True, speculation={"mode": "on", "draft_length": 3}
    )
    model = specedge.load(folder, engine="fake")
    assert model.speculation.reason == "up to 3 tokens a round from ngram, draft"
    assert model.context == 256


def test_the_same_bundle_loaded_twice_works_side_by_side(tiny_bundle):
    one, two = (specedge.load(tiny_bundle, engine="fake") for _ in range(2))
    first = one.stream("hello", max_tokens=20)
    next(first)
    want = two.generate("hello", max_tokens=20)
    assert one.finish(first).tokens == want.tokens
    one.close()
    assert two.generate("hello", max_tokens=20).tokens == want.tokens


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"speculation": "off"}, "turned off by request"),
        ({"draft_length": 0}, "draft length is 0"),
        ({"draft_length": 0, "proposers": ["draft", "ngram"]}, "draft length is 0"),
        ({"proposers": []}, "there is no proposer"),
        ({"proposers": ["draft"]}, "no proposer; no draft model in the bundle"),
        ({}, "decoding plainly meanwhile; no draft model in the bundle"),
    ],
)
def test_plain_decoding_has_its_reason(tiny_bundle, given, reason):
    model = specedge.load(tiny_bundle, engine="fake", **given)
    result = model.generate("hello", max_tokens=5)
    assert reason in result.speculation.reason


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"draft_length": -1}, "draft_length: expected 0 or more, found -1"),
        ({"draft_length": 2.0}, "draft_length: expected 0 or more"),
        ({"draft_length": 16}, "need a verification of 17, this bundle allows 16 .* at most 15"),
        ({"draft_length": 9, "context": 9}, "9 drafted tokens do not fit the context of 9"),
        ({"context": 257}, r"context: expected 1\.\.256, found 257"),
        ({"context": 0}, r"context: expected 1\.\.256, found 0"),
        ({"context": "64"}, r"context: expected 1\.\.256, found '64'"),
        ({"threads": 10**6}, r"threads: expected 1\.\.1024, found 1000000"),
        ({"threads": 2.0}, r"threads: expected 1\.\.1024, found 2\.0"),
        ({"threads": 0}, r"threads: expected 1\.\.1024, found 0"),
        ({"speculation": "maybe"}, "speculation: expected auto, on or off, found 'maybe'"),
        ({"proposers": ["ngrams"]}, "no proposer 'ngrams'; did you mean ngram?"),
        ({"proposers": ["ngram", "ngram"]}, "names one twice"),
        ({"speculation": "on", "context": 1}, 'speculation "on": a call verifies 1 token at most'),
        ({"speculation": "on", "draft_length": 0}, 'speculation "on": draft_length is 0'),
        ({"speculation": "on", "proposers": ["draft"]}, r"\(draft\) this bundle can run none"),
        ({"speculation": "on", "proposers": []}, r"\(none\) this bundle can run none"),
    ],
)
def test_load_refuses_what_cannot_be_honoured(tiny_bundle, given, message):
    with pytest.raises(OptionError, match=message):
        specedge.load(tiny_bundle, engine="fake", **given)


def test_speculation_on_without_a_draft_runs_on_the_proposers_that_remain(tiny_bundle):
    model = specedge.load(tiny_bundle, engine="fake", speculation="on")
    assert model.speculation.on


def test_a_smaller_context_is_what_the_slot_gets(tiny_bundle):
    model = specedge.load(tiny_bundle, engine="fake", context=8)
    assert model.context == 8
    assert len(model.generate("hello", max_tokens=None, ignore_eos=True).tokens) == 8
    with pytest.raises(PromptError, match="9 tokens do not fit the context of 8"):
        model.generate("a" * 9)


@pytest.mark.parametrize("error", [MemoryError(), EngineError("draft/model.onnx: no such node")])
def test_a_draft_that_cannot_be_loaded_is_left_out_with_its_reason(tmp_path, monkeypatch, error):
    folder = tiny.write_bundle(tmp_path / "b", draft=True)
    create = registry.create

    def failing(name, path, spec, **sizes):
        if spec.role == "draft":
            raise error
        return create(name, path, spec, **sizes)

    monkeypatch.setattr(registry, "create", failing)
    model = specedge.load(folder, engine="fake")
    why = str(error) or "MemoryError"
    assert f"meanwhile; the draft model was left out: {why}" in model.speculation.reason
    with pytest.raises(EngineError, match="the draft model cannot be loaded"):
        specedge.load(folder, engine="fake", speculation="on")


def test_no_memory_for_the_kv_is_one_error_and_no_engine_stays_open(tmp_path, monkeypatch):
    from specedge.engines.fake import FakeEngine

    closed = []

    def no_room(self):
        raise MemoryError

    monkeypatch.setattr(FakeEngine, "close", lambda self: closed.append(self.spec.role))
    monkeypatch.setattr(FakeEngine, "new_slot", no_room)
    folder = tiny.write_bundle(tmp_path / "pair", draft=True)
    with pytest.raises(EngineError, match="not enough memory for tiny at a context of 256"):
        specedge.load(folder, engine="fake")
    assert sorted(closed) == ["draft", "target"]


def test_an_altered_bundle_does_not_load_unless_told_not_to_look(tiny_bundle):
    (tiny_bundle / "target/weights.bin").write_bytes(b"abcd")
    with pytest.raises(BundleError, match="altered"):
        specedge.load(tiny_bundle, engine="fake")
    specedge.load(tiny_bundle, engine="fake", verify=False)


def test_an_unknown_engine_is_refused_with_the_nearest(tiny_bundle):
    with pytest.raises(EngineError, match=r"there are auto, .*rtx: did you mean fake\?"):
        specedge.load(tiny_bundle, engine="fakes")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        *(("gpu", "cuda"), ("GPU", "cuda"), ("nvidia", "cuda"), ("cuda12", "cuda")),
        *(("trt", "tensorrt"), ("rtx", "tensorrt-rtx"), ("TensorRT", "tensorrt")),
        *(("onnxruntime", "cpu"), ("cpus", "cpu"), ("xyz", None)),
    ],
)
def test_an_engine_by_another_name_is_understood_and_that_for_tests_is_not_offered(
    tiny_bundle, said, meant
):
    with pytest.raises(EngineError) as error:
        specedge.load(tiny_bundle, engine=said)
    hint = "choose one of them" if meant is None else f"did you mean {meant}?"
    listed = "auto, cpu, cuda, ort-tensorrt, tensorrt, tensorrt-rtx"
    assert str(error.value) == f"engine: no engine {said!r}; there are {listed}: {hint}"


def test_a_missing_runtime_and_two_of_them_are_told_apart(tiny_bundle, monkeypatch):
    from specedge.engines.registry import check_onnxruntime

    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r"not installed; install specedge\[cpu\]"):
        specedge.load(tiny_bundle, engine="cpu")
    monkeypatch.setattr(registry, "_installed", lambda name: True)
    gpu = cuda.Device("NVIDIA H200", (9, 0), 1, (13, 0))
    for device, extra in ((gpu, "gpu"), ("no driver; install it", "cpu")):
        monkeypatch.setattr(cuda, "find", lambda ordinal=0, found=device: found)
        with pytest.raises(EngineError, match="both installed and overwrite each other") as error:
            check_onnxruntime()
        assert str(error.value).endswith(f"then install specedge[{extra}]")


def test_the_fake_engine_of_a_bundle_follows_the_rule_in_its_graph_file(tmp_path):
    rule = {"rule": "table", "successors": {"10": 11, "11": 12}, "default": 2}
    model = specedge.load(tiny.write_bundle(tmp_path / "b", rule=rule), engine="fake")
    assert model.generate([10]).tokens == [11, 12, tiny.EOS]
    (tmp_path / "c").mkdir()
    spec = model.bundle.manifest.target
    (tmp_path / "c" / "target").mkdir()
    (tmp_path / "c" / spec.model).write_bytes(b"\x08\x0a not JSON")
    engine = registry.create("fake", tmp_path / "c", spec)
    scored = engine.forward(engine.new_slot(), np.array([5], dtype=np.int64), 0, 1)
    assert isinstance(Verdict(0, int(scored.greedy_ids[0])), tuple)

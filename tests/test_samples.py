"""Several samples of one request: one after the other, over the prompt's rows, ended one by one."""

from __future__ import annotations

import numpy as np
import pytest

import tiny
from specedge.acceptance import coupled, race
from specedge.contract import Ids, Logits
from specedge.engines.fake import FakeEngine
from specedge.errors import BusyError, EngineError, OptionError, SamplingError
from specedge.proposers import DraftModelProposer, NgramProposer
from specedge.randomness import Randomness
from specedge.sampling.law import Law

ASKED = "tell me<ask>"
VOCAB = tiny.byte_tokenizer().get_vocab_size()
LOUD = 12  # ids of letters, so that texts can be read


@pytest.fixture
def folder(tmp_path):
    return tiny.write_bundle(tmp_path / "b", draft=True)


def scores(tokens: Ids) -> Logits:
    """A dozen letters and the end id, by the last two tokens."""
    rng = np.random.default_rng(tokens[-2:].tolist())
    row = np.full(VOCAB, -np.inf, np.float32)
    row[70 : 70 + LOUD] = rng.normal(0, 2, LOUD)
    row[tiny.EOS] = 0.5
    return row


def finite(tokens: Ids) -> Logits:
    return np.maximum(scores(tokens), -50)  # the fake engine refuses rows that are not finite


@pytest.fixture
def model(folder):
    opened, _ = tiny.open_model(folder, proposers=[NgramProposer(1, 3)], scores=finite)
    with opened:
        yield opened


def asked(**more):
    return {"temperature": 1.0, "seed": 3, "max_tokens": 8, **more}


def test_samples_come_one_after_the_other_and_are_all_in_the_result(model):
    events = list(model.stream(ASKED, n=3, **asked()))
    assert [event.sample for event in events] == sorted(event.sample for event in events)
    result = events[-1].result
    assert len(result.samples) == 3
    for number, sample in enumerate(result.samples):
        mine = [event for event in events if event.sample == number]
        assert "".join(event.text for event in mine) == sample.text
        assert mine[-1].finish_reason == sample.finish_reason
        assert sample.samples is None
    assert result.tokens == result.samples[0].tokens
    assert len({sample.text for sample in result.samples}) > 1
    assert [sample["seed"] for sample in result.to_dict()["samples"]] == [3, 3, 3]


def test_a_sample_is_what_it_would_be_with_fewer_others_or_more(model):
    three = model.generate(ASKED, n=3, **asked()).samples
    five = model.generate(ASKED, n=5, **asked()).samples
    one = model.generate(ASKED, **asked())
    assert [sample.tokens for sample in five[:3]] == [sample.tokens for sample in three]
    assert one.tokens == three[0].tokens
    assert one.samples is None


def test_later_samples_run_one_row_of_the_prompt(folder):
    with tiny.open_model(folder, scores=finite)[0] as model:
        several = model.generate(ASKED, n=4, **asked()).samples
    first, *later = [sample.metrics.prefill_tokens for sample in several]
    assert first == several[0].prompt_tokens > 1
    assert later == [1, 1, 1]


def test_without_a_seed_the_drawn_one_repeats_the_request(model):
    free = {"temperature": 1.0, "max_tokens": 8, "n": 2}
    first = model.generate(ASKED, **free)
    again = model.generate(ASKED, seed=first.seed, acceptance=first.acceptance, **free)
    assert (first.acceptance, first.reproducible) == ("rejection", False)
    assert [s.tokens for s in again.samples] == [s.tokens for s in first.samples]
    assert model.generate(ASKED, **free).seed != first.seed


def test_every_sample_has_its_own_echo_stop_and_logprobs(model):
    result = model.generate(ASKED, n=3, echo=True, logprobs=2, stop=["i", "k"], **asked())
    for sample in result.samples:
        assert sample.text.startswith(ASKED)
        assert not {"i", "k"} & set(sample.text.removeprefix(ASKED))
        assert len(sample.logprobs) == len(sample.tokens)
    assert "stop_string" in {sample.finish_reason for sample in result.samples}


def test_closing_in_the_second_sample_keeps_the_first(model):
    stream = model.stream(ASKED, n=3, **asked(ignore_eos=True))
    for event in stream:
        if event.sample == 1:
            break
    with pytest.raises(BusyError):
        model.generate(ASKED)
    stream.close()
    result = stream.result
    assert [sample.finish_reason for sample in result.samples] == ["length", "cancelled"]
    assert result.finish_reason == "length"
    assert model.generate(ASKED, **asked()).finish_reason in ("stop", "length")


def test_closing_between_two_samples_keeps_those_that_ended(model):
    stream = model.stream(ASKED, n=3, **asked())
    for event in stream:
        if event.finish_reason is not None:
            break
    stream.close()
    assert [sample.finish_reason for sample in stream.result.samples] == [event.finish_reason]
    assert model.generate(ASKED, **asked()).tokens == stream.result.samples[0].tokens


def test_a_failure_in_a_later_sample_leaves_what_was_made(folder):
    model, target = tiny.open_model(folder, scores=finite)
    stream = model.stream(ASKED, n=3, **asked(ignore_eos=True))
    first = next(event for event in stream if event.finish_reason is not None)
    target._faults[len(target.calls) + 2] = EngineError("target: it broke")
    with pytest.raises(EngineError, match="it broke"):
        list(stream)
    assert stream.result.samples[0].text == first.result.text
    assert stream.result.samples[1].finish_reason == "cancelled"
    assert len(stream.result.samples[1].tokens) == 2
    assert model.generate(ASKED, **asked()).tokens


def test_a_row_that_is_not_finite_ends_the_request_with_its_place(folder):
    def broken(tokens: Ids) -> Logits:
        return finite(tokens) + (np.float32(1e37) if len(tokens) > 20 else np.float32(0))

    model, _ = tiny.open_model(folder, scores=broken)
    n_prompt = len(model.encode(ASKED)[0])
    stream = model.stream(ASKED, ignore_eos=True, repetition_penalty=0.01, **asked(max_tokens=30))
    said = []
    with pytest.raises(
        SamplingError, match=r"^repetition_penalty .* target at position 21: .* inf"
    ):
        said.extend(token for event in stream for token in event.tokens)
    assert stream.result.finish_reason == "cancelled"
    assert len(stream.result.tokens) + n_prompt == 21
    assert model.generate(ASKED, **asked(max_tokens=2)).tokens


@pytest.mark.parametrize("n", [0, -1, 65, 2.0, True, "3", np.array([1, 2])])
def test_n_that_cannot_be_is_refused(model, n):
    with pytest.raises(OptionError, match=r"^n: "):
        model.stream(ASKED, temperature=1.0, n=n)
    with pytest.raises(OptionError, match=r"^n: "):
        model.chat().stream("hello", temperature=1.0, n=n)


@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"presence_penalty": 0.5, "min_tokens": 4}])
def test_coupled_text_is_the_same_with_any_proposer_and_length(folder, options):
    said = set()
    for mode, length, which in [
        ("off", 0, ""), ("on", 1, "ngram"), ("on", 4, "draft"), ("on", 7, "both"),
    ]:  # fmt: skip
        spec = tiny.graph("draft", VOCAB, context=256, max_verify=16)
        draft = FakeEngine(spec, scores=lambda ids: finite(ids) + finite(ids[-1:]) * 0.2)
        proposers = {
            "": [],
            "ngram": [NgramProposer(1, 3)],
            "draft": [DraftModelProposer(draft)],
            "both": [NgramProposer(1, 3), DraftModelProposer(draft)],
        }[which]
        model, _ = tiny.open_model(
            folder, scores=finite, proposers=proposers, draft_length=length, mode=mode
        )
        result = model.generate(ASKED, n=3, logprobs=3, **asked(max_tokens=40), **options)
        assert result.acceptance == "coupled"
        assert result.reproducible
        assert bool(sum(s.metrics.proposed for s in result.samples)) == (mode == "on")
        said.add(repr([(s.tokens, s.finish_reason, s.logprobs) for s in result.samples]))
        model.close()
    assert len(said) == 1


def test_the_context_is_filled_to_its_last_row_when_sampling(folder):
    for rule in ("rejection", "block", "coupled"):
        model, _ = tiny.open_model(
            folder, scores=finite, context=40, proposers=[NgramProposer(1, 2)], draft_length=7
        )
        result = model.generate(
            ASKED, temperature=1.0, acceptance=rule, seed=1, ignore_eos=True, max_tokens=None
        )
        assert result.finish_reason == "length"
        assert result.prompt_tokens + len(result.tokens) == 41


def test_the_sampler_draws_what_the_rule_says(model):
    """The text is the race over the target's law at each absolute position, nothing else."""
    result = model.generate(ASKED, **asked(ignore_eos=True))
    ids = model.encode(ASKED)[0].tolist()
    for token in result.tokens:
        law = Law(None, finite(np.array(ids)))
        assert race(law, Randomness(3), len(ids)) == token
        assert coupled(np.array([token]), [law, law], Randomness(3), len(ids)).n_accepted == 1
        ids.append(token)

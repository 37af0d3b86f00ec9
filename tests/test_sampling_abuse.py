"""What a request of sampling must survive: odd values, ids that leave nothing, failing drafts."""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np
import pytest

import specedge
import tiny
from specedge.contract import Ids, Logits
from specedge.engines.fake import FakeEngine
from specedge.errors import BundleError, OptionError
from specedge.model import Model
from specedge.options import GenerationOptions
from specedge.proposers import DraftModelProposer, NgramProposer, Proposer
from tiny import ASK, BOS, EOS, PAD

VOCAB = tiny.byte_tokenizer().get_vocab_size()
CONTEXT = 48


def target(tokens: Ids) -> Logits:
    rng = np.random.default_rng(zlib.crc32(tokens[-2:].tobytes()))
    return (3 * rng.normal(size=VOCAB)).astype(np.float32)


def draft(tokens: Ids) -> Logits:
    rng = np.random.default_rng(zlib.crc32(tokens[-2:].tobytes(), 1))
    return (target(tokens) + 0.7 * rng.normal(size=VOCAB)).astype(np.float32)


@pytest.fixture
def folder(tmp_path):
    return tiny.write_bundle(tmp_path / "b", draft=True, context=CONTEXT)


def opened(folder, names: str, length: int, context: int | None = None, **engine: Any) -> Model:
    """A model with proposers "n" (lookup) and "d" (draft model, its engine made of `engine`)."""
    spec = tiny.graph("draft", VOCAB, context=CONTEXT, max_verify=16)
    proposers: list[Proposer] = []
    for name in names:
        if name == "n":
            proposers.append(NgramProposer(1, 3))
        else:
            drafting = FakeEngine(spec, scores=draft, context=context, **engine)
            proposers.append(DraftModelProposer(drafting))
    return tiny.open_model(folder, scores=target, proposers=proposers, draft_length=length)[0]


@pytest.mark.parametrize(
    ("end", "options"),
    [
        (EOS, {}),
        (ASK, {"stop": "<ask>"}),
        (PAD, {"stop": ["x", "<pad>"], "ignore_eos": True}),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bans_that_leave_only_what_min_tokens_holds_back_are_refused_at_the_call(
    folder, end, options, temperature
):
    options = options | {"temperature": temperature}
    banned = [token for token in range(VOCAB) if token not in (end, EOS)]
    if options.get("ignore_eos"):
        banned.append(EOS)
    with opened(folder, "", 0) as model:
        with pytest.raises(OptionError, match=r"^banned_tokens: no token .* min_tokens holds back"):
            model.stream([BOS], min_tokens=1, banned_tokens=banned, **options)
        said = model.generate([BOS], banned_tokens=banned, **options)
        assert set(said.tokens) <= {end, EOS}


def test_an_end_id_outside_the_vocabulary_takes_no_place_among_those_held_back():
    banned = tuple(range(1, 10))
    options = GenerationOptions.parse(
        {"banned_tokens": banned, "min_tokens": 1}, vocab=10, end_ids=(99,)
    )
    assert options.sampling.banned_tokens == banned


@pytest.mark.parametrize("n", [np.int64(1), np.uint8(1), 1, None])
def test_a_chat_takes_one_sample_however_it_is_written(folder, n):
    with opened(folder, "", 0) as model:
        assert model.chat().send("hi", n=n, max_tokens=2).samples is None


@pytest.mark.parametrize(
    ("section", "key", "wrong"),
    [
        ("generation", "temperature", True),
        ("generation", "temperature", "0.5"),
        ("generation", "top_k", True),
        ("generation", "top_k", "5"),
        ("generation", "top_k", 5.0),
        ("generation", "min_p", False),
        ("generation", "min_tokens", "1"),
        ("generation", "max_tokens", True),
        ("speculation", "draft_length", True),
        ("speculation", "ngram_min", "2"),
    ],
)
def test_a_default_of_another_type_in_a_manifest_is_damage(folder, section, key, wrong):
    tiny.edit_manifest(folder, **{section: {key: wrong}})
    with pytest.raises(BundleError, match=rf"{section}\.{key}: Input should be a valid"):
        specedge.load(folder, engine="fake")


@pytest.mark.parametrize("rule", ["rejection", "block", "coupled"])
@pytest.mark.parametrize("fault", ["nan", RuntimeError("it broke"), MemoryError()])
@pytest.mark.parametrize("call", [0, 2, 4])
def test_a_draft_that_fails_costs_speculation_and_no_text(folder, rule, fault, call):
    asked = {
        "temperature": 1.0,
        "seed": 3,
        "max_tokens": 12,
        "ignore_eos": True,
        "acceptance": rule,
        "repetition_penalty": 1.2,
    }
    with opened(folder, "d", 3, faults={call: fault}) as model:
        result = model.generate([5, 6, 7, 8], **asked)
        assert "proposer draft failed in propose" in result.speculation.reason
        assert (len(result.tokens), result.finish_reason) == (12, "length")
        if rule == "coupled":
            with opened(folder, "", 0) as plain:
                assert plain.generate([5, 6, 7, 8], **asked).tokens == result.tokens
        assert model.generate([5, 6, 7, 8], **asked).speculation.on


def any_request(rng: random.Random) -> dict[str, Any]:
    """Options that can all be honoured, at the ends of their ranges more often than not."""
    choices: dict[str, list[Any]] = {
        "temperature": [0, 0.7, 1, 1e-6, 100, np.float32(0.5)],
        "top_k": [1, 2, 50, -1, np.int64(3)],
        "top_p": [1e-300, 0.5, 0.95, 1 - 2**-53],
        "min_p": [1, 0.1, 1e-300],
        "repetition_penalty": [0.01, 100, 1.3],
        "frequency_penalty": [-2, 2],
        "presence_penalty": [-2, 2],
        "logit_bias": [{EOS: 100}, {str(EOS): -100}, {np.int64(9): 3.0}],
        "banned_tokens": [[EOS], list(range(4, VOCAB)), range(1, VOCAB, 2)],
        "min_tokens": [1, 3],
        "stop": ["e", ["<ask>", "h"], ["<eos>"]],
        "ignore_eos": [True],
        "echo": [True],
        "logprobs": [0, 20],
    }
    asked = {name: rng.choice(values) for name, values in choices.items() if rng.random() < 0.3}
    asked["seed"] = rng.choice([0, 2**64 - 1, np.uint64(7)])
    asked["max_tokens"] = rng.choice([3, 5, 20, 100])
    if asked.get("temperature"):
        asked["n"] = rng.choice([1, 1, 2])
    return asked


def test_any_request_is_the_same_text_in_every_mode_at_the_ends_of_all_ranges(folder):
    rng = random.Random(5)
    modes = [("", 0, None), ("n", 4, None), ("d", 3, None), ("nd", 7, None), ("d", 4, 10)]
    models = [opened(folder, *mode) for mode in modes]
    for _ in range(60):
        prompt = [rng.randrange(VOCAB) for _ in range(rng.choice([1, 5, 20, CONTEXT]))]
        asked = any_request(rng)
        results = [model.generate(prompt, **asked) for model in models]
        said = [
            [(each.text, each.tokens, each.logprobs, each.finish_reason) for each in samples]
            for samples in (result.samples or [result] for result in results)
        ]
        assert all(other == said[0] for other in said), asked
        assert all(result.reproducible for result in results)
        for result in results[0].samples or results[:1]:
            assert not set(result.tokens) & set(asked.get("banned_tokens", ())), asked
            held_back = set() if asked.get("ignore_eos") else {EOS}
            assert not held_back & set(result.tokens[: asked.get("min_tokens", 0)]), asked
    for model in models:
        model.close()

from __future__ import annotations

import pytest

from specedge.contract import GenerationDefaults
from specedge.errors import OptionError
from specedge.options import NEUTRAL, GenerationOptions


def parse(**given):
    return GenerationOptions.parse(given)


def test_nothing_given_means_the_bundles_defaults():
    assert GenerationOptions.parse({}, GenerationDefaults(max_tokens=7)).max_tokens == 7
    assert parse() == GenerationOptions(max_tokens=512)


def test_max_tokens_none_is_up_to_the_context_not_the_default():
    assert parse(max_tokens=None).max_tokens is None


def test_one_stop_string_or_several_without_doubles():
    assert parse(stop="x").stop == ("x",)
    assert parse(stop=["x", "y", "x"]).stop == ("x", "y")
    assert parse(stop=None).stop == ()


@pytest.mark.parametrize("value", [0, 0.0, None])
def test_greedy_temperature_is_fine(value):
    parse(temperature=value)


@pytest.mark.parametrize("name", NEUTRAL)
def test_sampling_options_are_honoured_only_where_they_ask_for_nothing(name):
    for neutral in NEUTRAL[name]:
        parse(**{name: neutral})
    with pytest.raises(OptionError, match=f"^{name}: 0.5 cannot be honoured"):
        parse(**{name: 0.5})


def test_a_warm_default_of_the_bundle_is_not_ignored():
    warm = GenerationDefaults(temperature=0.7)
    with pytest.raises(OptionError, match=r"temperature, from the bundle's \[generation\]: 0.7"):
        GenerationOptions.parse({}, warm)
    GenerationOptions.parse({"temperature": 0}, warm)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_token": 5}, "max_token: no such option; did you mean max_tokens?"),
        ({"zzz": 5}, "zzz: no such option; known: echo"),
        ({"max_tokens": 0}, "max_tokens: expected 1 or more"),
        ({"max_tokens": -1}, "max_tokens: expected 1 or more"),
        ({"max_tokens": 2.5}, "max_tokens: expected 1 or more"),
        ({"max_tokens": True}, "max_tokens: expected 1 or more"),
        ({"stop": ""}, "stop: an empty string"),
        ({"stop": ["a", ""]}, r"stop\[1\]: an empty string"),
        ({"stop": ["a", 5]}, r"stop\[1\]: expected a string, found 5"),
        ({"stop": 5}, "stop: expected a string or a list"),
        ({"stop": ["a"] * 17}, "stop: expected at most 16 strings, found 17"),
        ({"stop": "a" * 1001}, "stop: expected at most 1000 characters, found 1001"),
        ({"ignore_eos": 1}, "ignore_eos: expected True or False, found 1"),
        ({"echo": "yes"}, "echo: expected True or False"),
        ({"logprobs": 21}, r"logprobs: expected .* 0\.\.20, found 21"),
        ({"logprobs": -1}, "logprobs: expected"),
        ({"logprobs": True}, "logprobs: expected"),
        ({"temperature": 0.7}, "temperature: 0.7 cannot be honoured"),
        ({"temperature": -1}, "temperature: -1 cannot be honoured"),
        ({"temperature": False}, "temperature: False cannot be honoured"),
        ({"seed": 0}, "seed: 0 cannot be honoured"),
        ({"n": True}, "n: True cannot be honoured"),
    ],
)
def test_a_bad_option_is_refused_by_name(given, message):
    with pytest.raises(OptionError, match=message):
        GenerationOptions.parse(given)

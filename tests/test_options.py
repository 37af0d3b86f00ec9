from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from specedge.contract import GenerationDefaults, SpeculationDefaults
from specedge.errors import OptionError
from specedge.options import GenerationOptions, OptionKeywords
from specedge.sampling.params import SamplingParams

HUGE = 10**5000  # more digits than Python writes out


def parse(**given):
    return GenerationOptions.parse(given)


def sampling(**given):
    return GenerationOptions.parse(given, vocab=100, end_ids=[2]).sampling


def test_nothing_given_means_the_bundles_defaults():
    assert GenerationOptions.parse({}, GenerationDefaults(max_tokens=7)).max_tokens == 7
    assert parse() == GenerationOptions(max_tokens=512)
    assert parse().sampling == SamplingParams()


def test_none_is_not_given():
    nothing = dict.fromkeys(OptionKeywords.__annotations__.keys() - {"max_tokens"})
    assert GenerationOptions.parse(nothing) == parse()


def test_max_tokens_none_is_up_to_the_context_not_the_default():
    assert parse(max_tokens=None).max_tokens is None


def test_one_stop_string_or_several_without_doubles():
    assert parse(stop="x").stop == ("x",)
    assert parse(stop=["x", "y", "x"]).stop == ("x", "y")
    assert parse(stop=None).stop == ()


WARM = GenerationDefaults(
    temperature=0.7,
    top_k=40,
    top_p=0.9,
    min_p=0.1,
    repetition_penalty=1.1,
    frequency_penalty=0.5,
    presence_penalty=-0.5,
    min_tokens=3,
)


def test_the_bundle_gives_what_a_request_does_not():
    got = GenerationOptions.parse({}, WARM, speculation=SpeculationDefaults(acceptance="block"))
    assert got.sampling == SamplingParams(
        repetition_penalty=1.1,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        min_tokens=3,
        temperature=0.7,
        top_k=40,
        top_p=0.9,
        min_p=0.1,
        acceptance="block",
    )


def test_a_request_overrides_the_bundle_even_with_a_neutral_value():
    asked = {
        "temperature": 0,
        "top_k": 0,
        "top_p": 1,
        "min_p": 0,
        "repetition_penalty": 1,
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "min_tokens": 0,
        "acceptance": "auto",
    }
    speculation = SpeculationDefaults(acceptance="coupled")
    assert GenerationOptions.parse(asked, WARM, speculation=speculation).sampling == (
        SamplingParams()
    )


def test_a_form_says_whose_min_tokens_it_excludes():
    with pytest.raises(OptionError, match="min_tokens: 3, the bundle's default, excludes regex"):
        GenerationOptions.parse({"regex": "a"}, WARM)
    assert GenerationOptions.parse({"regex": "a", "min_tokens": 0}, WARM).grammar is not None


def test_a_request_may_be_shorter_than_the_bundles_min_tokens():
    assert GenerationOptions.parse({"max_tokens": 2}, WARM).sampling.min_tokens == 2


@pytest.mark.parametrize(
    "value", [1, 1.0, np.float32(1), np.float64(1), np.int64(1), np.uint8(1), Fraction(1)]
)
def test_any_number_will_do_where_one_is_expected(value):
    names = ("temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty")
    got = sampling(**dict.fromkeys(names, value), logit_bias={5: value})
    for name in names:
        assert getattr(got, name) == 1.0
        assert type(getattr(got, name)) is float
    assert got.logit_bias == ((5, 1.0),)


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint16(3)])
def test_any_integer_will_do_where_one_is_expected(value):
    got = sampling(
        top_k=value, seed=value, min_tokens=value, n=value, temperature=1, banned_tokens=[value]
    )
    assert (got.top_k, got.seed, got.min_tokens, got.n) == (3, 3, 3, 3)
    assert got.banned_tokens == (3,)
    assert all(type(item) is int for item in (got.top_k, got.seed, got.min_tokens, got.n))


@pytest.mark.parametrize("value", [-1, 0, 100, 2**31 - 1])
def test_top_k_of_all_is_written_in_several_ways(value):
    assert sampling(top_k=value).top_k == 0


def test_ids_are_sorted_and_named_once():
    got = sampling(logit_bias={"42": 1.5, 7: -2, 9: 0}, banned_tokens=(9, 3, 9))
    assert got.logit_bias == ((7, -2.0), (42, 1.5))
    assert got.banned_tokens == (3, 9)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({}, "greedy"),
        ({"temperature": -0.0, "seed": 7}, "greedy"),
        ({"acceptance": "greedy"}, "greedy"),
        ({"acceptance": "block"}, "greedy"),
        ({"temperature": 0.5}, "rejection"),
        ({"temperature": 0.5, "seed": 0}, "coupled"),
        ({"temperature": 0.5, "seed": 0, "acceptance": "rejection"}, "rejection"),
        ({"temperature": 0.5, "acceptance": "block"}, "block"),
        ({"temperature": 0.5, "acceptance": "coupled"}, "coupled"),
    ],
)
def test_the_rule_that_runs(given, rule):
    assert sampling(**given).rule == rule


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [1e-6, 100]),
        ("top_p", [5e-324, 1]),
        ("min_p", [0, 1]),
        ("repetition_penalty", [0.01, 100]),
        ("frequency_penalty", [-2, 2]),
        ("presence_penalty", [-2, 2]),
        ("min_tokens", [0, 512]),
        ("seed", [0, 2**64 - 1]),
    ],
)
def test_the_ends_of_a_range_are_in_it(name, values):
    for value in values:
        assert getattr(sampling(**{name: value}), name) == value


NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)
INTEGERS = ("top_k", "min_tokens", "seed", "n", "max_tokens", "logprobs")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "value",
    [
        *(math.nan, math.inf, -math.inf, -3, 100.1, 1j),
        *(True, np.True_, "1", object, np.ones(1), np.array(1.0)),
        *([1], {"a": 1}),
    ],
    ids=repr,
)
def test_a_number_out_of_range_or_none_at_all_is_refused(name, value):
    with pytest.raises(OptionError, match=f"^{name}: expected .*, found .") as caught:
        sampling(**{name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [*NUMBERS, *INTEGERS])
@pytest.mark.parametrize("value", [HUGE, -HUGE], ids=["huge", "minus-huge"])
def test_a_number_of_thousands_of_digits_is_refused_in_one_line(name, value):
    if name == "max_tokens":
        value = -HUGE  # more than the context is only up to the context
    with pytest.raises(OptionError, match=f"^{name}: .* found a number of thousands of digits"):
        sampling(**{name: value})


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize(
    "value", [True, np.True_, 1.0, math.nan, "1", [1], {1: 1}, np.ones(3, int), 1 - 2**64]
)
def test_an_integer_out_of_range_or_none_at_all_is_refused(name, value):
    with pytest.raises(OptionError, match=f"^{name}: expected .*, found ."):
        sampling(temperature=1, **{name: value})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_token": 5}, "max_token: no such option; did you mean max_tokens?"),
        ({"zzz": 5}, "zzz: no such option; known: acceptance"),
        ({"a\nb": 5}, "'a\\\\nb': no such option; known: acceptance"),
        ({"": 5}, "'': no such option; known: acceptance"),
        ({"max_tokens": 0}, "max_tokens: expected 1 or more"),
        ({"stop": ""}, "stop: an empty string"),
        ({"stop": ["a", ""]}, r"stop\[1\]: an empty string"),
        ({"stop": ["a", 5]}, r"stop\[1\]: expected a string, found 5"),
        ({"stop": 5}, "stop: expected a string or a list"),
        ({"stop": HUGE}, "stop: expected a string or a list"),
        ({"stop": ["a"] * 17}, "stop: expected at most 16 strings, found 17"),
        ({"stop": "a" * 1001}, "stop: expected at most 1000 characters, found 1001"),
        ({"ignore_eos": 1}, "ignore_eos: expected True or False, found 1"),
        ({"echo": "yes"}, "echo: expected True or False"),
        ({"logprobs": 21}, r"logprobs: expected an integer of 0\.\.20; how many .*, found 21"),
        ({"temperature": 1e-7}, r"temperature: expected 0 \(greedy\) or 1e-06\.\.100, found 1e-07"),
        ({"top_p": 0}, "top_p: expected a number above 0 and at most 1"),
        ({"top_k": -2}, r"top_k: expected an integer of 0\.\.2147483647; 0: all, found -2"),
        ({"seed": 2**64}, r"seed: expected an integer of 0\.\.2\^64-1, found 18446744073709551616"),
        ({"n": 0}, r"n: expected an integer of 1\.\.64, found 0"),
        ({"n": 2}, "n: all 2 samples would be equal at temperature 0"),
        ({"min_tokens": 9, "max_tokens": 8}, r"min_tokens: 9 is above max_tokens = 8; lower it"),
        ({"min_tokens": 600}, "min_tokens: 600 is above max_tokens = 512, the bundle's default"),
        ({"logit_bias": [1]}, r"logit_bias: expected a dict of token id to amount, found \[1\]"),
        ({"logit_bias": "5=1"}, "logit_bias: expected a dict"),
        ({"logit_bias": {100: 1}}, r"logit_bias: id: expected an integer of 0\.\.99, found 100"),
        ({"logit_bias": {-1: 1}}, "logit_bias: id: expected .*, found -1"),
        ({"logit_bias": {"-1": 1}}, "logit_bias: id: expected .*, found '-1'"),
        ({"logit_bias": {"": 1}}, "logit_bias: id: expected .*, found ''"),
        ({"logit_bias": {"²": 1}}, "logit_bias: id: expected .*, found '²'"),
        ({"logit_bias": {"9" * 5000: 1}}, r"logit_bias: id: .* \(5002 characters\)"),
        ({"logit_bias": {True: 1}}, "logit_bias: id: expected .*, found True"),
        ({"logit_bias": {5: math.nan}}, r"logit_bias\[5\]: expected .*-100\.\.100, found nan"),
        ({"logit_bias": {5: 101}}, r"logit_bias\[5\]: expected .*, found 101"),
        ({"logit_bias": {5: None}}, r"logit_bias\[5\]: expected .*, found None"),
        ({"logit_bias": {5: 1, "5": 2}}, "logit_bias: id 5 is named twice"),
        ({"banned_tokens": 5}, "banned_tokens: expected a list of token ids, found 5"),
        ({"banned_tokens": "5"}, "banned_tokens: expected a list of token ids, found '5'"),
        ({"banned_tokens": {5: 1}}, "banned_tokens: expected a list of token ids"),
        ({"banned_tokens": [5, 100]}, r"banned_tokens\[1\]: expected .* 0\.\.99, found 100"),
        ({"banned_tokens": [[5]]}, r"banned_tokens\[0\]: expected .*, found \[5\]"),
        ({"banned_tokens": ["5"]}, r"banned_tokens\[0\]: expected .*, found '5'"),
        ({"banned_tokens": range(100)}, "banned_tokens: no token of the vocabulary's 100 is left"),
        (
            {"banned_tokens": [i for i in range(100) if i != 2], "min_tokens": 1},
            "banned_tokens: no token of the vocabulary's 100 is left with the end ids",
        ),
        ({"acceptance": "blok"}, "acceptance: expected auto, .*'blok'; did you mean block?"),
        ({"acceptance": 5}, "acceptance: expected auto, greedy, .* or coupled, found 5"),
        ({"acceptance": ["block"]}, r"acceptance: expected auto, .*, found \['block'\]"),
        ({"acceptance": HUGE}, "acceptance: expected auto, .*thousands of digits"),
        (
            {"acceptance": "greedy", "temperature": 1},
            "acceptance: greedy would not keep the target's distribution at temperature = 1",
        ),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else None,
)
def test_a_bad_option_is_refused_by_name(given, message):
    with pytest.raises(OptionError, match=message) as caught:
        GenerationOptions.parse(given, vocab=100, end_ids=[2])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(set(INTEGERS) - {"max_tokens"}))
def test_an_integer_beyond_64_bits_is_refused(name):
    with pytest.raises(OptionError, match=f"^{name}: expected .*, found 18446744073709551616"):
        sampling(temperature=1, **{name: 2**64})


def test_a_value_that_cannot_be_written_out_is_refused_all_the_same():
    nested = []
    for _ in range(100_000):
        nested = [nested]
    for name in ("temperature", "seed", "acceptance", "logit_bias", "stop"):
        given = [nested] if name == "stop" else nested
        with pytest.raises(OptionError, match=f"^{name}.*: .*found a list that cannot be written"):
            parse(**{name: given})


def test_more_biases_than_a_request_may_have():
    with pytest.raises(OptionError, match="logit_bias: expected at most 1024 entries, found 1025"):
        parse(logit_bias=dict.fromkeys(range(1025), 1.0))


def test_end_ids_may_all_be_banned_while_others_are_left_or_nothing_is_held_back():
    assert sampling(banned_tokens=[2], min_tokens=4).banned_tokens == (2,)
    others = [i for i in range(100) if i != 2]
    assert len(sampling(banned_tokens=others).banned_tokens) == 99
    assert len(sampling(banned_tokens=others, min_tokens=1, ignore_eos=True).banned_tokens) == 99


JUNK = [
    *(HUGE, -HUGE, math.nan, math.inf, 5e-324, 1j, b"x", "", "\udcff", object(), object, len),
    *([], [[]], [None], [HUGE], {}, {None: None}, {HUGE: HUGE}, {"x": []}, {1: {1: 1}}, {1, 2}),
    *(np.ones(3), np.array([]), np.array("x"), np.datetime64("NaT"), np.float16("nan"), np.True_),
]


@pytest.mark.parametrize("name", sorted(OptionKeywords.__annotations__))
def test_whatever_is_given_is_honoured_or_refused_in_one_line(name):
    refusals = []
    for value in JUNK:
        try:
            GenerationOptions.parse({name: value}, vocab=100, end_ids=[2])
        except OptionError as error:
            refusals.append(str(error))
    assert len(refusals) > len(JUNK) / 2
    for message in refusals:
        assert message.startswith(name)
        assert len(message.splitlines()) == 1

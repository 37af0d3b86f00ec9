"""From what a caller wrote to `SamplingParams`: every value in its range, or refused by name."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping
from numbers import Integral, Real
from typing import Any, get_args

from specedge import limits
from specedge.contract import GenerationDefaults, SpeculationDefaults
from specedge.errors import OptionError
from specedge.limits import shown
from specedge.sampling.params import Acceptance, SamplingParams

_RULES: tuple[Acceptance, ...] = get_args(Acceptance)


def check_sampling(
    given: Mapping[str, Any],
    generation: GenerationDefaults,
    speculation: SpeculationDefaults,
    *,
    max_tokens: int | None,
    vocab: int | None,
    end_ids: Collection[int],
) -> SamplingParams:
    """Check each option, then those that must agree; what is None comes from the bundle.

    Args:
        given: options by name; names of other options are passed over.
        generation, speculation: the bundle's defaults, in range.
        max_tokens: already checked; None: up to the context.
        vocab: V; None: ids are checked against `limits.MAX_ID`.
        end_ids: what `min_tokens` holds back.

    Raises:
        OptionError: begins with the option's name.
    """
    asked = {name: value for name, value in given.items() if value is not None}

    def value(name: str) -> object:
        return asked.get(name, getattr(generation, name))

    penalty = (limits.MIN_PENALTY, limits.MAX_PENALTY)
    last_id = limits.MAX_ID if vocab is None else vocab - 1
    top_k = integer("top_k", value("top_k"), -1, limits.MAX_TOP_K, "0: all")
    params = SamplingParams(
        repetition_penalty=number(
            "repetition_penalty",
            value("repetition_penalty"),
            limits.MIN_REPETITION,
            limits.MAX_REPETITION,
        ),
        frequency_penalty=number("frequency_penalty", value("frequency_penalty"), *penalty),
        presence_penalty=number("presence_penalty", value("presence_penalty"), *penalty),
        logit_bias=_logit_bias(asked.get("logit_bias", {}), last_id),
        banned_tokens=_banned_tokens(asked.get("banned_tokens", ()), last_id),
        min_tokens=_min_tokens(asked, generation, max_tokens),
        temperature=_temperature(value("temperature")),
        top_k=0 if top_k < 0 or top_k > last_id else top_k,
        top_p=_top_p(value("top_p")),
        min_p=number("min_p", value("min_p"), limits.MIN_MIN_P, limits.MAX_MIN_P),
        acceptance=_acceptance(asked.get("acceptance", speculation.acceptance)),
        seed=None if "seed" not in asked else integer("seed", asked["seed"], 0, limits.MAX_SEED),
        n=integer("n", asked.get("n", 1), 1, limits.MAX_SAMPLES),
    )
    _check_together(params, vocab, end_ids)
    return params


def integer(name: str, value: object, low: int, high: int, meaning: str = "") -> int:
    """An int of low..high; numpy's are taken, bools and whole floats are not."""
    found = None if isinstance(value, bool) or not isinstance(value, Integral) else int(value)
    if found is None or not low <= found <= high:
        words = f"; {meaning}" if meaning else ""
        raise OptionError(
            f"{name}: expected an integer of {max(low, 0)}..{_written(high)}{words}, "
            f"found {shown(value)}"
        )
    return found


def number(name: str, value: object, low: float, high: float) -> float:
    """A float of low..high; integers and numpy's numbers are taken, bools are not."""
    found = _float(value)
    if not low <= found <= high:  # NaN is in no range
        raise OptionError(f"{name}: expected a number of {low:g}..{high:g}, found {shown(value)}")
    return found


def _float(value: object) -> float:
    """NaN for what is no number, infinity for an integer that no float can hold."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _written(bound: int) -> str:
    return "2^64-1" if bound == limits.MAX_SEED else str(bound)


def _temperature(value: object) -> float:
    found = _float(value)
    if found != 0 and not limits.MIN_TEMPERATURE <= found <= limits.MAX_TEMPERATURE:
        raise OptionError(
            f"temperature: expected 0 (greedy) or {limits.MIN_TEMPERATURE:g}.."
            f"{limits.MAX_TEMPERATURE:g}, found {shown(value)}"
        )
    return abs(found)  # of -0.0


def _top_p(value: object) -> float:
    found = _float(value)
    if not limits.MIN_TOP_P < found <= limits.MAX_TOP_P:
        raise OptionError(
            f"top_p: expected a number above {limits.MIN_TOP_P:g} and at most "
            f"{limits.MAX_TOP_P:g} (all), found {shown(value)}"
        )
    return found


def _logit_bias(value: object, last_id: int) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, Mapping):
        raise OptionError(
            f"logit_bias: expected a dict of token id to amount, found {shown(value)}"
        )
    if len(value) > limits.MAX_BIASED:
        raise OptionError(
            f"logit_bias: expected at most {limits.MAX_BIASED} entries, found {len(value)}"
        )
    amounts: dict[int, float] = {}
    for key, amount in value.items():
        # JSON has no other keys than strings
        digits = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 20
        token = integer("logit_bias: id", int(key) if digits else key, 0, last_id)
        if token in amounts:
            raise OptionError(f"logit_bias: id {token} is named twice")
        amounts[token] = number(f"logit_bias[{token}]", amount, -limits.MAX_BIAS, limits.MAX_BIAS)
    return tuple(sorted((token, amount) for token, amount in amounts.items() if amount))


def _banned_tokens(value: object, last_id: int) -> tuple[int, ...]:
    if not isinstance(value, list | tuple | set | frozenset | range):
        raise OptionError(f"banned_tokens: expected a list of token ids, found {shown(value)}")
    return tuple(
        sorted(
            {
                integer(f"banned_tokens[{place}]", token, 0, last_id)
                for place, token in enumerate(value)
            }
        )
    )


def _min_tokens(
    asked: Mapping[str, Any], generation: GenerationDefaults, max_tokens: int | None
) -> int:
    most = limits.MAX_ID if max_tokens is None else max_tokens
    if "min_tokens" not in asked:
        return min(generation.min_tokens, most)  # a request may well be shorter than the default
    least = integer("min_tokens", asked["min_tokens"], 0, limits.MAX_ID)
    if least > most:
        whose = "" if "max_tokens" in asked else ", the bundle's default"
        raise OptionError(
            f"min_tokens: {least} is above max_tokens = {most}{whose}; lower it or raise max_tokens"
        )
    return least


def _acceptance(value: object) -> Acceptance:
    for rule in _RULES:
        if isinstance(value, str) and value == rule:
            return rule
    near = difflib.get_close_matches(value, _RULES, n=1) if isinstance(value, str) else []
    hint = f"; did you mean {near[0]}?" if near else ""
    raise OptionError(
        f"acceptance: expected {', '.join(_RULES[:-1])} or {_RULES[-1]}, found {shown(value)}{hint}"
    )


def _check_together(params: SamplingParams, vocab: int | None, end_ids: Collection[int]) -> None:
    if params.acceptance == "greedy" and params.temperature > 0:
        raise OptionError(
            f"acceptance: greedy would not keep the target's distribution at temperature = "
            f"{params.temperature:g}; set temperature to 0, or use auto"
        )
    if params.n > 1 and params.temperature == 0:
        raise OptionError(
            f"n: all {params.n} samples would be equal at temperature 0; set a temperature above 0"
        )
    if vocab is None:
        return
    held_back = {token for token in end_ids if token < vocab} if params.min_tokens else set()
    if len(held_back.union(params.banned_tokens)) >= vocab:
        why = " with the end ids that min_tokens holds back" if held_back else ""
        raise OptionError(
            f"banned_tokens: no token of the vocabulary's {vocab} is left{why}; ban fewer"
        )

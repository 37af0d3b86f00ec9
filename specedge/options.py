"""Generation options, checked at the call: honoured, or refused by name. Nothing is ignored.

This version decodes greedily, so the options of sampling are accepted only at the value that
changes nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypedDict

from specedge.contract import GenerationDefaults
from specedge.errors import OptionError

MAX_STOPS = 16
MAX_STOP_LENGTH = 1000  # characters; that much text may be held back
MAX_LOGPROBS = 20

NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "top_p": (None, 1, 1.0),
    "top_k": (None, 0, -1),
    "min_p": (None, 0, 0.0),
    "seed": (None,),
    "repetition_penalty": (None, 1, 1.0),
    "frequency_penalty": (None, 0, 0.0),
    "presence_penalty": (None, 0, 0.0),
    "logit_bias": (None, {}),
    "n": (None, 1),
}
"""What greedy decoding cannot honour, and the values that ask for nothing."""


class OptionKeywords(TypedDict, total=False):
    """The keywords of `stream` and `generate`."""

    max_tokens: int | None
    stop: str | list[str] | tuple[str, ...] | None
    ignore_eos: bool
    echo: bool
    logprobs: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: dict[int, float] | None
    n: int | None


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """Checked options of one request.

    Args:
        max_tokens: output budget, 1 or more; None: up to the context.
        stop: stop strings, in the order given.
        ignore_eos: go on past the ids that end a generation.
        echo: the prompt's text comes first, in the stream and in the result's text.
        logprobs: alternatives reported with each output token, 0..20; None: no logprobs.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    echo: bool = False
    logprobs: int | None = None

    @classmethod
    def parse(
        cls, given: Mapping[str, Any], defaults: GenerationDefaults | None = None
    ) -> GenerationOptions:
        """Check what a caller wrote; what is not given comes from the bundle's [generation].

        Raises:
            OptionError: an unknown option (names the nearest), a value out of range, or a
                sampling option away from its neutral value.
        """
        defaults = GenerationDefaults() if defaults is None else defaults
        for name in given:
            if name not in _KNOWN:
                near = difflib.get_close_matches(name, _KNOWN, n=1)
                hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(sorted(_KNOWN))
                raise OptionError(f"{name}: no such option; {hint}")
        for name, neutral in NEUTRAL.items():
            if name in given and not _among(given[name], neutral):
                raise OptionError(
                    f"{name}: {given[name]!r} cannot be honoured, this version decodes greedily; "
                    f"leave {name} out"
                )
        _check_temperature(given, defaults)
        return cls(
            max_tokens=_max_tokens(given.get("max_tokens", defaults.max_tokens)),
            stop=_stop(given.get("stop")),
            ignore_eos=_flag("ignore_eos", given.get("ignore_eos", False)),
            echo=_flag("echo", given.get("echo", False)),
            logprobs=_logprobs(given.get("logprobs")),
        )


_KNOWN = frozenset({"temperature", *NEUTRAL, *(field.name for field in fields(GenerationOptions))})


def _among(value: object, neutral: tuple[object, ...]) -> bool:
    return not isinstance(value, bool) and any(value == allowed for allowed in neutral)


def _check_temperature(given: Mapping[str, Any], defaults: GenerationDefaults) -> None:
    value = given.get("temperature")
    where = "temperature"
    if value is None:
        value, where = defaults.temperature, "temperature, from the bundle's [generation]"
    if isinstance(value, bool) or not isinstance(value, int | float) or value != 0:
        raise OptionError(
            f"{where}: {value!r} cannot be honoured, this version decodes greedily; "
            "set temperature to 0"
        )


def _max_tokens(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(
            f"max_tokens: expected 1 or more (None: up to the context), found {value!r}"
        )
    return value


def _stop(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list | tuple):
        raise OptionError(f"stop: expected a string or a list of strings, found {value!r}")
    if len(stops) > MAX_STOPS:
        raise OptionError(f"stop: expected at most {MAX_STOPS} strings, found {len(stops)}")
    for place, text in enumerate(stops):
        where = "stop" if isinstance(value, str) else f"stop[{place}]"
        if not isinstance(text, str):
            raise OptionError(f"{where}: expected a string, found {text!r}")
        if not text:
            raise OptionError(f"{where}: an empty string would stop before the first token")
        if len(text) > MAX_STOP_LENGTH:
            raise OptionError(
                f"{where}: expected at most {MAX_STOP_LENGTH} characters, found {len(text)}"
            )
    return tuple(dict.fromkeys(stops))


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"{name}: expected True or False, found {value!r}")
    return value


def _logprobs(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_LOGPROBS:
        raise OptionError(
            f"logprobs: expected the number of alternatives, 0..{MAX_LOGPROBS}, found {value!r}"
        )
    return value

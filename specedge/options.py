"""Generation options, checked at the call: honoured, or refused by name. Nothing is ignored."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from types import MappingProxyType
from typing import Any, TypedDict

from specedge.contract import GenerationDefaults, SpeculationDefaults
from specedge.errors import OptionError
from specedge.guidance.grammar import Grammar, asked
from specedge.limits import shown
from specedge.sampling.checking import check_sampling, integer
from specedge.sampling.params import Acceptance, SamplingParams

MAX_STOPS = 16
MAX_STOP_LENGTH = 1000  # characters; that much text may be held back
MAX_LOGPROBS = 20


class OptionKeywords(TypedDict, total=False):
    """The keywords of `stream` and `generate`; None is as good as not given, but in max_tokens."""

    max_tokens: int | None
    stop: str | list[str] | tuple[str, ...] | None
    ignore_eos: bool | None
    echo: bool | None
    logprobs: int | None
    explain: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: Mapping[int, float] | Mapping[str, float] | None
    banned_tokens: Collection[int] | None
    min_tokens: int | None
    acceptance: Acceptance | None
    seed: int | None
    n: int | None
    json_schema: Mapping[str, Any] | str | None
    regex: str | None
    grammar: str | None


_KNOWN = frozenset(OptionKeywords.__annotations__)


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """Checked options of one request.

    Args:
        max_tokens: output budget, 1 or more; None: up to the context.
        stop: stop strings, in the order given.
        ignore_eos: go on past the ids that end a generation.
        echo: the prompt's text comes first, in the stream and in the result's text.
        logprobs: alternatives reported with each output token, 0..20; None: no logprobs.
        explain: events and result carry a report of each round.
        sampling: how tokens are chosen; docs/sampling.md.
        grammar: what the output has to be; docs/structured.md.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    echo: bool = False
    logprobs: int | None = None
    explain: bool = False
    sampling: SamplingParams = field(default_factory=SamplingParams)
    grammar: Grammar | None = None

    @classmethod
    def parse(
        cls,
        given: Mapping[str, Any],
        defaults: GenerationDefaults | None = None,
        *,
        speculation: SpeculationDefaults | None = None,
        vocab: int | None = None,
        end_ids: Collection[int] = (),
        special: Mapping[str, int] = MappingProxyType({}),
    ) -> GenerationOptions:
        """Check what a caller wrote; what is not given comes from the bundle.

        Args:
            given: `OptionKeywords`, not yet checked.
            defaults: the bundle's [generation].
            speculation: the bundle's [speculation], for its acceptance rule.
            vocab: V, to check ids against; None: any id may be one.
            end_ids: what ends a generation, and `min_tokens` holds back.
            special: ids of special tokens by text; as a stop string one of them is held back too.

        Raises:
            OptionError: an unknown option (names the nearest), a value out of range, or values
                that exclude each other.
        """
        defaults = GenerationDefaults() if defaults is None else defaults
        for name in given:
            if name not in _KNOWN:
                near = difflib.get_close_matches(str(name), _KNOWN, n=1)
                hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(sorted(_KNOWN))
                said = name if str(name).isidentifier() else shown(name)
                raise OptionError(f"{said}: no such option; {hint}")
        max_tokens = _max_tokens(given.get("max_tokens", defaults.max_tokens))
        ignore_eos = _flag("ignore_eos", given.get("ignore_eos"))
        stop = _stop(given.get("stop"))
        stop_ids = {special[text] for text in stop if text in special}
        sampling = check_sampling(
            given,
            defaults,
            SpeculationDefaults() if speculation is None else speculation,
            max_tokens=max_tokens,
            vocab=vocab,
            end_ids=stop_ids if ignore_eos else stop_ids.union(end_ids),
        )
        grammar = asked(given)
        if grammar is not None:
            given_here = given.get("min_tokens") is not None
            _ends_itself(grammar, ignore_eos, sampling.min_tokens, given_here)
        return cls(
            max_tokens=max_tokens,
            stop=stop,
            ignore_eos=ignore_eos,
            echo=_flag("echo", given.get("echo")),
            logprobs=_logprobs(given.get("logprobs")),
            explain=_flag("explain", given.get("explain")),
            sampling=sampling,
            grammar=grammar,
        )


def _ends_itself(grammar: Grammar, ignore_eos: bool, min_tokens: int, given: bool) -> None:
    """Where the grammar is at its end, nothing but an end may follow."""
    if ignore_eos:
        raise OptionError(f"ignore_eos: excludes {grammar.kind}, whose end is the output's")
    if min_tokens:
        whose = "" if given else ", the bundle's default,"
        raise OptionError(
            f"min_tokens: {min_tokens}{whose} excludes {grammar.kind}, which says itself when the "
            "output may end; use 0, or ask for more in the grammar"
        )


def _max_tokens(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise OptionError(
            f"max_tokens: expected 1 or more (None: up to the context), found {shown(value)}"
        )
    return int(value)


def _stop(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list | tuple):
        raise OptionError(f"stop: expected a string or a list of strings, found {shown(value)}")
    if len(stops) > MAX_STOPS:
        raise OptionError(f"stop: expected at most {MAX_STOPS} strings, found {len(stops)}")
    for place, text in enumerate(stops):
        where = "stop" if isinstance(value, str) else f"stop[{place}]"
        if not isinstance(text, str):
            raise OptionError(f"{where}: expected a string, found {shown(text)}")
        if not text:
            raise OptionError(f"{where}: an empty string would stop before the first token")
        if len(text) > MAX_STOP_LENGTH:
            raise OptionError(
                f"{where}: expected at most {MAX_STOP_LENGTH} characters, found {len(text)}"
            )
    return tuple(dict.fromkeys(stops))


def _flag(name: str, value: object) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool):
        raise OptionError(f"{name}: expected True or False, found {shown(value)}")
    return value


def _logprobs(value: object) -> int | None:
    if value is None:
        return None
    return integer("logprobs", value, 0, MAX_LOGPROBS, "how many alternatives to report")

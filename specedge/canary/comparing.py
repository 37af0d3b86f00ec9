"""Two results of one request: are the tokens the same, what did each take, and does rounding
explain a difference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specedge.canary.record import Comparison, Evidence, Tokens, now
from specedge.contract import Ids
from specedge.errors import EngineError
from specedge.metrics import MetricsSummary
from specedge.result import Result
from specedge.sampling.params import SamplingParams

if TYPE_CHECKING:
    from specedge.model import Model

_SHOWN = 60  # characters of text before a difference


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for a second time.

    Args:
        ids: of the prompt, int64 [n].
        options: as the caller gave them.
        params: of these, checked.
        end_ids: what `params.min_tokens` holds back.
    """

    ids: Ids
    options: Mapping[str, Any]
    params: SamplingParams
    end_ids: frozenset[int]

    def plainly(self, result: Result) -> dict[str, Any]:
        """Options that give the same tokens again: by the rule and with the seed that decided."""
        again = {**self.options, "acceptance": result.acceptance}
        if result.seed is not None:
            again["seed"] = result.seed
        return again


def compare(
    model: Model, request: Request, result: Result, plain: Result
) -> tuple[Comparison, Evidence | None]:
    """What came of it; evidence where the outputs differ by more than the width noise.

    Raises:
        EngineError: a difference could not be looked into, and the engine's logits do differ with
            the width of calls.
    """
    evidence = None
    tokens: Tokens = "equal"
    if not _repeats(result, request.params):
        tokens = "not compared"
    elif result.tokens != plain.tokens:
        evidence = _evidence(model, request, result, plain)
        tokens = "near-tie" if evidence is None else "mismatch"
    plain_ms, spec_ms = times(plain.metrics, result.metrics)
    comparison = Comparison(
        at=now(),
        tokens=tokens,
        generated=len(result.tokens),
        plain_ms=plain_ms,
        spec_ms=spec_ms,
        acceptance=result.acceptance,
        proposed=result.metrics.proposed,
        accepted=result.metrics.accepted,
        proposers=tuple(result.metrics.proposers),
    )
    return comparison, evidence


def _repeats(result: Result, params: SamplingParams) -> bool:
    """Whether plain decoding has to give these tokens, near-ties excepted.

    What was drawn with coupled randomness falls another way where logits moved, and no margin tells
    by how much it may.
    """
    return result.reproducible or params.rule == "greedy"


def times(plain: MetricsSummary, spec: MetricsSummary) -> tuple[float | None, float | None]:
    """Milliseconds from the first token to the last, without what a reader did between; those with
    speculation scaled to as many tokens as plain decoding gave. None: too short to time."""
    steps, spec_steps = plain.generated - 1, spec.generated - 1
    if steps < 1 or spec_steps < 1:
        return None, None
    plain_ms = plain.propose_ms + plain.verify_ms + plain.accept_ms
    spec_ms = (spec.propose_ms + spec.verify_ms + spec.accept_ms) * steps / spec_steps
    return plain_ms or None, spec_ms or None  # a clock may be too coarse for them


def _evidence(model: Model, request: Request, result: Result, plain: Result) -> Evidence | None:
    """None: the difference lies within the width noise."""
    from specedge.gates.parting import find, first_difference

    position = first_difference(plain.tokens, result.tokens)
    assert position is not None, "they differ"
    parting = None
    if result.acceptance == "greedy":
        try:
            parting = find(
                model.target,
                request.ids,
                plain.tokens,
                result.tokens,
                params=request.params,
                end_ids=request.end_ids,
            )
        except EngineError:
            if model.target.width_noise:
                raise
    if parting is not None and parting.within:
        return None

    def token(tokens: list[int]) -> int | None:
        return tokens[position] if position < len(tokens) else None

    def text(token: int | None) -> str:
        return "" if token is None else model.tokenizer.named(token)

    shared = [*request.ids.tolist()[-_SHOWN:], *plain.tokens[:position]]

    return Evidence(
        at=now(),
        prompt_ids=tuple(request.ids.tolist()),
        plain_tokens=tuple(plain.tokens),
        spec_tokens=tuple(result.tokens),
        options=_ready(request.plainly(result)),
        acceptance=result.acceptance,
        position=position,
        plain_token=token(plain.tokens),
        spec_token=token(result.tokens),
        before=model.tokenizer.decode(shared)[-_SHOWN:],
        plain_text=text(token(plain.tokens)),
        spec_text=text(token(result.tokens)),
        margin=None if parting is None else parting.margin,
        noise=None if parting is None else parting.noise,
    )


def _ready(options: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON has them, those that were given; a `max_tokens` of None was."""
    given = {
        name: value for name, value in options.items() if value is not None or name == "max_tokens"
    }
    found = json.loads(json.dumps(_plain_value(given)))
    assert isinstance(found, dict), "an object comes back as one"
    return found


def _plain_value(value: object) -> object:
    """Numbers of numpy, mappings and collections of any kind, and text that has no UTF-8."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_plain_value(str(key)): _plain_value(each) for key, each in value.items()}
    if hasattr(value, "item"):
        return value.item()
    try:
        return [_plain_value(each) for each in value]  # type: ignore[attr-defined]
    except TypeError:
        return repr(value)

"""From parsed options to a loaded model and the arguments of a request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specedge.model import Model

_LOADING = ("engine", "threads", "speculation", "draft_length", "proposers", "context", "exact")
_REQUEST = (
    *("max_tokens", "stop", "ignore_eos", "echo", "logprobs", "explain"),
    *("temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty"),
    *("logit_bias", "banned_tokens", "min_tokens"),
    *("acceptance", "seed", "n"),
)


def open_model(bundle: Path, options: Mapping[str, Any]) -> Model:
    """Load what the options ask for; raises what `specedge.load` raises."""
    from specedge.loading import load

    return load(bundle, **{name: options[name] for name in _LOADING})


def request_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those options of a request that were given; the bundle's defaults fill in the rest."""
    given = {name: options.get(name) for name in _REQUEST}
    return {
        name: value
        for name, value in given.items()
        if value is not None and value is not False and value != ()
    }

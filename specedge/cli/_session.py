"""From parsed options to a loaded model and the arguments of a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from specedge.model import Model

_LOADING = (
    *("engine", "draft_engine", "threads", "speculation", "draft_length", "proposers"),
    *("context", "exact", "memory", "canary"),
)
_REQUEST = (
    *("max_tokens", "stop", "ignore_eos", "echo", "logprobs", "explain"),
    *("temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty"),
    *("logit_bias", "banned_tokens", "min_tokens"),
    *("acceptance", "seed", "n"),
    *("json_schema", "regex", "grammar"),
)


@contextmanager
def open_model(bundle: Path, options: Mapping[str, Any]) -> Iterator[Model]:
    """Load what the options ask for; raises what `specedge.load` raises.

    Its metrics are written when it is closed, after an error too, where a file for them was named.
    """
    from specedge.loading import load

    file: Path | None = options["metrics_file"]
    if file is not None:
        from specedge import prometheus

        prometheus.check_place(file)  # before anything is loaded
    with load(bundle, **{name: options[name] for name in _LOADING}) as model:
        try:
            yield model
        finally:
            if model.canary is not None and model.canary.summary:
                click.echo(f"canary: {model.canary.summary}", err=True)
            if file is not None:
                prometheus.write(prometheus.text(model), file)


def request_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those options of a request that were given; the bundle's defaults fill in the rest."""
    given = {name: options.get(name) for name in _REQUEST}
    return {
        name: value
        for name, value in given.items()
        if value is not None and value is not False and value != ()
    }

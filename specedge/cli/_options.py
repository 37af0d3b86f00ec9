"""Options that `run` and `chat` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def _names(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str] | None:
    return None if value is None else [name.strip() for name in value.split(",") if name.strip()]


_SHARED = (
    click.option("--system", metavar="S", help="System message."),
    click.option("--max-tokens", type=int, metavar="N", help="Output budget. [default: bundle's]"),
    click.option(
        "--speculation",
        type=click.Choice(["auto", "on", "off"]),
        help="off decodes plainly; on makes a failing proposer an error. [default: bundle's]",
    ),
    click.option(
        "--draft-length",
        type=int,
        metavar="K",
        help="Most tokens drafted in a round. [default: bundle's]",
    ),
    click.option(
        "--proposers",
        callback=_names,
        metavar="A,B",
        help="ngram, draft, or both in priority order. [default: bundle's]",
    ),
    click.option("--threads", type=int, metavar="N", help="[default: every usable core]"),
    click.option("--engine", default="auto", metavar="NAME", help="What executes the graphs."),
    click.option(
        "--context", type=int, metavar="T", help="Rows of the KV buffer. [default: bundle's]"
    ),
    click.option(
        "--exact/--no-exact",
        default=True,
        help="Kernels whose results do not depend on how many tokens a call has; --no-exact is "
        "faster, and near-ties may fall another way with speculation than without.",
    ),
    click.option("--stats/--no-stats", default=True, help="Say on stderr what it cost."),
)


def model_options(command: Command) -> Command:
    """Add the options above, in that order."""
    for option in reversed(_SHARED):
        command = option(command)
    return command

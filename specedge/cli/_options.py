"""Options that commands share: those of `run` and `chat`, and how the others open engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def _names(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str] | None:
    return None if value is None else [name.strip() for name in value.split(",") if name.strip()]


def _amounts(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> dict[str, float] | None:
    """ID=AMOUNT pairs; whether an id and an amount will do is for the request to say."""
    amounts: dict[str, float] = {}
    for item in value:
        token, _, amount = item.partition("=")
        try:
            number = float(amount)
        except ValueError:
            raise click.BadParameter(f"{item[:80]!r}: expected ID=AMOUNT, as in 42=-1.5") from None
        if token in amounts:
            raise click.BadParameter(f"id {token[:80]} is named twice")
        amounts[token] = number
    return amounts or None


_ENGINES = (
    click.option(
        "--engine",
        default="auto",
        metavar="NAME",
        help="What executes the graphs: auto or cpu, cuda, ort-tensorrt, tensorrt, or "
        "tensorrt-rtx.",
    ),
    click.option(
        "--draft-engine",
        metavar="NAME",
        help="What executes the draft model, cpu beside a target on cuda, say. [default: as "
        "--engine]",
    ),
    click.option(
        "--threads",
        type=int,
        metavar="N",
        help="Of engines on the CPU. [default: every usable core]",
    ),
)

_SHARED = (
    click.option("--system", metavar="S", help="System message."),
    click.option("--max-tokens", type=int, metavar="N", help="Output budget. [default: bundle's]"),
    click.option(
        "--temperature",
        type=float,
        metavar="T",
        help="0: always the likeliest token; above: draw, the flatter the higher. "
        "[default: bundle's]",
    ),
    click.option(
        "--top-k", type=int, metavar="K", help="The K likeliest ids; 0: all. [default: bundle's]"
    ),
    click.option(
        "--top-p",
        type=float,
        metavar="P",
        help="The likeliest ids, as few as have probability P together. [default: bundle's]",
    ),
    click.option(
        "--min-p",
        type=float,
        metavar="P",
        help="Ids of at least P times the likeliest's probability. [default: bundle's]",
    ),
    click.option(
        "--repetition-penalty",
        type=float,
        metavar="X",
        help="Scales down the logits of ids seen in prompt or output. [default: bundle's]",
    ),
    click.option(
        "--frequency-penalty",
        type=float,
        metavar="X",
        help="Off an id's logit for each time in the output. [default: bundle's]",
    ),
    click.option(
        "--presence-penalty",
        type=float,
        metavar="X",
        help="Off an id's logit once it is in the output. [default: bundle's]",
    ),
    click.option(
        "--logit-bias",
        multiple=True,
        callback=_amounts,
        metavar="ID=AMOUNT",
        help="Added to the id's logit, -100..100; may be repeated.",
    ),
    click.option(
        "--ban",
        "banned_tokens",
        multiple=True,
        type=int,
        metavar="ID",
        help="An id that is never chosen; may be repeated.",
    ),
    click.option(
        "--min-tokens",
        type=int,
        metavar="N",
        help="No end of text before N tokens. [default: bundle's]",
    ),
    click.option(
        "--seed", type=int, metavar="S", help="Of the draws, 0..2^64-1. [default: a new one]"
    ),
    click.option(
        "--acceptance",
        type=click.Choice(["auto", "greedy", "rejection", "block", "coupled"]),
        help="Who decides about drafted tokens; auto is greedy at temperature 0, coupled with a "
        "seed (the same text whatever drafts), else rejection. [default: bundle's]",
    ),
    click.option(
        "--speculation",
        type=click.Choice(["auto", "on", "off"]),
        help="auto drafts where it pays; off decodes plainly; on always drafts K tokens, and makes "
        "a failing proposer an error. [default: bundle's]",
    ),
    click.option(
        "--draft-length",
        type=int,
        metavar="K",
        help="With on: tokens drafted in a round; with auto: the most. [default: the bundle's; its "
        "max_verify - 1]",
    ),
    click.option(
        "--proposers",
        callback=_names,
        metavar="A,B",
        help="ngram, draft, or both in priority order. [default: bundle's]",
    ),
    *_ENGINES,
    click.option(
        "--context", type=int, metavar="T", help="Rows of the KV buffer. [default: bundle's]"
    ),
    click.option(
        "--memory",
        metavar="SIZE",
        help="Limit, as in 1GiB; a draft model that does not fit is left out. [default: what is "
        "available]",
    ),
    click.option(
        "--exact/--no-exact",
        default=True,
        help="Kernels whose results do not depend on how many tokens a call has; --no-exact is "
        "faster, and near-ties may fall another way with speculation than without.",
    ),
    click.option(
        "--canary",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="Decode this share of requests, 0..1, plainly as well, after the answer; a difference "
        "or a loss turns speculation off. `specedge canary` shows what came of it.",
    ),
    click.option(
        "--metrics",
        "metrics_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write counters and times as Prometheus text at the end; needs the extra [metrics].",
    ),
    click.option("--stats/--no-stats", default=True, help="Say on stderr what it cost."),
)


def model_options(command: Command) -> Command:
    """Add the options above, in that order."""
    for option in reversed(_SHARED):
        command = option(command)
    return command


def engine_options(*, memory: str) -> Callable[[Command], Command]:
    """Add what `probe`, `verify` and `bench` open engines with; `memory` is that option's help."""
    options = (
        *_ENGINES,
        click.option(
            "--context", type=int, metavar="T", help="Rows of the KV buffer. [default: bundle's]"
        ),
        click.option("--memory", metavar="SIZE", help=memory),
        click.option(
            "--exact/--no-exact",
            default=True,
            help="Kernels whose results do not depend on how many tokens a call has.",
        ),
    )

    def added(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return added

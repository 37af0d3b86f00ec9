"""`specedge chat`: a conversation in the terminal, or through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specedge.cli._options import model_options

if TYPE_CHECKING:
    from specedge.chat import Chat

_HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


@click.command(short_help="Talk with a model.")
@click.argument("bundle", type=click.Path(path_type=Path))
@model_options
def command(bundle: Path, system: str | None, stats: bool, **options: Any) -> None:
    """Talk with BUNDLE; the cache of what was said before is kept between turns.

    Each line is a message; /help lists the commands. Through a pipe every line of stdin is
    answered in turn, without prompts.
    """
    from specedge.cli._session import open_model, request_options

    interactive = sys.stdin.isatty()
    asked = request_options(options)
    with open_model(bundle, options) as model:
        chat = model.chat(system)
        if interactive:
            click.echo(f"{model.bundle.manifest.name}: {_HELP}", err=True)
        for line in _typed() if interactive else _piped():
            match line.strip():
                case "":
                    continue
                case "/exit":
                    return
                case "/help":
                    click.echo(_HELP, err=True)
                case "/reset":
                    chat.clear()
                    click.echo("the conversation is forgotten", err=True)
                case text if text.startswith("/") and text[1:].isalpha():
                    click.echo(f"{text}: no such command; {_HELP}", err=True)
                case _:
                    _answer(chat, line, asked, stats=stats, interactive=interactive)


def _typed() -> Iterator[str]:
    """Lines from the terminal; Ctrl-C abandons a line, Ctrl-D ends."""
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  input() edits lines and keeps a history once it is loaded

    while True:
        try:
            yield input("> ")
        except EOFError:
            click.echo("", err=True)
            return
        except KeyboardInterrupt:
            click.echo(f"\n{_HELP}", err=True)


def _piped() -> Iterator[str]:
    from specedge.cli._input import decode

    for number, raw in enumerate(sys.stdin.buffer, start=1):
        yield decode(raw.rstrip(b"\r\n"), f"stdin, line {number}")


def _answer(
    chat: Chat, text: str, asked: dict[str, Any], *, stats: bool, interactive: bool
) -> None:
    """One turn. A message the model cannot take is only an error line where a person can go on."""
    from specedge.cli._output import TextPrinter, print_stats
    from specedge.errors import PromptError

    printer = TextPrinter()
    try:
        stream = chat.stream(text, **asked)
    except PromptError as error:
        if not interactive:
            raise
        click.echo(f"error: {error}; /reset forgets the conversation", err=True)
        return
    try:
        for event in stream:
            printer.event(event)
    except KeyboardInterrupt:
        if not interactive:
            raise
    finally:
        printer.end()
    if stats and stream.result is not None:
        print_stats(stream.result)

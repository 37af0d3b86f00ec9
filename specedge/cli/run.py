"""`specedge run`: one prompt, one text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from specedge.cli._options import model_options


@click.command(short_help="Generate from one prompt.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("prompt", required=False)
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Add a text file to the prompt, after a blank line; may be repeated.",
)
@click.option("--raw", is_flag=True, help="Continue the prompt as it is, without chat template.")
@click.option("--stop", multiple=True, metavar="S", help="Stop string; may be repeated.")
@click.option("--ignore-eos", is_flag=True, help="Go on past the end-of-text ids.")
@click.option("--echo", is_flag=True, help="Print the prompt first.")
@click.option("--logprobs", type=int, metavar="N", help="N likeliest ids a token; needs --json.")
@click.option(
    "--n",
    type=int,
    metavar="N",
    help="Samples, one after the other; as text with a line of --- between. [default: 1]",
)
@click.option(
    "--json-schema",
    "json_schema",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The output is JSON that this schema allows; needs the extra [guidance].",
)
@click.option(
    "--regex",
    metavar="S",
    help="The output matches this pattern as a whole; needs the extra [guidance].",
)
@click.option(
    "--grammar",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The output follows this Lark grammar; needs the extra [guidance].",
)
@click.option(
    "--explain", is_flag=True, help="A line a round at the end: who drafted, why, at what cost."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object an event, then the result.")
@model_options
def command(
    bundle: Path,
    prompt: str | None,
    files: tuple[Path, ...],
    raw: bool,
    system: str | None,
    logprobs: int | None,
    as_json: bool,
    stats: bool,
    json_schema: Path | None,
    grammar: Path | None,
    **options: Any,
) -> None:
    """Send PROMPT to BUNDLE as one user message and stream the answer.

    PROMPT "-" reads stdin, and so does a missing PROMPT when stdin is not a terminal.
    """
    if logprobs is not None and not as_json:
        raise click.UsageError("--logprobs needs --json: text has no room for them")
    if raw and system is not None:
        raise click.UsageError("--system needs the chat template; leave --raw out")
    text = _prompt(prompt, files)
    from specedge.cli._input import read_file
    from specedge.cli._output import JsonPrinter, TextPrinter, print_rounds, print_stats
    from specedge.cli._session import open_model, request_options
    from specedge.errors import OptionError

    named = {"json_schema": json_schema, "grammar": grammar}
    form_files = {name: file for name, file in named.items() if file is not None}
    form = {name: read_file(file) for name, file in form_files.items()}
    asked = request_options({**options, **form, "logprobs": logprobs})
    printer = JsonPrinter() if as_json else TextPrinter(headers=stats)
    with open_model(bundle, options) as model:
        chat = not raw and (model.has_chat_template or system is not None)
        try:
            stream = model.stream(_messages(text, system) if chat else text, **asked)
        except OptionError as error:
            name, _, said = str(error).partition(": ")
            if name not in form_files:
                raise
            raise OptionError(f"{form_files[name]}: {said}") from None
        try:
            for event in stream:
                printer.event(event)
        except KeyboardInterrupt:
            interrupted = True
        else:
            interrupted = False
        finally:
            printer.end()
    result = stream.result
    assert result is not None, "a request ended without a result"
    if isinstance(printer, JsonPrinter):
        printer.write(result.to_dict())
    else:
        if options["explain"]:
            print_rounds(result)
        if stats:
            print_stats(result)
    if interrupted:
        raise click.exceptions.Exit(130)


def _messages(text: str, system: str | None) -> list[dict[str, str]]:
    user = {"role": "user", "content": text}
    return [user] if system is None else [{"role": "system", "content": system}, user]


def _prompt(prompt: str | None, files: tuple[Path, ...]) -> str:
    from specedge.cli._input import read_file, read_stdin
    from specedge.errors import PromptError

    if prompt == "-" or (prompt is None and not files and not sys.stdin.isatty()):
        prompt = read_stdin()
    elif prompt is None and not files:
        raise click.UsageError('give a PROMPT, --file, or "-" to read stdin')
    parts = [prompt] if prompt is not None else []
    text = "\n\n".join([*parts, *(read_file(path) for path in files)])
    if not text:
        raise PromptError("prompt: it is empty; expected some text")
    return text

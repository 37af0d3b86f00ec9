"""The command line: parse, call one function, print.

One file a command, loaded when it is named; heavy imports stand inside commands. Results go to
stdout, progress and notes to stderr. Exit codes: 0; 1 for an error with its one line; 2 for
usage; 130 after Ctrl-C, with partial output kept; 141 when the reader of stdout went away; 143
after SIGTERM, with nothing half-made left behind.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

import click

from specedge.errors import SpecedgeError, with_class

COMMANDS = (
    "export",
    "build",
    "run",
    "chat",
    "probe",
    "verify",
    "bench",
    "canary",
    "inspect",
    "doctor",
)
CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 100}


class _Lazy(click.Group):
    """Loads a command's module when its help or its run is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"specedge.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Lazy, name="specedge", context_settings=CONTEXT)
@click.version_option(None, "--version", package_name="specedge", message="%(prog)s %(version)s")
def group() -> None:
    """Speculative decoding at the edge: export a target and a draft, run them exactly, and find
    out whether it pays here.

    SPECEDGE_DEBUG=1 shows tracebacks; SPECEDGE_CACHE names the folder for fetched weights.
    """


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminated)
    sys.exit(invoke(args))


def _terminated(number: int, frame: object) -> NoReturn:
    """Unwinds as Ctrl-C does, so that half-made folders go; the shell's code for this signal."""
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
    raise SystemExit(128 + number)


def invoke(args: Sequence[str] | None = None) -> int:
    """Run the command line; every outcome becomes an exit code and at most one line of error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal may lack a character of the text
    try:
        # not group.main(), which answers a broken pipe with exit code 1
        given = list(sys.argv[1:] if args is None else args)
        with group.make_context("specedge", given) as ctx:
            group.invoke(ctx)
        if sys.stdout is not None:  # a process may be started without one
            sys.stdout.flush()
        return 0
    except click.exceptions.Exit as asked:
        return asked.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:
        # the interpreter flushes stdout once more when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except SpecedgeError as error:
        _raise_when_debugging()
        for line in str(error).splitlines():
            click.echo(f"error: {line}", err=True)
        return 1
    except Exception as error:  # the last line of defence: a person never gets a bare traceback
        _raise_when_debugging()
        what = with_class(error)
        click.echo(f"error: unexpected {what}; SPECEDGE_DEBUG=1 shows the traceback", err=True)
        return 1


def _raise_when_debugging() -> None:
    """Inside an except block: let the exception go on to the interpreter."""
    if os.environ.get("SPECEDGE_DEBUG", "0") not in ("", "0"):
        raise

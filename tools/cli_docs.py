"""Write docs/cli.md from the commands' own help; with --check, say whether it is current."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from specedge.cli import COMMANDS, group

TARGET = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
HEADER = """# Command line

Made from the commands' help by `make docs`; edit the help, not this file.

Results go to stdout, progress and notes to stderr. Exit codes: 0; 1 for an error, which is one
line; 2 for usage; 130 after Ctrl-C, with partial output kept; 141 when the reader of stdout left.
"""


def render() -> str:
    """The whole page."""
    parts = [HEADER, _section("specedge", group, None)]
    with group.make_context("specedge", [], resilient_parsing=True) as parent:
        for name in COMMANDS:
            command = group.get_command(parent, name)
            assert command is not None
            parts.append(_section(f"specedge {name}", command, parent))
    return "\n".join(parts)


def _section(title: str, command: click.Command, parent: click.Context | None) -> str:
    name = title.split()[-1]
    with command.make_context(name, [], parent=parent, resilient_parsing=True) as ctx:
        ctx.terminal_width = ctx.max_content_width = 100
        return f"## {title}\n\n```\n{command.get_help(ctx).rstrip()}\n```\n"


def main() -> int:
    page = render()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(page, encoding="utf-8")
        return 0
    if TARGET.read_text(encoding="utf-8") == page:
        return 0
    print("docs/cli.md is not current; run: make docs", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

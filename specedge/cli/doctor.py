"""`specedge doctor`: is this machine ready?"""

from __future__ import annotations

import dataclasses
import json

import click


@click.command(short_help="Check this machine and this environment.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def command(as_json: bool) -> None:
    """Check Python, runtimes and their conflicts, GPU, CPU, memory, extras and the cache.

    Exits with 1 when something must be fixed before a bundle can run.
    """
    from specedge.doctor import examine

    rows = examine()
    if as_json:
        report = {"ok": not any(row.status == "fail" for row in rows)}
        click.echo(json.dumps(report | {"rows": [dataclasses.asdict(row) for row in rows]}))
    else:
        from specedge.cli._tables import doctor_table, print_tables

        print_tables([doctor_table(rows)])
    if any(row.status == "fail" for row in rows):
        raise click.exceptions.Exit(1)

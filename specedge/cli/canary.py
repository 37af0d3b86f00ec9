"""`specedge canary`: what came of requests that were decoded both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from specedge.bundle import Bundle
    from specedge.canary.record import Record

LAST = 10  # comparisons to list


@click.command(short_help="Show what a canary has seen.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
@click.option(
    "--last",
    type=click.IntRange(0),
    metavar="N",
    help="Comparisons to list; --json has all that are kept. [default: 10]",
)
@click.option(
    "--clear", is_flag=True, help="Forget every record of BUNDLE, and what they turned off."
)
def command(bundle: Path, as_json: bool, last: int | None, clear: bool) -> None:
    """Show, for BUNDLE, the verdict on speculation, the comparisons it rests on and the evidence.

    `--canary` of run and chat, and `canary=` of specedge.load, decode a share of requests plainly
    as well. There is one record for each set of engine, settings and machine; the newest comes
    first.
    """
    if last is not None and (as_json or clear):
        raise click.UsageError("--last is for the tables; leave it out with --json and --clear")
    from specedge.bundle import Bundle
    from specedge.canary.record import clear as forget
    from specedge.errors import ProbeError

    opened = Bundle.open(bundle, verify=False)
    none = (
        f"{bundle}: there is no record of a canary yet; run with --canary 0.05, or load with "
        "canary=0.05"
    )
    if clear:
        removed = forget(opened)
        if not removed:
            raise ProbeError(none)
        click.echo(json.dumps({"cleared": removed}) if as_json else f"cleared: {removed}")
        return
    records, damaged = _stored(opened)
    for why in damaged:
        click.echo(f"note: {why}; the next comparison starts a new one", err=True)
    if not records:
        raise ProbeError(
            "no record can be used; --clear removes what is there" if damaged else none
        )
    if as_json:
        click.echo(json.dumps(_said(opened, records, damaged), ensure_ascii=False))
        return
    from specedge.cli._canary_tables import print_record

    newest = records[0][1]
    for number, (path, record) in enumerate(records):
        if number:
            click.echo()
        print_record(path, record, _differences(newest, record), LAST if last is None else last)


def _stored(bundle: Bundle) -> tuple[list[tuple[Path, Record]], list[str]]:
    """Records that can be used, the newest first; and why others cannot."""
    from specedge.canary.record import stored

    records: list[tuple[Path, Record]] = []
    damaged: list[str] = []
    for path, read in stored(bundle):
        if isinstance(read, str):
            damaged.append(read)
        else:
            records.append((path, read))
    return sorted(records, key=lambda each: each[1].updated, reverse=True), damaged


def _differences(newest: Record, record: Record) -> list[str]:
    from specedge.probe.fingerprint import changed

    return list(changed(newest.fingerprint, record.fingerprint))


def _said(bundle: Bundle, records: list[tuple[Path, Record]], damaged: list[str]) -> dict[str, Any]:
    newest = records[0][1]
    return {
        "bundle": bundle.manifest.name,
        "records": [
            {
                "path": str(path),
                "differs": _differences(newest, record),
                **record.model_dump(mode="json"),
            }
            for path, record in records
        ],
        "damaged": damaged,
    }

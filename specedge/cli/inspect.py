"""`specedge inspect`: what is inside a bundle."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command(short_help="Show what is inside a bundle.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
@click.option("--verify/--no-verify", default=True, help="Check the hash of every file.")
def command(bundle: Path, as_json: bool, verify: bool) -> None:
    """Show graphs, sizes, precision, pairing proof, memory plan, quality, options of engines, plans
    of `specedge build`, licences and hashes."""
    from specedge.bundle import Bundle
    from specedge.engines.trt import plans

    opened = Bundle.open(bundle, verify=verify)
    beside = plans.beside(opened.path)
    if as_json:
        said = opened.describe() | {
            "plans": [
                {
                    "path": str(plan.path),
                    "damage": damage,
                    **plan.record.model_dump(mode="json", exclude={"report"}),
                }
                for plan, damage in beside
            ]
        }
        click.echo(json.dumps(said, ensure_ascii=False, indent=2))
        return
    from specedge.cli._bundle_tables import bundle_tables
    from specedge.cli._tables import print_tables

    print_tables(bundle_tables(opened, beside))

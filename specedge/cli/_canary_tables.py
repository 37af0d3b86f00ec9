"""A canary's record for a terminal: the verdict first, then what it rests on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from specedge.canary.deciding import LOOKS, estimate
from specedge.canary.record import Comparison, Evidence, Record
from specedge.cli._tables import pairs, print_sentences, print_tables
from specedge.words import NOTHING, counted, interval, moment, share, three_digits, times

_STYLES = {"mismatch": "bold red", "near-tie": "yellow"}
_MOST_OPTIONS = 300  # characters


def print_record(path: Path, record: Record, differs: Sequence[str], last: int) -> None:
    """To stdout.

    Args:
        differs: what of its fingerprint is not as in the newest record.
        last: comparisons to list.
    """
    verdict = record.verdict
    print_sentences([f"{verdict.state} since {moment(verdict.since)}: {verdict.reason}"])
    print_tables([_overview(path, record, differs)])
    tables = [_evidence(number, each) for number, each in enumerate(record.evidence, start=1)]
    if last and record.last:
        tables.insert(0, _comparisons(record.last[-last:]))
    for table in tables:
        click.echo()
        print_tables([table])


def _overview(path: Path, record: Record, differs: Sequence[str]) -> Table:
    parts, totals = record.fingerprint, record.totals
    settings = [str(parts.get("engine")), f"threads {parts.get('threads')}"]
    settings += ["exact" if parts.get("exact") else "not exact"]
    settings += [f"context {parts.get('target_context')}"]
    compared = [f"{counted(totals.compared, 'request')}, {totals.timed} of them timed with drafts"]
    if totals.interrupted:
        compared.append(f"{totals.interrupted} more given up for another request")
    tokens = [f"{totals.equal} equal", counted(totals.mismatches, "mismatch", "mismatches")]
    if totals.near_ties:
        tokens.append(f"{counted(totals.near_ties, 'near-tie')} within the width noise")
    if totals.not_compared:
        tokens.append(f"{totals.not_compared} not compared, as their rule does not repeat")
    rows = [
        ("record", str(path)),
        ("settings", ", ".join(settings)),
        *([("differs by", ", ".join(differs))] if differs else []),
        ("created", f"{moment(record.created)}, last comparison {moment(record.updated)}"),
        ("compared", "; ".join(compared)),
        ("tokens", ", ".join(tokens)),
        ("speed", _speed(record)),
    ]
    if totals.failures:
        rows.append(("failures", f"{totals.failures}, the last: {record.last_failure}"))
    return pairs("", rows)


def _speed(record: Record) -> str:
    """Over plain decoding."""
    now = estimate(record.last)
    if now is None:
        return "nothing was timed with drafts yet"
    said = f"{times(now.gain)} over the last {now.prompts}"
    if record.gain is not None:
        said += f"; at the last look {interval(record.gain)}"
    return f"{said}; next look at {_next_look(record.totals.timed)} timed"


def _next_look(timed: int) -> int:
    further = (timed // LOOKS[-1] + 1) * LOOKS[-1]
    return next((look for look in LOOKS if look > timed), further)


def _comparisons(last: Sequence[Comparison]) -> Table:
    table = Table(title="last comparisons", title_justify="left", box=None, pad_edge=False)
    for name in ("when", "tokens"):
        table.add_column(name, no_wrap=True)
    for name in ("of", "plain ms", "spec ms", "speed", "accept rate"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("by", overflow="fold")
    for each in last:
        rate = each.acceptance_rate
        table.add_row(
            Text(moment(each.at)),
            Text(each.tokens, style=_STYLES.get(each.tokens, "")),
            Text(str(each.generated)),
            Text(three_digits(each.plain_ms)),
            Text(three_digits(each.spec_ms)),
            Text(_gain(each)),
            Text(NOTHING if rate is None else share(rate)),
            Text(", ".join(each.proposers) or "nobody drafted"),
        )
    return table


def _gain(each: Comparison) -> str:
    if each.plain_ms is None or each.spec_ms is None:
        return NOTHING
    return times(each.plain_ms / each.spec_ms)


def _evidence(number: int, each: Evidence) -> Table:
    options = json.dumps(each.options, ensure_ascii=False)
    options = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in options)  # as repr does
    if len(options) > _MOST_OPTIONS:
        options = f"{options[:_MOST_OPTIONS]}… (--json has all of it)"
    rows = [
        ("when", moment(each.at)),
        ("where", f"output token {each.position + 1}, after {each.before!r}"),
        ("plain", _token(each.plain_token, each.plain_text, len(each.plain_tokens))),
        ("speculative", _token(each.spec_token, each.spec_text, len(each.spec_tokens))),
        ("margin", _amount(each.margin)),
        ("width noise", _amount(each.noise)),
        ("prompt", f"{len(each.prompt_ids)} tokens; --json has their ids, and both outputs"),
        ("options", options),
    ]
    return pairs(f"evidence {number}", rows)


def _token(token: int | None, text: str, n: int) -> str:
    said = "nothing more" if token is None else f"{text!r} (id {token})"
    return f"{said}; {counted(n, 'token')} in all"


def _amount(logits: float | None) -> str:
    return "not measured" if logits is None else f"{logits:.3g}"

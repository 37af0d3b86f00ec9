"""What `run` and `chat` print: text as it comes, JSON a line, one line of statistics."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from specedge.result import Event, Result


class TextPrinter:
    """Writes text at once and remembers whether the line is open.

    Between two samples stands a line of ---; `headers` announces each but the first on stderr.
    """

    def __init__(self, headers: bool = False) -> None:
        self._open = False
        self._sample = 0
        self._headers = headers

    def event(self, event: Event) -> None:
        if event.sample != self._sample:
            self._sample = event.sample
            self.end()
            sys.stdout.write("---\n")
            sys.stdout.flush()
            if self._headers:
                click.echo(f"[sample {event.sample + 1}]", err=True)
        if event.text:
            self._open = not event.text.endswith("\n")  # first: Ctrl-C may come while writing
            sys.stdout.write(event.text)
            sys.stdout.flush()

    def end(self) -> None:
        """Close the last line."""
        if self._open:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._open = False


class JsonPrinter:
    """One object a line; the last is the result."""

    def event(self, event: Event) -> None:
        said: dict[str, Any] = {
            "sample": event.sample,
            "text": event.text,
            "tokens": list(event.tokens),
        }
        if event.logprobs is not None:
            said["logprobs"] = [asdict(entry) for entry in event.logprobs]
        if event.rounds is not None:
            said["rounds"] = [asdict(report) for report in event.rounds]
        if event.text or event.tokens or event.rounds:
            self.write(said)

    def write(self, value: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
        sys.stdout.flush()

    def end(self) -> None: ...


def print_rounds(result: Result) -> None:
    """A line on stderr for each round of each sample; the same kind of reason again is a mark."""
    for number, sample in enumerate(result.samples or [result], start=1):
        if result.samples is not None:
            click.echo(f"[sample {number}]", err=True)
        click.echo(f"{'round':>6} {'past':>6} {'drafted':>11} kept    ms  draft ms  why", err=True)
        before: object = None
        for report in sample.rounds or ():
            who = f"{report.drafted} {report.proposer}" if report.proposer else "-"
            kind = (report.why, report.proposer, report.drafted)
            click.echo(
                f"{report.number:6d} {report.past:6d} {who:>11} {report.accepted:4d}"
                f" {report.ms:5.1f} {report.draft_ms:9.2f}  "
                + ('"' if kind == before else report.reason),
                err=True,
            )
            before = kind


def print_stats(result: Result) -> None:
    """One line on stderr for each sample: what it cost and what speculation did."""
    if result.samples is None:
        click.echo(f"[{describe(result)}]", err=True)
        return
    for number, sample in enumerate(result.samples, start=1):
        click.echo(f"[sample {number}: {describe(sample)}]", err=True)


def describe(result: Result) -> str:
    """Speed, how tokens were drawn, then speculation: what it gained or why it is off."""
    metrics, speculation = result.metrics, result.speculation
    parts = [f"{len(result.tokens)} tokens, {result.finish_reason}"]
    if metrics.tokens_per_second is not None:
        parts.append(f"{metrics.tokens_per_second:.1f} tokens/s")
    if metrics.ttft_ms is not None:
        parts.append(f"first token {metrics.ttft_ms:.0f} ms")
    line = ", ".join(parts)
    if result.seed is not None:
        line += f"; {result.acceptance}, seed {result.seed}"
        line += "" if result.reproducible else " (repeats for the same draft lengths)"
    state = "on" if speculation.on else "off"
    by = f" ({speculation.proposer})" if speculation.proposer else ""
    line += f"; speculation {state}{by}"
    if metrics.proposed and metrics.acceptance_rate is not None:
        line += f": {metrics.acceptance_rate:.0%} of {metrics.proposed} drafted tokens accepted"
        if metrics.acceptance_length is not None:
            line += f", {metrics.acceptance_length:.2f} tokens a round"
    elif speculation.on and metrics.rounds:
        line += ": nothing was drafted"
    if not speculation.on:
        reason = speculation.reason.removeprefix("speculation off: ")
        line += f"; {reason}" if metrics.proposed else f": {reason}"
    return line

"""The controller, measured: what "auto" costs where drafts fail, and gains where they stand.

    python bench/controller.py [--json controller.json]
    python bench/controller.py --bundle bundles/smollm2 --only short --pairs 60
    python bench/controller.py --quick

adversarial   tokens per second of "auto" over plain: median of the pairs at least 0.98, lower end
              of its 95 % interval at least 0.97
favourable    the same over the best fixed (proposer, K): at least 0.97. A coarse sweep times every
              fixed way; the fastest ones then run beside "auto", in turn
first tokens  time to the first token, "auto" over plain, of all adversarial pairs: at most 1.02
information   a first run without a record, which measures in its stream; and what opening the
              target beside a draft costs plain decoding, in models loaded one after the other

Both runs of a pair use the same engines and slot in one process, one right after the other, and
begin in turn; see `controller_desk.py`. Speed is that of the tokens after the first, from the
first to the last, the draft's reading of the prompt included. The bundle is copied by links, so
that its own records are not used; "auto" has a record made by a first run (`--record startup`) or
by a full probe (`--record probe`). Each row loads the model anew; what the controller has learned
stays from one request to the next, as in an application. So the first 3 pairs are told apart
("early") and do not count towards the goal. "sum" is the ratio of summed times of all pairs.

Greedy and seeded texts must be the same in all ways: exit code 1 when one differs or a goal is
missed. With `--quick` intervals say nothing; let nothing else run for those that do.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import controller_sets as sets
from controller_desk import AUTO, CONTEXT, PLAIN, Desk, Request, desk, forget, hidden
from controller_report import line, save, show
from controller_rows import (
    EARLY,
    Row,
    Say,
    Trial,
    Watch,
    best_fixed,
    finalists,
    sweep,
    trials,
)
from random_draft import WORK, random_draft

import specedge
from specedge.bundle import Bundle
from specedge.probe.record import FOLDER

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = (ROOT / "bundles" / "smollm2", ROOT / "bundles" / "smollm2-selfdraft")
LEAST, LEAST_LOW, LEAST_OF_BEST, MOST_TTFT = 0.98, 0.97, 0.97, 1.02
FINALISTS, SWEPT = 2, 2  # ways that run beside auto; requests that every way is timed on
UNRECORDED, TURNS = 2, 2  # times that models are loaded for these rows
SHORT_PAIRS = 2  # for each one asked for: they are quick, and one is hardly longer than noise
RECORD_REQUESTS, RECORD_TOKENS = 8, 160  # that a record may take, and what each asks for
Make = Callable[[Desk], Sequence[Request]]


class Bench:
    """All rows of one bundle."""

    def __init__(self, given: argparse.Namespace, folder: Path, work: Path) -> None:
        self.given = given
        self.folder = hidden(folder, work)
        self.work = work
        manifest = Bundle.open(folder, verify=False).manifest
        self.has_draft = manifest.draft is not None
        self.name = manifest.name
        self.proposers = ("ngram", "draft") if self.has_draft else ("ngram",)
        self.longest = manifest.target.max_verify - 1
        # What runs at float32 and beside a draft takes several times as long for a token.
        self.tokens = given.tokens or (40 if self.has_draft else 128)
        self.rows: list[Row] = []

    def run(self) -> list[Row]:
        self.unrecorded()
        self.adversarial("random tokens", lambda d: sets.random_tokens(d.model, self.tokens, 16))
        if self.has_draft:
            self.random_draft()
        self.adversarial("temperature 1.5", lambda d: sets.hot(d.model, self.tokens))
        self.adversarial("8 tokens", lambda d: sets.short(d.model), SHORT_PAIRS)
        if self.has_draft:
            self.favourable("chat, self-draft", lambda d: sets.chat(d.model, self.tokens))
            self.turns()
        else:
            self.favourable("code editing", lambda d: sets.edits(d.model, 2 * self.tokens))
            self.favourable("repetition", lambda d: sets.loops(d.model, 2 * self.tokens))
        return self.rows

    def row(self, name: str, kind: str, over: str = AUTO, under: str = PLAIN) -> Row:
        return Row(name, self.name, self.proposers, kind, over, under)

    def wanted(self, name: str) -> bool:
        return not self.given.only or any(part in name for part in self.given.only)

    def say(self, name: str) -> Say:
        def said(progress: str) -> None:
            print(f"\033[2K{self.name}: {name}: {progress}", end="\r", file=sys.stderr, flush=True)

        return said

    def unrecorded(self) -> None:
        """What the first request costs that measures in its stream; leaves a record."""
        row = self.row("first run without a record", "information")
        row.note = "measuring in the stream; other than these, no row does"
        watch = Watch()
        if self.wanted(row.name):
            for number in range(UNRECORDED):
                forget(self.folder)
                with desk(self.folder, self.proposers, self.given.threads) as opened:
                    request = sets.chat(opened.model, RECORD_TOKENS)[number]
                    ways = (AUTO, PLAIN) if number % 2 else (PLAIN, AUTO)
                    row.trials.append({way: opened.ask(way, request) for way in ways})
            self.add(row, watch)
        self.record(self.folder)

    def record(self, folder: Path) -> None:
        """Make one, by requests to a model that has none, or by a probe."""
        forget(folder)
        if self.given.record == "probe":
            self.probe(folder)
            return
        with desk(folder, self.proposers, self.given.threads) as opened:
            for request in sets.chat(opened.model, RECORD_TOKENS)[:RECORD_REQUESTS]:
                self.say("record")(f"asking for {request.name}")
                opened.ask(AUTO, request)
                if recorded(folder, with_draft=self.has_draft):
                    return
        raise specedge.SpecedgeError(f"{folder}: no record after {RECORD_REQUESTS} requests")

    def probe(self, folder: Path) -> None:
        from specedge.probe.probing import probe

        manifest = Bundle.open(folder, verify=False).manifest
        self.say("probe")("for a minute")
        context = min(CONTEXT, manifest.target.context)
        probe(folder, threads=self.given.threads, context=context, again=True)

    def adversarial(
        self, name: str, make: Make, pairs: int = 1, folder: Path | None = None
    ) -> None:
        if not self.wanted(name):
            return
        row = self.row(name, "adversarial")
        row.least, row.least_low = LEAST, LEAST_LOW
        watch = Watch()
        with desk(folder or self.folder, self.proposers, self.given.threads) as opened:
            count = EARLY + pairs * self.given.pairs
            row.trials = trials(opened, make(opened), (PLAIN, AUTO), count, self.say(name))
        self.add(row, watch)

    def random_draft(self) -> None:
        """The same weights for the target, random ones for the draft; a record of its own."""
        name = "chat, a draft of random weights"
        if not self.wanted(name):
            return
        folder = random_draft(self.folder, self.work)
        self.record(folder)
        self.adversarial(name, lambda d: sets.chat(d.model, self.tokens), folder=folder)

    def favourable(self, name: str, make: Make) -> None:
        if not self.wanted(name):
            return
        row = self.row(name, "favourable")
        row.least = LEAST_OF_BEST
        watch = Watch()
        with desk(self.folder, self.proposers, self.given.threads) as opened:
            requests = make(opened)
            say = self.say(name)
            few = requests[: 1 if self.given.quick else SWEPT]
            row.sweep = sweep(opened, few, opened.proposers, self.longest, say)
            ways = (AUTO, *finalists(row.sweep, FINALISTS))
            made = trials(opened, requests, ways, EARLY + self.given.pairs, say)
        row.trials, row.under = made, best_fixed(made, EARLY)
        over_plain = row.sweep[row.under] / row.sweep[PLAIN]
        row.note = f"best fixed: {row.under}, {over_plain:.2f}x plain in the sweep"
        if opened.proposers != self.proposers:
            row.note += f"; the probe has left only {', '.join(opened.proposers) or 'nobody'}"
        self.add(row, watch)

    def turns(self) -> None:
        """Plain decoding beside a loaded draft, against a model loaded without speculation."""
        name = "plain beside a draft, to plain alone"
        if not self.wanted(name):
            return
        row = self.row(name, "information", "beside", "alone")
        row.note = "models loaded one after the other; a fraction is what their engines cost"
        watch = Watch()
        for number in range(TURNS):
            order = ("beside", "alone") if number % 2 else ("alone", "beside")
            trial: list[Trial] = [{} for _ in range(3)]
            for way in order:
                proposers = self.proposers if way == "beside" else ()
                with desk(self.folder, proposers, self.given.threads) as opened:
                    requests = sets.chat(opened.model, 48)
                    opened.ask(PLAIN, requests[-1])
                    for place, each in enumerate(trial):
                        run = opened.ask(PLAIN, requests[3 * (number % 4) + place])
                        each[way] = replace(run, way=way)
            row.trials += trial
            self.say(name)(f"{number + 1} of {TURNS}")
        self.add(row, watch)

    def add(self, row: Row, watch: Watch) -> None:
        row.others = watch.others()
        self.rows.append(row)
        print(f"\033[2K{line(row)}", file=sys.stderr)


def recorded(folder: Path, *, with_draft: bool) -> bool:
    """Whether there is a record of all costs: those of the target are kept before the draft's."""
    said = [json.loads(file.read_bytes()) for file in (folder / FOLDER).glob("*.json")]
    return any(each["curves"].get("draft") or not with_draft for each in said)


def first_tokens(rows: Sequence[Row]) -> list[Row]:
    """TTFT of all adversarial pairs of a bundle, in a row of its own."""
    made = []
    for name in dict.fromkeys(row.bundle for row in rows):
        its = [row for row in rows if row.bundle == name and row.kind == "adversarial"]
        if its:
            row = replace(its[0], name="time to first token", kind="first tokens", note="")
            row.trials = [each for one in its for each in one.trials[one.early :]]
            row.least = row.least_low = None
            row.most, row.value = MOST_TTFT, lambda run: run.ttft_ms
            row.others = max(one.others for one in its)
            made.append(row)
    return made


def parse() -> argparse.Namespace:
    assert __doc__ is not None, "it is the help text"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", type=Path, action="append", help="default: SmolLM2's two")
    parser.add_argument("--only", action="append", metavar="PART", help="of a row's name")
    parser.add_argument("--pairs", type=int, default=20, help="a row, after the early ones")
    parser.add_argument("--tokens", type=int, help="a run; default: by bundle")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--record", choices=["startup", "probe"], default="startup")
    parser.add_argument("--work", type=Path, default=WORK, help="folder for copies of the bundles")
    parser.add_argument("--quick", action="store_true", help="3 pairs: does it run at all?")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all raw runs there")
    given = parser.parse_args()
    if given.quick:
        given.pairs = 3
    if given.pairs < 1 or (given.tokens is not None and given.tokens < 2):
        parser.error("--pairs must be 1 or more and --tokens 2 or more")
    return given


def records(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Fingerprints of the records that "auto" used."""
    files = [file for folder in folders for file in sorted((folder / FOLDER).glob("*.json"))]
    return [json.loads(file.read_bytes())["fingerprint"] for file in files]


def main() -> int:
    given = parse()
    began = time.monotonic()
    rows: list[Row] = []
    folders = []
    for bundle in given.bundle or DEFAULT:
        bench = Bench(given, bundle, given.work)
        folders.append(bench.folder)
        rows += bench.run()
    rows += first_tokens(rows)
    show(rows)
    minutes = (time.monotonic() - began) / 60
    print(f"{minutes:.1f} minutes: {' '.join(sys.argv)}")
    if given.json is not None:
        settings = {name: str(value) for name, value in vars(given).items()}
        save(rows, given.json, settings | {"minutes": minutes}, records(folders))
    same = all(row.equal == len(row.trials) for row in rows)
    if not same:
        print("TEXTS DIFFER")
    return 0 if same and all(row.passed is not False for row in rows) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except specedge.SpecedgeError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)

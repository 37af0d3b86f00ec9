"""From a bundle's folder to its record: open the engines, look for one, measure where need be."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from specedge.bundle import Bundle
from specedge.contract import Ids, SpeculationDefaults
from specedge.encoding import Encoder
from specedge.engines.base import Engine
from specedge.errors import EngineError, OptionError, ProbeError, PromptError, ProposerError
from specedge.load_options import check_threads, checked_context, checked_proposers
from specedge.memory import Fit, checked_memory, fit
from specedge.opening import Opener
from specedge.power import Meter, Watcher, open_meter, throttled_by_times
from specedge.probe import fingerprint
from specedge.probe.calibrating import Calibrated, Encode, calibrate, encoded
from specedge.probe.curves import CostCurves
from specedge.probe.findings import Energy, Findings, Steadiness
from specedge.probe.measuring import Clock, Report, Watch, check_budget, measure
from specedge.probe.merging import concluded, merged, untried
from specedge.probe.record import Record, find, store
from specedge.tokenizer import Tokenizer
from specedge.workloads import Workload, WorkloadPrompt, builtin, read

COSTS_SHARE = 0.25  # of the budget, for the curves at most
COSTS, DRAFTS = "what calls cost", "drafts on prompts"
_IDLE_S = 0.5

Stages = Callable[[str, float], None]
"""Told (COSTS or DRAFTS, share of that stage's time that is used, 0..1)."""


@dataclass(frozen=True)
class Probed:
    """A record, and how it was come by.

    Args:
        record: stored, or measured just now.
        path: where it lies; None when it could not be kept.
        measured: just now, in part at least.
        reason: why it was measured, in one line; empty when it was not.
        notes: what else a person should know.
        left_out: prompts that the context has no room for, a line each.
        name: of the bundle.
    """

    record: Record
    path: Path | None
    measured: bool
    reason: str
    notes: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    name: str = ""


def probe(
    path: str | os.PathLike[str],
    *,
    engine: str = "auto",
    draft_engine: str | None = None,
    threads: int | None = None,
    context: int | None = None,
    exact: bool = True,
    memory: str | int | None = None,
    prompts: str | os.PathLike[str] | None = None,
    classes: Sequence[str] = (),
    budget_s: float = 60.0,
    again: bool = False,
    clock: Clock = time.perf_counter,
    report: Stages | None = None,
) -> Probed:
    """Costs, calibration and decision for a bundle on this machine; kept for its runs.

    Args:
        path: the bundle's folder.
        engine, draft_engine, threads, context, exact, memory: as in `specedge.load`; a run with
            other ones has another fingerprint, and a record of its own.
        prompts: a file of workloads, see `specedge.workloads.read`; None: those built in.
        classes: names of the workload classes to try; empty: all of them.
        budget_s: seconds for measuring, COSTS_SHARE of it at most for costs.
        again: measure even where there is a record.
        clock: see `measure`.
        report: told how far it is.

    Raises:
        BundleError: see `Bundle.open`.
        OptionError: an argument is out of range, or no class has such a name.
        PromptError: the file of prompts cannot be used, or none of its prompts fits.
        MemoryBudgetError: the target alone does not fit into `memory`.
        EngineError: an engine is missing, cannot load its graph or allocate its KV, or failed.
        ProbeError: the clock cannot be trusted.
    """
    check_budget(budget_s)
    bundle = Bundle.open(path)
    rows = checked_context(context, bundle.manifest)
    check_threads(threads)
    names = checked_proposers(bundle.manifest.speculation.proposers)
    if draft_engine is not None and bundle.manifest.draft is not None and "draft" not in names:
        raise OptionError(
            f"draft_engine: {draft_engine} is given, but draft is not among the proposers "
            f"({', '.join(names) or 'none'}) of the bundle; leave it out"
        )
    every = builtin() if prompts is None else read(Path(prompts))
    workloads = _asked(every, classes)
    opener = Opener(bundle, engine, threads, rows, exact, draft_engine)
    notes = _unheard(bundle.manifest.speculation, min(rows, bundle.manifest.target.max_verify))
    try:
        with _engines(opener, memory, notes) as (target, draft, fits):
            # a run asks for its record before it has opened a draft
            parts = opener.fingerprint(target, with_draft=fits.keeps_draft)
            found = find(bundle, parts)
            known = found.record
            reason = found.reason or "asked for"
            if known is not None and draft is not None and known.curves.draft is None:
                known, reason = None, f"{found.path}: made while the draft model did not load"
            if known is not None and not again:
                reason = untried(known, workloads, prompts is None and not classes, budget_s)
                if not reason:
                    return Probed(
                        known, found.path, False, "", tuple(notes), name=bundle.manifest.name
                    )
            run = _Run(bundle, target, draft, rows, workloads, budget_s, Watch(clock), report)
            curves, findings, left_out = run(
                None if known is None or again else known.curves, notes
            )
            if known is not None and known.findings is not None:
                findings = merged(known.findings, findings)
            record = Record.of(parts, curves, concluded(findings, every))
    except MemoryError as error:
        raise EngineError(
            f"{bundle.path}: not enough memory for {bundle.manifest.name} at a context of {rows}; "
            "choose a smaller context"
        ) from error
    try:
        kept: Path | None = store(bundle, record)
    except ProbeError as error:
        kept = None
        notes.append(str(error))
    return Probed(record, kept, True, reason, tuple(notes), left_out, bundle.manifest.name)


def _asked(found: tuple[Workload, ...], classes: Sequence[str]) -> tuple[Workload, ...]:
    names = [workload.name for workload in found]
    for name in classes:
        if name not in names:
            raise OptionError(f"class: no workload {name!r}; there are {', '.join(names)}")
    return tuple(each for each in found if not classes or each.name in classes)


def _unheard(defaults: SpeculationDefaults, widest: int) -> list[str]:
    """Whether a run of this bundle, with calls of `widest` tokens at most, asks what pays."""
    asks = []
    if widest == 1:
        asks.append("a call verifies 1 token at most, which leaves no room for a draft")
    if defaults.mode != "auto":
        asks.append(f'speculation is "{defaults.mode}"')
    if not defaults.draft_length:
        asks.append("draft_length is 0")
    if not asks:
        return []
    return [f"by default a run of this bundle does not ask a probe: {' and '.join(asks)}"]


@dataclass
class _Run:
    """One measurement, watched all the while for what would spoil it."""

    bundle: Bundle
    target: Engine
    draft: Engine | None
    context: int
    workloads: tuple[Workload, ...]
    budget_s: float
    watch: Watch
    report: Stages | None

    def __call__(
        self, curves: CostCurves | None, notes: list[str]
    ) -> tuple[CostCurves, Findings, tuple[str, ...]]:
        """Costs, unless they are known, findings, and the prompts that were left out."""
        encode = _encode(self.bundle)
        encoded(self.workloads, encode, self.context)  # no reason to fail after the costs
        on_gpu = fingerprint.on_gpu(self.target)
        meter = open_meter(on_gpu=on_gpu)
        watcher = Watcher(on_gpu=on_gpu)
        began = self.watch.now()
        try:
            idle_watts = None if meter is None else _watts(meter)
            watcher.start()
            if curves is None:
                curves = measure(
                    self.target,
                    self.draft,
                    budget_s=COSTS_SHARE * self.budget_s,
                    clock=self.watch.now,
                    report=self._told(COSTS, watcher),
                )
            spent_s = self.watch.now() - began
            left_s = max(1e-3, self.budget_s - spent_s)
            try:
                found = self._calibrate(curves, encode, left_s, meter, watcher)
            except ProposerError as error:
                if self.draft is None:
                    raise
                # a run would go on without it, and so does the probe
                notes.append(f"the draft model was left out: {' '.join(str(error).split())}")
                self.draft = None
                left_s = max(1e-3, began + self.budget_s - self.watch.now())
                found = self._calibrate(curves, encode, left_s, meter, watcher)
        finally:
            seen = watcher.end()
            if meter is not None:
                meter.close()
        findings = found.findings
        slower = throttled_by_times(
            [(spent_s + pair.began_s, pair.plain_ms / pair.tokens) for pair in found.pairs]
        )
        steadiness = Steadiness(
            drift=findings.steadiness.drift,
            throttled=(*seen.throttled, *([slower] if slower else [])),
            clocks_mhz=seen.clocks_mhz,
        )
        energy = None
        if meter is not None and found.plain_joules is not None:
            energy = Energy(
                source=meter.source,
                idle_watts=idle_watts,
                plain=found.plain_joules,
                speculative=found.spec_joules,
            )
        findings = findings.model_copy(update={"steadiness": steadiness, "energy": energy})
        return curves, findings, found.left_out

    def _calibrate(
        self,
        curves: CostCurves,
        encode: Encode,
        budget_s: float,
        meter: Meter | None,
        watcher: Watcher,
    ) -> Calibrated:
        manifest = self.bundle.manifest
        speculation = manifest.speculation
        names = [name for name in speculation.proposers if name != "draft" or self.draft]
        return calibrate(
            self.target,
            self.draft,
            curves,
            self.workloads,
            encode,
            proposers=names,
            eos_ids=frozenset(manifest.tokenizer.eos_ids),
            ngrams=(speculation.ngram_min, speculation.ngram_max),
            margin=speculation.margin,
            max_draft=manifest.target.max_verify - 1,
            budget_s=budget_s,
            clock=self.watch.now,
            meter=meter,
            report=self._told(DRAFTS, watcher),
        )

    def _told(self, stage: str, watcher: Watcher) -> Report:
        def told(share: float) -> None:
            watcher.check()
            if self.report is not None:
                self.report(stage, share)

        told(0.0)  # engines warm up before they have anything to tell
        return told


def _encode(bundle: Bundle) -> Encode:
    """As a run encodes a prompt; an error names the place that the prompt is from."""
    where = str(bundle.path / "tokenizer.json")
    tokenizer = Tokenizer(bundle.tokenizer_json, bundle.manifest.tokenizer, where=where)
    encoder = Encoder.of(bundle, tokenizer)

    def encode(prompt: WorkloadPrompt) -> Ids:
        given = prompt.given(has_template=encoder.has_template)
        try:
            return encoder.encode(given)[0]
        except PromptError as error:
            raise PromptError(f"{prompt.where}: {error}") from None

    return encode


def _watts(meter: Meter) -> float | None:
    """Drawn while nothing runs."""
    before = meter.joules()
    time.sleep(_IDLE_S)
    after = meter.joules()
    return None if before is None or after is None else max(0.0, after - before) / _IDLE_S


@contextmanager
def _engines(
    opener: Opener, memory: str | int | None, notes: list[str]
) -> Iterator[tuple[Engine, Engine | None, Fit]]:
    """Target and draft as `specedge.load` opens them for a run that uses both."""
    manifest = opener.bundle.manifest
    names = manifest.speculation.proposers
    fits = fit(
        manifest,
        opener.context,
        budget=checked_memory(memory),
        room=opener.room,
        wants_draft="draft" in names,
        lookups=any(each != "draft" for each in names),
    )
    if fits.note:
        notes.append(fits.note)
    with ExitStack() as stack:
        draft: Engine | None = None
        if fits.keeps_draft:
            found = opener.draft()
            if isinstance(found, str):
                notes.append(f"the draft model was left out: {found}")
            else:
                draft = found
                stack.callback(draft.close)
        target = opener.target(takes_turns=draft is not None)
        stack.callback(target.close)
        yield target, draft, fits

"""From what a person asks for to a plan: prompts, loads, ways, options."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from specedge.desk import AUTO, PLAIN, Desk, Way
from specedge.errors import BenchError, OptionError, PromptError
from specedge.gates.prompts import PER_CLASS, Asked, of
from specedge.knowledge import Knowledge
from specedge.limits import MAX_SEED
from specedge.loadtest.arrivals import MAX_REQUESTS, Arrivals, closed, poisson, recorded
from specedge.loadtest.running import Plan
from specedge.loadtest.serving import Job
from specedge.loadtest.trace import Traced, parsed_trace
from specedge.options import GenerationOptions
from specedge.workloads import Workload, builtin, read
from specedge.workloads.reading import file_bytes

MAX_REPEATS = 1000
_ON_THE_LINE = {"prompts": "prompts", "classes": "class", "per_class": "per-class"}


@dataclass(frozen=True, slots=True)
class Settings:
    """As on the command line.

    Args:
        prompts: a file of workloads; None: those built in.
        classes: names of the workload classes to ask; empty: all of them.
        per_class: prompts of each at most; None: all of a file, `PER_CLASS` of those built in.
        proposers: who drafts, each by itself; "ngram+draft": both in priority order, in one way.
            None: every one that the bundle can run.
        ks: fixed draft lengths; None: the bundle's own.
        concurrency: closed loops of so many clients.
        rates: open loops, requests a second.
        trace: an open loop of recorded arrivals. With neither of these: one client.
        requests: of each load; None: each prompt once, or the whole trace.
        repeats, warmup: see `Plan`.
        max_tokens: output limit of every request.
        temperature, acceptance: of every request; None: the bundle's.
        seed: of Poisson arrivals, where None is 0; and of the draws: request n has seed + n.
    """

    prompts: Path | None = None
    classes: Sequence[str] = ()
    per_class: int | None = None
    proposers: Sequence[str] | None = None
    ks: Sequence[int] | None = None
    concurrency: Sequence[int] = ()
    rates: Sequence[float] = ()
    trace: Path | None = None
    requests: int | None = None
    repeats: int = 3
    warmup: int = 1
    max_tokens: int = 128
    temperature: float | None = None
    seed: int | None = None
    acceptance: str | None = None

    @property
    def opened(self) -> list[str] | None:
        """Names of proposers to open, for `Desk`."""
        if self.proposers is None:
            return None
        return list(dict.fromkeys(n for way in self.proposers for n in way.split("+")))


@dataclass(frozen=True, slots=True)
class Asking:
    """What the settings name, read and checked before a bundle is opened.

    Args:
        settings: as given.
        workloads: classes to ask, each with its prompts; empty: every prompt stands in the trace.
        trace: recorded arrivals; empty: none.
        source: where the prompts come from, for a person.
    """

    settings: Settings
    workloads: tuple[Workload, ...]
    trace: tuple[Traced, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and what a reader must know of it.

    Args:
        plan: to run.
        options: sampling options of every request, for the header.
        notes: what auto lacks, prompts that were left out, limits that differ.
    """

    plan: Plan
    options: dict[str, str | int | float | bool | None]
    notes: list[str]


def asking(settings: Settings) -> Asking:
    """Read the files, check the numbers.

    Raises:
        BenchError: a rate, concurrency, count or trace that cannot be run.
        PromptError: a file that cannot be read, or holds no prompts.
        OptionError: no class has such a name, or prompts are chosen that no request would ask.
    """
    _within("requests", settings.requests, 1, MAX_REQUESTS)
    _within("per-class", settings.per_class, 1)
    _within("repeat", settings.repeats, 1, MAX_REPEATS)
    _within("warmup", settings.warmup, 0, MAX_REQUESTS)
    _within("max-tokens", settings.max_tokens, 1)
    for clients in settings.concurrency:
        closed(clients, 1)
    for rate in settings.rates:
        poisson(rate, 1)
    trace, times = _trace(settings.trace)
    if trace and (settings.requests or 0) > len(trace):
        raise BenchError(
            f"requests: the trace {settings.trace} has {len(trace)}, found {settings.requests}; "
            "ask for fewer, or leave it out"
        )
    trace = trace[: settings.requests]
    if trace:
        recorded(trace)
    if trace and all(each.prompt for each in trace):
        assert settings.trace is not None
        for name in ("prompts", "classes", "per_class"):
            if getattr(settings, name):
                raise OptionError(
                    f"{_ON_THE_LINE[name]}: not asked for, every request of the trace "
                    f"{settings.trace} has a prompt of its own; leave one of the two out"
                )
        return Asking(settings, (), trace, times)
    workloads = builtin() if settings.prompts is None else read(settings.prompts)
    chosen = _of_classes(workloads, settings.classes)
    sources = [chosen[0].source, f"times of {times}"] if trace else [chosen[0].source]
    return Asking(settings, chosen, trace, "; ".join(sources))


def _trace(path: Path | None) -> tuple[tuple[Traced, ...], str]:
    """Its requests, and what it is called in results: two of a name may differ."""
    if path is None:
        return (), ""
    raw = file_bytes(path)
    digest = hashlib.sha256(raw).hexdigest()[:12]
    return parsed_trace(raw, path), f"the trace {path.name}, sha256 {digest}"


def _within(name: str, value: int | None, least: int, most: int | None = None) -> None:
    if value is not None and (value < least or (most is not None and value > most)):
        wanted = f"{least} or more" if most is None else f"{least}..{most:,}"
        raise BenchError(f"{name}: expected {wanted}, found {value}")


def _of_classes(found: tuple[Workload, ...], classes: Sequence[str]) -> tuple[Workload, ...]:
    names = [workload.name for workload in found]
    for name in classes:
        if name not in names:
            raise OptionError(f"class: no workload {name!r}; there are {', '.join(names)}")
    return tuple(each for each in found if not classes or each.name in classes)


def plan(desk: Desk, asked: Asking) -> Planned:
    """What to run on an open desk.

    Raises:
        OptionError: an option of requests, a proposer or a draft length that cannot be honoured.
        PromptError: no prompt fits the context, or messages without a chat template.
    """
    settings = asked.settings
    manifest = desk.bundle.manifest
    sampling = {
        "temperature": settings.temperature,
        "acceptance": settings.acceptance,
        "seed": settings.seed,
    }
    given = {"max_tokens": settings.max_tokens, "explain": True} | {
        name: value for name, value in sampling.items() if value is not None
    }
    checked = GenerationOptions.parse(
        given, manifest.generation, speculation=manifest.speculation
    ).sampling
    notes = _unprobed(desk)
    prompts = _fitting(desk, asked, notes)
    count = settings.requests or len(asked.trace) or len(prompts)
    jobs = _jobs(desk, asked.trace, prompts, given, count)
    if any(each.max_tokens is not None for each in asked.trace):
        notes.append("requests of the trace have output limits of their own")
    return Planned(
        Plan(ways(desk, settings), _loads(asked, count), jobs, settings.repeats, settings.warmup),
        {
            "temperature": checked.temperature,
            "acceptance": checked.acceptance,
            "seed": settings.seed,
        },
        notes,
    )


def _unprobed(desk: Desk) -> list[str]:
    """That "auto" has to measure while it is measured."""
    known = Knowledge.of(desk.bundle, desk.fingerprint)
    if known.record is not None:
        return []
    return [
        f"auto measures in the stream, which slows its first requests ({known.reason}); "
        "`specedge probe` beforehand spares them"
    ]


def ways(desk: Desk, settings: Settings) -> list[Way]:
    """Plain, auto, and each proposer with each fixed draft length.

    Raises:
        OptionError: a proposer is not open, or a draft length is out of range.
    """
    own = min(desk.bundle.manifest.speculation.draft_length, desk.longest)
    ks = ([own] if own else []) if settings.ks is None else settings.ks
    names = desk.proposers if settings.proposers is None else settings.proposers
    fixed = [Way("on", tuple(name.split("+")), k) for name in names for k in ks]
    chosen = list(dict.fromkeys([PLAIN, AUTO, *fixed]))
    for way in chosen:
        desk.speculator(way)
    return chosen


def _fitting(desk: Desk, asked: Asking, notes: list[str]) -> list[Asked]:
    """Prompts that leave room for their answer, classes taking turns."""
    per_class = asked.settings.per_class
    if per_class is None and asked.settings.prompts is None:
        per_class = PER_CLASS
    has_template = desk.model.has_chat_template
    classes = [of((each,), per_class, has_template=has_template) for each in asked.workloads]
    mixed = [each for turn in zip_longest(*classes) for each in turn if each is not None]
    room = desk.model.context - asked.settings.max_tokens
    kept, left_out = [], []
    for each in mixed:
        n_tokens = len(desk.model.encode(each.prompt)[0])
        if n_tokens <= room:
            kept.append(each)
        else:
            left_out.append(
                f"left out: {each.name}: the prompt has {n_tokens:,} tokens, the context of "
                f"{desk.model.context:,} leaves {max(0, room):,} beside "
                f"{asked.settings.max_tokens:,} for the answer"
            )
    if mixed and not kept:
        raise PromptError(
            f"no prompt fits; {left_out[0]}; use shorter prompts or fewer --max-tokens"
        )
    notes += left_out
    return kept


def _jobs(
    desk: Desk,
    trace: tuple[Traced, ...],
    prompts: list[Asked],
    given: dict[str, Any],
    count: int,
) -> list[Job]:
    """One for each number of a load; prompts begin again where there are too few."""
    jobs = []
    for number in range(count):
        options = dict(given)
        if "seed" in given:
            options["seed"] = (given["seed"] + number) % (MAX_SEED + 1)
        traced = trace[number] if trace else Traced(0.0)
        if traced.max_tokens is not None:
            options["max_tokens"] = traced.max_tokens
        if traced.prompt is None or traced.workload is None:
            asked = prompts[number % len(prompts)]
        else:
            prompt = traced.prompt.given(has_template=desk.model.has_chat_template)
            asked = Asked(f"trace {number + 1}", traced.workload, prompt)
        jobs.append(Job(asked, options))
    return jobs


def _loads(asked: Asking, count: int) -> list[Arrivals]:
    settings = asked.settings
    loads: list[Arrivals] = [closed(clients, count) for clients in settings.concurrency]
    loads += [poisson(rate, count, settings.seed or 0) for rate in settings.rates]
    if asked.trace:
        loads.append(recorded(asked.trace))
    return loads or [closed(1, count)]

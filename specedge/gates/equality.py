"""Greedy text with speculation is that without: every way to decode, token for token.

Plain decoding of each prompt is the reference. Every other way decodes the same prompt after it, in
the same slot, as requests of an application follow each other. Where a text differs, `parting` says
where, and whether the difference between kernel widths explains it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from specedge.contract import Ids
from specedge.desk import AUTO, PLAIN, Desk, Way
from specedge.errors import EngineError, OptionError, PromptError, SpecedgeError
from specedge.gates import certificate
from specedge.gates.certificate import Runs
from specedge.gates.findings import Gate, Report
from specedge.gates.parting import Parting, find, first_difference
from specedge.gates.prompts import Asked
from specedge.gates.scores import Difference, Score, Token
from specedge.options import GenerationOptions
from specedge.result import Result

KS = (1, 3, 7, 15)
MIXED_K = 7  # at most, where all proposers take turns
PENALISED_PROMPTS = 4
PENALTIES = {"repetition_penalty": 1.05, "frequency_penalty": 0.1, "presence_penalty": 0.1}
BIASES = (-4.0, 1.0)  # of the first and the last token of the text that was made without them
MEASURED_OUTSIDE = 2
"""Differences outside the noise, of a case, after which no further one is measured: it failed."""


def check(
    desk: Desk,
    prompts: Sequence[Asked],
    *,
    report: Report,
    max_tokens: int = 48,
    ks: Sequence[int] = KS,
) -> Gate:
    """Decode every prompt in every way; the bundle's own penalties stay as they are.

    Args:
        desk: of the bundle.
        prompts: those that do not fit the context are left out, and named.
        report: told of the progress.
        max_tokens: of each output; a text that ends earlier is compared up to its end.
        ks: draft lengths of the fixed ways; those that do not fit the graph are left out.

    Raises:
        PromptError: a prompt is malformed, or none fits.
        OptionError: an argument is out of range.
    """
    began = perf_counter()
    trial = _Trial(desk, prompts, max_tokens, ks)
    trial.run(report)
    return certificate.gate(trial.runs, desk.model.target, perf_counter() - began)


def ways_to_compare(desk: Desk, ks: Sequence[int] = KS) -> list[Way]:
    """All but plain: auto, each proposer with each K, and all proposers in turn."""
    ways = [way for way in desk.ways(ks) if way != PLAIN]
    short = [way.k for way in ways if 0 < way.k <= MIXED_K]
    if len(desk.proposers) > 1 and short:
        ways.append(Way("on", desk.proposers, max(short)))
    return ways


@dataclass(frozen=True, slots=True)
class _Reference:
    """What plain decoding says to one prompt."""

    name: str
    asked: Asked
    ids: Ids
    options: Mapping[str, Any]
    plain: Result


class _Trial:
    """The requests of one gate; `runs` is what has come of them."""

    def __init__(
        self, desk: Desk, prompts: Sequence[Asked], max_tokens: int, ks: Sequence[int]
    ) -> None:
        self._desk = desk
        self._prompts: list[tuple[Asked, Ids]] = []
        left_out: list[str] = []
        for asked in prompts:
            ids, _ = desk.model.encode(asked.prompt)
            if len(ids) <= desk.model.context:
                self._prompts.append((asked, ids))
            else:
                left_out.append(f"{asked.name} ({len(ids)} tokens)")
        if not self._prompts:
            raise PromptError(
                f"prompts: none of {len(prompts)} fits the context of {desk.model.context} tokens; "
                "give shorter ones, or a larger context"
            )
        self._ways = ways_to_compare(desk, ks)
        self.runs = Runs(
            prompts=len(self._prompts),
            max_tokens=max_tokens,
            ways=[Score(way.name) for way in self._ways],
            left_out=left_out,
        )
        self._measured: dict[tuple[str, int, int | None, int | None], Parting] = {}

    def run(self, report: Report) -> None:
        """Every prompt in every way, a few of them with penalties as well."""
        desk, count = self._desk, len(self._prompts)
        greedy = {"temperature": 0.0, "max_tokens": self.runs.max_tokens, "min_tokens": 0}
        desk.renew(AUTO)  # what it learns, it learns here
        for place, (asked, ids) in enumerate(self._prompts):
            report(asked.name, place / count)
            desk.forget()
            self._read(asked)
            reference = self._reference(asked.name, asked, ids, greedy)
            if reference is None:
                continue
            for way, score in zip(self._ways, self.runs.ways, strict=True):
                self._compare(score, way, reference)
            if place % -(-count // PENALISED_PROMPTS) == 0:
                self._run_penalised(reference)
        report(self._prompts[-1][0].name, 1.0)

    def _read(self, asked: Asked) -> None:
        """Fill the KV with the prompt, so that plain decoding too finds it there: otherwise it
        alone would read the prompt's last token in a wide call."""
        with suppress(EngineError):  # plain decoding will say so
            self._desk.ask(PLAIN, asked.prompt, temperature=0.0, max_tokens=1, min_tokens=0)

    def _run_penalised(self, bare: _Reference) -> None:
        """One way of each kind: what matters is that rows are edited where tokens are drafted."""
        tokens = bare.plain.tokens
        bias = {tokens[-1]: BIASES[1], tokens[0]: BIASES[0]}
        options = {**bare.options, **PENALTIES, "logit_bias": bias}
        name = f"{bare.name} with penalties"
        reference = self._reference(name, bare.asked, bare.ids, options)
        if reference is not None:
            longest = {(way.mode, way.proposers): way for way in self._ways if way.k <= MIXED_K}
            for way in longest.values():
                self._compare(self.runs.penalised, way, reference)

    def _reference(
        self, name: str, asked: Asked, ids: Ids, options: Mapping[str, Any]
    ) -> _Reference | None:
        """Plain decoding; None, and a trouble, when even that fails."""
        self.runs.plain.runs += 1
        began = perf_counter()
        try:
            plain = self._desk.ask(PLAIN, asked.prompt, **options)
        except (OptionError, PromptError):
            raise
        except SpecedgeError as error:
            self.runs.plain.troubles.append(f"{name}: plain decoding failed: {error}")
            return None
        finally:
            self.runs.plain.seconds += perf_counter() - began
        self.runs.plain.equal += 1
        self.runs.plain.tokens += len(plain.tokens)
        return _Reference(name, asked, ids, options, plain)

    def _compare(self, score: Score, way: Way, reference: _Reference) -> None:
        """One run, and what it adds to a score."""
        began = perf_counter()
        score.runs += 1
        failures = self._desk.speculator(way).state().failures
        try:
            result = self._desk.ask(way, reference.asked.prompt, **reference.options)
        except SpecedgeError as error:
            score.troubles.append(f"{reference.name}, {way.name}: {error}")
        else:
            score.tokens += len(reference.plain.tokens)
            score.proposed += result.metrics.proposed
            score.accepted += result.metrics.accepted
            score.rounds += result.metrics.rounds
            score.committed += max(0, len(result.tokens) - 1)  # the first is the prefill's
            if result.speculation.failures > failures:  # the rest was plain: no evidence
                why = result.speculation.reason
                score.troubles.append(f"{reference.name}, {way.name}: {why}")
            self._judge(score, way, reference, result)
        score.seconds += perf_counter() - began

    def _judge(self, score: Score, way: Way, reference: _Reference, result: Result) -> None:
        plain = reference.plain
        place = first_difference(plain.tokens, result.tokens)
        if place is not None:
            outside = sum(each.parting is not None for each in score.outside)
            measures = outside < MEASURED_OUTSIDE
            score.differences.append(self._difference(way, reference, result, place, measures))
        elif (plain.text, plain.finish_reason) != (result.text, result.finish_reason):
            score.troubles.append(
                f"{reference.name}, {way.name}: the same tokens, but it ended by "
                f"{result.finish_reason!r} after {len(result.text)} characters, expected "
                f"{plain.finish_reason!r} after {len(plain.text)}"
            )
        else:
            score.equal += 1

    def _difference(
        self, way: Way, reference: _Reference, result: Result, place: int, measures: bool
    ) -> Difference:
        """Ways that part at the same place for the same token are measured once."""
        ours, theirs = (
            tokens[place] if place < len(tokens) else None
            for tokens in (reference.plain.tokens, result.tokens)
        )
        key = (reference.name, place, ours, theirs)
        parting, why = self._measured.get(key), ""
        if parting is None and not measures:
            why = f"{MEASURED_OUTSIDE} before it lie outside the noise"
        elif parting is None:
            try:
                parting = self._measured[key] = self._measure(reference, result)
            except SpecedgeError as error:
                why = str(error)
        tokenizer = self._desk.model.tokenizer
        plain, other = Token.of(tokenizer, ours), Token.of(tokenizer, theirs)
        return Difference(reference.name, way.name, place, plain, other, parting, why)

    def _measure(self, reference: _Reference, result: Result) -> Parting:
        manifest = self._desk.bundle.manifest
        options = GenerationOptions.parse(reference.options, manifest.generation)
        parting = find(
            self._desk.model.target,
            reference.ids,
            reference.plain.tokens,
            result.tokens,
            params=options.sampling,
            noise=self.runs.noise,
        )
        assert parting is not None, "measured where nothing differs"
        self.runs.noise = max(self.runs.noise, parting.noise)
        return parting

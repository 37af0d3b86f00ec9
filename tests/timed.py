"""Decoding in known time: engines whose calls move a clock that nothing else moves.

`Desk` is a model of one target, with proposers, a chooser and a speculator as loading makes them;
`plain` is what it must say. Times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import oracle
from specedge import loop, metrics
from specedge.adaptive import Adaptive
from specedge.controller import Chooser
from specedge.engines.fake import FakeEngine, Rule, Scores, fake_spec, hashed
from specedge.loop import Round, decode
from specedge.metrics import Metrics, MetricsSummary
from specedge.policy import Candidate
from specedge.probe.curves import CostCurves, Curve, Point
from specedge.proposers import DraftModelProposer, NgramProposer, Proposer
from specedge.sampling.params import SamplingParams
from specedge.sampling.sampler import make_sampler
from specedge.sequence import Sequence as Text
from specedge.speculator import Mode, SpeculationState, Speculator
from specedge.startup import Startup

Cost = Callable[[int, int], float]
"""(N, P) → milliseconds of a call of N tokens after P rows; may go backwards."""


class Clock:
    """In place of `perf_counter_ns`."""

    def __init__(self) -> None:
        self.ns = 10**12

    def __call__(self) -> int:
        return self.ns

    def spend(self, ms: float) -> None:
        self.ns += round(ms * 1e6)


def install(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Make rounds and metrics read a new clock."""
    clock = Clock()
    monkeypatch.setattr(loop, "perf_counter_ns", clock)
    monkeypatch.setattr(metrics, "perf_counter_ns", clock)
    return clock


class TimedEngine(FakeEngine):
    """Each call takes cost(N, P), a failing one too."""

    def __init__(self, clock: Clock, cost: Cost, *args: Any, step: int = 1, **given: Any) -> None:
        super().__init__(*args, **given)
        self.width_step = step
        self._clock, self._cost = clock, cost

    def forward(self, slot, tokens, n_cached, rows):
        ms = self._cost(len(tokens), n_cached)
        self._clock.spend(ms)
        scored = super().forward(slot, tokens, n_cached, rows)
        scored.run_ms = max(0.0, ms)
        return scored


def steps(costs: dict[int, float], more: float = 1.0) -> Cost:
    """By width: that of the next wider one named, beyond the widest `more` a token."""
    widths = sorted(costs)

    def cost(width: int, past: int) -> float:
        over = max(0, width - widths[-1])
        return next((costs[w] for w in widths if w >= width), costs[widths[-1]]) + over * more

    return cost


# a call of 16 costs 1.9 plain steps: drafting pays where anything is accepted
CHEAP = {1: 20.0, 2: 21.0, 3: 22.0, 5: 25.0, 9: 30.0, 16: 38.0}
# each further token costs most of a step: drafting hardly ever pays
DEAR = {1: 20.0, 2: 36.0, 3: 52.0, 5: 84.0, 9: 148.0, 16: 260.0}
DRAFT = {1: 2.0, 2: 2.5, 64: 20.0}


def curve(role: str, table: dict[int, float], step: int = 1) -> Curve:
    points = [
        Point(width=n, past=0, count=9, ms=ms, low_ms=ms, high_ms=ms) for n, ms in table.items()
    ]
    return Curve(role=role, width_step=step, points=tuple(points))  # type: ignore[arg-type]


def known(table: dict[int, float], draft: dict[int, float] | None = None) -> CostCurves:
    """What a probe would have found: the truth."""
    return CostCurves(
        plan="full",
        target=curve("target", table),
        draft=None if draft is None else curve("draft", draft),
        passes=9,
        seconds=1.0,
        converged=True,
    )


@dataclass
class Ran:
    tokens: list[int]
    rounds: list[Round]
    metrics: MetricsSummary
    state: SpeculationState
    reason: str | None

    @property
    def ms(self) -> float:
        """From the first token to the last."""
        return sum(done.ms for done in self.rounds)

    @property
    def kinds(self) -> list[str]:
        """Of each round's choice."""
        return ["" if done.choice is None else done.choice.why for done in self.rounds]


@dataclass
class Desk:
    """Mode "auto" with a start that measures, unless `costs` or `controller` is given."""

    clock: Clock
    rule: Rule = field(default_factory=lambda: hashed(31, last=1))
    cost: Cost = field(default_factory=lambda: steps(CHEAP))
    draft_rule: Rule | None = None
    draft_cost: Cost = field(default_factory=lambda: steps(DRAFT))
    vocab: int = 32
    context: int = 512
    draft_context: int | None = None
    max_verify: int = 16
    longest: int = 15
    step: int = 1
    proposers: Sequence[str] = ("ngram", "draft")
    costs: CostCurves | None = None
    mode: Mode = "auto"
    controller: Chooser | None = None
    scores: Scores | None = None
    draft_scores: Scores | None = None
    faults: dict[int, Any] | None = None
    margin: float = 1.03

    def __post_init__(self) -> None:
        sizes: dict[str, Any] = {"vocab": self.vocab, "max_verify": self.max_verify}
        self.measured: list[CostCurves] = []
        self.target = TimedEngine(
            *(self.clock, self.cost, fake_spec(context=self.context, **sizes), self.rule),
            step=self.step,
            scores=self.scores,
        )
        self.draft: TimedEngine | None = None
        chosen: list[Proposer] = []
        for name in self.proposers:
            if name == "ngram":
                chosen.append(NgramProposer())
            elif self.draft_rule is not None or self.draft_scores is not None:
                rows = self.draft_context or self.context
                self.draft = TimedEngine(
                    *(self.clock, self.draft_cost),
                    *(fake_spec(context=rows, role="draft", **sizes), self.draft_rule),
                    scores=self.draft_scores,
                    faults=self.faults,
                )
                chosen.append(DraftModelProposer(self.draft))
        if self.controller is None:
            self.controller = self.adaptive = self._adaptive([p.name for p in chosen])
        self.chosen = chosen
        self.speculator = Speculator(chosen, self.controller, mode=self.mode)
        self.slot = self.target.new_slot()

    def _adaptive(self, names: list[str]) -> Adaptive:
        startup = None
        if self.costs is None:
            startup = Startup(self.target, self.context, self.longest, self.draft)
        return Adaptive(
            [Candidate(name, "draft" if name == "draft" else "lookup") for name in names],
            self.longest,
            margin=self.margin,
            costs=self.costs,
            startup=startup,
            on_measured=self.measured.append,
        )

    def run(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        eos: frozenset[int] = frozenset(),
        sampling: SamplingParams | None = None,
        stop_after: int | None = None,
        speculator: Speculator | None = None,
    ) -> Ran:
        """One request; `stop_after` rounds it is given up."""
        seq = Text(prompt, context=self.context, max_tokens=max_tokens, eos_ids=eos)
        sampling = sampling or SamplingParams()
        sampler = make_sampler(
            sampling, seq, vocab=self.vocab, end_ids=eos, seed=sampling.seed or 0
        )
        speculator = speculator or self.speculator
        counts = Metrics()
        rounds: list[Round] = []
        for done in decode(seq, self.target, self.slot, speculator, counts, sampler=sampler):
            rounds.append(done)
            if len(rounds) - 1 == stop_after:
                break
        tokens = seq.generated.tolist()
        state = speculator.state()
        return Ran(tokens, rounds[1:], counts.summary(), state, seq.finish_reason)

    def plain(self, prompt: Sequence[int], max_tokens: int, **given: Any) -> Ran:
        """The same request without speculation."""
        return self.run(prompt, max_tokens, speculator=Speculator([], NOBODY, mode="off"), **given)

    def oracle(
        self, prompt: Sequence[int], max_tokens: int, eos: frozenset[int] = frozenset()
    ) -> list[int]:
        """Greedy, one token at a time from the whole text."""
        import numpy as np

        return oracle.plain(
            lambda tokens: self.rule(np.array(tokens)), prompt, self.context, max_tokens, eos
        )[0]


class _Nobody:
    """Never asked: its speculator is off."""

    longest = 0
    asking = None


NOBODY: Any = _Nobody()

"""A simulated world for policies: costs and survival in, rounds out, thousands in milliseconds.

The world knows what the policy has to guess: true costs of every call, and how likely each drafted
token is to stand at each moment of a text. Requests follow one another; the draft's cache holds
what it was fed, and starts empty with each request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from math import exp
from random import Random

from specedge.policy import Candidate, Choice, Policy, Prior
from specedge.probe.curves import CostCurves, Curve, Point

PASTS = (0, 1024, 4096)
TARGET_WIDTHS = (1, 2, 3, 5, 9, 16)
DRAFT_WIDTHS = (1, 2, 8, 64)


def curve(role: str, widths: Sequence[int], cost: Callable[[int, int], float]) -> Curve:
    points = tuple(
        Point(width=n, past=p, count=9, ms=cost(n, p), low_ms=cost(n, p), high_ms=cost(n, p))
        for n in widths
        for p in PASTS
    )
    return Curve(role=role, width_step=1, points=points)  # type: ignore[arg-type]


def curves(slope: float = 0.25, draft: float | None = 0.3, step_ms: float = 20.0) -> CostCurves:
    """T(N) = 1 + slope (N - 1) plain steps, a draft token `draft` of one; both grow with P."""

    def target(n: int, past: int) -> float:
        return step_ms * (1 + slope * (n - 1)) * (1 + past / 16384)

    def drafting(n: int, past: int) -> float:
        assert draft is not None
        return step_ms * draft * (1 + 0.2 * (n - 1)) * (1 + past / 16384)

    return CostCurves(
        plan="full",
        target=curve("target", TARGET_WIDTHS, target),
        draft=None if draft is None else curve("draft", DRAFT_WIDTHS, drafting),
        passes=9,
        seconds=1.0,
        converged=True,
    )


Stands = Callable[[int, int], float]  # (token of the world, place in the draft) → probability


def steady(p: float) -> Stands:
    return lambda now, place: p


def phases(*parts: tuple[int, float]) -> Stands:
    """(tokens, probability) after one another; the last goes on."""

    def stands(now: int, place: int) -> float:
        for tokens, p in parts:
            if now < tokens:
                return p
            now -= tokens
        return parts[-1][1]

    return stands


@dataclass
class World:
    """What really happens.

    Args:
        costs: what the policy is told.
        lookup: how lookups stand; None: there are none.
        draft: how the draft model's tokens stand; None: there is none.
        matches: how often a lookup has a match.
        long: how many of those are long ones.
        spell: tokens of text over which there either is a match everywhere or nowhere.
        tokens: of output in all.
        prompt, output: tokens of each request.
        noise: standard deviation of log milliseconds of each call.
        slowdown: (token) → factor on every cost.
        truth: (N) → factor on the target's curve: what the measurement got wrong.
        room: (token) → largest K that a grammar or a graph allows.
        shadow: lookups that were not used are heard of.
    """

    costs: CostCurves
    lookup: Stands | None = None
    draft: Stands | None = None
    matches: float = 1.0
    long: float = 1.0
    spell: int = 1
    tokens: int = 4000
    prompt: int = 100
    output: int = 500
    noise: float = 0.0
    slowdown: Callable[[int], float] = lambda now: 1.0
    truth: Callable[[int], float] = lambda n: 1.0
    room: Callable[[int], int] = lambda now: 99
    shadow: bool = True
    max_draft: int = 15
    seed: int = 0

    def __post_init__(self) -> None:
        self.target_ms = cache(self.costs.target.cost_ms)
        if self.costs.draft is not None:
            self.draft_ms = cache(self.costs.draft.cost_ms)
            self.feed_ms = cache(self.costs.draft.feed_ms)

    def candidates(self, lookup: Prior | None = None, draft: Prior | None = None):
        found = []
        if self.lookup is not None:
            found.append(Candidate("ngram", "lookup", lookup or Prior()))
        if self.draft is not None:
            found.append(Candidate("draft", "draft", draft or Prior()))
        return found

    def policy(self, lookup: Prior | None = None, draft: Prior | None = None, **given) -> Policy:
        return Policy(self.costs, self.candidates(lookup, draft), self.max_draft, **given)


@dataclass
class Round:
    now: int  # tokens before it
    limit: int
    choice: Choice
    committed: int
    ms: float
    plain_ms: float  # what the tokens would have taken plainly
    feed_ms: float  # of ms: backlog


@dataclass
class Trace:
    rounds: list[Round] = field(default_factory=list)
    ms: float = 0.0
    plain_ms: float = 0.0

    @property
    def speed(self) -> float:
        """Over plain."""
        return self.plain_ms / self.ms


@lru_cache(1 << 16)
def dice(seed: int, now: int) -> tuple[float, ...]:
    """Rolls for one place of the text: is there a match, a long one, which of 16 tokens stand."""
    random = Random(seed * 1_000_003 + now)
    return tuple(random.random() for _ in range(18))


class Fixed:
    """Always the same proposer and K, as far as there is room and a match."""

    def __init__(self, proposer: str | None, k: int) -> None:
        self.proposer, self.k = proposer, k

    def choose(self, past, room, matches, backlog_tokens, budget_left) -> Choice:
        k = max(0, min(self.k, room, budget_left - 1))
        if self.proposer is None or (self.proposer == "ngram" and matches["ngram"] is None):
            k = 0
        name = self.proposer if k else None
        return Choice(name, k, "pays" if k else "no draft", 0.0, past)

    def observe(self, *args: object) -> None: ...

    def hear(self, *args: object) -> None: ...


@dataclass
class Shadow:
    """A draft that was not used: one at a time, till it breaks or all of it stood."""

    began: int
    match: int
    drafted: int
    stood: int = 0

    @property
    def ends(self) -> int:
        return self.began + min(self.stood + 1, self.drafted)


def simulate(world: World, policy: Policy | Fixed) -> Trace:
    """Run a world of `world.tokens` tokens; chance depends on the seed, not on the policy's past.

    Which tokens would stand is drawn for each place of the text, so that policies are compared on
    the same text.
    """
    trace, noise = Trace(), Random(world.seed + 1)
    target_ms = world.target_ms
    now, context = 0, world.prompt + world.output
    while now < world.tokens:
        n, fed, left = world.prompt + 1, 0, min(world.output, world.tokens - now)
        shadow: Shadow | None = None
        while left > 0:
            matched, is_long, *rolls = dice(world.seed, now)
            if world.spell > 1:
                matched, *_ = dice(world.seed, -1 - now // world.spell)
            has_match = matched < world.matches and world.lookup is not None
            match = (6 if is_long < world.long else 2) if has_match else None
            past, room = n - 1, max(0, min(context - n, world.room(now)))
            backlog = n - fed if world.draft is not None else None
            choice = policy.choose(past, room, {"ngram": match}, backlog, left)
            k = choice.k
            slow = world.slowdown(now)
            spent_ms = slow * world.truth(k + 1) * target_ms(k + 1, past)
            draft_ms = feed_ms = 0.0
            stands = world.lookup
            if choice.proposer == "draft":
                assert world.draft is not None
                stands = world.draft
                feed_ms = world.feed_ms(n - fed, fed) - world.feed_ms(min(2, n - fed), past)
                draft_ms = world.feed_ms(n - fed, fed) + (k - 1) * world.draft_ms(1, past)
                draft_ms *= slow
            if world.noise:
                # Of mean 1, as plain is counted without noise.
                spent_ms *= exp(noise.gauss(-(world.noise**2) / 2, world.noise))
                draft_ms *= exp(noise.gauss(-(world.noise**2) / 2, world.noise))
            accepted = stood(stands, now, k, rolls)
            committed = min(accepted + 1, left)
            accepted = min(accepted, committed)
            if choice.proposer == "draft":
                fed = n + min(accepted, k - 1)
            plain_ms = sum(
                world.slowdown(now + i) * world.truth(1) * target_ms(1, past + i)
                for i in range(committed)
            )
            limit = min(world.max_draft, room, left - 1)
            ms = spent_ms + draft_ms
            trace.rounds.append(Round(now, limit, choice, committed, ms, plain_ms, feed_ms * slow))
            trace.ms += ms
            trace.plain_ms += plain_ms
            policy.observe(choice, accepted, committed, ms, draft_ms)
            if choice.proposer == "ngram":
                shadow = None
            elif shadow is None and match is not None:
                shadow = Shadow(now, match, world.max_draft)
                shadow.stood = stood(world.lookup, now, world.max_draft, rolls)
            n, now, left = n + committed, now + committed, left - committed
            if shadow is not None and now >= shadow.ends:
                if world.shadow:
                    policy.hear("ngram", shadow.match, shadow.drafted, shadow.stood)
                shadow = None
    return trace


def stood(stands: Stands | None, now: int, k: int, rolls: Sequence[float]) -> int:
    accepted = 0
    while accepted < k and stands is not None and rolls[accepted] < stands(now, accepted):
        accepted += 1
    return accepted


def best_fixed(world: World) -> tuple[str | None, int, Trace]:
    """The best proposer and K in hindsight, plain included.

    Only the K at the top of a step of the curve: a smaller one costs as much.
    """
    choices: list[tuple[str | None, int]] = [(None, 0)]
    names = [c.name for c in world.candidates()]
    steps = [n - 1 for n in world.costs.target.widths if 1 < n <= world.max_draft + 1]
    choices += [(name, k) for name in names for k in steps]
    runs = [(name, k, simulate(world, Fixed(name, k))) for name, k in choices]
    return max(runs, key=lambda run: run[2].speed)

"""What speculation would have done with a text that was decoded plainly.

Greedy text does not depend on who drafts, nor how much. So one plain decode tells, for every
proposer and every K, which drafts would have stood; the cost curves say what each round takes.

    t        output tokens committed before a round, 1 or more: the first is the prefill's
    Offers   at each t the widest draft, and how much of it the text confirms
    Replay   the rounds of one text at one K
    Replayed all texts of a workload at one K, in milliseconds

A draft of K tokens is the beginning of the widest one: lookups and greedy draft models both go on
token by token. So Offers are found once and every K is cut from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, cast

import numpy as np

from specedge.contract import Ids
from specedge.errors import ShapeError
from specedge.probe.curves import CostCurves
from specedge.proposers.base import Draft
from specedge.sequence import Sequence as TokenSequence
from specedge.sequence import common_prefix

MAX_DRAFT = 15


class Lookup(Protocol):
    """A proposer that reads nothing of a sequence but its `tokens`, and keeps no state."""

    def propose(self, seq: TokenSequence, limit: int) -> Draft: ...


@dataclass(slots=True)
class _Growing:
    """As much of a `Sequence` as a lookup reads."""

    tokens: Ids


@dataclass(frozen=True, slots=True)
class Offers:
    """The widest draft at each place of one text.

    Args:
        n_prompt: tokens of the prompt.
        drafted: by t, tokens on offer; entry 0 is unused, as the prefill gives the first token.
        stood: by t, how many of them, from the first on, are what the text goes on with.
    """

    n_prompt: int
    drafted: tuple[int, ...]
    stood: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.n_prompt < 1 or not self.drafted or len(self.drafted) != len(self.stood):
            raise ShapeError(
                "offers: expected a prompt and as many drafted as stood, one per output token, "
                f"found {self.n_prompt}, {len(self.drafted)} and {len(self.stood)}"
            )

    @property
    def n_output(self) -> int:
        return len(self.drafted)


def lookup_offers(
    prompt_ids: Sequence[int] | Ids,
    output_ids: Sequence[int] | Ids,
    lookup: Lookup,
    longest: int = MAX_DRAFT,
) -> Offers:
    """Ask a lookup at every place of a text.

    Args:
        prompt_ids: int64 [P], P >= 1.
        output_ids: int64 [n], n >= 1, as plain decoding gave them, the first token included.
        lookup: the real proposer; its draft for a smaller K must begin the one for a larger K.
        longest: widest draft to ask for, 1 or more.
    """
    n_prompt, n_output = len(prompt_ids), len(output_ids)
    text: Ids = np.concatenate(
        [np.asarray(prompt_ids, dtype=np.int64), np.asarray(output_ids, dtype=np.int64)]
    )
    drafted, stood = [0] * n_output, [0] * n_output
    seq = _Growing(text)
    for t in range(1, n_output - 1):  # before the last token there is no room for a draft
        seq.tokens = text[: n_prompt + t]
        draft = lookup.propose(cast(TokenSequence, seq), longest).tokens
        drafted[t] = len(draft)
        stood[t] = common_prefix(draft, text[n_prompt + t :])
    return Offers(n_prompt, tuple(drafted), tuple(stood))


def draft_offers(n_prompt: int, agrees: Sequence[bool], longest: int = MAX_DRAFT) -> Offers:
    """What a greedy draft model would have offered.

    Args:
        n_prompt: tokens of the prompt.
        agrees: [n], one per output token: the draft's argmax after everything before that token
            is that token.
        longest: widest draft, 1 or more.
    """
    stood, run = [0] * len(agrees), 0
    for t in reversed(range(len(agrees))):
        run = min(run + 1, longest) if agrees[t] else 0
        stood[t] = run
    return Offers(n_prompt, (longest,) * len(agrees), tuple(stood))


@dataclass(frozen=True, slots=True)
class Replay:
    """One text at one K.

    Args:
        k: K; a round drafts less where less is on offer, or left of the output.
        offers: of the text.
        rounds: (t, drafted, accepted) of each, in order; accepted + 1 tokens are committed.
    """

    k: int
    offers: Offers
    rounds: tuple[tuple[int, int, int], ...]

    @property
    def counts(self) -> Counter[tuple[int, int]]:
        """Rounds by (drafted, accepted)."""
        return Counter((drafted, accepted) for _, drafted, accepted in self.rounds)

    @property
    def tokens(self) -> int:
        """Committed by the rounds: all of the output but its first."""
        return sum(accepted + 1 for _, _, accepted in self.rounds)


def replay(offers: Offers, k: int) -> Replay:
    """The rounds from the first output token to the last.

    Raises:
        ShapeError: K is below 1.
    """
    if k < 1:
        raise ShapeError(f"k: expected 1 or more, found {k}")
    rounds = []
    t, n_output = 1, offers.n_output
    while t < n_output:
        drafted = min(k, offers.drafted[t], n_output - t - 1)
        accepted = min(drafted, offers.stood[t])
        rounds.append((t, drafted, accepted))
        t += accepted + 1
    return Replay(k, offers, tuple(rounds))


def places(replays: Iterable[Replay], longest: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """By place in the draft: how many drafts came to it, and how many stood there.

    A draft comes to place i when it is longer than i and the places before it stood.
    """
    reached, stood = [0] * longest, [0] * longest
    for each in replays:
        for (drafted, accepted), count in each.counts.items():
            for i in range(min(accepted + 1, drafted)):
                reached[i] += count
                stood[i] += count * (i < accepted)
    return tuple(reached), tuple(stood)


class Prices:
    """Milliseconds of the calls of a text, by the curves; each is looked up once.

    A text of p prompt tokens and t committed output tokens has p + t - 1 rows cached: the last
    token's row is written by the call that scores the next one.
    """

    def __init__(self, curves: CostCurves) -> None:
        self.curves = curves
        self._target: dict[tuple[int, int], float] = {}
        self._singles: dict[tuple[int, int], list[float]] = {}

    def call_ms(self, width: int, past: int) -> float:
        """The target's call of `width` tokens after `past` rows."""
        ms = self._target.get((width, past))
        if ms is None:
            ms = self._target[width, past] = self.curves.target.cost_ms(width, past)
        return ms

    def plain_ms(self, offers: Offers) -> float:
        """All tokens but the first, one a call."""
        first = offers.n_prompt
        return sum(self.call_ms(1, past) for past in range(first, first + offers.n_output - 1))

    def rounds_ms(self, each: Replay, *, drafts: bool) -> float:
        """The rounds of a replay.

        The draft model has read the prompt and is fed what was committed since: one token, or two
        after a round that stood as a whole, as a draft's last token is not fed while drafting.

        Args:
            drafts: by the draft model; False: by a lookup, taken as free.

        Raises:
            ShapeError: a round is wider than the curves, or there is no draft among them.
        """
        first = each.offers.n_prompt - 1
        target_ms = sum(self.call_ms(drafted + 1, first + t) for t, drafted, _ in each.rounds)
        if not drafts:
            return target_ms
        draft = self.curves.draft
        if draft is None:
            raise ShapeError("drafts: there is no draft among these curves")
        steps = self._steps_ms(each.offers)
        draft_ms, fed = 0.0, 1
        for t, drafted, accepted in each.rounds:
            if drafted == 0:
                fed += 1
                continue
            draft_ms += draft.feed_ms(fed, each.offers.n_prompt + t - fed)
            draft_ms += steps[t + drafted - 1] - steps[t]
            fed = 2 if accepted == drafted else 1
        return target_ms + draft_ms

    def _steps_ms(self, offers: Offers) -> list[float]:
        """By t, what the draft's single steps after p, p + 1 .. p + t - 1 rows take together."""
        key = offers.n_prompt, offers.n_output
        if key not in self._singles:
            draft = self.curves.draft
            assert draft is not None, "asked for by rounds_ms only"
            pasts = range(offers.n_prompt, offers.n_prompt + offers.n_output)
            singles = (draft.cost_ms(1, past) for past in pasts)
            self._singles[key] = list(accumulate(singles, initial=0.0))
        return self._singles[key]


@dataclass(frozen=True, slots=True)
class Replayed:
    """All texts of a workload at one K.

    Args:
        k: K.
        plain_ms, spec_ms: predicted, one entry a text, texts of a single token left out.
        rounds: how many, those without a draft included.
        drafted, accepted: tokens.
        committed: tokens of all rounds.
    """

    k: int
    plain_ms: tuple[float, ...]
    spec_ms: tuple[float, ...]
    rounds: int
    drafted: int
    accepted: int
    committed: int

    @property
    def acceptance_rate(self) -> float:
        """Share of drafted tokens that stood."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens committed per round."""
        return self.committed / self.rounds if self.rounds else 1.0


@dataclass(frozen=True, slots=True)
class Calibration:
    """One proposer replayed on the texts of one workload.

    Args:
        workload, proposer: their names.
        drafts: the proposer is the draft model; False: a lookup, taken as free.
        tokens: of output, that drafts were held against.
        past: rows cached half way through the middle text, to quote a cost at.
        reached, stood: by place in the draft, at the largest K.
        by_k: rising; empty where nothing was ever drafted.
    """

    workload: str
    proposer: str
    drafts: bool
    tokens: int
    past: int
    reached: tuple[int, ...]
    stood: tuple[int, ...]
    by_k: tuple[Replayed, ...]


def calibrate(
    workload: str,
    proposer: str,
    texts: Sequence[Offers],
    curves: CostCurves,
    *,
    drafts: bool,
    max_draft: int = MAX_DRAFT,
    prices: Prices | None = None,
) -> Calibration:
    """Replay texts at every K from 1 to what the curves know, `max_draft` at most.

    Args:
        workload, proposer: names.
        texts: one entry a prompt.
        curves: what calls cost.
        drafts: the proposer is the draft model, whose calls cost; False: a lookup.
        max_draft: largest K, 1 or more.
        prices: of `curves`, to look nothing up twice over several calls.
    """
    prices = Prices(curves) if prices is None else prices
    longest = min(max_draft, curves.target.widths[-1] - 1)
    long = [text for text in texts if text.n_output > 1]
    plain_ms = tuple(map(prices.plain_ms, long))
    by_k = []
    widest: list[Replay] = []
    for k in range(1, longest + 1):
        widest = [replay(text, k) for text in long]
        spec_ms = tuple(prices.rounds_ms(each, drafts=drafts) for each in widest)
        by_k.append(
            Replayed(
                k=k,
                plain_ms=plain_ms,
                spec_ms=spec_ms,
                rounds=sum(len(each.rounds) for each in widest),
                drafted=sum(drafted for each in widest for _, drafted, _ in each.rounds),
                accepted=sum(accepted for each in widest for _, _, accepted in each.rounds),
                committed=sum(each.tokens for each in widest),
            )
        )
    reached, stood = places(widest, longest)
    middles = sorted(text.n_prompt + text.n_output // 2 for text in texts)
    return Calibration(
        workload=workload,
        proposer=proposer,
        drafts=drafts,
        tokens=sum(text.n_output - 1 for text in long),
        past=middles[len(middles) // 2] if middles else 0,
        reached=reached,
        stood=stood,
        by_k=tuple(by_k) if any(reached) else (),
    )

"""The speculative loop over hundreds of thousands of samples at once.

Samples with the same committed tokens form a group; a round is worked out for all of a group
together: one array of draws per place, one law per drafted prefix, one set of thresholds per
draft. Laws, thresholds, next-token laws and `RoundDraws` are the real ones, and draws are those of
`Randomness`, bit for bit. What is written again here, in numpy over samples, is Philox, the lookup
in a cumulative distribution, the race, and the order of events in a round; `test_distribution_loop`
compares it with the real loop, sample by sample.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from specedge.acceptance import BLOCK, REJECTION, RoundDraws
from specedge.acceptance.coupling import FIRST_DRAW
from specedge.randomness import Stream
from specedge.sampling.law import BLOCK as GROUP
from specedge.sampling.law import Floats, Law
from tests.distribution_cases import COUNTED, PROMPT, START, VOCAB, Case, Tokens, code

Words = npt.NDArray[np.uint64]
Members = npt.NDArray[np.int64]
"""int64 [m]: places in an array over all samples, or over a group."""

CHUNK = 4096  # samples whose words stay in a core's cache
LOW = np.uint64(2**32 - 1)
HALF = np.uint64(32)
MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
BUMPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)


def _product(constant: int, words: Words) -> tuple[Words, Words]:
    """Upper and lower half of the 128-bit products."""
    c_high, c_low = np.uint64(constant >> 32), np.uint64(constant & 0xFFFFFFFF)
    w_high, w_low = words >> HALF, words & LOW
    middle = c_high * w_low + (c_low * w_low >> HALF)
    other = c_low * w_high + (middle & LOW)
    upper = c_high * w_high + (middle >> HALF) + (other >> HALF)
    return upper, words * np.uint64(constant)


def philox(seed: int, samples: Words, stream: int, position: int, block: int) -> Words:
    """Philox4x64-10 (Salmon et al., 2011) under the keys (seed, sample): uint64 [4, n]."""
    n = len(samples)
    # numpy counts up before it encrypts
    counter = [np.full(n, value, np.uint64) for value in (block + 1, position, stream, 0)]
    keys = [np.full(n, seed, np.uint64), samples]
    for number in range(10):
        if number:
            keys = [key + np.uint64(bump) for key, bump in zip(keys, BUMPS, strict=True)]
        high0, low0 = _product(MULTIPLIERS[0], counter[0])
        high1, low1 = _product(MULTIPLIERS[1], counter[2])
        counter = [high1 ^ counter[1] ^ keys[0], low1, high0 ^ counter[3] ^ keys[1], low0]
    return np.stack(counter)


class SampleDraws:
    """`Randomness` of many samples: where that gives a float, this gives float64 [n]."""

    def __init__(self, seed: int, samples: Words) -> None:
        """`samples`: uint64 [n]."""
        self.seed = seed
        self.samples = samples
        self._blocks: dict[tuple[int, int, int], Floats] = {}

    def uniform(self, stream: Stream, position: int, index: int = 0) -> Floats:
        key = (stream, position, index // 4)
        if key not in self._blocks:
            self._blocks[key] = self._block(*key)
        return self._blocks[key][index % 4]

    def _block(self, stream: int, position: int, block: int) -> Floats:
        out = np.empty((4, len(self.samples)))
        for start in range(0, len(self.samples), CHUNK):
            chunk = self.samples[start : start + CHUNK]
            words = philox(self.seed, chunk, stream, position, block)
            out[:, start : start + CHUNK] = ((words >> np.uint64(12)) + 0.5) * 2.0**-52
        return out


def sample(law: Law, uniforms: Floats) -> Members:
    """`Law.sample` of each: int64 [n]."""
    sums = law.weights.cumsum()
    places = sums.searchsorted(uniforms * law.total, side="right")
    places = np.minimum(places, law.weights.nonzero()[0][-1])
    return places if law.ids is None else law.ids[places]


def race(law: Law, draws: SampleDraws, position: int) -> Members:
    """`specedge.acceptance.race` of each; for vocabularies of one group, none left out."""
    ids = np.arange(law.size) if law.ids is None else law.ids
    first = np.log(draws.uniform(Stream.COUPLED, position, FIRST_DRAW)) * (-1.0 / GROUP)
    winner = np.floor(draws.uniform(Stream.COUPLED, position, FIRST_DRAW + 1) * GROUP)
    scores = np.empty((len(ids), len(first)))
    for place, token in enumerate(ids.tolist()):
        arrival = first - np.log(draws.uniform(Stream.COUPLED, position, token))
        arrival = np.where(winner == token, first, arrival)
        scores[place] = float(law.logits[place]) * law.scale - np.log(arrival)
    return ids[scores.argmax(axis=0)]


def split(members: Members, tokens: Members) -> Iterator[tuple[int, Members]]:
    """Each token that occurs, with those of `members` that have it."""
    for token in range(VOCAB):
        chosen = members[tokens == token]
        if len(chosen):
            yield token, chosen


class VectorLoop:
    """Runs a case to its COUNTED tokens, for samples 0..n - 1 of one seed."""

    def __init__(self, case: Case, seed: int, n: int) -> None:
        self.case = case
        self.seed = seed
        self.outcomes: Members = np.full(n, -1)
        self._ready: dict[Tokens, list[Members]] = defaultdict(list)

    def run(self) -> Members:
        """The outcome of each sample, int64 [n], by `code`."""
        self._ready[START].append(np.arange(len(self.outcomes)))
        while self._ready:
            tokens = min(self._ready, key=len)  # rounds only lengthen: its group is complete
            self._round(tokens, np.concatenate(self._ready.pop(tokens)))
        return self.outcomes

    def _round(self, tokens: Tokens, members: Members) -> None:
        draws = SampleDraws(self.seed, members.astype(np.uint64))
        if self.case.params.rule == "coupled":
            # Whatever was drafted: what stands of it is what the target draws itself.
            law = self.case.law("target", tokens)
            for token, chosen in split(members, race(law, draws, len(tokens))):
                self._commit((*tokens, token), chosen)
            return
        places = np.arange(len(members))
        for draft, q, drafted in self._drafts(tokens, draws, places):
            for more, chosen in self._verify(tokens, draft, q, draws, drafted):
                self._commit((*tokens, *more), members[chosen])

    def _commit(self, tokens: Tokens, members: Members) -> None:
        counted = tokens[len(START) :]
        if len(counted) < COUNTED:
            self._ready[tokens].append(members)
        else:
            self.outcomes[members] = code(counted)

    def _drafts(
        self, tokens: Tokens, draws: SampleDraws, places: Members
    ) -> Iterator[tuple[Tokens, tuple[Law, ...], Members]]:
        """Each draft with its laws and the places in the group that drew it."""
        case = self.case
        k = 0 if case.drafts == "nobody" else case.draft_length(tokens)
        drafts: list[tuple[Tokens, tuple[Law, ...], Members]] = [((), (), places)]
        for place in range(k):
            longer = []
            for draft, q, those in drafts:
                text = tokens + draft
                if case.drafts == "lookup":
                    token = case.guess(text)
                    longer.append(((*draft, token), (*q, Law.certain(token)), those))
                    continue
                law = case.law("draft", text)
                uniforms = draws.uniform(Stream.DRAFT, len(tokens), place)[those]
                for token, chosen in split(those, sample(law, uniforms)):
                    longer.append(((*draft, token), (*q, law), chosen))
            drafts = longer
        yield from drafts

    def _verify(
        self,
        tokens: Tokens,
        draft: Tokens,
        q: tuple[Law, ...],
        draws: SampleDraws,
        those: Members,
    ) -> Iterator[tuple[Tokens, Members]]:
        """What a round commits, with the places in the group for which it does."""
        rule = REJECTION if self.case.params.rule == "rejection" else BLOCK
        k, ids = len(draft), np.array(draft, np.int64)
        p = tuple(self.case.law("target", tokens + draft[:i]) for i in range(k + 1))
        keyed = RoundDraws(cast(Any, draws), len(tokens))
        accepted = np.zeros(len(those), np.int64)
        for i, threshold in enumerate(rule.thresholds(ids, p, q)):
            passes = cast(Floats, keyed.accept(i))[those] < threshold
            if rule is REJECTION:
                passes &= accepted == i
            accepted[passes] = i + 1
        for n_accepted in range(k + 1):
            chosen = those[accepted == n_accepted]
            if len(chosen):
                law = rule.next_law(ids, p, q, n_accepted)
                drawn = keyed.bonus if n_accepted == k else keyed.residual
                uniforms = cast(Floats, drawn(n_accepted))[chosen]
                for token, its in split(chosen, sample(law, uniforms)):
                    yield (*draft[:n_accepted], token), its


def counts(case: Case, seed: int, n: int) -> Members:
    """How often each outcome occurs in samples 0..n - 1: int64 [V^COUNTED]."""
    return np.bincount(VectorLoop(case, seed, n).run(), minlength=VOCAB**COUNTED)


assert len(START) == len(PROMPT) + 1, "one certain token, then speculation"

"""What `acceptance.py` compares: ours and plain numpy here; a graph and a kernel beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import acceptance_plain as plain
import numpy as np

from specedge.acceptance import REJECTION, RoundDraws, Verdict
from specedge.engines.base import Scored
from specedge.proposers.base import Draft
from specedge.randomness import Randomness, Stream
from specedge.sampling.law import Law
from specedge.sampling.params import RuleName, SamplingParams
from specedge.sampling.sampler import make_sampler
from specedge.sequence import Sequence

ROOM = 1 << 16  # tokens of a sequence that the rounds go on in


@dataclass(frozen=True)
class Setting:
    """What a request asks for. `cut` is the name of its top-k and top-p."""

    rule: RuleName
    cut: str
    k: int
    vocab: int
    seed: int
    temperature: float

    @property
    def top_k(self) -> int:
        return 50 if self.cut in ("top-k", "both") else 0

    @property
    def top_p(self) -> float:
        return 0.95 if self.cut in ("top-p", "both") else 1.0

    def params(self) -> SamplingParams:
        greedy = self.rule == "greedy"
        return SamplingParams(
            temperature=0.0 if greedy else self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            acceptance=self.rule,
            seed=self.seed,
        )


class Means:
    """Drafts and accepts round after round; `choose` and `accept` are what is timed."""

    name = ""
    drafts = True  # has a draft's side of its own

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.seq = Sequence(np.arange(64), context=ROOM, max_tokens=ROOM)
        self.randomness = Randomness(setting.seed)
        self.tokens = np.zeros(setting.k, np.int64)

    @property
    def draws(self) -> RoundDraws:
        return RoundDraws(self.randomness, self.seq.n_tokens)

    def choose(self, scored: Scored, place: int) -> int:
        raise NotImplementedError

    def ready(self) -> None:
        """Between the last `choose` and `accept`; not timed."""

    def accept(self, scored: Scored) -> Verdict:
        raise NotImplementedError

    def commit(self, verdict: Verdict) -> None:
        """End the round."""
        self.seq.commit(self.tokens, verdict)
        if self.seq.n_tokens > ROOM - 2 * len(self.tokens):
            self.seq = Sequence(np.arange(64), context=ROOM, max_tokens=ROOM)


class Ours(Means):
    name = "specedge"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._laws: list[Law | None] = []
        self._restart()

    def _restart(self) -> None:
        s = self.setting
        self._sampler = make_sampler(s.params(), self.seq, vocab=s.vocab, end_ids=(), seed=s.seed)
        self._seq = self.seq

    def choose_with_law(self, scored: Scored, place: int) -> tuple[int, Law | None]:
        return self._sampler.choose(scored, self.tokens[:place])

    def choose(self, scored: Scored, place: int) -> int:
        token, law = self.choose_with_law(scored, place)
        self._laws.append(law)
        return token

    def ready(self) -> None:
        q = tuple(law for law in self._laws if law is not None)
        self._laws.clear()
        self._draft = Draft(self.tokens, "draft", 0.0, q or None)

    def accept(self, scored: Scored) -> Verdict:
        return self._sampler.accept(self._draft, scored)

    def commit(self, verdict: Verdict) -> None:
        super().commit(verdict)
        if self.seq is not self._seq:
            self._restart()


class Plain(Means):
    name = "plain numpy"

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._q: list[plain.Floats] = []

    def _probabilities(self, rows: Any) -> plain.Floats:
        s = self.setting
        return plain.probabilities(rows, s.temperature, s.top_k, s.top_p)

    def choose(self, scored: Scored, place: int) -> int:
        s, position = self.setting, self.seq.n_tokens
        if s.rule == "greedy":
            return int(scored.logits[0].argmax())
        law = self._probabilities(scored.logits)[0]
        if s.rule == "coupled":
            return plain.gumbel_max(law, (s.seed, position + place))
        self._q.append(law)
        return plain.draw(law, self.randomness.uniform(Stream.DRAFT, position, place))

    def ready(self) -> None:
        self._stacked = np.stack(self._q) if self._q else np.empty(0)
        self._q.clear()

    def accept(self, scored: Scored) -> Verdict:
        s = self.setting
        if s.rule == "greedy":
            return plain.greedy(self.tokens, scored.logits)
        p = self._probabilities(scored.logits)
        if s.rule == "coupled":
            return plain.coupled(self.tokens, p, s.seed, self.seq.n_tokens)
        rule = plain.rejection if s.rule == "rejection" else plain.block
        return rule(self.tokens, p, self._stacked, self.draws)


def round_draws(means: Means) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Those of acceptance [K], and of the next token [K + 1], by how many stand."""
    k, position = means.setting.k, means.seq.n_tokens
    accept = means.randomness.uniforms(Stream.ACCEPT, position, 0, k)
    following = np.empty(k + 1)
    following[:k] = means.randomness.uniforms(Stream.RESIDUAL, position, 0, k)
    following[k] = means.randomness.uniform(Stream.BONUS, position, k)
    return accept, following


def rounding(means: Means, p: list[Law], q: list[Law], verdict: Verdict) -> float:
    """How far a round of `rejection` is from what the same draws give in float64.

    Args:
        p, q: K + 1 and K laws; q is what `means.tokens` were drawn from.

    Returns:
        The largest distance of a draw from where it would have to be, as a probability: 0.0 for
        the same verdict.
    """
    tokens, n, draws = means.tokens, verdict.n_accepted, means.draws
    far = 0.0
    for i, token in enumerate(tokens.tolist()):
        uniform = means.randomness.uniform(Stream.DRAFT, means.seq.n_tokens, i)
        far = max(far, _outside(q[i], uniform, token))
    for i, threshold in enumerate(REJECTION.thresholds(tokens, p, q)[: n + 1]):
        over = draws.accept(i) - threshold
        far = max(far, over if i < n else -over)
    uniform = draws.bonus(n) if n == len(tokens) else draws.residual(n)
    return max(far, _outside(REJECTION.next_law(tokens, p, q, n), uniform, verdict.next_token))


def _outside(law: Law, uniform: float, token: int) -> float:
    """Distance of a draw from the token's part of the cumulative distribution."""
    weights = law.weights / law.total
    if weights[token] == 0.0:
        return 1.0
    end = float(weights[: token + 1].sum())
    return max(0.0, end - float(weights[token]) - uniform, uniform - end)

"""The means that `acceptance.py` compares: ours, plain numpy, the graph and the kernel."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import acceptance_plain as plain
import numpy as np
from acceptance_graph import AcceptGraph, build

from specedge.acceptance import REJECTION, RoundDraws, Verdict
from specedge.engines.base import Scored
from specedge.proposers.base import Draft
from specedge.randomness import Randomness, Stream
from specedge.sampling.law import Law
from specedge.sampling.params import SamplingParams
from specedge.sampling.sampler import make_sampler
from specedge.sequence import Sequence

ROOM = 1 << 16  # tokens of a sequence that the rounds go on in
SOURCE = Path(__file__).with_name("acceptance_kernel.c")
FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
NATIVE: tuple[list[str], ...] = (["-march=native"], ["-mcpu=native"], [])
NARROW: tuple[list[str], ...] = (["-march=x86-64-v3"], [])


@dataclass(frozen=True)
class Setting:
    """What a request asks for. `cut` is the name of its top-k and top-p."""

    rule: str
    cut: str
    k: int
    vocab: int
    seed: int
    temperature: float = 0.8

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
            acceptance=self.rule,  # type: ignore[arg-type]
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
        self._sampler: Any = make_sampler(
            s.params(), self.seq, vocab=s.vocab, end_ids=(), seed=s.seed
        )
        self._seq = self.seq

    def choose_with_law(self, scored: Scored, place: int) -> tuple[int, Law | None]:
        return self._sampler.choose(scored, self.tokens[:place])  # type: ignore[no-any-return]

    def choose(self, scored: Scored, place: int) -> int:
        token, law = self.choose_with_law(scored, place)
        self._laws.append(law)
        return token

    def ready(self) -> None:
        q = tuple(law for law in self._laws if law is not None)
        self._laws.clear()
        self._draft = Draft(self.tokens, "draft", 0.0, q or None)

    def accept(self, scored: Scored) -> Verdict:
        return self._sampler.accept(self._draft, scored)  # type: ignore[no-any-return]

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


def _round_draws(means: Means) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Those of acceptance [K], and of the next token [K + 1], by how many stand."""
    k, position = means.setting.k, means.seq.n_tokens
    accept = means.randomness.uniforms(Stream.ACCEPT, position, 0, k)
    following = np.empty(k + 1)
    following[:k] = means.randomness.uniforms(Stream.RESIDUAL, position, 0, k)
    following[k] = means.randomness.uniform(Stream.BONUS, position, k)
    return accept, following


class Graph(Means):
    """What was drafted comes from our sampler; its own draft's side would be another graph."""

    drafts = False

    def __init__(self, setting: Setting, draft_logits: bool, threads: int) -> None:
        super().__init__(setting)
        self._ours = Ours(setting)
        self.seq, self.tokens = self._ours.seq, self._ours.tokens
        self.name = f"graph, {'draft logits' if draft_logits else 'q'}"
        s = self.setting
        self._draft_logits = np.empty((s.k, s.vocab), np.float32) if draft_logits else None
        self._graph = AcceptGraph(build(s.k, s.vocab, s.top_k, draft_logits), threads)
        self._graph.bind("scale", np.full(1, 1 / s.temperature, np.float32))
        self._accept, self._next = np.empty(s.k), np.empty(s.k + 1)
        self._q = np.zeros((s.k, s.top_k or s.vocab), np.float32)
        self._q_ids = np.zeros((s.k, s.top_k), np.int64)
        bound = {"draft": self.tokens, "accept": self._accept, "next": self._next}
        if self._draft_logits is not None:
            bound["draft_logits"] = self._draft_logits
        else:
            bound["q"] = self._q
            if s.top_k:
                bound["q_ids"] = self._q_ids
        for name, array in bound.items():
            self._graph.bind(name, array)

    def choose(self, scored: Scored, place: int) -> int:
        token, law = self._ours.choose_with_law(scored, place)
        assert law is not None
        if self._draft_logits is not None:
            self._draft_logits[place] = scored.logits[0]
        else:
            self._q[place] = law.weights / law.total
            if law.ids is not None:
                self._q_ids[place] = law.ids
        return token

    def accept(self, scored: Scored) -> Verdict:
        self._graph.bind("logits", scored.logits)
        self._accept[:], self._next[:] = _round_draws(self)
        return Verdict(*self._graph.run())

    def commit(self, verdict: Verdict) -> None:
        self._ours.commit(verdict)
        self.seq = self._ours.seq


class Kernel(Means):
    name = "C kernel"

    def __init__(self, setting: Setting, library: ctypes.CDLL) -> None:
        super().__init__(setting)
        s = self.setting
        self._scale = ctypes.c_float(1 / s.temperature)
        self._token = np.zeros(1, np.int64)
        k, v, blocks = s.k, s.vocab, -(-s.vocab // 256)
        if s.top_k:
            self._choose, self._accept = library.choose_top, library.accept_top
            kept = [
                np.zeros((k, s.top_k), np.int32), np.zeros((k, s.top_k)), np.zeros((k, 1))
            ]  # fmt: skip
            own: list[Any] = []
        else:
            self._choose, self._accept = library.choose_full, library.accept_full
            kept = [np.zeros((k, v), np.float32), np.zeros((k, blocks))]
            own = [np.zeros(v, np.float32), np.zeros(blocks)]
        self._choose.restype = self._accept.restype = ctypes.c_int64
        self._keep = kept, own
        self._rows = [[_at(array[i]) for array in kept] for i in range(k)]
        self._q, self._own = [_at(array) for array in kept], [_at(array) for array in own]
        self._drafted, self._out = _at(self.tokens), _at(self._token)
        self._sizes = ctypes.c_int64(k), ctypes.c_int64(v)

    def choose(self, scored: Scored, place: int) -> int:
        u = self.randomness.uniform(Stream.DRAFT, self.seq.n_tokens, place)
        given: list[Any] = [_at(scored.logits), self._sizes[1], self._scale, ctypes.c_double(u)]
        if self.setting.top_k:
            given.append(self.setting.top_k)
        return int(self._choose(*given, *self._rows[place]))

    def accept(self, scored: Scored) -> Verdict:
        accept, following = _round_draws(self)
        given = [_at(scored.logits), *self._sizes, self._scale, self._drafted, *self._q]
        given += [_at(accept), _at(following)]
        given += [self.setting.top_k] if self.setting.top_k else self._own
        return Verdict(self._accept(*given, self._out), self._token.item(0))


def _at(array: np.ndarray[Any, Any]) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


def compiled(narrow_cpu: bool) -> ctypes.CDLL | None:
    """The kernel, made by the system's compiler; None where there is none."""
    cc = shutil.which("cc")
    if cc is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernel.so"
        for machine in NARROW if narrow_cpu else NATIVE:
            command = [cc, *FLAGS, *machine, str(SOURCE), "-o", str(library), "-lm"]
            if subprocess.run(command, capture_output=True).returncode == 0:
                return ctypes.CDLL(str(library))
    return None


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

"""Texts drawn by the real loop over remembered logits, and their test against the exact law."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from specedge.controller import Controller
from specedge.gates.chi_square import FEWEST, Fit, Oddity, pearson
from specedge.gates.remembered import Branch, Memory, RememberedEngine
from specedge.loop import decode
from specedge.metrics import Metrics
from specedge.proposers import Proposer
from specedge.sampling.params import SamplingParams
from specedge.sampling.processors import Pipeline
from specedge.sampling.sampler import make_sampler
from specedge.sampling.scratch import Scratch
from specedge.sequence import Sequence
from specedge.speculator import Speculator

WINDOW = 3  # tokens of a text that are counted


@dataclass(frozen=True, slots=True)
class Odd:
    """The oddest token at one position.

    Args:
        branch: tokens since the stem that it followed.
        draws: of tokens behind this branch.
        oddity: of them.
    """

    branch: Branch
    draws: int
    oddity: Oddity


@dataclass(slots=True)
class Drawn:
    """Texts behind one stem, or behind several, added up.

    Args:
        texts: how many there are.
        rounds: that were needed, prefills left out.
        drafted: rounds in which something was drafted.
        refused: of them, those in which not all of it stood.
        proposed, accepted: drafted tokens.
        committed: tokens of those rounds.
        fits: by position in the window.
        odd: the oddest token at each position, and the name of its place.
    """

    texts: int = 0
    rounds: int = 0
    drafted: int = 0
    refused: int = 0
    proposed: int = 0
    accepted: int = 0
    committed: int = 0
    fits: list[Fit] = field(default_factory=lambda: [Fit()] * WINDOW)
    odd: list[tuple[str, Odd] | None] = field(default_factory=lambda: [None] * WINDOW)


class InTurn(Controller):
    """Draft lengths 1..longest, by the number of the text: an adaptive run's, but repeatable."""

    def __init__(self, longest: int) -> None:
        super().__init__(longest)
        self.number = 0

    def draft_length(self, seq: Sequence, max_verify: int) -> int:
        most = super().draft_length(seq, max_verify)
        return min(most, 1 + self.number % self.longest)


class Drawer:
    """Draws texts behind one stem.

    Args:
        target: its memory holds the stem.
        proposer: drafts; not closed.
        end_ids: what ends a generation.
        seed: of all draws; a text's number is its sample.
    """

    def __init__(
        self, target: RememberedEngine, proposer: Proposer, end_ids: Collection[int], seed: int
    ) -> None:
        self._target = target
        self._slot = target.new_slot()
        self._proposer = proposer
        self._end_ids = frozenset(end_ids)
        self._seed = seed
        self._scratch = Scratch()

    def draw(
        self, drawn: Drawn, params: SamplingParams, controller: Controller, texts: int
    ) -> Counter[Branch]:
        """Draw so many, count their rounds in `drawn`, and return up to WINDOW tokens of each.

        Raises:
            ProposerError, EngineError, SamplingError: see `specedge.loop.decode`.
        """
        if controller.longest:
            speculator = Speculator((self._proposer,), controller, mode="on")
        else:
            speculator = Speculator((), controller, mode="off")
        counted: Counter[Branch] = Counter()
        for _ in range(texts):
            if isinstance(controller, InTurn):
                controller.number = drawn.texts
            counted[self._text(drawn, params, speculator, controller.longest)] += 1
            drawn.texts += 1
        return counted

    def _text(self, drawn: Drawn, params: SamplingParams, speculator: Speculator, k: int) -> Branch:
        seq = Sequence(
            self._target.memory.stem[:-1],
            context=self._slot.context,
            max_tokens=1 + max(k + 1, WINDOW),
            eos_ids=self._end_ids,
        )
        sampler = make_sampler(
            params,
            seq,
            vocab=self._target.spec.vocab,
            end_ids=self._end_ids,
            seed=self._seed,
            sample=drawn.texts,
            scratch=self._scratch,
        )
        rounds = decode(seq, self._target, self._slot, speculator, Metrics(), sampler=sampler)
        for done in rounds:
            if done.number:
                drawn.rounds += 1
                drawn.drafted += done.drafted > 0
                drawn.refused += done.accepted < done.drafted and not seq.done
                drawn.proposed += done.drafted
                drawn.accepted += done.accepted
                drawn.committed += len(done.tokens)
            if seq.n_generated > WINDOW:
                break
        return tuple(seq.generated[1 : 1 + WINDOW].tolist())


def judge(
    drawn: Drawn, counted: Counter[Branch], memory: Memory, params: SamplingParams, place: str
) -> None:
    """Add to `drawn` how the tokens at each position fit the exact law of their own context.

    A context is looked at where its tokens can fill two cells and its logits are its own.
    """
    pipeline = Pipeline(params, memory.engine.spec.vocab)
    for position in range(WINDOW):
        behind: dict[Branch, Counter[int]] = {}
        for text, times in counted.items():
            if len(text) > position:
                behind.setdefault(text[:position], Counter())[text[position]] += times
        for branch, tokens in sorted(behind.items()):
            if tokens.total() < 2 * FEWEST or memory.likely(branch) != branch:
                continue
            law = pipeline.law(
                memory.row(branch),
                None,
                1 + position,
                scratch=Scratch(),
                where="target",
                position=len(memory.stem) + position,
            )
            fit, oddity = pearson(tokens, law.dense(memory.engine.spec.vocab))
            drawn.fits[position] += fit
            known = drawn.odd[position]
            if oddity and (known is None or known[1].oddity.share < oddity.share):
                drawn.odd[position] = place, Odd(branch, tokens.total(), oddity)

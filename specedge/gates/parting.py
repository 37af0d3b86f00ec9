"""Where two greedy texts of one request part, and whether the width of calls can explain it.

Plain decoding asks the target one token a call, verification K + 1. Kernels for other widths add up
in another order, so where they are not made to agree (`specedge.engines.widths`) the same row of
the same text comes out a little different, and of two tokens that are nearly tied the other one may
win. That is harmless; a wrong acceptance, a stale row or a damaged KV is not. What tells them apart
is how far the two tokens' logits lie from each other in plain decoding, held against how far the
distance of two such logits moves between widths. That is measured here, on the text itself, and
without the code that decoded it: the tokens are given, nothing is accepted or refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from specedge.contract import Ids, Logits
from specedge.engines.base import Engine, Slot, prefill
from specedge.sampling.history import History
from specedge.sampling.params import SamplingParams
from specedge.sampling.processors import Pipeline
from specedge.sampling.scratch import Scratch

ROWS = 32
"""Of the text, that widths are compared on: with 16 widths, some 150 calls."""


@dataclass(frozen=True, slots=True)
class Parting:
    """The first place where two outputs of one greedy request differ.

    Args:
        position: output tokens before it, which are the same.
        plain_token: what plain decoding says there; None: it has ended.
        other_token: what the other way says there; None: it has ended.
        margin: the logit of `plain_token` less that of `other_token` in plain decoding; where one
            has ended, that of the best token less that of the second. The request's penalties and
            biases are in it.
        noise: how far the distance of two logits moved between the widths of calls, at most; over
            `ROWS` rows of the text: there the two tokens', elsewhere the two best ones'.
        within: the noise explains it: both are tokens, and the margin is not above the noise,
            which is not 0.
    """

    position: int
    plain_token: int | None
    other_token: int | None
    margin: float
    noise: float
    within: bool

    @classmethod
    def judged(
        cls, position: int, plain: int | None, other: int | None, margin: float, noise: float
    ) -> Parting:
        """With `within` as its rule says."""
        tokens = plain is not None and other is not None
        within = tokens and noise > 0 and abs(margin) <= noise
        return cls(position, plain, other, margin, noise, within)

    def against(self, noise: float) -> Parting:
        """The same with more noise, measured on other texts of this engine."""
        most = max(noise, self.noise)
        return self.judged(self.position, self.plain_token, self.other_token, self.margin, most)


def find(
    engine: Engine,
    prompt_ids: Ids | Sequence[int],
    plain_tokens: Sequence[int],
    other_tokens: Sequence[int],
    *,
    params: SamplingParams | None = None,
    end_ids: Collection[int] = (),
    noise: float = 0.0,
) -> Parting | None:
    """Compare two outputs; None: they are equal.

    Where they differ, the text is run again in a slot of its own. A grammar's mask need not be
    known: it allows both tokens, and changes neither's logit.

    Args:
        engine: the target, of which nobody else is using a result.
        prompt_ids: int64 [n], n >= 1.
        plain_tokens: output of plain decoding.
        other_tokens: output of the other way.
        params: of the request, at temperature 0; None: logits are taken as they are.
        end_ids: what `params.min_tokens` holds back.
        noise: of this engine on other texts, as found before; where it explains the parting, no
            more of it is looked for.

    Raises:
        EngineError: the engine failed, or has no memory for a slot.
    """
    position = first_difference(plain_tokens, other_tokens)
    if position is None:
        return None
    plain, other = _at(plain_tokens, position), _at(other_tokens, position)
    pair = None if plain is None or other is None else (plain, other)
    slot = engine.new_slot()
    try:
        text = _Text(engine, slot, prompt_ids, [*plain_tokens, *other_tokens[position:]], pair)
        text.use(params, end_ids)
        found = Parting.judged(position, plain, other, text.margin(position), noise)
        return found if found.within else found.against(text.noise())
    finally:
        engine.release(slot)


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Index of the first token that differs, or that only one of them has; None: equal."""
    for place, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return place
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def _at(tokens: Sequence[int], place: int) -> int | None:
    return int(tokens[place]) if place < len(tokens) else None


class _Text:
    """A text that is known beforehand, scored in calls of any width.

    Args:
        engine: scores.
        slot: for this text alone.
        prompt: int64 [n].
        output: tokens that follow; what comes after the row of interest only fills calls.
        pair: the two tokens that matter at that row; None: the best two, as at other rows.
    """

    def __init__(
        self,
        engine: Engine,
        slot: Slot,
        prompt: Ids | Sequence[int],
        output: Sequence[int],
        pair: tuple[int, int] | None,
    ) -> None:
        self._engine = engine
        self._slot = slot
        self._n_prompt = len(prompt)
        self._pair = pair
        self._widest = max(1, min(engine.spec.max_verify, slot.context))
        ids = [*map(int, prompt), *map(int, output)]
        ids += ids[-1:] * self._widest  # what follows in a call does not change a row before it
        self._ids: Ids = np.array(ids[: slot.context], dtype=np.int64)
        self._row = 0
        self._pairs: dict[int, tuple[int, int]] = {}  # by row: the two ids whose logits count
        self._plain: dict[int, float] = {}  # by row: their distance in plain decoding
        self._pipeline: Pipeline | None = None
        self._uses_history = False

    def use(self, params: SamplingParams | None, end_ids: Collection[int]) -> None:
        """Look at logits as this request's argmax does."""
        if params is not None and params.edits:
            self._pipeline = Pipeline(params, self._engine.spec.vocab, end_ids)
            self._uses_history = params.uses_history

    def margin(self, position: int) -> float:
        """Decode plainly up to this output position: the prompt in chunks, then token by token."""
        self._row = self._n_prompt - 1 + position
        prefill(self._engine, self._slot, self._ids[: self._n_prompt], 0)
        for at in range(self._n_prompt - 1, self._row + 1):
            self._keep(at)
        return self._plain[self._row]

    def noise(self) -> float:
        """After `margin`: how far distances move between widths, in the rows before its row, or
        behind it where there are too few."""
        first = max(0, self._row + 1 - ROWS)
        last = min(len(self._ids) - 1, max(self._row, first + ROWS - 1))
        noise = 0.0
        for at in range(first, last + 1):
            noise = max(noise, self._keep(at))
        for width, start in self._calls(first, last):
            for at, logits in self._rows(start, width):
                if at <= last:
                    noise = max(noise, self._moved(at, logits))
        return noise

    def _keep(self, at: int) -> float:
        """Score a row by a call of its own; how far that moved from when it was first scored."""
        ((_, logits),) = self._rows(at, 1)
        if at not in self._plain:
            best = np.argpartition(logits, -2)[-2:]
            low, high = best[np.argsort(logits[best], kind="stable")].tolist()
            wanted = self._pair if at == self._row else None
            self._pairs[at] = (high, low) if wanted is None else wanted
            self._plain[at] = _gap(logits, self._pairs[at])
        return self._moved(at, logits)

    def _moved(self, at: int, logits: Logits) -> float:
        """Distance of the row's two logits, held against plain decoding's."""
        moved = abs(_gap(logits, self._pairs[at]) - self._plain[at])
        return moved if np.isfinite(moved) else 0.0  # one of the two is banned

    def _calls(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Width and start of every wider call, in an order in which each finds the rows before it.

        For each width the text is run from `first` in calls of it, so that keys and values are its
        own as well, with the row of interest as the last of a call; then once more with that row as
        the first. A prefill's width is among them: a run may have read the row so.
        """
        prefill_width = min(self._engine.prefill_chunk, last + 1 - first)
        for width in sorted({*range(2, self._widest + 1), max(2, prefill_width)}):
            head = (self._row + 1 - first) % width
            if head:
                yield head, first
            for start in range(first + head, last + 1, width):
                yield width, start
            yield width, self._row

    def _rows(self, start: int, width: int) -> Iterator[tuple[int, Logits]]:
        """Run a call, cut short where the text ends: index of each of its rows, and float32 [V],
        which is valid until the next call."""
        tokens = self._ids[start : start + width]
        scored = self._engine.forward(self._slot, tokens, start, len(tokens))
        for place in range(len(tokens)):
            yield start + place, self._edited(scored.logits[place], start + place)

    def _edited(self, logits: Logits, row: int) -> Logits:
        """As the request's argmax sees it, with the text up to this row behind it."""
        if self._pipeline is None:
            return logits
        n = row + 1
        n_prompt = min(self._n_prompt, n)
        history = None
        if self._uses_history:
            history = History()
            history.sync(self._ids[:n], n_prompt)
        return self._pipeline.edited(logits, history, n - n_prompt, Scratch())


def _gap(logits: Logits, pair: tuple[int, int]) -> float:
    return float(logits[pair[0]]) - float(logits[pair[1]])

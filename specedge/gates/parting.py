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
"""Of the text, that widths are compared on: each costs 4 to 5 plain steps with 16 widths."""


@dataclass(frozen=True, slots=True)
class Parting:
    """The first place where two outputs of one greedy request differ.

    Args:
        position: output tokens before it, which are the same.
        plain_token: what plain decoding says there; None: it has ended.
        other_token: what the other way says there; None: it has ended.
        margin: the logit of `plain_token` less that of `other_token`, in calls of one token; where
            one has ended, that of the best token less that of the second. The request's penalties
            and biases are in it.
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


def find(
    engine: Engine,
    prompt_ids: Ids | Sequence[int],
    plain_tokens: Sequence[int],
    other_tokens: Sequence[int],
    *,
    params: SamplingParams | None = None,
    end_ids: Collection[int] = (),
) -> Parting | None:
    """Compare two outputs; None: they are equal.

    Runs some 5 * ROWS calls in a slot of its own, where they differ. A grammar's mask need not be
    known: it allows both tokens, and changes neither's logit.

    Args:
        engine: the target, of which nobody else is using a result.
        prompt_ids: int64 [n], n >= 1.
        plain_tokens: output of plain decoding.
        other_tokens: output of the other way.
        params: of the request, at temperature 0; None: logits are taken as they are.
        end_ids: what `params.min_tokens` holds back.

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
        margin, noise = text.measure(position)
    finally:
        engine.release(slot)
    within = pair is not None and noise > 0 and abs(margin) <= noise
    return Parting(position, plain, other, margin, noise, within)


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
        self._pipeline: Pipeline | None = None
        self._uses_history = False

    def use(self, params: SamplingParams | None, end_ids: Collection[int]) -> None:
        """Look at logits as this request's argmax does."""
        if params is not None and params.edits:
            self._pipeline = Pipeline(params, self._engine.spec.vocab, end_ids)
            self._uses_history = params.uses_history

    def measure(self, position: int) -> tuple[float, float]:
        """Margin at an output position, and the noise around it."""
        row = self._n_prompt - 1 + position
        first = max(0, row + 1 - ROWS)
        last = min(len(self._ids) - 1, max(row, first + ROWS - 1))
        if first:
            prefill(self._engine, self._slot, self._ids[:first], 0)
        pairs: dict[int, tuple[int, int]] = {}
        plain: dict[int, float] = {}
        for at in range(first, last + 1):
            ((_, logits),) = self._rows(at, 1)
            best = np.argpartition(logits, -2)[-2:]
            low, high = best[np.argsort(logits[best], kind="stable")].tolist()
            pairs[at] = self._pair if at == row and self._pair is not None else (high, low)
            plain[at] = _gap(logits, pairs[at])
        noise = 0.0
        for width, start in self._calls(first, row, last):
            for at, logits in self._rows(start, width):
                if at in plain:
                    moved = abs(_gap(logits, pairs[at]) - plain[at])
                    noise = max(noise, moved if np.isfinite(moved) else 0.0)
        return plain[row], noise

    def _calls(self, first: int, row: int, last: int) -> Iterator[tuple[int, int]]:
        """Width and start of every call, in an order in which each finds the rows before it.

        For each width the text is run from `first` in calls of it, so that keys and values are its
        own as well, with `row` as the last of a call; then once more with `row` in the middle of
        one, and as the first. A prefill's width is among them: a run may have read the row so.
        """
        prefill_width = min(self._engine.prefill_chunk, last + 1 - first)
        for width in sorted({*range(2, self._widest + 1), max(1, prefill_width)}):
            head = (row + 1 - first) % width
            if head:
                yield head, first
            for start in range(first + head, last + 1, width):
                yield width, start
            for start in (row - width // 2, row):
                if start >= first:
                    yield width, start

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

"""Where in the prompts' own plain text sampling is put to the test.

Wanted: places where somebody drafts, where the target is in two minds, so that drafted tokens are
refused as well as accepted, and where few tokens are likely, so that each is drawn often enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specedge.contract import Ids
from specedge.desk import PLAIN, Desk
from specedge.errors import PromptError
from specedge.gates.prompts import Asked
from specedge.proposers import Proposer
from specedge.sampling.sampler import GREEDY
from specedge.sequence import Sequence as TokenSequence

LOOKED_AT = 40  # tokens of the plain answer to a prompt
ALTERNATIVES = 5  # likeliest tokens that are looked at for each
SURE, HOPELESS = 0.85, 0.15  # a drafted token beyond them is seldom refused, or seldom accepted


@dataclass(frozen=True, slots=True)
class Place:
    """A text that is left to chance from here on.

    Args:
        name: "chat 3, token 17": of the answer, from 1.
        stem: int64 [R], R >= 2: prompt and answer up to here.
    """

    name: str
    stem: Ids


@dataclass(frozen=True, slots=True)
class Looked:
    """A prompt's plain greedy answer and what else was likely.

    Args:
        name: of the prompt.
        ids: int64 [n], prompt and answer.
        n_prompt: tokens of the prompt.
        likely: for each token of the answer, (id, probability) of the likeliest, falling.
    """

    name: str
    ids: Ids
    n_prompt: int
    likely: tuple[tuple[tuple[int, float], ...], ...]

    def place(self, at: int) -> Place:
        """Before token `at`, from 0, of the answer."""
        return Place(f"{self.name}, token {at + 1}", self.ids[: self.n_prompt + at].copy())

    def worth(self, at: int, window: int) -> float:
        """Higher where the next tokens are uncertain, the first most, and few of them likely."""
        score = 0.0
        for after, likely in enumerate(self.likely[at : at + window]):
            undecided = min(1 - likely[0][1], 0.5)
            rare = 1 - sum(chance for _, chance in likely)
            score += undecided * (2 if after == 0 else 1) - 2 * rare
        return score


def ranked(desk: Desk, prompts: Sequence[Asked], room: int) -> list[Asked]:
    """Those that leave room for so many tokens: of different classes first, short ones first."""
    lengths: dict[str, list[tuple[int, int]]] = {}
    for number, asked in enumerate(prompts):
        try:
            n = len(desk.model.encode(asked.prompt)[0])
        except PromptError:
            continue
        if n + room <= desk.model.context:
            lengths.setdefault(asked.workload, []).append((n, number))
    order = [
        (rank, n, number)
        for found in lengths.values()
        for rank, (n, number) in enumerate(sorted(found))
    ]
    return [prompts[number] for _, _, number in sorted(order)]


def look(desk: Desk, prompts: Sequence[Asked], most: int) -> list[Looked]:
    """The plain answers to the first `most` of `ranked`."""
    return [_looked(desk, asked) for asked in ranked(desk, prompts, LOOKED_AT)[:most]]


def _looked(desk: Desk, asked: Asked) -> Looked:
    prompt = desk.model.encode(asked.prompt)[0]
    result = desk.ask(
        PLAIN, asked.prompt, max_tokens=LOOKED_AT, temperature=0.0, logprobs=ALTERNATIVES
    )
    assert result.logprobs is not None, "they were asked for"
    likely = tuple(
        tuple((token, math.exp(logprob)) for token, logprob in said.top) for said in result.logprobs
    )
    ids = np.concatenate([prompt, np.array(result.tokens, np.int64)])
    return Looked(asked.name, ids, len(prompt), likely)


def choose(
    looked: Sequence[Looked], proposer: Proposer, k: int, *, window: int, context: int, most: int
) -> list[Place]:
    """The best place in each of `most` texts.

    Args:
        proposer: that shall draft there; only a lookup is asked whether it does.
        k: tokens that it is asked for.
        window: tokens that will be drawn.
        context: T that target and proposer have.
    """
    found: list[tuple[bool, float, Place]] = []
    for text in looked:
        best: tuple[bool, float, Place] | None = None
        for at in range(len(text.likely) - window + 1):
            end = text.n_prompt + at
            if end < 2 or end + window + k + 2 > context:
                continue
            fair = True
            if proposer.is_lookup:
                chance = _chance(text, at, proposer, k)
                if chance is None:
                    continue
                fair = HOPELESS < chance < SURE
            worth = (fair, text.worth(at, window))
            if best is None or worth > best[:2]:
                best = (*worth, text.place(at))
        if best is not None:
            found.append(best)
    found.sort(key=lambda each: each[:2], reverse=True)
    return [place for _, _, place in found[:most]]


def _chance(text: Looked, at: int, lookup: Proposer, k: int) -> float | None:
    """Probability of the token that is drafted there; None: the draft is not k tokens."""
    end = text.n_prompt + at
    seq = TokenSequence(text.ids[:end], context=end + k + 1, max_tokens=k + 1)
    lookup.start(seq, GREEDY)
    drafted = lookup.propose(seq, k).tokens.tolist()
    if len(drafted) < k:
        return None
    return dict(text.likely[at]).get(drafted[0], 0.0)

"""Slow and plain: what the fast code must agree with. Nothing here imports specedge."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable


def argmax(row: Iterable[float]) -> int:
    """Lowest index of the largest value."""
    best, value = 0, -math.inf
    for index, candidate in enumerate(row):
        if candidate > value:
            best, value = index, candidate
    return best


def greedy(draft: Iterable[int], logits: Iterable[Iterable[float]]) -> list[int]:
    """Tokens that plain greedy decoding takes, as far as the rows of `logits` apply."""
    out: list[int] = []
    drafted = [int(token) for token in draft]
    for position, row in enumerate(logits):
        token = argmax(row)
        out.append(token)
        if position >= len(drafted) or token != drafted[position]:
            return out  # the next row was scored after another token
    return out


def plain(
    rule: Callable[[list[int]], int],
    prompt: Iterable[int],
    context: int,
    max_tokens: int,
    eos_ids: Iterable[int] = (),
) -> tuple[list[int], str]:
    """Output and finish reason of one token at a time, with no cache at all."""
    tokens = [int(token) for token in prompt]
    ends = set(eos_ids)
    out: list[int] = []
    while True:
        token = rule(tokens)
        tokens.append(token)
        out.append(token)
        if token in ends:
            return out, "stop"
        if len(out) == max_tokens or len(tokens) == context + 1:
            return out, "length"


def common_prefix(a: Iterable[int], b: Iterable[int]) -> int:
    """How many leading elements are the same."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


def ngram(tokens: list[int], limit: int, shortest: int, longest: int) -> list[int]:
    """What followed the latest of the longest earlier occurrences of the end of the text."""
    n = len(tokens)
    for length in range(longest, shortest - 1, -1):
        for end in range(n - 2, length - 2, -1):
            if tokens[end - length + 1 : end + 1] == tokens[n - length :]:
                text = list(tokens)
                for offset in range(limit):
                    text.append(text[end + 1 + offset])
                return text[n:]
    return []


def logprobs(row: Iterable[float]) -> list[float]:
    """Natural log of softmax."""
    values = [float(value) for value in row]
    top = max(values)
    total = math.fsum(math.exp(value - top) for value in values)
    return [value - top - math.log(total) for value in values]

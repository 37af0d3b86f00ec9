"""A worker's side of the protocol of `process.py`. Standard library only: peers' environments
have no specedge."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any


class Delivery:
    """Tokens of one request with the times at which they came.

    The clock starts when it is made. One `push` is what a round hands over at once.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.first_tokens = 0
        self.rounds = 0
        self._first = self._started = time.perf_counter()

    def push(self, tokens: Iterable[int]) -> None:
        fresh = [int(token) for token in tokens]
        if not fresh:
            return
        if not self.tokens:
            self._first = time.perf_counter()
            self.first_tokens = len(fresh)
        else:
            self.rounds += 1
        self.tokens += fresh

    def answer(self, *, speculative: bool, **stats: Any) -> dict[str, Any]:
        """The whole answer; what the runtime did after its last token is paid as well."""
        ended = time.perf_counter()
        said: dict[str, Any] = {
            "tokens": self.tokens,
            "ttft_ms": (self._first - self._started) * 1e3,
            "decode_ms": (ended - self._first) * 1e3,
            "first_tokens": self.first_tokens,
        }
        if speculative and self.rounds:
            said["rounds"] = self.rounds
            said["acceptance_length"] = (len(self.tokens) - self.first_tokens) / self.rounds
        return said | stats


def serve(
    load: Callable[[dict[str, Any]], tuple[str, Callable[[list[int], int], dict[str, Any]]]],
) -> None:
    """Load, say ready, answer until the input ends.

    Args:
        load: from the options in argv to a description and a function of ids and max_tokens.
    """
    # Runtimes print where they like: the answers go to a stream that only this function has.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    given = json.loads(sys.argv[1])
    description, generate = load(given)
    print(json.dumps({"ready": description}), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        ids, max_tokens = request["ids"], request["max_tokens"]
        if len(ids) + max_tokens > given["context"]:
            raise SystemExit(f"{len(ids)} + {max_tokens} tokens, the context is {given['context']}")
        print(json.dumps(generate(ids, max_tokens)), file=out, flush=True)

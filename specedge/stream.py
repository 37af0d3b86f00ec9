"""Token ids to text events: incremental decode, stop strings, finish reasons.

A stop string is matched in the output's text, across token and round boundaries. The match that
is complete first wins (so that the result does not depend on how many tokens a round commits);
among matches that end at the same character, the one that begins first. Text from the match on
never leaves: the end of the text that may still grow into a stop string is held back.

Tokens are kept up to the one that holds the last kept character, and are reported with the text
they belong to, so the tokens of all deltas are the tokens of the result, in order.

    finish reason   who found it
    stop            an EOS id
    length          the output budget or the context is used up
    stop_string     a stop string, or the special token that a stop string names
    cancelled       the caller went away
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specedge.tokenizer import TextDecoder

FinishReason = Literal["stop", "length", "stop_string", "cancelled"]


@dataclass(slots=True)
class Delta:
    """What may leave after a round.

    Args:
        text: characters that no later token can take back.
        n_tokens: output tokens that are out, in total, this delta's included.
        stopped: a stop string was found; nothing follows.
    """

    text: str
    n_tokens: int
    stopped: bool = False


class TextStream:
    """The text of one output.

    Args:
        decoder: decodes what follows the prompt.
        stop: stop strings, none of them empty.
        stop_ids: ids whose arrival is a stop string (special tokens have no text to match).
    """

    def __init__(
        self,
        decoder: TextDecoder,
        stop: Sequence[str] = (),
        stop_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.stopped = False
        self.n_tokens = 0  # pushed and not cut
        self._decoder = decoder
        self._stop = tuple(stop)
        self._stop_ids = stop_ids
        self._plain = not stop and not stop_ids  # nothing to look for
        self._openers = frozenset(char for text in stop for char in text[:-1])
        self._held = ""  # text that has not left
        self._out = 0  # tokens that have left
        self._covered = 0  # characters of _held whose token has left
        self._ends: list[int] = []  # for each token not out, where its text ends in _held

    def push(self, tokens: Sequence[int]) -> Delta:
        """Add the tokens that a round committed; at most one stop is ever reported."""
        if self._plain:
            self.n_tokens += len(tokens)
            return Delta(self._decoder.pieces(tokens), self.n_tokens)
        piece, ends, held = self._decoder.piece, self._ends, self._held
        for token in tokens:
            if token in self._stop_ids:
                self._held = held
                delta = self.finish()
                self.stopped = delta.stopped = True
                return delta
            held += piece(token)
            ends.append(len(held))
            self.n_tokens += 1
        self._held = held
        return self._search() or self._release(len(held) - self._open_suffix())

    def finish(self) -> Delta:
        """The end of the output: give out what was held, unless it ends in a stop string."""
        if self.stopped:
            return Delta("", self._out, stopped=True)
        rest = self._decoder.flush()
        if self._plain:
            return Delta(rest, self.n_tokens)
        self._held += rest  # at most one character, so no stop string begins after it
        found = self._search()
        if found is not None:
            return found
        text, self._held, self._ends, self._out = self._held, "", [], self.n_tokens
        return Delta(text, self.n_tokens)

    def _search(self) -> Delta | None:
        """Cut at the stop string that is complete first, if any is."""
        best: tuple[int, int] | None = None
        for stop in self._stop:
            start = self._held.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best):
                best = (start + len(stop), start)
        if best is None:
            return None
        delta = self._release(best[1])
        self._held, self._ends, self.n_tokens = "", [], self._out
        self.stopped = delta.stopped = True
        return delta

    def _release(self, at: int) -> Delta:
        """Let the first `at` held characters go, and the tokens up to the last one's."""
        text, self._held = self._held[:at], self._held[at:]
        if at <= self._covered:
            self._covered -= at
            self._ends = [end - at for end in self._ends]
            return Delta(text, self._out)
        done = next(n for n, end in enumerate(self._ends, 1) if end >= at)
        self._out += done
        self._covered = self._ends[done - 1] - at
        self._ends = [end - at for end in self._ends[done:]]
        return Delta(text, self._out)

    def _open_suffix(self) -> int:
        """Length of the longest suffix of the held text that begins a stop string."""
        held = self._held
        if not held or held[-1] not in self._openers:
            return 0
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(held)), longest, -1):
                if held.endswith(stop[:length]):
                    longest = length
                    break
        return longest

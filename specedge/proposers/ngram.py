"""Lookup in the text itself: what followed the last tokens when they last occurred."""

from __future__ import annotations

import numpy as np

from specedge.contract import Ids
from specedge.errors import OptionError
from specedge.proposers.base import NO_DRAFT, Draft
from specedge.sampling.sampler import Sampler
from specedge.sequence import Sequence, common_prefix

MOST_TRIED = 256  # occurrences of an end that are held against the text before it


class NgramProposer:
    """Finds the longest earlier occurrence of the text's end and drafts what followed it.

    Ends of ngram_max down to ngram_min tokens are looked for; among matches of equal length the
    most recent wins. A match whose continuation runs into the end of the text goes on with the
    drafted tokens themselves, so a loop of period p is drafted as the loop it is.

    An index holds, for each shortest end that can match, where it ended last, and for each place
    where the same tokens ended before it: a round looks at those places only, MOST_TRIED at most,
    most recent first. A request keeps what it shares with the one before.
    """

    name = "ngram"
    is_lookup = True

    def __init__(self, ngram_min: int = 2, ngram_max: int = 6) -> None:
        """Raises OptionError unless 1 <= ngram_min <= ngram_max."""
        if not 1 <= ngram_min <= ngram_max:
            raise OptionError(
                f"ngram: expected 1 <= ngram_min <= ngram_max, found {ngram_min} and {ngram_max}"
            )
        self.ngram_min = ngram_min
        self.ngram_max = ngram_max
        self._seq: Sequence | None = None  # that was looked at last; it only grew since
        self._ids: list[int] = []  # its tokens
        self._last: dict[tuple[int, ...], int] = {}  # shortest end → index of its last token
        self._before: list[int] = []  # by that index, the same of the occurrence before; or -1

    def start(self, seq: Sequence, sampler: Sampler) -> None:
        self._begin(seq)

    def backlog(self, seq: Sequence) -> int:
        return 1

    def propose(self, seq: Sequence, limit: int) -> Draft:
        tokens = seq.tokens
        if seq is not self._seq or len(tokens) < len(self._ids):
            self._begin(seq)
        self._read(tokens)
        found = self._match()
        if found is None:
            return NO_DRAFT
        end, length = found
        period = len(tokens) - 1 - end
        follows = tokens[end + 1 : end + 1 + limit]
        if period < limit:
            follows = follows.take(range(limit), mode="wrap")
        return Draft(follows, self.name, match=length)

    def _begin(self, seq: Sequence) -> None:
        """Forget what `seq` does not begin with."""
        shared = common_prefix(np.array(self._ids, dtype=np.int64), seq.tokens)
        if shared < len(self._ids) // 2:
            shared = 0
            self._last.clear()
            self._before.clear()
        while len(self._before) > max(0, shared - 1):  # the last token ends nothing yet
            end = len(self._before) - 1
            key, before = self._key(end), self._before.pop()
            if before >= 0:
                self._last[key] = before
            else:
                self._last.pop(key, None)
        del self._ids[shared:]
        self._seq = seq

    def _key(self, end: int) -> tuple[int, ...]:
        """The shortest end at index `end`; fewer tokens where there are not as many."""
        return tuple(self._ids[max(0, end + 1 - self.ngram_min) : end + 1])

    def _read(self, tokens: Ids) -> None:
        """Take in what int64 [n] has grown by; ends before its last token can be found."""
        ids, before, last = self._ids, self._before, self._last
        ids += tokens[len(ids) :].tolist()
        for end in range(len(before), len(ids) - 1):
            key = self._key(end)
            before.append(last.get(key, -1))
            last[key] = end

    def _match(self) -> tuple[int, int] | None:
        """Index of the last token of the longest match, and its length; or None."""
        ids, shortest = self._ids, self.ngram_min
        n = len(ids)
        longest = min(self.ngram_max, n - 1)
        if longest < shortest:
            return None
        end = self._last.get(tuple(ids[n - shortest :]), -1)
        best, best_end, tried = 0, -1, 0
        while end >= 0 and tried < MOST_TRIED:
            length = shortest
            most = min(longest, end + 1)
            while length < most and ids[end - length] == ids[n - 1 - length]:
                length += 1
            if length > best:
                best, best_end = length, end
                if length == longest:
                    break
            end = self._before[end]
            tried += 1
        return (best_end, best) if best else None

    def observe(self, committed: Ids, n_accepted: int) -> None: ...

    def forget(self) -> None:
        self._seq = None
        self._ids.clear()
        self._last.clear()
        self._before.clear()

    def close(self) -> None: ...

"""Lookup in the text itself: what followed the last tokens when they last occurred."""

from __future__ import annotations

from specedge.contract import Ids
from specedge.errors import OptionError
from specedge.proposers.base import NO_DRAFT, Draft
from specedge.sampling.sampler import Sampler
from specedge.sequence import Sequence


class NgramProposer:
    """Finds the longest earlier occurrence of the text's end and drafts what followed it.

    Ends of ngram_max down to ngram_min tokens are looked for; among matches of equal length the
    most recent wins. A match whose continuation runs into the end of the text goes on with the
    drafted tokens themselves, so a loop of period p is drafted as the loop it is.

    No state and no index: one numpy pass over the text a round.
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

    def start(self, seq: Sequence, sampler: Sampler) -> None: ...

    def backlog(self, seq: Sequence) -> int:
        return 1

    def propose(self, seq: Sequence, limit: int) -> Draft:
        tokens = seq.tokens
        found = self._match(tokens)
        if found is None:
            return NO_DRAFT
        end, length = found
        period = len(tokens) - 1 - end
        follows = tokens[end + 1 : end + 1 + limit]
        if period < limit:
            follows = follows.take(range(limit), mode="wrap")
        return Draft(follows, self.name, match=length)

    def _match(self, tokens: Ids) -> tuple[int, int] | None:
        """Index of the last token of the match in int64 [n], and the match's length; or None."""
        n = len(tokens)
        longest = min(self.ngram_max, n - 1)
        if longest < self.ngram_min:
            return None
        suffix = tokens[n - longest :].tolist()
        (ends,) = (tokens[: n - 1] == suffix[-1]).nonzero()
        if len(ends) == 0:
            return None
        latest = int(ends[-1])
        if latest + 1 >= longest and tokens[latest + 1 - longest : latest + 1].tolist() == suffix:
            return latest, longest  # no match can be longer or later
        for length in range(2, longest + 1):
            wide = ends[ends.searchsorted(length - 1) :]
            wide = wide[tokens[wide - (length - 1)] == suffix[-length]]
            if len(wide) == 0:
                return (int(ends[-1]), length - 1) if length > self.ngram_min else None
            ends = wide
        return int(ends[-1]), longest

    def observe(self, committed: Ids, n_accepted: int) -> None: ...

    def close(self) -> None: ...

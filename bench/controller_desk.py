"""One loaded model, asked in several ways: engines, slot and weights stay, who drafts changes.

Two loaded models would disturb each other: the threads of one spin for a while after its answer.
Before a request the KV of target and draft is emptied by a short one of another prompt, so that
nobody finds rows that the run before has left.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from random_draft import linked_copy

import specedge
from specedge.bundle import Bundle
from specedge.contract import Ids
from specedge.controller import Controller
from specedge.probe.record import FOLDER
from specedge.result import Result
from specedge.speculator import Speculator

CONTEXT = 2048
PLAIN, AUTO = "plain", "auto"
RINSE_TOKENS = 3  # the draft runs from the second token on, if there is room for a third


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked.

    Args:
        name: for the record.
        ids: int64 [n], n >= 1, the prompt.
        tokens: of output.
        options: of sampling.
        fresh: with the prompt to be read first. False where only the speed of lookups afterwards
            counts: then the rows that the run before left are good enough, and much time is saved.
    """

    name: str
    ids: Ids
    tokens: int
    options: dict[str, Any]
    fresh: bool = True


@dataclass(frozen=True, slots=True)
class Run:
    """One request in one way.

    Args:
        way: "plain", "auto", or a proposer and its fixed K.
        request: its name.
        tokens: output tokens.
        text: hash of their ids.
        ttft_ms: from the request to the first token.
        decode_ms: from there to the last; the draft's reading of the prompt is in it.
        rounds: target calls after the prefill.
        drafts: by proposer, rounds, tokens drafted and tokens accepted.
        reason: what the controller said at the end.
    """

    way: str
    request: str
    tokens: int
    text: str
    ttft_ms: float
    decode_ms: float
    rounds: int
    drafts: dict[str, tuple[int, int, int]]
    reason: str

    @property
    def speed(self) -> float:
        """Tokens after the first per second."""
        return (self.tokens - 1) * 1e3 / self.decode_ms

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Desk:
    """A model in mode "auto", and the means to ask its engines otherwise.

    Args:
        folder: of the bundle.
        proposers: that "auto" may use; fixed ways too, but for those that a probe has ruled out.
        threads: of the engines; None: their own choice.
        context: T, at most; None: the bundle's.
    """

    def __init__(
        self,
        folder: Path,
        proposers: tuple[str, ...],
        threads: int | None,
        context: int | None = CONTEXT,
    ) -> None:
        whole = Bundle.open(folder, verify=False).manifest.target.context
        self.model = specedge.load(
            folder,
            speculation="auto",
            proposers=proposers,
            threads=threads,
            context=min(whole, context or whole),
            verify=False,
        )
        # The seam is the bench's alone: an application has no need to change who drafts.
        self._auto = self.model._speculator
        self._ways = {
            PLAIN: Speculator((), Controller(0), mode="off"),
            AUTO: self._auto,
        }
        self.proposers = tuple(proposer.name for proposer in self._auto.proposers)
        self._rinse = self.fixed("draft", 1) if "draft" in self.proposers else PLAIN

    def fixed(self, proposer: str, k: int) -> str:
        """The way in which `proposer` drafts K tokens in every round."""
        way = f"{proposer} K={k}"
        if way not in self._ways:
            one = next(each for each in self._auto.proposers if each.name == proposer)
            self._ways[way] = Speculator((one,), Controller(k), mode="on")
        return way

    def ask(self, way: str, request: Request, **options: Any) -> Run:
        """One request, from an empty KV when it is to be fresh."""
        return self._run(way, request, self.answer(way, request, **options))

    def answer(self, way: str, request: Request, **options: Any) -> Result:
        """The same, with all that a result has."""
        if request.fresh:
            self.empty(request.ids)
        asked = {**request.options, **options}
        return self._generate(way, request.ids, request.tokens, asked)

    def empty(self, ids: Ids) -> None:
        """Leave no row that `ids` could use, in the target's KV or the draft's."""
        other = (int(ids[0]) + 1) % self.model.bundle.manifest.target.vocab
        self._generate(self._rinse, [other], RINSE_TOKENS, {})

    def use(self, way: str) -> None:
        """For requests that are made with `model` itself."""
        self.model._speculator = self._ways[way]

    def _generate(
        self, way: str, ids: Ids | list[int], tokens: int, options: dict[str, Any]
    ) -> Result:
        self.use(way)
        return self.model.generate(ids, max_tokens=tokens, ignore_eos=True, **options)

    @staticmethod
    def _run(way: str, request: Request, result: Result) -> Run:
        metrics = result.metrics
        assert metrics.ttft_ms is not None, "the run has a first token"
        assert metrics.tpot_ms is not None, "and a second"
        whole = metrics.prefill_tokens == len(request.ids)
        assert whole or not request.fresh, "part of the prompt was still cached"
        return Run(
            way,
            request.name,
            len(result.tokens),
            hashlib.sha256(str(result.tokens).encode()).hexdigest()[:16],
            metrics.ttft_ms,
            metrics.tpot_ms * (metrics.generated - 1),
            metrics.rounds,
            {n: (p.rounds, p.proposed, p.accepted) for n, p in metrics.proposers.items()},
            result.speculation.reason,
        )

    def close(self) -> None:
        self.use(AUTO)
        self.model.close()


@contextmanager
def desk(
    folder: Path, proposers: tuple[str, ...], threads: int | None, context: int | None = CONTEXT
) -> Iterator[Desk]:
    """Opened, and closed again whatever happens."""
    opened = Desk(folder, proposers, threads, context)
    try:
        yield opened
    finally:
        opened.close()


def hidden(folder: Path, work: Path) -> Path:
    """A copy of a bundle in `work`; records of it are neither read nor left anywhere else."""
    os.environ["SPECEDGE_CACHE"] = str(work / "cache")
    bundle = Bundle.open(folder, verify=False)
    copy = linked_copy(bundle, work / f"{bundle.manifest.name}-{bundle.hash[:12]}")
    forget(copy)
    return copy


def forget(folder: Path) -> None:
    """Remove the records of a hidden copy."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)

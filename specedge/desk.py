"""One loaded bundle whose requests are decoded in several ways: plainly, adaptively, fixed.

Somebody can draft, one token at least: a bundle where nobody can has nothing to compare.

Engines, weights and KV slots are shared; only who drafts changes from request to request. Two
loaded models in one process would disturb each other: the threads of one spin for a while after
its answer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from specedge.bundle import Bundle
from specedge.controller import Controller
from specedge.encoding import Prompt
from specedge.engines.base import Engine
from specedge.errors import OptionError
from specedge.generation import Generation
from specedge.knowledge import Knowledge
from specedge.load_options import (
    LoadOptions,
    check_threads,
    checked_context,
    checked_proposers,
    usable_proposers,
)
from specedge.loading import opened
from specedge.model import Model
from specedge.opening import Opener
from specedge.probe.fingerprint import Fingerprint
from specedge.proposers import DraftModelProposer, Proposer
from specedge.result import Result
from specedge.speculator import Mode, Speculator


@dataclass(frozen=True, slots=True)
class Way:
    """How a request is decoded.

    Args:
        mode: "off" is plain decoding, "auto" the controller, "on" a fixed draft length.
        proposers: who may draft, in priority order; with "auto" empty: whoever the bundle has.
        k: tokens drafted in every round; of "on" only.
    """

    mode: Mode
    proposers: tuple[str, ...] = ()
    k: int = 0

    @property
    def name(self) -> str:
        """ "plain", "auto", "ngram K=3"."""
        who = "+".join(self.proposers)
        if self.mode == "off":
            return "plain"
        if self.mode == "auto":
            return f"auto {who}".rstrip()
        return f"{who} K={self.k}"


PLAIN = Way("off")
AUTO = Way("auto")


class Desk:
    """A bundle's engines, open, and the ways to use them.

    Args:
        path: the bundle's folder.
        engine, draft_engine, threads, context, exact, memory: see `specedge.load`.
        proposers: to be opened; None: every one that the bundle can run.
        verify: check the sha256 of every file.

    Raises:
        BundleError, EngineError, MemoryBudgetError: see `specedge.load`. Nothing is left out for
            want of memory: what is to be judged must be there.
        OptionError: an argument is out of range, or nobody can draft.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        engine: str = "auto",
        draft_engine: str | None = None,
        threads: int | None = None,
        context: int | None = None,
        exact: bool = True,
        memory: str | int | None = None,
        proposers: Sequence[str] | None = None,
        verify: bool = True,
    ) -> None:
        self.bundle = Bundle.open(path, verify=verify)
        manifest = self.bundle.manifest
        rows = checked_context(context, manifest)
        check_threads(threads)
        self._opener = Opener(self.bundle, engine, threads, rows, exact, draft_engine)
        self.longest = min(manifest.target.max_verify, rows) - 1
        if proposers is not None:
            names = checked_proposers(proposers)
        else:
            names = usable_proposers(manifest)
        if not self.longest:
            widest = manifest.target.max_verify
            raise OptionError(
                f"{path}: a call verifies 1 token at most (max_verify {widest}, context {rows}), "
                "so nobody can draft and there is nothing to compare; choose a larger context, or "
                "export with a larger export.max_verify"
            )
        if not usable_proposers(manifest, names):
            asked = ", ".join(names) or "none"
            raise OptionError(
                f"{path}: of the proposers asked for ({asked}) this bundle can run none, so there "
                "is nothing to compare; name ngram, or export with a draft model"
            )
        options = LoadOptions.checked(
            manifest,
            speculation="on",
            draft_length=self.longest,
            proposers=names,
            context=rows,
            draft_engine=draft_engine,
        )
        way_out = "choose its engine with --draft-engine"
        if proposers is not None:  # who judges all of them has no such choice
            way_out = f"{way_out}, or leave draft out of the proposers"
        self.model: Model = opened(self._opener, options, memory=memory, way_out=way_out)
        self._proposers: dict[str, Proposer] = {
            proposer.name: proposer for proposer in self.model.speculator.proposers
        }
        self._speculators: dict[Way, Speculator] = {}

    @property
    def proposers(self) -> tuple[str, ...]:
        """Names of those that are open."""
        return tuple(self._proposers)

    @property
    def opener(self) -> Opener:
        """What was asked for: engine, threads, context, exactness."""
        return self._opener

    @property
    def fingerprint(self) -> Fingerprint:
        """Of engines and settings as they are now; see `specedge.probe.fingerprint`."""
        return self._opener.fingerprint(self.model.target, with_draft="draft" in self._proposers)

    def ways(self, ks: Sequence[int] = (1, 3, 7, 15)) -> list[Way]:
        """Every proposer with each of these draft lengths that fits, plain and auto first."""
        fixed = [Way("on", (name,), k) for name in self._proposers for k in ks if k <= self.longest]
        return [PLAIN, AUTO, *fixed]

    def speculator(self, way: Way) -> Speculator:
        """Made once for each way; an adaptive one keeps what it learned.

        Raises:
            OptionError: the way names a proposer that is not open, or a K out of range.
        """
        found = self._speculators.get(way)
        if found is None:
            found = self._speculators[way] = self._make(way)
        return found

    def renew(self, way: Way) -> None:
        """Forget what an adaptive way has learned, as a new process would."""
        self._speculators.pop(way, None)

    def _make(self, way: Way) -> Speculator:
        if way.mode == "off":
            return Speculator((), Controller(0), mode="off")
        for name in way.proposers:
            if name not in self._proposers:
                raise OptionError(
                    f"{way.name}: no proposer {name!r} here; there are {', '.join(self._proposers)}"
                )
        if way.mode == "auto":
            return self._adaptive(way.proposers or self.proposers)
        if not 1 <= way.k <= self.longest or not way.proposers:
            raise OptionError(
                f"{way.name}: expected a proposer and a draft length of 1..{self.longest}, found "
                f"K={way.k}"
            )
        chosen = [self._proposers[name] for name in way.proposers]
        return Speculator(chosen, Controller(way.k), mode="on")

    def _adaptive(self, names: Sequence[str]) -> Speculator:
        """As a run in mode "auto" makes it: by the stored probe, or measuring in the stream."""
        knowledge = Knowledge.of(self.bundle, self.fingerprint)
        names = knowledge.allowed(names)
        chooser = knowledge.chooser(
            names,
            self.model.target,
            self.model.context,
            self.draft_engine if "draft" in names else None,
            longest=self.longest,
            margin=self.bundle.manifest.speculation.margin,
        )
        return Speculator([self._proposers[name] for name in names], chooser, mode="auto")

    @property
    def draft_engine(self) -> Engine | None:
        """The draft model's; None: it is not open."""
        draft = self._proposers.get("draft")
        return draft.engine if isinstance(draft, DraftModelProposer) else None

    def start(self, way: Way, prompt: Prompt, options: Mapping[str, Any]) -> Generation:
        """`Model.stream`, decoded in this way. Raises what that raises."""
        return self.model.start(prompt, options, speculator=self.speculator(way))

    def ask(self, way: Way, prompt: Prompt, **options: Any) -> Result:
        """`start` to its end."""
        return self.model.finish(self.start(way, prompt, options))

    def forget(self) -> None:
        """Leave no row in the KV of target or draft that the next prompt could use."""
        self.model.forget()
        for proposer in self._proposers.values():
            proposer.forget()

    def close(self) -> None:
        """Free the engines; closing twice is fine."""
        self.model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

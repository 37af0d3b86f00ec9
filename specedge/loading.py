"""From a bundle's folder to a model that is ready: check, open engines, choose proposers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from specedge.bundle import Bundle
from specedge.canary.watching import Canary, Standing, checked_share, has_records
from specedge.controller import Chooser, Controller
from specedge.engines.base import Engine
from specedge.errors import EngineError
from specedge.knowledge import Knowledge
from specedge.load_options import LoadOptions, check_threads
from specedge.memory import checked_memory, fit
from specedge.model import Model
from specedge.opening import Opener
from specedge.proposers import DraftModelProposer, NgramProposer, Proposer
from specedge.speculator import Mode, Speculator
from specedge.tokenizer import Tokenizer


def load(
    path: str | os.PathLike[str],
    *,
    engine: str = "auto",
    draft_engine: str | None = None,
    threads: int | None = None,
    speculation: Mode | None = None,
    draft_length: int | None = None,
    proposers: Sequence[str] | None = None,
    context: int | None = None,
    exact: bool = True,
    memory: str | int | None = None,
    verify: bool = True,
    canary: float = 0.0,
) -> Model:
    """Open a bundle and make it ready to generate. What is None comes from the bundle.

    Args:
        path: the bundle's folder.
        engine: what executes the target: "auto" or "cpu", "cuda", "ort-tensorrt", "tensorrt",
            "tensorrt-rtx", or "fake"; see `specedge.engines.registry`.
        draft_engine: what executes the draft, which must then be there; None: the same as the
            target's, and with "auto" a draft that does not open is left out with a note.
        threads: of each engine that has any; None: its own choice.
        speculation: "auto" drafts where it pays: by the stored probe, and by what every round
            shows; it falls back to plain decoding when a proposer is missing or fails. "on" always
            drafts `draft_length` tokens, and makes a missing or failing proposer an error. "off"
            decodes plainly.
        draft_length: 0..max_verify - 1; 0 is plain decoding. With "on": K, tokens drafted a round.
            With "auto": the most that may be drafted; None: as many as the bundle allows.
        proposers: of "ngram" and "draft", in priority order.
        context: T, rows of KV to allocate, at most what the bundle was exported with.
        exact: make logits independent of how many tokens a call has, so that speculation cannot
            change the text of quantised weights either. Costs a wider plain step (two tokens'
            instead of one's on most processors); False gives the narrowest kernels, and near-ties
            may then fall the other way.
        memory: bytes, or a size like "2GiB", that a run may need, on all devices together; a draft
            model that does not fit is left out. None: what is available decides, on the GPU for
            an engine there.
        verify: check the sha256 of every file (see `specedge.bundle`).
        canary: share of requests, 0..1, that are decoded plainly as well, after the answer, and
            compared; docs/canary.md.

    Raises:
        BundleError: see `Bundle.open`.
        OptionError: an argument is out of range, speculation is "on" with nobody to draft, or
            `draft_engine` is given where the draft model does not draft.
        MemoryBudgetError: the target alone does not fit into `memory`.
        EngineError: an engine is missing, or cannot load its graph or allocate its KV.
        PlanError: an engine of TensorRT has no plan that fits; `specedge build` makes it.
    """
    bundle = Bundle.open(path, verify=verify)
    manifest = bundle.manifest
    asked = LoadOptions.checked(
        manifest,
        speculation=speculation,
        draft_length=draft_length,
        proposers=proposers,
        context=context,
        draft_engine=draft_engine,
    )
    check_threads(threads)
    share = checked_share(canary)
    opener = Opener(bundle, engine, threads, asked.context, exact, draft_engine)
    return opened(opener, asked, memory=memory, share=share)


def opened(
    opener: Opener,
    asked: LoadOptions,
    *,
    memory: str | int | None,
    share: float = 0.0,
    way_out: str | None = None,
) -> Model:
    """The second half of `load`: what was asked for is checked, and the engines open.

    Args:
        opener: of the bundle, with its settings.
        asked: checked.
        memory: as for `load`.
        share: of requests that a canary compares, 0..1.
        way_out: with speculation "on", what to do about a draft that cannot be had; None: to use
            "auto", which goes on without it.

    Raises:
        as `load`.
    """
    bundle, manifest = opener.bundle, opener.bundle.manifest
    tokenizer = Tokenizer(
        bundle.tokenizer_json, manifest.tokenizer, where=str(bundle.path / "tokenizer.json")
    )
    loading = _Loading(opener, asked, checked_memory(memory), way_out)
    try:
        return loading.model(tokenizer, share)
    except BaseException as error:
        loading.close()
        if isinstance(error, MemoryError):
            raise EngineError(
                f"{bundle.path}: not enough memory for {manifest.name} at a context of "
                f"{asked.context}; choose a smaller context"
            ) from error
        raise


@dataclass(frozen=True, slots=True)
class _Known:
    """What is stored about speculation with a bundle and settings.

    Args:
        standing: what a canary's record says.
        canary: of this model; None: no request is to be compared.
        knowledge: in mode "auto".
    """

    standing: Standing = field(default_factory=Standing)
    canary: Canary | None = None
    knowledge: Knowledge | None = None

    @property
    def notes(self) -> list[str]:
        """What a person should know of it; a probe's word does not count against a canary's."""
        notes = list(self.standing.notes)
        if self.knowledge is not None and self.standing.off is None:
            notes += self.knowledge.notes
        return notes

    def allowed(self, names: Sequence[str]) -> list[str]:
        """Those proposers that nothing stored has ruled out, in the same order."""
        if self.standing.off is not None:
            return []
        return list(names) if self.knowledge is None else self.knowledge.allowed(names)


class _Loading:
    """A load under way: engines that are open, and what a person should know.

    Args:
        opener: of the bundle, with its settings.
        asked: checked.
        budget: bytes that a run may need; None: what the machine has available decides.
        way_out: see `opened`.

    Raises:
        MemoryBudgetError: see `specedge.memory.fit`.
    """

    def __init__(
        self, opener: Opener, asked: LoadOptions, budget: int | None, way_out: str | None
    ) -> None:
        self._opener = opener
        self._way_out = way_out
        self._bundle = opener.bundle
        self._manifest = opener.bundle.manifest
        self._asked = asked
        self._opened: list[Engine] = []
        self._fit = partial(fit, self._manifest, asked.context, budget=budget, room=opener.room)
        fits = self._fit(
            wants_draft=asked.wants_draft,
            lookups=any(name != "draft" for name in asked.proposers),
            insists=asked.mode == "on",
            may_rest=way_out is None,
        )
        self._keeps_draft = fits.keeps_draft
        self._notes = [fits.note] if fits.note else []
        if asked.wants_draft and self._manifest.draft is None:
            self._notes.append("no draft model in the bundle")

    def close(self) -> None:
        """Free what is open, where no model owns it."""
        for engine in self._opened:
            engine.close()

    def model(self, tokenizer: Tokenizer, share: float) -> Model:
        """Open the engines and choose who drafts.

        Args:
            tokenizer: the bundle's.
            share: of requests that a canary compares, 0..1.

        Raises:
            EngineError: see `load`. What was opened is still open.
        """
        target = self._opener.target(takes_turns=self._keeps_draft)
        self._opened.append(target)
        if target.width_noise and self._asked.mode != "off":
            self._notes.append(
                f"logits differ by up to {target.width_noise:.2g} with the number of tokens in a "
                "call, so near-ties may fall another way than in plain decoding"
            )
        # an engine may have something to say of how it runs; the protocol asks none
        self._notes += getattr(target, "notes", ())
        known = self._known(target, share)
        self._notes += known.notes
        names = known.allowed(self._asked.proposers)
        if self._keeps_draft and "draft" not in names:
            self._opened.pop().close()
            target = self._opener.target(takes_turns=False)
            self._opened.append(target)
        speculator = self._speculator(names, target, known)
        model = Model(self._bundle, target, speculator, tokenizer, self._notes)
        model.canary = known.canary
        return model

    def _known(self, target: Engine, share: float) -> _Known:
        """What is stored, looked up where it matters."""
        asked = self._asked
        if not asked.drafts or not (asked.mode == "auto" or share or has_records(self._bundle)):
            return _Known()
        # a probe knows the draft that the bundle asks for, whether or not this run does
        own = self._manifest.speculation.proposers
        probed = "draft" not in asked.proposers and "draft" in own
        with_draft = self._keeps_draft or self._fit(wants_draft=probed, lookups=True).keeps_draft
        parts = self._opener.fingerprint(target, with_draft=with_draft)
        insists = asked.mode == "on"
        standing = Standing.of(self._bundle, parts, insists=insists)
        compares = share and standing.off is None
        return _Known(
            standing,
            Canary(self._bundle, parts, share, insists=insists) if compares else None,
            Knowledge.of(self._bundle, parts) if asked.mode == "auto" else None,
        )

    def _speculator(self, names: Sequence[str], target: Engine, known: _Known) -> Speculator:
        """With those proposers that can be had, in the order of `names`."""
        asked, defaults = self._asked, self._manifest.speculation
        # one that would never run is not worth its memory
        draft = self._draft() if self._keeps_draft and "draft" in names else None
        proposers: list[Proposer] = []
        for name in names:
            if name == "ngram":
                proposers.append(NgramProposer(defaults.ngram_min, defaults.ngram_max))
            elif draft is not None:
                proposers.append(DraftModelProposer(draft))
        controller: Chooser = Controller(asked.draft_length)
        if known.knowledge is not None:
            controller = known.knowledge.chooser(
                [proposer.name for proposer in proposers],
                target,
                asked.context,
                draft,
                longest=asked.draft_length,
                margin=defaults.margin,
            )
        speculator = Speculator(proposers, controller, mode=asked.mode)
        if known.standing.off is not None:
            speculator.rest(known.standing.off)
        return speculator

    def _draft(self) -> Engine | None:
        """The draft's engine; None, with a note, when it cannot be had and nobody insists."""
        draft = self._opener.draft()
        if not isinstance(draft, str):
            self._opened.append(draft)
            return draft
        if self._asked.mode == "on":
            way_out = self._way_out or 'use speculation "auto" to go on without it'
            raise EngineError(f"the draft model cannot be loaded: {draft}; {way_out}")
        self._notes.append(f"the draft model was left out: {draft}")
        return None

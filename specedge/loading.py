"""From a bundle's folder to a model that is ready: check, open engines, choose proposers."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from functools import partial

from specedge.bundle import Bundle
from specedge.canary.watching import Canary, Standing, checked_share, has_records
from specedge.contract import Manifest
from specedge.controller import Chooser, Controller
from specedge.engines.base import Engine
from specedge.errors import EngineError, OptionError
from specedge.knowledge import Knowledge
from specedge.memory import checked_memory, fit
from specedge.model import Model
from specedge.opening import Opener
from specedge.proposers import DraftModelProposer, NgramProposer, Proposer
from specedge.speculator import Mode, Speculator
from specedge.system_memory import available_bytes
from specedge.tokenizer import Tokenizer

PROPOSERS = ("ngram", "draft")
MODES = ("auto", "on", "off")
MAX_THREADS = 1024  # the runtime makes them all at once, and dies where the system has no more


def load(
    path: str | os.PathLike[str],
    *,
    engine: str = "auto",
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
        engine: "auto", "cpu" or "fake".
        threads: of the engine; None: its own choice.
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
        memory: bytes, or a size like "2GiB", that a run may need; a draft model that does not fit
            is left out. None: what the machine has available decides.
        verify: check the sha256 of every file (see `specedge.bundle`).
        canary: share of requests, 0..1, that are decoded plainly as well, after the answer, and
            compared; docs/canary.md.

    Raises:
        BundleError: see `Bundle.open`.
        OptionError: an argument is out of range, or speculation is "on" with nobody to draft.
        MemoryBudgetError: the target alone does not fit into `memory`.
        EngineError: an engine is missing, or cannot load its graph or allocate its KV.
    """
    bundle = Bundle.open(path, verify=verify)
    manifest = bundle.manifest
    defaults = manifest.speculation
    mode = _mode(speculation, defaults.mode)
    rows = checked_context(context, manifest)
    length = _draft_length(draft_length, manifest, rows, mode)
    names = checked_proposers(defaults.proposers if proposers is None else proposers)
    if mode == "on" and min(manifest.target.max_verify, rows) == 1:
        raise OptionError(
            f'speculation "on": a call verifies 1 token at most (max_verify '
            f"{manifest.target.max_verify}, context {rows}), which leaves no room for a draft; "
            'use "auto", or export with a larger export.max_verify and context'
        )
    if mode == "on" and (length == 0 or not _usable(names, manifest)):
        raise OptionError(
            f'speculation "on": draft_length is {length} and of the proposers asked for '
            f"({', '.join(names) or 'none'}) this bundle can run "
            f'{", ".join(_usable(names, manifest)) or "none"}; use "auto", or a draft_length of '
            '1 or more with "ngram" among the proposers'
        )
    check_threads(threads)
    share = checked_share(canary)
    tokenizer = Tokenizer(
        bundle.tokenizer_json, manifest.tokenizer, where=str(bundle.path / "tokenizer.json")
    )
    drafts = mode != "off" and length > 0
    room = partial(
        fit,
        manifest,
        rows,
        budget=checked_memory(memory),
        available=available_bytes(),
    )
    fits = room(
        wants_draft=drafts and "draft" in names,
        lookups=any(name != "draft" for name in names),
        insists=mode == "on",
    )
    notes = [fits.note] if fits.note else []
    if drafts and "draft" in names and manifest.draft is None:
        notes.append("no draft model in the bundle")
    opener = Opener(bundle, engine, threads, rows, exact)
    opened: list[Engine] = []
    try:
        target = opener.target(takes_turns=fits.keeps_draft)
        opened.append(target)
        if target.width_noise and mode != "off":
            notes.append(
                f"logits differ by up to {target.width_noise:.2g} with the number of tokens in a "
                "call, so near-ties may fall another way than in plain decoding"
            )
        knowledge, watched, standing = None, None, Standing()
        if drafts and (mode == "auto" or share or has_records(bundle)):
            # a probe knows the draft that the bundle asks for, whether or not this run does
            probed = "draft" not in names and "draft" in defaults.proposers
            with_draft = fits.keeps_draft or room(wants_draft=probed, lookups=True).keeps_draft
            parts = opener.fingerprint(target, with_draft=with_draft)
            standing = Standing.of(bundle, parts, insists=mode == "on")
            notes += standing.notes
            if share and standing.off is None:
                watched = Canary(bundle, parts, share, insists=mode == "on")
            if mode == "auto":
                knowledge = Knowledge.of(bundle, parts)
        if knowledge is not None:
            if standing.off is None:
                notes += knowledge.notes
            names = knowledge.allowed(names) if standing.off is None else []
            if fits.keeps_draft and "draft" not in names:
                opened.pop().close()
                target = opener.target(takes_turns=False)
                opened.append(target)
        chosen: list[Proposer] = []
        draft: Engine | None = None
        for name in names:
            if name == "ngram":
                chosen.append(NgramProposer(defaults.ngram_min, defaults.ngram_max))
            elif fits.keeps_draft:  # one that would never run is not worth its memory
                draft = _draft(opener, mode, notes)
                if draft is not None:
                    opened.append(draft)
                    chosen.append(DraftModelProposer(draft))
        controller: Chooser = Controller(length)
        if knowledge is not None:
            controller = knowledge.chooser(
                [proposer.name for proposer in chosen],
                target,
                rows,
                draft,
                longest=length,
                margin=defaults.margin,
            )
        speculator = Speculator(chosen, controller, mode=mode)
        if standing.off is not None:
            speculator.rest(standing.off)
        model = Model(bundle, target, speculator, tokenizer, notes)
        model.canary = watched
        return model
    except BaseException as error:
        for each in opened:
            each.close()
        if isinstance(error, MemoryError):
            raise EngineError(
                f"{bundle.path}: not enough memory for {manifest.name} at a context of {rows}; "
                "choose a smaller context"
            ) from error
        raise


def _draft(opener: Opener, mode: Mode, notes: list[str]) -> Engine | None:
    """The draft's engine; None, with a note, when it cannot be had and nobody insists."""
    draft = opener.draft()
    if not isinstance(draft, str):
        return draft
    if mode == "on":
        raise EngineError(
            f'the draft model cannot be loaded: {draft}; use speculation "auto" to go on without it'
        )
    notes.append(f"the draft model was left out: {draft}")
    return None


def _usable(names: Sequence[str], manifest: Manifest) -> list[str]:
    return [name for name in names if name != "draft" or manifest.draft is not None]


def usable_proposers(manifest: Manifest) -> list[str]:
    """All that a bundle can run."""
    return _usable(PROPOSERS, manifest)


def _mode(asked: str | None, default: Mode) -> Mode:
    mode = default if asked is None else asked
    if mode not in MODES:
        raise OptionError(f"speculation: expected auto, on or off, found {mode!r}")
    return mode  # type: ignore[return-value]


def check_threads(asked: int | None) -> None:
    """Raises OptionError when it is given and not 1..MAX_THREADS."""
    if asked is not None and (not _is_integer(asked) or not 1 <= asked <= MAX_THREADS):
        raise OptionError(f"threads: expected 1..{MAX_THREADS}, found {asked!r}")


def checked_context(asked: int | None, manifest: Manifest) -> int:
    """Rows of KV: what is asked for, or the bundle's. Raises OptionError out of range."""
    longest = manifest.target.context
    if asked is None:
        return longest
    if not _is_integer(asked) or not 1 <= asked <= longest:
        raise OptionError(
            f"context: expected 1..{longest}, found {asked!r}; export with a larger "
            "export.context for more"
        )
    return asked


def _draft_length(asked: int | None, manifest: Manifest, context: int, mode: Mode) -> int:
    widest = manifest.target.max_verify
    if asked is None and mode == "auto" and manifest.speculation.draft_length:
        return max(0, min(widest, context) - 1)
    if asked is None:
        return max(0, min(manifest.speculation.draft_length, widest - 1, context - 1))
    if not _is_integer(asked) or asked < 0:
        raise OptionError(f"draft_length: expected 0 or more, found {asked!r}")
    if asked + 1 > context and asked > 0:
        raise OptionError(
            f"draft_length: {asked} drafted tokens do not fit the context of {context}; "
            f"use at most {context - 1}"
        )
    if asked + 1 > widest:
        raise OptionError(
            f"draft_length: {asked} drafted tokens need a verification of {asked + 1}, this "
            f"bundle allows {widest} (export.max_verify); use at most {widest - 1}"
        )
    return asked


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def checked_proposers(names: Sequence[str]) -> list[str]:
    """The same names. Raises OptionError for one that is unknown, or there twice."""
    if isinstance(names, str):
        names = names.split(",")
    for name in names:
        if name not in PROPOSERS:
            near = difflib.get_close_matches(name, PROPOSERS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(PROPOSERS)}"
            raise OptionError(f"proposers: no proposer {name!r}; {hint}")
    if len(set(names)) != len(names):
        raise OptionError(f"proposers: {', '.join(names)} names one twice")
    return list(names)

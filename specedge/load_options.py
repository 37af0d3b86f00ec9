"""What a load may be asked for, checked against the bundle: honoured, or refused by name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from specedge.contract import Manifest
from specedge.errors import OptionError
from specedge.speculator import Mode

PROPOSERS = ("ngram", "draft")
MODES = ("auto", "on", "off")
MAX_THREADS = 1024  # the runtime makes them all at once, and dies where the system has no more


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Who may draft how much, and how long a text may be.

    Args:
        mode: of speculation.
        context: T, rows of KV.
        draft_length: K with mode "on", the most with "auto"; 0: plain decoding.
        proposers: asked for, in priority order; the bundle need not be able to run them.
    """

    mode: Mode
    context: int
    draft_length: int
    proposers: tuple[str, ...]

    @classmethod
    def checked(
        cls,
        manifest: Manifest,
        *,
        speculation: str | None = None,
        draft_length: int | None = None,
        proposers: Sequence[str] | None = None,
        context: int | None = None,
        draft_engine: str | None = None,
    ) -> LoadOptions:
        """As `specedge.load` takes them; what is None comes from the bundle.

        Raises:
            OptionError: one is out of range, speculation is "on" with nobody to draft, or an engine
                is named for a draft model that does not draft.
        """
        defaults = manifest.speculation
        mode = _mode(speculation, defaults.mode)
        rows = checked_context(context, manifest)
        length = _draft_length(draft_length, manifest, rows, mode)
        names = checked_proposers(defaults.proposers if proposers is None else proposers)
        if mode == "on":
            _somebody_drafts(manifest, rows, length, names)
        asked = cls(mode, rows, length, tuple(names))
        # whether there is a draft is for whoever opens it to say
        if draft_engine is not None and manifest.draft is not None and not asked.wants_draft:
            raise OptionError(f"draft_engine: {draft_engine} is given, but {asked._no_draft}")
        return asked

    @property
    def drafts(self) -> bool:
        """Drafting was not ruled out."""
        return self.mode != "off" and self.draft_length > 0

    @property
    def wants_draft(self) -> bool:
        """The draft model shall draft, if there is one."""
        return self.drafts and "draft" in self.proposers

    @property
    def _no_draft(self) -> str:
        """Why the draft model shall not draft, and what to do."""
        if self.mode == "off":
            return 'speculation is "off"; leave it out, or use speculation "auto"'
        if not self.draft_length:
            return "the draft length is 0; leave it out, or draft 1 token or more"
        return (
            f"draft is not among the proposers ({', '.join(self.proposers) or 'none'}); leave it "
            "out, or add draft"
        )


def _somebody_drafts(
    manifest: Manifest, context: int, length: int, proposers: Sequence[str]
) -> None:
    """Raises OptionError where nobody can, though speculation is "on"."""
    if min(manifest.target.max_verify, context) == 1:
        raise OptionError(
            f'speculation "on": a call verifies 1 token at most (max_verify '
            f"{manifest.target.max_verify}, context {context}), which leaves no room for a draft; "
            'use "auto", or export with a larger export.max_verify and context'
        )
    usable = usable_proposers(manifest, proposers)
    if length == 0 or not usable:
        raise OptionError(
            f'speculation "on": draft_length is {length} and of the proposers asked for '
            f"({', '.join(proposers) or 'none'}) this bundle can run "
            f'{", ".join(usable) or "none"}; use "auto", or a draft_length of 1 or more with '
            '"ngram" among the proposers'
        )


def usable_proposers(manifest: Manifest, names: Sequence[str] = PROPOSERS) -> list[str]:
    """Those of them that a bundle can run."""
    return [name for name in names if name != "draft" or manifest.draft is not None]


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

"""The engines of a bundle, as a run opens them and a probe measures them."""

from __future__ import annotations

from dataclasses import dataclass

from specedge.bundle import Bundle
from specedge.engines import registry
from specedge.engines.base import Engine
from specedge.errors import EngineError, one_line
from specedge.probe import fingerprint


@dataclass(frozen=True)
class Opener:
    """Settings that target and draft share.

    Args:
        bundle: opened and checked.
        engine: "auto", or a name that the registry knows.
        threads: of each engine; None: its own choice.
        context: T, rows of the target's KV; the draft has no more.
        exact: the target's logits do not depend on how wide a call is.
    """

    bundle: Bundle
    engine: str
    threads: int | None
    context: int
    exact: bool

    @property
    def draft_context(self) -> int | None:
        """Rows of the draft's KV; None: the bundle has no draft."""
        spec = self.bundle.manifest.draft
        return None if spec is None else min(self.context, spec.context)

    def target(self, *, takes_turns: bool) -> Engine:
        """`takes_turns`: with a draft model; costs a plain step some per cent.

        Raises:
            EngineError: see `registry.create`.
        """
        return registry.create(
            self.engine,
            self.bundle.path,
            self.bundle.manifest.target,
            threads=self.threads,
            context=self.context,
            exact=self.exact,
            takes_turns=takes_turns,
        )

    def draft(self) -> Engine | str:
        """The draft's engine, or in one line why it cannot be had."""
        spec, context = self.bundle.manifest.draft, self.draft_context
        if spec is None or context is None:
            return "no draft model in the bundle"
        try:
            # a draft is a guess, whichever kernel made it: the narrow one is cheaper
            return registry.create(
                self.engine,
                self.bundle.path,
                spec,
                threads=self.threads,
                context=context,
                exact=False,
                takes_turns=True,
            )
        except (EngineError, MemoryError) as error:
            return one_line(error)

    def fingerprint(self, target: Engine, *, with_draft: bool) -> fingerprint.Fingerprint:
        """Of what a run with this target costs."""
        return fingerprint.take(
            self.bundle,
            target,
            context=self.context,
            draft_context=self.draft_context if with_draft else None,
            threads=self.threads,
            exact=self.exact,
        )

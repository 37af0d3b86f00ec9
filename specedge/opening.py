"""The engines of a bundle, as a run opens them and a probe measures them."""

from __future__ import annotations

from dataclasses import dataclass

from specedge.bundle import Bundle
from specedge.contract import GraphSpec
from specedge.engines import cuda, matching, options, registry
from specedge.engines.base import Engine
from specedge.errors import EngineError, OptionError, PlanError, one_line
from specedge.memory import DEVICE_RESERVE, Room
from specedge.probe import fingerprint
from specedge.system_memory import available_bytes


@dataclass(frozen=True)
class Opener:
    """Settings that target and draft share, and on which engine each of them runs.

    Args:
        bundle: opened and checked.
        engine: the target's: "auto", or a name that the registry knows.
        threads: of each engine that has any; None: its own choice.
        context: T, rows of the target's KV; the draft has no more.
        exact: the target's logits do not depend on how wide a call is.
        draft_engine: the draft's; None: the same as the target's.

    Raises:
        EngineError: no such engine, it does not run the graph, or the bundle gives it an option
            that it does not know.
        OptionError: an engine for a draft that the bundle lacks, or threads for engines without.
    """

    bundle: Bundle
    engine: str
    threads: int | None
    context: int
    exact: bool
    draft_engine: str | None = None

    def __post_init__(self) -> None:
        matching.check(matching.checked(self.engine), self.bundle.manifest.target)
        if self.draft_engine is not None:
            name = matching.checked(self.draft_engine, "draft_engine")
            spec = self.bundle.manifest.draft
            if spec is None:
                raise OptionError(
                    f"draft_engine: {self.draft_engine} is given, but the bundle has no draft "
                    "model; leave it out, or export with a [draft]"
                )
            try:
                matching.check(name, spec)
            except EngineError as error:
                raise EngineError(matching.of_draft(str(error))) from None
        names = {self.target_name, self.draft_name}
        options.check({n: said for n, said in self.bundle.manifest.engines.items() if n in names})
        if self.threads is not None and names <= set(matching.PLANNED):
            raise OptionError(
                f"threads: {' and '.join(sorted(names))} computes on the GPU and has none; leave "
                "threads out"
            )

    @property
    def target_name(self) -> str:
        """Of the target's engine; never "auto"."""
        return matching.checked(self.engine)

    @property
    def draft_name(self) -> str:
        """Of the draft's engine, whether or not there is a draft."""
        return matching.checked(self.draft_engine or self.engine)

    @property
    def runs_plans(self) -> bool:
        """Whether a run looks for plans of `specedge build`."""
        return not {self.target_name, self.draft_name}.isdisjoint(matching.PLANNED)

    @property
    def draft_context(self) -> int | None:
        """Rows of the draft's KV; None: the bundle has no draft."""
        spec = self.bundle.manifest.draft
        return None if spec is None else min(self.context, spec.context)

    @property
    def room(self) -> Room:
        """Memory that target and draft may take where they compute."""
        where, beside = self._device(self.target_name), self._device(self.draft_name)
        if where == beside:
            return Room(_available(where), _place(where))
        return Room(
            _available(where),
            _place(where),
            apart=True,
            draft_available=_available(beside),
            draft_where=_place(beside),
        )

    def _device(self, name: str) -> int | None:
        return options.device(name, self.bundle.manifest.engines.get(name))

    def target(self, *, takes_turns: bool) -> Engine:
        """`takes_turns`: with a draft model; on the CPU that costs a plain step some per cent.

        Raises:
            EngineError: see `registry.create`.
        """
        return self._open(
            self.target_name,
            self.bundle.manifest.target,
            self.context,
            exact=self.exact,
            takes_turns=takes_turns,
        )

    def draft(self) -> Engine | str:
        """The draft's engine, or in one line why it cannot be had.

        Raises:
            EngineError: it cannot be had, and its engine was named. Want of memory is no error:
                the next run may have more.
        """
        spec, context = self.bundle.manifest.draft, self.draft_context
        if spec is None or context is None:
            return "no draft model in the bundle"
        try:
            # a draft is a guess, whichever kernel made it: the narrow one is cheaper
            return self._open(self.draft_name, spec, context, exact=False, takes_turns=True)
        except MemoryError as error:
            return one_line(error)
        except EngineError as error:
            why = matching.of_draft(one_line(error))
            if self.draft_engine is None:
                return why
            remedy = "" if "--draft-engine" in why else "; choose another --draft-engine"
            kind = PlanError if isinstance(error, PlanError) else EngineError
            raise kind(f"the draft model cannot be loaded: {why}{remedy}") from error

    def _open(
        self, name: str, spec: GraphSpec, context: int, *, exact: bool, takes_turns: bool
    ) -> Engine:
        # threads that spin are in nobody's way but on the same processor
        beside = not {self.target_name, self.draft_name} & set(matching.ON_GPU)
        return registry.create(
            name,
            self.bundle.path,
            spec,
            options=self.bundle.manifest.engines.get(name),
            threads=None if name in matching.PLANNED else self.threads,
            context=context,
            exact=exact,
            takes_turns=takes_turns and beside,
        )

    def fingerprint(self, target: Engine, *, with_draft: bool) -> fingerprint.Fingerprint:
        """Of what a run with this target costs."""
        return fingerprint.take(
            self.bundle,
            target,
            context=self.context,
            draft_context=self.draft_context if with_draft else None,
            draft_engine=self.draft_name if with_draft else None,
            threads=self.threads,
            exact=self.exact,
        )


def _available(device: int | None) -> int | None:
    """Bytes that are left on a GPU, or on the host; None: unknown."""
    if device is None:
        return available_bytes()
    free = cuda.free_bytes(device)
    return None if free is None else max(0, free - DEVICE_RESERVE)


def _place(device: int | None) -> str:
    if device is None:
        return ""
    return "on the GPU" if device == 0 else f"on GPU {device}"

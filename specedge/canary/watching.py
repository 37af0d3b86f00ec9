"""Decodes a share of a model's requests both ways, and turns speculation off where that is due.

    request begins     `chosen` draws whether this one is compared
    last event is out  the consumer's next call, which ends the iteration, decodes plainly first
    then               tokens and times into the record; a verdict of "off" rests the speculator

Nothing of it reaches whoever asked: a failure is counted, and a request of another thread
interrupts it between two rounds. Ctrl-C ends it as it ends everything else.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any

from specedge import keeping
from specedge.bundle import Bundle
from specedge.canary import deciding
from specedge.canary.comparing import Request, compare
from specedge.canary.record import (
    FOLDER,
    MOST_KEPT,
    Comparison,
    Record,
    Verdict,
    find,
    update,
)
from specedge.canary.turns import Turn, Wanted
from specedge.contract import Ids
from specedge.controller import Controller
from specedge.errors import BusyError, EngineError, OptionError, with_class
from specedge.limits import shown
from specedge.probe.fingerprint import Fingerprint
from specedge.result import Result
from specedge.sampling.params import SamplingParams
from specedge.speculator import Speculator

if TYPE_CHECKING:
    from specedge.model import Model

Change = Callable[[Record], Record]


def checked_share(value: object) -> float:
    """Raises OptionError unless it is a number of 0..1."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1:  # type: ignore[operator]
        raise OptionError(
            "canary: expected 0..1, the share of requests that are decoded both ways, "
            f"found {shown(value)}"
        )
    return float(value)  # type: ignore[arg-type]


def off_note(bundle: Bundle, verdict: Verdict, *, insists: bool) -> str:
    """For a person: why speculation is off, or would be if it were not asked for."""
    clear = f"`specedge canary {bundle.path} --clear` forgets it"
    if insists:
        return f'speculation "on" goes on by request, against the canary: {verdict.reason}; {clear}'
    return f"the canary turned speculation off: {verdict.reason}; {clear}"


@dataclass(frozen=True)
class Standing:
    """What a stored record means for a model that is being loaded.

    Args:
        off: nobody may draft; the reason, as a note. None: whoever pays may.
        notes: what else a person should know.
    """

    off: str | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, bundle: Bundle, fingerprint: Fingerprint, *, insists: bool) -> Standing:
        """Look it up; a record that cannot be used is none, and says why."""
        found = find(bundle, fingerprint)
        if found.damage:
            note = f"the canary's record cannot be used and starts anew: {found.damage}"
            return cls(notes=(note,))
        if found.record is None or not found.record.verdict.off:
            return cls()
        note = off_note(bundle, found.record.verdict, insists=insists)
        return cls(notes=(note,)) if insists else cls(off=note)


def has_records(bundle: Bundle) -> bool:
    """Whether any fingerprint of this bundle has one."""
    return next(keeping.stored(bundle, FOLDER), None) is not None


class Canary:
    """Of one model; `specedge.load` makes it.

    Args:
        bundle: whose record it fills.
        fingerprint: of engines and settings, as they are.
        share: of requests, 0..1.
        insists: speculation is "on": a verdict becomes a note, and changes nothing.
        draws: of the share.
    """

    def __init__(
        self,
        bundle: Bundle,
        fingerprint: Fingerprint,
        share: float,
        *,
        insists: bool = False,
        draws: random.Random | None = None,
    ) -> None:
        self.share = checked_share(share)
        self.fingerprint = fingerprint
        self.trouble = ""
        self._bundle = bundle
        self._insists = insists
        self._random = random.Random() if draws is None else draws
        self._plain = Speculator((), Controller(0), mode="off")
        self._writing = threading.Lock()
        self._unkept: Record | None = None
        self._seen: deque[Comparison] = deque(maxlen=MOST_KEPT)
        self._failures: deque[str] = deque(maxlen=MOST_KEPT)

    @property
    def record(self) -> Record:
        """As it stands now, other processes' comparisons included."""
        found = find(self._bundle, self.fingerprint).record
        return found or self._unkept or Record.new(self.fingerprint)

    @property
    def summary(self) -> str:
        """What this process has compared, in one line; empty: nothing."""
        parts = [
            f"{number} {kind}"
            for kind, number in Counter(each.tokens for each in self._seen).items()
        ]
        timed = [each for each in self._seen if each.plain_ms is not None]
        if timed:
            plain_ms = sum(each.plain_ms or 0.0 for each in timed)
            spec_ms = sum(each.spec_ms or 0.0 for each in timed)
            parts.append(f"{plain_ms:.0f} ms plainly, {spec_ms:.0f} ms with speculation")
        if self._failures:
            parts.append(f"{len(self._failures)} failed, the last: {self._failures[-1]}")
        if self.trouble:
            parts.append(self.trouble)
        return ", ".join(parts)

    def chosen(
        self,
        model: Model,
        ids: Ids,
        options: Mapping[str, Any],
        params: SamplingParams,
        end_ids: frozenset[int],
    ) -> Callable[[Result], None] | None:
        """What to do after this request; None: it is not among those compared.

        Args:
            model: that it is asked of.
            ids: of its prompt, int64 [n].
            options: as given; params: of them, checked.
            end_ids: see `Request`.
        """
        speculator = model.speculator
        if params.n > 1 or speculator.mode == "off" or speculator.resting is not None:
            return None
        if self._random.random() >= self.share:
            return None
        request = Request(ids, _copied(options), params, end_ids)
        return partial(self._after, model, request)

    def _after(self, model: Model, request: Request, result: Result) -> None:
        """Raises nothing but what is no Exception, such as KeyboardInterrupt."""
        if result.finish_reason == "cancelled":
            return
        turn = Turn()
        try:
            # Whatever a runtime raises: the answer is out, and was right or wrong without this.
            try:
                change = self._change(model, turn, request, result)
            except Exception as error:
                change = self._failed(model, error)
            if change is not None:
                self._keep(model, change)
        except Exception as error:
            self.trouble = with_class(error)
        finally:
            turn.over.set()

    def _change(self, model: Model, turn: Turn, request: Request, result: Result) -> Change | None:
        """What the record has to learn; None: there was no way to compare."""
        if model.last_result is not result:
            return self._interrupted(model)  # others have taken the rows: it would read all again
        again = request.plainly(result)
        try:
            generation = model.start(request.ids, again, speculator=self._plain, turn=turn)
        except (BusyError, EngineError):  # another thread was quicker, or has closed the model
            return None
        try:
            model.finish(generation)
        except Wanted:
            turn.over.set()
            return self._interrupted(model)
        assert generation.result is not None, "it has ended"
        comparison, evidence = compare(model, request, result, generation.result)
        model.counters.compared(comparison.tokens)
        self._seen.append(comparison)
        return lambda record: deciding.added(record, comparison, evidence)

    @staticmethod
    def _interrupted(model: Model) -> Change:
        model.counters.compared("interrupted")
        return deciding.interrupted

    def _failed(self, model: Model, error: Exception) -> Change:
        why = with_class(error)
        model.counters.compared("failed")
        self._failures.append(why)
        return lambda record: deciding.failed(record, why)

    def _keep(self, model: Model, change: Change) -> None:
        with self._writing:
            record, self.trouble = update(self._bundle, self.fingerprint, change, self._unkept)
            self._unkept = record if self.trouble else None
        if not record.verdict.off:
            return
        note = off_note(self._bundle, record.verdict, insists=self._insists)
        if not self._insists:
            model.speculator.rest(note)
        elif note not in model.notes:
            model.notes += (note,)


def _copied(value: Any) -> Any:
    """What the caller may change meanwhile; as dicts and lists, since other kinds need not have a
    copy."""
    if isinstance(value, Mapping):
        return {key: _copied(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_copied(each) for each in value]
    return value

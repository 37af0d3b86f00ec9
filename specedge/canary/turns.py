"""Work that a model does between requests, and gives up for the next one."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from specedge.errors import BusyError

if TYPE_CHECKING:
    from specedge.loop import Round

_LOOK_S = 0.05  # how often a waiting thread looks whether anybody is still there to wait for


class Wanted(Exception):
    """Another thread waits for the model."""


class Turn:
    """One piece of such work; held by whoever does it, and by nobody else.

    Args:
        wanted: another thread waits for the model.
        over: the engine is not used any more.
    """

    def __init__(self) -> None:
        self.wanted = False
        self.over = threading.Event()
        self.thread = threading.get_ident()

    def unless_wanted(self, rounds: Iterator[Round]) -> Iterator[Round]:
        """The same rounds; raises Wanted between two of them as soon as that is so."""
        for done in rounds:
            if self.wanted:
                raise Wanted
            yield done


class Turns:
    """At most one turn at a time. Both verbs are called under the model's own lock."""

    def __init__(self) -> None:
        # As a running request is held: one that nobody holds any more has ended, so nothing has to
        # be released, which Ctrl-C could prevent.
        self._turn: weakref.ref[Turn] | None = None

    def begin(self, turn: Turn) -> None:
        """Raises BusyError while another turn is not over."""
        running = None if self._turn is None else self._turn()
        if running is not None and running is not turn and not running.over.is_set():
            raise BusyError("model: it is comparing an earlier request")
        self._turn = weakref.ref(turn)

    def make_way(self) -> None:
        """Interrupt a turn of another thread, and wait until it is over."""
        while self._turn is not None:
            turn = self._turn()
            if turn is None or turn.thread == threading.get_ident():
                return
            turn.wanted = True
            over = turn.over
            del turn  # else it would be held here
            if over.wait(_LOOK_S):
                return

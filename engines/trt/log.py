"""What TensorRT says: it returns None or False, and gives its reason to the logger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from specedge.engines.trt import library as libraries
from specedge.engines.trt.library import Library
from specedge.errors import EngineError, one_line

_ERROR = 1  # severity of a line; 0 is graver
_LONGEST = 300


class Refused(EngineError):
    """The library said no; why stands in its log."""


@contextmanager
def logged(library: Library) -> Iterator[list[str]]:
    """Collect the errors that the library logs meanwhile; the list is full when the block ends.

    Raises:
        EngineError: in the place of a `Refused` or an exception of the bindings, with the reason.
    """
    logger = libraries.logger(library.backend)
    start = len(logger.lines)
    errors: list[str] = []

    def taken() -> str:
        errors.extend(text for severity, text in logger.lines[start:] if severity <= _ERROR)
        del logger.lines[start:]  # nobody else reads them, and a long run would keep them all
        return reason(errors)

    try:
        yield errors
    except Refused as error:
        raise EngineError(f"{error}: {taken()}") from error
    except RuntimeError as error:  # what the bindings raise
        why = "; ".join([one_line(error), taken()])
        raise EngineError(f"{name_of(library)} failed: {why[:_LONGEST]}") from error
    taken()


def reason(errors: list[str]) -> str:
    """The errors as the end of a message."""
    return "; ".join(errors)[:_LONGEST] or "it gives no reason"


def name_of(library: Library) -> str:
    return f"{library.backend} {library.version}"

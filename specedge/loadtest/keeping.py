"""A benchmark's result as a folder: written as it goes, in place whole or not at all.

Everything is written to a hidden folder beside the destination, with a header that says
"incomplete", and one rename puts it in place. What is interrupted is put in place too, if anything
was measured; after a power cut the hidden folder stays, and can be read up to its last whole line.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from pydantic import BaseModel, ValidationError

from specedge.errors import BenchError
from specedge.loadtest.records import (
    HEADER,
    REQUESTS,
    ROUNDS,
    SCHEMA,
    Header,
    RequestRecord,
    RoundRecord,
)
from specedge.loadtest.rounds import key
from specedge.replacing import folder_beside, replace_file, replace_folder

_NOT_WHOLE = "the files are not of one result, or not whole: measure again"

_Model = TypeVar("_Model", bound=BaseModel)
_Record = TypeVar("_Record", RequestRecord, RoundRecord)


@dataclass(frozen=True, slots=True)
class Kept:
    """A result, whole in memory.

    Args:
        header: what was measured, on what, and how.
        requests: in the order they ended.
        rounds: of those requests, in the same order.
    """

    header: Header
    requests: tuple[RequestRecord, ...]
    rounds: tuple[RoundRecord, ...]


def read(folder: Path) -> Kept:
    """A result that a `Writer` wrote.

    Raises:
        BenchError: there is no result, it is of a newer specedge, or a line of it is damaged; names
            the file and the line.
    """
    header = _header(folder)
    requests = tuple(_records(folder / REQUESTS, RequestRecord, header))
    rounds = tuple(_records(folder / ROUNDS, RoundRecord, header))
    _check_whole(folder, header, requests, rounds)
    return Kept(header, requests, rounds)


def _check_whole(
    folder: Path,
    header: Header,
    requests: Iterable[RequestRecord],
    rounds: Iterable[RoundRecord],
) -> None:
    """Every round that a served request counts is there, and each is of a request: a file may be
    cut between two lines. Rounds are written first, so an incomplete result may have more of them.

    Raises:
        BenchError: it is not so.
    """
    found = Counter(map(key, rounds))
    for each in requests:
        n_rounds = found.pop(key(each), 0)
        if each.failure is None and n_rounds != each.rounds:
            raise BenchError(
                f"{folder / ROUNDS}: expected {each.rounds} rounds of request {each.number} "
                f"({each.way}, repetition {each.repeat}), found {n_rounds}; {_NOT_WHOLE}"
            )
    if found and header.complete:
        way, _, repeat, number = next(iter(found))
        raise BenchError(
            f"{folder / REQUESTS}: expected request {number} ({way}, repetition {repeat}), since "
            f"there are rounds of it, found none; {_NOT_WHOLE}"
        )


def _header(folder: Path) -> Header:
    path = folder / HEADER
    if not path.is_file():
        raise BenchError(
            f"{folder}: expected the result of a benchmark, found no {HEADER} in it; make one with "
            "`specedge bench BUNDLE --output FOLDER`"
        )
    header = _parsed(Header, _bytes(path), str(path))
    if header.schema_version > SCHEMA:
        raise BenchError(
            f"{path}: a result of schema {header.schema_version}, this specedge reads up to "
            f"{SCHEMA}; use the specedge that wrote it, or measure again"
        )
    return header


def _records(path: Path, kind: type[_Record], header: Header) -> Iterator[_Record]:
    lines = _bytes(path).split(b"\n")
    last = lines.pop()  # b"" unless the line was being written when everything ended
    if last and header.complete:
        lines.append(last)
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        found = _parsed(kind, line, where)
        if found.way not in header.ways or found.load >= len(header.loads):
            raise BenchError(
                f"{where}: way {found.way!r} under load {found.load}, expected one of the "
                f"{len(header.ways)} ways and {len(header.loads)} loads of {HEADER}; the files are "
                "not of one result, measure again"
            )
        yield found


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BenchError(
            f"{path}: cannot be read: {error.strerror or error}; the result is not whole, measure "
            "again"
        ) from None


def _parsed(kind: type[_Model], text: bytes, where: str) -> _Model:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        said = f"{key}: {first['msg']}" if key else first["msg"]
        raise BenchError(f"{where}: damaged: {said}; measure again") from None


class Writer:
    """Takes records as they come; `finish` puts the folder in place.

    A context manager: what was not to be finished when the block ends is removed.

    Args:
        output: the folder to make; None: a folder of the system's, gone when the block ends.
        header: as far as it is known; it stands as "incomplete" until `finish`.
        force: replace a result that is there.

    Raises:
        BenchError: as `check_place`, or the folder cannot be written.
    """

    def __init__(self, output: Path | None, header: Header, *, force: bool = False) -> None:
        if output is not None:
            check_place(output, force=force)
        self.output = output
        self.requests = 0
        self._force = force
        self._stays = False
        with _reporting(output), ExitStack() as undo:
            if output is None:
                self.folder = Path(tempfile.mkdtemp(prefix="specedge-bench-"))
            else:
                output.parent.mkdir(parents=True, exist_ok=True)
                self.folder = folder_beside(output)
            undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self._write_header(header.model_copy(update={"complete": False}))
            self._requests, self._rounds = (
                undo.enter_context((self.folder / name).open("wb")) for name in (REQUESTS, ROUNDS)
            )
            undo.pop_all()

    def add(self, request: RequestRecord, rounds: Iterable[RoundRecord] = ()) -> None:
        """Append one request and its rounds; flushed, so that a crash loses neither.

        Raises:
            BenchError: the disk is full, or gone; what was added before stays, incomplete, and the
                error says where.
        """
        try:
            with _reporting(self.output):
                self._rounds.write(b"".join(_line(record) for record in rounds))
                self._rounds.flush()
                self._requests.write(_line(request))
                self._requests.flush()
        except BenchError as error:
            if self.output is None or not self.requests:
                raise
            self._stays = True
            raise BenchError(f"{error}; what was measured until then is in {self.folder}") from None
        self.requests += 1

    def finish(self, header: Header) -> None:
        """Write the last header and put the folder in place; `folder` is then where it lies.

        Raises:
            BenchError: the folder cannot be written, or something took its place meanwhile; then
                the result stays where it is, and the error says where.
        """
        with _reporting(self.output):
            self._close()
            self._write_header(header)
        if self.output is None:
            return
        try:
            check_place(self.output, force=self._force)
            with _reporting(self.output):
                replace_folder(self.folder, self.output)
        except BenchError as error:
            self._stays = True  # hours may have gone into it
            raise BenchError(f"{error}; the result is in {self.folder}") from None
        self.folder = self.output

    def _write_header(self, header: Header) -> None:
        replace_file(self.folder / HEADER, header.model_dump_json(indent=2) + "\n")

    def _close(self) -> None:
        self._rounds.close()
        self._requests.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # of a full disk: closing flushes once more
            self._close()
        if self.folder != self.output and not self._stays:
            shutil.rmtree(self.folder, ignore_errors=True)


def _line(record: BaseModel) -> bytes:
    return record.model_dump_json().encode() + b"\n"


def check_place(output: Path, *, force: bool = False) -> None:
    """Whether a result may be put there, before anything is measured.

    Raises:
        BenchError: something is there that is no result, or a result and no `force`.
    """
    with _reporting(output):
        if not output.exists() and not output.is_symlink():
            return
        if output.is_dir() and not any(output.iterdir()):
            return
        if not (output.is_dir() and (output / HEADER).is_file()):
            raise BenchError(
                f"{output}: exists and is not the result of a benchmark; name another folder"
            )
        if not force:
            raise BenchError(
                f"{output}: a result is there already; name another folder, or pass --force to "
                "replace it"
            )


@contextmanager
def _reporting(output: Path | None) -> Iterator[None]:
    """Errors of the file system as one line."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        where = "the folder for temporary files" if output is None else str(output)
        why = getattr(error, "strerror", None) or error
        raise BenchError(
            f"{where}: cannot be written: {why}; name another folder, or free space"
        ) from None

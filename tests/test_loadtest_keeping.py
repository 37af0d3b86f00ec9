"""A benchmark's result as a folder: whole or not at all, and read back as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from specedge.errors import BenchError
from specedge.loadtest.keeping import Writer, check_place, read
from specedge.loadtest.records import Header, Load, RequestRecord, RoundRecord


def header(**given: object) -> Header:
    usual: dict[str, object] = {
        "created": "2026-11-01T00:00:00Z",
        "bundle": "tiny",
        "bundle_hash": "0" * 64,
        "command": "specedge bench tiny",
        "versions": {"specedge": "0"},
        "fingerprint": {"threads": 2, "exact": True},
        "ways": ["plain", "auto"],
        "loads": [Load(kind="closed", concurrency=1)],
        "repeats": 1,
        "warmup": 0,
        "max_tokens": 8,
    }
    return Header.model_validate(usual | given)


def request(number: int = 0, **given: object) -> RequestRecord:
    usual: dict[str, object] = {
        "way": "auto",
        "load": 0,
        "repeat": 0,
        "number": number,
        "prompt": "chat 1",
        "workload": "chat",
        "arrived_s": 0.25,
        "began_s": 0.5,
        "first_s": 0.625,
        "ended_s": 1.0,
        "prompt_tokens": 5,
        "tokens": 4,
        "output": "ab",
        "rounds": 1,
    }
    return RequestRecord.model_validate(usual | given)


def a_round(number: int = 0) -> RoundRecord:
    return RoundRecord(
        **{"way": "auto", "load": 0, "repeat": 0, "number": number, "round": 1, "past": 5},
        **{"proposer": "ngram", "drafted": 3, "accepted": 2, "committed": 3},
        **{"ms": 1.5, "draft_ms": 0.5},
    )


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A whole result of two requests."""
    with Writer(tmp_path / "kept", header()) as writer:
        writer.add(request(0), [a_round(0)])
        writer.add(request(1, failure="too bad", first_s=None), [a_round(1), a_round(1)])
        writer.finish(header(notes=["said"]))
    return tmp_path / "kept"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_written_is_read(kept):
    found = read(kept)
    assert found.header == header(notes=["said"])
    assert found.requests == (request(0), request(1, failure="too bad", first_s=None))
    assert found.rounds == (a_round(0), a_round(1), a_round(1))


def test_nothing_lies_beside_a_result(kept):
    assert names(kept.parent) == ["kept"]
    assert names(kept) == ["bench.json", "requests.jsonl", "rounds.jsonl"]


def test_what_is_not_finished_leaves_nothing(tmp_path):
    writer = Writer(tmp_path / "kept", header())
    writer.add(request())
    writer.__exit__(None, None, None)
    assert names(tmp_path) == []


def test_a_crash_leaves_what_was_added_as_an_incomplete_result(tmp_path):
    writer = Writer(tmp_path / "kept", header())
    writer.add(request(), [a_round()])
    (scratch,) = tmp_path.iterdir()  # what a power cut would leave
    found = read(scratch)
    assert not found.header.complete
    assert (found.requests, found.rounds) == ((request(),), (a_round(),))
    with writer:
        pass


def test_without_a_place_it_is_readable_until_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Writer(None, header()) as writer:
        writer.add(request(), [a_round()])
        writer.finish(header())
        assert read(writer.folder).requests == (request(),)
        assert read(writer.folder).header.complete
    assert names(tmp_path) == []


def test_a_result_is_replaced_only_when_asked(kept):
    with pytest.raises(BenchError, match=r"kept: a result is there already.*--force"):
        Writer(kept, header())
    with Writer(kept, header(), force=True) as writer:
        writer.add(request(7), [a_round(7)])
        assert [record.number for record in read(kept).requests] == [0, 1]
        writer.finish(header())
    assert [record.number for record in read(kept).requests] == [7]
    assert names(kept.parent) == ["kept"]


def test_what_is_no_result_is_never_replaced(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("x")
    for name in ("mine", "file"):
        with pytest.raises(BenchError, match="is not the result of a benchmark"):
            check_place(tmp_path / name, force=True)
    (tmp_path / "empty").mkdir()
    check_place(tmp_path / "empty")


def test_what_took_the_place_meanwhile_is_left_alone_and_so_is_the_result(tmp_path):
    with Writer(tmp_path / "kept", header()) as writer:
        writer.add(request(), [a_round()])
        (tmp_path / "kept").mkdir()
        (tmp_path / "kept" / "letter.txt").write_text("dear")
        with pytest.raises(BenchError, match="is not the result of a benchmark") as caught:
            writer.finish(header())
    assert names(tmp_path / "kept") == ["letter.txt"]
    assert f"the result is in {writer.folder}" in str(caught.value)
    assert read(writer.folder).requests == (request(),)


class Full:
    """A file on a full disk: it takes what fits."""

    def __init__(self, file, room: int) -> None:
        self._file, self._room = file, room

    def write(self, data: bytes) -> None:
        self._file.write(data[: self._room])
        self._file.flush()
        if len(data) > self._room:
            raise OSError(28, "No space left on device")

    def __getattr__(self, name):
        return getattr(self._file, name)


def test_a_full_disk_leaves_what_was_measured_before(tmp_path):
    with Writer(tmp_path / "kept", header()) as writer:
        writer.add(request(0), [a_round(0)])
        writer._requests = Full(writer._requests, 30)
        with pytest.raises(
            BenchError, match=r"No space left .*; what was measured until"
        ) as caught:
            writer.add(request(1), [a_round(1)])
    assert str(caught.value).endswith(f" is in {writer.folder}")
    assert read(writer.folder).requests == (request(0),)
    assert not read(writer.folder).header.complete
    with Writer(tmp_path / "other", header()) as writer:
        writer._rounds = Full(writer._rounds, 0)
        with pytest.raises(BenchError, match=r"free space$"):
            writer.add(request(0), [a_round(0)])
    assert not writer.folder.exists()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(BenchError, match=r"kept: cannot be written: .*; name another"):
        Writer(tmp_path / "file" / "kept", header())


@pytest.mark.parametrize(
    ("file", "line", "text", "said"),
    [
        ("requests.jsonl", 2, "{", r"requests\.jsonl, line 2: damaged: .*JSON"),
        ("rounds.jsonl", 3, '{"way": "auto"}', r"rounds\.jsonl, line 3: damaged: load: Field"),
        (
            "requests.jsonl",
            1,
            request(way="other").model_dump_json(),
            r"requests\.jsonl, line 1: way 'other' under load 0, expected one of the 2 ways",
        ),
        ("requests.jsonl", 2, request(load=1).model_dump_json(), "line 2: way 'auto' under load 1"),
        (
            "requests.jsonl",
            2,
            request(1).model_dump_json().replace("0.625", "2.5"),
            "line 2: damaged: .*times are out of order",
        ),
        (
            "requests.jsonl",
            2,
            request(1)
            .model_dump_json()
            .replace('"proposed_by_position":[', '"proposed_by_position":[1'),
            "line 2: damaged: .*other positions",
        ),
        (
            "requests.jsonl",
            2,
            request(1).model_dump_json().replace('"ended_s":1.0', '"ended_s":1e300'),
            "line 2: damaged: ended_s: ",
        ),
        ("bench.json", 1, "[", r"bench\.json: damaged"),
    ],
)
def test_damage_is_named_with_file_and_line(kept, file, line, text, said):
    lines = (kept / file).read_text().splitlines()
    lines[line - 1] = text
    (kept / file).write_text("\n".join(lines) + "\n")
    with pytest.raises(BenchError, match=said) as caught:
        read(kept)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "lines", "said"),
    [
        ("rounds.jsonl", 0, r"rounds\.jsonl: expected 1 rounds of request 0 .*, found 0"),
        ("requests.jsonl", 1, r"requests\.jsonl: expected request 1 \(auto, .*, found none"),
    ],
)
def test_a_file_that_was_cut_between_two_lines_is_not_whole(kept, file, lines, said):
    whole = (kept / file).read_bytes().splitlines(keepends=True)
    (kept / file).write_bytes(b"".join(whole[:lines]))
    with pytest.raises(BenchError, match=said):
        read(kept)


def test_what_a_crash_cut_is_read_up_to_its_last_whole_line(kept):
    (kept / "bench.json").write_text(header(complete=False).model_dump_json())
    data = (kept / "requests.jsonl").read_bytes()
    ends = data.index(b"\n") + 1
    for size in range(ends, len(data), 7):
        (kept / "requests.jsonl").write_bytes(data[:size])
        assert read(kept).requests == (request(0),)


def test_what_is_missing_is_named(kept, tmp_path):
    with pytest.raises(BenchError, match="expected the result of a benchmark, found no bench"):
        read(tmp_path)
    (kept / "rounds.jsonl").unlink()
    with pytest.raises(BenchError, match=r"rounds\.jsonl: cannot be read: No such file"):
        read(kept)


def test_a_result_of_a_newer_specedge_is_refused(kept):
    newer = header().model_copy(update={"schema_version": 9})
    (kept / "bench.json").write_text(newer.model_dump_json())
    with pytest.raises(BenchError, match="schema 9, this specedge reads up to 1"):
        read(kept)

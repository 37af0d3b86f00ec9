"""A page on disk: whole or not at all, and one line that says why not."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from specedge.errors import SpecedgeError
from specedge.report import write
from specedge.report.writing import check_place


def test_a_page_is_written_and_replaced_whole(tmp_path):
    path = tmp_path / "report.html"
    write(path, "first, long page ✓\n")
    write(path, "second ✓\n")
    assert path.read_bytes() == "second ✓\n".encode()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("failing", ["write_bytes", "replace"])
def test_a_failure_leaves_the_old_page_and_no_scratch(tmp_path, monkeypatch, failing):
    path = tmp_path / "report.html"
    write(path, "old")

    def full(self, *args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, failing, full)
    with pytest.raises(SpecedgeError, match=r"report\.html: cannot be written: No space left"):
        write(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_interrupting_leaves_the_old_page_and_no_scratch(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    write(path, "old")

    def interrupted(self, *args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("", "expected a file, found a folder; name a file in it"),
        ("missing/report.html", "there is no folder .*missing; make it first"),
        ("file/report.html", "there is no folder .*file; make it first"),
        ("x" * 300, "cannot be written: File name too long"),
    ],
)
def test_a_path_that_cannot_be_is_one_line(tmp_path, name, line):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecedgeError, match=line) as raised:
        write(tmp_path / name, "page")
    assert "\n" not in str(raised.value)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_link_that_leads_nowhere_is_one_line(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(SpecedgeError, match=r"loop: cannot be written: .*[Ll]oop"):
        check_place(tmp_path / "loop")
    (tmp_path / "link").symlink_to(tmp_path / "gone" / "report.html")
    with pytest.raises(SpecedgeError, match=r"link: there is no folder .*gone; make it first"):
        check_place(tmp_path / "link")


def test_a_folder_of_somebody_else_is_found_before_there_is_a_page(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append((path, mode)))
    with pytest.raises(SpecedgeError, match=r"report\.html: cannot be written: Permission denied"):
        check_place(tmp_path / "report.html")
    assert asked == [(tmp_path.resolve(), os.W_OK)]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    def refused(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_bytes", refused)
    with pytest.raises(SpecedgeError, match="cannot be written: Permission denied"):
        write(tmp_path / "report.html", "page")


def test_a_link_stays_a_link(tmp_path):
    real, link = tmp_path / "real.html", tmp_path / "link.html"
    real.write_text("old")
    link.symlink_to(real)
    write(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    write(pipe, "page")
    reader.join(5)
    assert got == ["page"]
    assert pipe.is_fifo()

"""The sandbox: whatever a model writes, the run ends soon, says how, and leaves nothing behind."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from specedge.errors import ProbeError
from specedge.gates import sandbox
from specedge.gates.sandbox import Limits, Ran, run

QUICK = Limits(cpu_seconds=1, seconds=20, file_bytes=1 << 16)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs the limits of POSIX")


def ran(source: str, limits: Limits = QUICK, **given: str) -> Ran:
    return run([("code", source)], given, limits)


def error(source: str, limits: Limits = QUICK) -> str:
    """What it raises; "" where nothing."""
    found = ran(source, limits)
    assert found.ok is (found.raised is None and not found.stopped)
    return "" if found.raised is None else str(found.raised)


def test_code_that_ends_is_ok_and_its_output_is_kept():
    found = ran("print('grüße', given)", given="日本")
    assert found == Ran(True, None, "", "grüße 日本\n")


def test_a_part_finds_the_names_of_those_before_it():
    assert run([("answer", "def f(): return 3"), ("tests", "assert f() == 3")]).ok


def test_code_can_say_that_it_is_not_ok():
    assert ran("ok = False") == Ran(False, None, "", "")


def test_an_exception_is_told_with_the_last_line_of_the_code_that_it_came_through():
    found = run(
        [("answer", "import json\n\ndef f(x):\n    return json.loads(x)"), ("tests", "\nf('{')")]
    ).raised
    assert found is not None
    assert (found.error, found.part, found.line) == ("JSONDecodeError", "answer", 4)
    assert "ValueError" in found.kinds
    wrong = run([("answer", "def f(): return 1"), ("tests", "x = 0\nassert f() == 2, 'two'")])
    assert wrong.raised is not None
    assert (str(wrong.raised), wrong.raised.part, wrong.raised.line) == (
        "AssertionError: two",
        "tests",
        2,
    )


def test_code_that_is_not_python_names_its_line():
    found = ran("x = 1\ndef f(:\n").raised
    assert found is not None
    assert (found.error, found.part, found.line) == ("SyntaxError", "code", 2)


def test_text_that_code_runs_by_exec_is_told_from_the_code():
    found = ran("exec('1 / 0')").raised
    assert found is not None
    assert (found.error, found.part) == ("ZeroDivisionError", "string")


def test_a_loop_without_end_is_stopped_by_its_processor_time():
    assert ran("while True: pass").stopped == "more than 1 s of processor time"


def test_a_sleeper_is_stopped_by_the_clock():
    source = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    began = time.monotonic()
    found = ran(source, Limits(seconds=2))
    assert time.monotonic() - began < 30
    assert found.stopped == "not done after 2 s"
    with pytest.raises(ProcessLookupError):
        os.kill(int(found.output), 0)


def test_filling_memory_raises_inside_and_harms_nobody():
    assert error("x = bytearray(4 << 30)") == "MemoryError"
    small = Limits(memory_bytes=128 << 20)
    assert error("x = []\nwhile True: x.append(bytearray(1 << 22))", small) == "MemoryError"


def test_no_process_can_be_started():
    assert error("import os\nwhile True: os.fork()").startswith("PermissionError")
    assert error("import subprocess; subprocess.run(['true'])").startswith("PermissionError")
    assert error("import os; os.system('true')").startswith("PermissionError")
    assert error("import multiprocessing as m; m.Pool(2)").startswith("PermissionError")


def test_no_other_process_can_be_ended():
    assert error("import os; os.kill(os.getppid(), 0)").startswith("PermissionError")


def test_output_without_end_is_cut():
    found = ran("while True: print('x' * 100)")
    assert found.raised is not None
    assert found.raised.error == "OSError"
    assert len(found.output) == 2000


def test_files_can_be_written_in_the_folder_of_the_run_only(tmp_path):
    outside = tmp_path / "outside.txt"
    outside.write_text("mine")
    inside = "open('a.txt', 'w').write('x'); import os; os.mkdir('d'); os.rename('a.txt', 'd/a')"
    assert error(f"{inside}; assert open('d/a').read() == 'x'") == ""
    for source in (
        f"open({str(outside)!r}, 'w')",
        f"open({str(outside)!r}, 'a')",
        f"import os; os.open({str(outside)!r}, os.O_RDWR)",
        f"import os; os.remove({str(outside)!r})",
        f"import pathlib; pathlib.Path({str(outside)!r}).rename('here')",
        f"import os; os.mkdir({str(tmp_path / 'new')!r})",
        f"import os; os.symlink({str(tmp_path)!r}, 'door'); open('door/new', 'w')",
    ):
        assert error(source).startswith("PermissionError"), source
    assert outside.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["outside.txt"]


def test_temporary_files_lie_in_that_folder_too():
    source = "import os, tempfile\nwith tempfile.NamedTemporaryFile() as f: name = f.name\n"
    assert error(f"{source}assert os.path.dirname(name) == os.getcwd()") == ""


def test_a_file_cannot_grow_beyond_its_limit():
    assert error("f = open('a', 'wb')\nwhile True: f.write(bytes(1 << 12))").startswith("OSError")


def test_there_is_no_network():
    for source in (
        "import socket; socket.create_connection(('127.0.0.1', 9), 1)",
        "import socket; socket.getaddrinfo('localhost', 80)",
        "import urllib.request as u; u.urlopen('http://127.0.0.1:9')",
    ):
        assert "the sandbox has no network" in error(source), source


def test_asyncio_works_though_there_is_no_network():
    assert error("import asyncio\nasync def f(): return 3\nassert asyncio.run(f()) == 3") == ""


def test_input_finds_nobody():
    assert error("input('name? ')").startswith("EOFError")
    assert error("import os; os.lseek(0, 0, 0); assert os.read(0, 1) == b''") == ""


def test_what_stands_under_the_main_guard_does_not_run():
    assert ran("if __name__ == '__main__':\n    input()").ok


def test_a_dataclass_with_written_annotations_works():
    source = "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int' = 1\n"
    assert ran(f"{source}assert A().x == 1").ok


def test_leaving_is_not_passing():
    assert error("import sys; sys.exit(0)") == "SystemExit: 0"
    assert ran("import os; os._exit(0)").stopped == "left the process with status 0"
    assert not ran("import os; os._exit(0)").ok


def test_a_crash_is_told_by_its_signal():
    assert ran("import ctypes; ctypes.string_at(0)").stopped == "killed by signal 11"


def test_recursion_without_end_raises_inside():
    assert error("def f(): return f()\nf()").startswith("RecursionError")


def test_the_environment_and_the_packages_of_this_process_stay_outside(monkeypatch):
    monkeypatch.setenv("SECRET", "s3cret")
    assert error("import os; assert 'SECRET' not in os.environ and 'PATH' not in os.environ") == ""
    assert error("import numpy").startswith("ModuleNotFoundError")


def test_the_folder_of_a_run_is_empty_and_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = ran("import os; assert os.listdir() == []; open('a', 'w'); print(os.getcwd())")
    assert found.ok
    assert Path(found.output.strip()).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_limits_cannot_be_raised_again():
    source = "import resource as r; r.setrlimit(r.RLIMIT_CPU, (r.RLIM_INFINITY,) * 2)"
    assert error(source).startswith("PermissionError")


def test_a_system_without_limits_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(sandbox.os, "name", "nt")
    why = sandbox.unavailable()
    monkeypatch.undo()
    assert "POSIX" in why
    monkeypatch.setattr(sandbox, "unavailable", lambda: why)
    with pytest.raises(ProbeError, match=r"^sandbox: .*; use tasks with `expect` only$"):
        run([("code", "x = 1")])


def test_a_python_that_cannot_be_started_is_told_in_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox.sys, "executable", str(tmp_path / "none"))
    with pytest.raises(ProbeError, match=r"^sandbox: cannot be started: No such file"):
        run([("code", "x = 1")])

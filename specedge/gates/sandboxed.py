"""What runs inside the sandbox: a script of the standard library alone, started by `sandbox`.

stdin holds the job and is then empty; stdout takes the verdict, and what the job prints goes to
stderr. The job is {"parts": [[name, source], ...], "given": {name: text}, "limits": {...}}; the
verdict is {"ok": bool, "raised": null | {...}}, see `sandbox.Ran`. Without a verdict the code has
ended the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import types
from collections.abc import Callable
from typing import Any

MODULE = "answer"  # not __main__: what stands under that guard asks for input
EXEC = "<string>"  # what exec() calls a text that was given no name
MOST_CHARACTERS = 300

PROCESSES = frozenset(
    f"os.{name}" for name in ("exec", "fork", "forkpty", "kill", "killpg", "posix_spawn", "system")
) | {"subprocess.Popen", "pty.spawn", "resource.setrlimit", "resource.prlimit"}
CHANGES = frozenset(
    f"os.{name}"
    for name in (
        *("chmod", "chown", "link", "mkdir", "remove", "rename", "rmdir", "symlink", "truncate"),
        *("utime", "setxattr", "removexattr", "chflags"),
    )
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def limit(limits: dict[str, int]) -> None:
    """Ask the system to stop this process beyond these; what a system lacks is left to the clock.

    Nothing that root runs is held by the limit on processes: there, the guard alone refuses them.
    """
    import resource

    for name, most in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is None:
            continue
        # SIGXCPU is sent at the soft limit, SIGKILL at the hard one
        hard = most + 1 if name == "CPU" else most
        try:
            resource.setrlimit(kind, (most, hard))
        except (OSError, ValueError):  # macOS has no limit on address space
            continue


def guard(folder: str) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that refuses the network, processes, and changes outside `folder`."""

    def inside(path: object) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return True  # a descriptor that is open already
        real = os.path.realpath(os.fsdecode(path))
        return real == os.devnull or os.path.commonpath([real, folder]) == folder

    def local_socket(event: str, args: tuple[Any, ...]) -> bool:
        """Made, not connected: asyncio wakes itself up by a pair of them."""
        return event == "socket.__new__" and args[1] == getattr(socket, "AF_UNIX", None)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if flags & WRITING and not inside(path):
                raise PermissionError(f"the sandbox refuses to write {str(path)!r}")
        elif event in PROCESSES:
            raise PermissionError(f"the sandbox refuses {event}")
        elif event in CHANGES:
            if not all(map(inside, args)):
                raise PermissionError(f"the sandbox refuses {event} outside its folder")
        elif event.startswith("socket.") and not local_socket(event, args):
            raise PermissionError("the sandbox has no network")

    return hook


def execute(parts: list[tuple[str, str]], given: dict[str, str]) -> dict[str, Any]:
    """Run each part after the other in one module that has the names of `given`, and `ok`."""
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module  # dataclasses look their module up
    names = vars(module)
    names.update(given, ok=True)
    for name, source in parts:
        try:
            exec(compile(source, f"<{name}>", "exec", dont_inherit=True), names)
        except BaseException as error:  # SystemExit too: an answer must not end its own test
            return {"ok": False, "raised": raised(error, name, [f"<{part}>" for part, _ in parts])}
    return {"ok": bool(names.get("ok")), "raised": None}


def raised(error: BaseException, running: str, files: list[str]) -> dict[str, Any]:
    """The exception, and the last line of the job's own that it came through."""
    part, line = running, None
    if isinstance(error, SyntaxError) and error.filename in (*files, EXEC):
        part, line = error.filename.strip("<>"), error.lineno
    else:
        trace = error.__traceback__
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            if file in files or file == EXEC:
                part, line = file.strip("<>"), trace.tb_lineno
            trace = trace.tb_next
    attribute_of = getattr(error, "obj", None) if isinstance(error, AttributeError) else None
    return {
        "error": type(error).__name__,
        "kinds": [kind.__name__ for kind in type(error).__mro__],
        "said": " ".join(str(error).split())[:MOST_CHARACTERS],
        "part": part,
        "line": line,
        "attribute_of": type(attribute_of).__name__ if isinstance(error, AttributeError) else "",
    }


def main() -> None:
    job = json.loads(sys.stdin.buffer.read())
    verdict = os.dup(1)
    os.dup2(2, 1)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    limit(job["limits"])
    sys.addaudithook(guard(os.path.realpath(os.getcwd())))
    said = execute([(name, source) for name, source in job["parts"]], job["given"])
    with contextlib.suppress(Exception):  # the code may have closed it, or filled it
        sys.stdout.flush()
    os.write(verdict, json.dumps(said).encode())
    os._exit(0)  # no thread of the answer keeps the process


if __name__ == "__main__":
    main()

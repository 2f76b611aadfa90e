# SPDX-License-Identifier: Apache-2.0
"""Python programs in processes of their own that need not import PyTorch or MindSpore first.

Importing PyTorch, and what its first optimizer imports, takes 3 s of a core, as MindSpore does.
Here one process imports what is installed of the two, and forks for each program: the program
finds arguments, environment, folder and streams as if Python had started it, and ends as it ends;
msprobe is not imported yet. Where a test is about the start of Python, the import of the framework
or options of the interpreter, use `subprocess`.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import IO, Any

_PRELOADED = ("torch", "torch._dynamo") if find_spec("torch") else ("mindspore",)
_NUMBER = struct.Struct("i")


class WarmProcess:
    """A program that was started; what it prints goes into files, so that it never waits.

    Attributes:
        pid: its process.
    """

    def __init__(
        self,
        *words: str | Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        text: str = "",
        stdin: int | None = None,
    ) -> None:
        """Start a program.

        Args:
            words: what follows ``python``: a script, ``-c`` and code, or ``-m`` and a module; then
                its arguments.
            cwd: its folder; None for that of this process.
            env: its environment; None for that of this process.
            text: what it reads from the standard input.
            stdin: a descriptor of its standard input, in place of a text.
        """
        self._words = [str(word) for word in words]
        self._out = tempfile.TemporaryFile("w+")  # noqa: SIM115 - read when the program has ended
        self._err = tempfile.TemporaryFile("w+")  # noqa: SIM115
        environment = dict(os.environ if env is None else env)
        self._numbers, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as order:
            given.write(text)
            json.dump([self._words, str(cwd or Path.cwd()), environment], order)
            for file in (given, order):
                file.seek(0)
            files = [given, self._out, self._err, order, theirs]
            descriptors = [file.fileno() for file in files]
            if stdin is not None:
                descriptors[0] = stdin
            socket.send_fds(_server(), [b"."], descriptors)
        self.pid = self._receive()

    def wait(self, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Return how it ended and what it printed.

        Raises:
            TimeoutExpired: it took too long, and was killed.
        """
        self._numbers.settimeout(timeout)
        try:
            code = self._receive()
        except TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
            code = None
        self._numbers.close()
        out, err = _content(self._out), _content(self._err)
        if code is None:
            raise subprocess.TimeoutExpired(self._words, timeout, out, err)
        return subprocess.CompletedProcess(self._words, code, out, err)

    def output(self) -> str:
        """Wait, and return what it printed to both streams, whether it ended in time or not."""
        try:
            done = self.wait()
        except subprocess.TimeoutExpired as late:
            return f"{late.stdout}{late.stderr}"
        return done.stdout + done.stderr

    def _receive(self) -> int:
        number: int = _NUMBER.unpack(self._numbers.recv(_NUMBER.size))[0]
        return number


class WarmWorker:
    """Takes the place of `subprocess.Popen` where `run_tasks` starts a process."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], stdin: int, **_: Any
    ) -> None:
        self._process = WarmProcess(*command[1:], env=env, stdin=stdin)
        self._code: int | None = None

    def wait(self) -> int:
        if self._code is None:
            self._code = self._process.wait().returncode
        return self._code

    def kill(self) -> None:
        if self._code is None:
            with suppress(ProcessLookupError):  # ended by itself
                os.kill(self._process.pid, signal.SIGKILL)


def run_warm(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; the arguments are those of `WarmProcess`."""
    return WarmProcess(*words, **options).wait()


def _content(file: IO[str]) -> str:
    with file:
        file.seek(0)
        return file.read()


@functools.cache
def _server() -> socket.socket:
    """Start the process that imports the framework; it ends when the socket is closed."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def _serve(requests: socket.socket) -> Callable[[], object]:
    """Fork for each request; return, in the forked process, what runs the program."""
    for name in _PRELOADED:
        importlib.import_module(name)
    gc.freeze()  # else each program's end goes through all of it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the keepers
    while True:
        _, files, *_ = socket.recv_fds(requests, 1, 5)
        if not files:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _program(files)
        for file in files:
            os.close(file)


def _program(files: list[int]) -> Callable[[], object]:
    """Fork once more: one process runs the program, one tells how it ended."""
    *streams, order, numbers = files
    pid = os.fork()
    if pid:
        os.write(numbers, _NUMBER.pack(pid))
        _, status = os.waitpid(pid, 0)
        os.write(numbers, _NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os._exit(0)
    os.close(numbers)
    for stream, file in enumerate(streams):
        os.dup2(file, stream)
        os.close(file)
    with os.fdopen(order) as opened:
        words, folder, environment = json.load(opened)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.orig_argv = [sys.executable, *words]
    sys.modules["numpy"].random.seed()  # Python's own is seeded anew after a fork, torch's is fixed
    return _prepared(words, folder, environment.get("PYTHONPATH", ""))


def _prepared(words: list[str], folder: str, search: str) -> Callable[[], object]:
    """Make ``__main__``, ``sys.argv`` and ``sys.path`` as Python makes them; return the rest."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
    first, *arguments = words
    further = [path for path in search.split(os.pathsep) if path]
    base = [path for path in sys.path[1:] if path not in further]
    if first == "-m":
        sys.argv, sys.path[:] = ["-m", *arguments[1:]], [folder, *further, *base]
        return functools.partial(runpy._run_module_as_main, arguments[0])  # type: ignore[attr-defined]
    if first == "-c":
        sys.argv, sys.path[:] = ["-c", *arguments[1:]], ["", *further, *base]
        code = compile(arguments[0], "<string>", "exec", dont_inherit=True)
    else:
        sys.argv, sys.path[:] = words, [str(Path(first).absolute().parent), *further, *base]
        main.__file__ = first
        code = compile(Path(first).read_bytes(), first, "exec", dont_inherit=True)
    return functools.partial(exec, code, main.__dict__)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))()
